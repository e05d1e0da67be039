//! What a state directory holds, for people who look at it when no manager does.
//!
//! Opens both engines for reading only (see [`ReadOnlyEngines`]) and changes nothing. A damaged part is
//! reported as such, the others are still shown; every row is opened with its seal checked, and one that
//! cannot be read is counted and named, never skipped in silence. Listings hold IDs, names and states
//! only: no secret, no key, no environment.

use super::engine::{Applied, Db};
use super::engines::{EngineOptions, OpenError, ReadOnlyEngines};
use super::log::scan::{self, Queue};
use super::log::{LogPosition, Overlay, RaftLog};
use super::seal::DekRing;
use super::state_dir::StateDir;
use super::{AnyObject, StoreError, Table, check, rows};
use crate::api::types::{NodeRole, TaskState};
use serde::Serialize;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// A directory that is being looked at.
pub struct Inspection {
    dir: StateDir,
    engines: ReadOnlyEngines,
}

/// Everything but the objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub state_dir: String,
    pub verdict: Verdict,
    pub log: Part<LogReport>,
    pub database: Part<DbReport>,
}

/// Whether a manager would start here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub usable: bool,
    /// What a start would do, or why it would refuse.
    pub text: String,
}

/// A part of the directory, or why it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part<T> {
    Read(T),
    Unreadable(String),
}

/// The raft log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogReport {
    /// `None` if the log belongs to no member yet.
    pub member: Option<MemberReport>,
    pub term: u64,
    /// Raft ID that got this member's vote in this term; 0 for none.
    pub vote: u64,
    /// Highest entry known to be committed. Written lazily: more may be.
    pub commit: u64,
    pub first: u64,
    pub last: u64,
    pub last_term: u64,
    pub files: usize,
    pub bytes: u64,
    /// ID of the data key that sealed the newest entry.
    pub key_id: String,
}

/// The member that the log belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemberReport {
    pub raft_id: u64,
    pub node_id: String,
    pub cluster_id: String,
    pub address: String,
    /// RFC 3339.
    pub created: String,
}

/// The database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DbReport {
    pub path: String,
    pub layout: u32,
    /// Release that created it.
    pub created_by: String,
    pub applied: u64,
    pub applied_term: u64,
    pub bytes: u64,
    pub members: Vec<GroupMember>,
    /// Raft IDs that left the group for ever.
    pub removed: Vec<u64>,
}

/// A member of the raft group at the applied index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupMember {
    pub raft_id: u64,
    pub node_id: String,
    pub address: String,
    pub voter: bool,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectLine {
    pub id: String,
    /// Empty if it has none.
    pub name: String,
    /// What matters most of its state.
    pub detail: String,
    /// The stamp that an update must repeat.
    pub version: u64,
    /// RFC 3339; empty if unknown.
    pub updated: String,
}

impl Inspection {
    /// Opens the raft data of a directory that no node is using.
    pub fn open(
        dir: StateDir,
        ring: &DekRing,
        options: &EngineOptions,
    ) -> Result<Inspection, OpenError> {
        let engines = ReadOnlyEngines::open(&dir, ring, options)?;
        Ok(Inspection { dir, engines })
    }

    pub fn report(&self) -> Report {
        Report {
            state_dir: self.dir.path().display().to_string(),
            verdict: self.verdict(),
            log: part(&self.engines.log, |log| Ok(self.log_report(log))),
            database: part(&self.engines.db, |db| self.db_report(db)),
        }
    }

    fn verdict(&self) -> Verdict {
        let text = match (&self.engines.verdict, &self.engines.log) {
            (Err(error), _) => {
                return Verdict {
                    usable: false,
                    text: error.to_string(),
                };
            }
            (Ok(_), Ok(log)) if log.identity().is_none() => {
                "empty: no manager has used this directory yet".into()
            }
            (Ok(Applied { index, .. }), Ok(log)) => match log.last_index().saturating_sub(*index) {
                0 => format!("whole: a start goes on behind entry {index}"),
                more => format!(
                    "whole: a start goes on behind entry {index}; {more} more in the log, all readable"
                ),
            },
            (Ok(_), Err(error)) => error.to_string(),
        };
        Verdict { usable: true, text }
    }

    fn log_report(&self, log: &RaftLog<Overlay>) -> LogReport {
        let state = log.hard_state();
        let LogPosition { index, term } = log.last();
        let files = [Queue::Append, Queue::Rewrite].map(|queue| scan::list(log.dir(), queue));
        LogReport {
            member: log.identity().map(|identity| MemberReport {
                raft_id: identity.raft_id,
                node_id: identity.node_id.clone(),
                cluster_id: identity.cluster_id.clone(),
                address: identity.address.clone(),
                created: rfc3339(identity.created_unix_s as i64),
            }),
            term: state.term,
            vote: state.vote,
            commit: state.commit,
            first: log.first_index(),
            last: index,
            last_term: term,
            files: files.iter().flatten().map(Vec::len).sum(),
            bytes: log.size_bytes(),
            key_id: log
                .key_of_last()
                .map_or_else(String::new, |id| id.to_string()),
        }
    }

    fn db_report(&self, db: &Arc<Db>) -> Result<DbReport, String> {
        let text = |error: StoreError| error.to_string();
        let applied = db.applied().map_err(|error| error.to_string())?;
        let membership = rows::read_membership(&db.view()).map_err(text)?;
        let members = membership.members.iter().map(|member| GroupMember {
            raft_id: member.raft_id,
            node_id: member.node_id.clone(),
            address: member.addr.clone(),
            voter: membership.conf_state.voters.contains(&member.raft_id),
        });
        Ok(DbReport {
            path: db.path().display().to_string(),
            layout: db.schema().version,
            created_by: db.schema().created_by.clone(),
            applied: applied.index,
            applied_term: applied.term,
            bytes: bytes_below(db.path()),
            members: members.collect(),
            removed: membership.removed,
        })
    }

    /// Whether there is a database to look at, or why it cannot be opened.
    pub fn database(&self) -> Result<(), StoreError> {
        match &self.engines.db {
            Ok(_) => Ok(()),
            Err(error) => Err(StoreError::Disk(error.to_string())),
        }
    }

    /// Calls `f` with every object of a table in the order of their IDs; with the reason in the place of
    /// one that cannot be read. Holds one object at a time. The outer error ends the table.
    pub fn each_object(
        &self,
        table: Table,
        mut f: impl FnMut(Result<AnyObject, StoreError>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let Ok(db) = &self.engines.db else {
            return Ok(());
        };
        let view = db.view();
        let mut stored = view.rows_with_prefix(rows::family_of(table), &[table as u8])?;
        while let Some((key, sealed)) = stored.next_row()? {
            let object = rows::open(db, key, sealed).and_then(|row| row.decode(key));
            if f(object).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Recounts all indexes from the rows; an error if there is no database to look at.
    pub fn check(&self) -> Result<check::Report, StoreError> {
        match &self.engines.db {
            Ok(db) => check::check(&db.view()),
            Err(error) => Err(StoreError::Disk(error.to_string())),
        }
    }

    /// Number of rows of a table, readable or not.
    pub fn count(&self, table: Table) -> Result<u64, StoreError> {
        let Ok(db) = &self.engines.db else {
            return Ok(0);
        };
        let view = db.view();
        let mut stored = view.rows_with_prefix(rows::family_of(table), &[table as u8])?;
        let mut count = 0;
        while stored.next_row()?.is_some() {
            count += 1;
        }
        Ok(count)
    }
}

/// The line of an object in a listing.
pub fn line(object: &AnyObject) -> ObjectLine {
    let meta = object.meta();
    let updated = meta
        .and_then(|meta| meta.updated_at.as_ref())
        .map(|time| rfc3339(time.seconds));
    ObjectLine {
        id: object.id().to_owned(),
        name: object.name().unwrap_or_default().into_owned(),
        detail: detail(object),
        version: meta
            .and_then(|meta| meta.version.as_ref())
            .map_or(0, |version| version.index),
        updated: updated.unwrap_or_default(),
    }
}

/// The few words that tell most about an object.
fn detail(object: &AnyObject) -> String {
    match object {
        AnyObject::Node(node) => {
            let role = enum_name(NodeRole::try_from(node.role).map(|role| role.as_str_name()));
            let status = node.status.as_ref();
            let state = status.map_or("unknown", |status| status.state().as_str_name());
            let address = status.map_or("", |status| status.addr.as_str());
            format!("{role} {state} {address}").trim_end().to_owned()
        }
        AnyObject::Task(task) => {
            let observed = task.status.as_ref().map_or(0, |status| status.state);
            let name =
                |state| enum_name(TaskState::try_from(state).map(|state| state.as_str_name()));
            let node = match task.node_id.as_str() {
                "" => String::new(),
                id => format!(" on {id}"),
            };
            format!(
                "{}, wanted {}{node}",
                name(observed),
                name(task.desired_state)
            )
        }
        AnyObject::Service(service) => {
            let mode = service.spec.as_ref().and_then(|spec| spec.mode.as_ref());
            mode.map_or_else(String::new, service_mode)
        }
        AnyObject::Secret(secret) => {
            let spec = secret.spec.as_ref();
            format!("{} bytes", spec.map_or(0, |spec| spec.data.len()))
        }
        AnyObject::Config(config) => {
            let spec = config.spec.as_ref();
            format!("{} bytes", spec.map_or(0, |spec| spec.data.len()))
        }
        AnyObject::Resource(resource) => resource.kind.clone(),
        AnyObject::Network(network) => network
            .driver_state
            .as_ref()
            .map_or_else(String::new, |driver| driver.name.clone()),
        AnyObject::Cluster(_) | AnyObject::Extension(_) | AnyObject::Volume(_) => String::new(),
    }
}

fn service_mode(mode: &crate::api::types::service_spec::Mode) -> String {
    use crate::api::types::service_spec::Mode;
    match mode {
        Mode::Replicated(replicated) => format!("replicated {}", replicated.replicas),
        Mode::Global(_) => "global".into(),
        Mode::ReplicatedJob(job) => format!("replicated job {}", job.total_completions),
        Mode::GlobalJob(_) => "global job".into(),
    }
}

fn enum_name<E>(name: Result<&'static str, E>) -> &'static str {
    name.unwrap_or("unknown")
}

fn part<T, R>(
    opened: &Result<T, OpenError>,
    report: impl FnOnce(&T) -> Result<R, String>,
) -> Part<R> {
    let read = match opened {
        Ok(opened) => report(opened),
        Err(error) => Err(error.to_string()),
    };
    match read {
        Ok(read) => Part::Read(read),
        Err(reason) => Part::Unreadable(reason),
    }
}

fn rfc3339(unix_s: i64) -> String {
    time::OffsetDateTime::from_unix_timestamp(unix_s)
        .ok()
        .and_then(|time| {
            time.format(&time::format_description::well_known::Rfc3339)
                .ok()
        })
        .unwrap_or_default()
}

/// Bytes of all files in a directory.
fn bytes_below(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(fs::Metadata::is_file)
        .map(|metadata| metadata.len())
        .sum()
}
