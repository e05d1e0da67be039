//! `swarmmanager.v1.Admin`: what an operator asks one manager about itself.
//!
//! Served on the control socket only. `Status` needs no quorum and does not wait for the raft thread, so
//! it answers on the bad day too.

use crate::api::admin::admin_server::{Admin, AdminServer};
use crate::api::admin::{
    DataKeyRotation, MemberStatus, RotateDataKeyRequest, RotateDataKeyResponse, StatusRequest,
    StatusResponse,
};
use crate::identity::Caller;
use crate::raft::{Handle, MemberView};
use crate::services::rekey::Rekey;
use crate::storage::rotation::RotationProgress;
use crate::storage::{Store, Table};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tonic::{Request, Response, Status};

/// Serves `Admin` for a running manager.
#[derive(Clone)]
pub struct AdminService {
    parts: Arc<AdminParts>,
}

/// What the service reports on.
pub struct AdminParts {
    pub node_id: String,
    pub cluster_id: String,
    /// When the process started.
    pub started: Instant,
    pub state_dir: PathBuf,
    pub member: Handle,
    pub store: Store,
    pub rekey: Rekey,
}

impl AdminService {
    pub fn new(parts: AdminParts) -> AdminService {
        AdminService {
            parts: Arc::new(parts),
        }
    }

    pub fn server(&self) -> AdminServer<AdminService> {
        AdminServer::new(self.clone())
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        require_local(&request)?;
        let parts = self.parts.clone();
        let answer = tokio::task::spawn_blocking(move || parts.status());
        answer
            .await
            .map(Response::new)
            .map_err(|error| Status::internal(format!("collecting the status: {error}")))
    }

    async fn rotate_data_key(
        &self,
        request: Request<RotateDataKeyRequest>,
    ) -> Result<Response<RotateDataKeyResponse>, Status> {
        require_local(&request)?;
        let rekey = self.parts.rekey.clone();
        let failed = |error: &dyn std::fmt::Display| {
            Status::internal(format!("noting the exchange of the data key: {error}"))
        };
        tokio::task::spawn_blocking(move || rekey.request())
            .await
            .map_err(|error| failed(&error))?
            .map_err(|error| failed(&error))?;
        Ok(Response::new(RotateDataKeyResponse {}))
    }
}

fn require_local<T>(request: &Request<T>) -> Result<(), Status> {
    match Caller::of(request)?.local {
        true => Ok(()),
        false => Err(Status::permission_denied(
            "this call is only served on the manager's control socket",
        )),
    }
}

impl AdminParts {
    fn status(&self) -> StatusResponse {
        let raft = self.member.status();
        let leader = raft.members.iter().find(|member| member.leader);
        StatusResponse {
            node_id: self.node_id.clone(),
            cluster_id: self.cluster_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            is_leader: raft.is_leader,
            leader_raft_id: raft.leader.unwrap_or_default(),
            leader_node_id: leader.map(|m| m.node_id.clone()).unwrap_or_default(),
            leader_addr: leader.map(|m| m.addr.clone()).unwrap_or_default(),
            raft_id: raft.raft_id,
            term: raft.term,
            first_index: raft.first,
            last_index: raft.last,
            commit_index: raft.commit,
            // The member hears of it a little later than those whose writes it was.
            applied_index: self.store.applied(),
            members: raft.members.iter().map(member_status).collect(),
            object_counts: Table::ALL
                .into_iter()
                .map(|table| (table.name().to_owned(), self.store.len(table)))
                .collect(),
            uptime_seconds: self.started.elapsed().as_secs(),
            locked: false,
            data_dir_bytes: disk_usage(&self.state_dir),
            data_key_rotation: Some(data_key_rotation(&self.rekey.progress().borrow())),
        }
    }
}

fn data_key_rotation(progress: &RotationProgress) -> DataKeyRotation {
    DataKeyRotation {
        phase: progress.phase.name().to_owned(),
        key_id: progress.key.map(|key| key.to_string()).unwrap_or_default(),
        objects: progress.rows_total,
        rows_seen: progress.rows_seen,
        rows_resealed: progress.rows_resealed,
        entries: progress.entries,
        damaged: progress.damaged,
        damaged_named: progress.damaged_named.clone(),
    }
}

fn member_status(member: &MemberView) -> MemberStatus {
    MemberStatus {
        raft_id: member.raft_id,
        node_id: member.node_id.clone(),
        addr: member.addr.clone(),
        leader: member.leader,
        reachable: member.reachable,
        match_index: member.match_index,
    }
}

/// Bytes of disk taken by the files below `dir`. What vanishes meanwhile, or cannot be read, is left
/// out: files come and go while the manager works.
fn disk_usage(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => disk_usage(&entry.path()),
        // Blocks are counted in units of 512 bytes, whatever the file system's own size is.
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |m| m.blocks() * 512),
        _ => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_usage_counts_all_levels() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), vec![1; 10_000]).unwrap();
        assert!(disk_usage(dir.path()) >= 10_000);
        assert_eq!(disk_usage(&dir.path().join("missing")), 0);
    }
}
