//! Nodes: reading, changing what is desired of one, removing one.
//!
//! Nodes come into being by joining, never here. Changing the role only states the wish; the role
//! manager carries it out. A wish that would cost the group its quorum is refused (spec 05 section 4).

use std::sync::Arc;

use tonic::Response;

use super::error::{Answer, ControlError};
use super::filter::{NameFilters, any_of, enum_matches, first_of, labels_match};
use super::members::{self, Member};
use super::orphans::{self, Orphaned};
use super::{
    ControlService, detached, fetch, fetch_mut, known_enum, present, required, set_version,
};
use crate::api::time;
use crate::api::types::*;
use crate::identity::cert::Certificate;
use crate::identity::pem;
use crate::storage::{By, Tx};

/// How long a revoked certificate stays listed after it has expired by itself, in seconds: 7 days, to
/// be safe from clocks that are wrong.
const REVOCATION_GRACE_SECONDS: i64 = 7 * 86_400;

impl ControlService {
    pub(super) async fn get_node(
        &self,
        request: GetNodeRequest,
    ) -> Answer<Response<GetNodeResponse>> {
        let id = required(&request.node_id)?;
        let members = self.members.members().unwrap_or_default();
        self.read(|tx| {
            let mut node = fetch::<Node>(tx, "node", id)?;
            members::show(&members, &mut node);
            Ok(GetNodeResponse { node: Some(node) })
        })
        .await
    }

    pub(super) async fn list_nodes(
        &self,
        request: ListNodesRequest,
    ) -> Answer<Response<ListNodesResponse>> {
        let filters = request.filters.unwrap_or_default();
        let members = self.members.members().unwrap_or_default();
        let mut found = self.collector();
        self.list(move |tx| {
            let names =
                NameFilters::new(&filters.names, &filters.name_prefixes, &filters.id_prefixes)?;
            let roles = filters
                .roles
                .iter()
                .filter_map(|role| NodeRole::try_from(*role).ok());
            let by_role = any_of(roles.map(By::Role));
            let by_membership = any_of(filters.memberships.iter().copied().map(By::Membership));
            let [by_name, by_name_prefix, by_id_prefix] = names.selectors();
            let by = [
                by_name,
                by_name_prefix,
                by_id_prefix,
                by_role,
                by_membership,
            ];
            for node in tx.find::<Node>(first_of(by))? {
                if matches(&names, &filters, &node) {
                    let mut node = Arc::unwrap_or_clone(node);
                    members::show(&members, &mut node);
                    found.push(node)?;
                }
            }
            Ok(ListNodesResponse {
                nodes: found.objects,
            })
        })
        .await
    }

    pub(super) async fn update_node(
        &self,
        request: UpdateNodeRequest,
    ) -> Answer<Response<UpdateNodeResponse>> {
        required(&request.node_id)?;
        let version = present(request.node_version)?;
        let spec = present(request.spec)?;
        let desired_role = check_spec(&spec)?;
        let members = self.members.members();
        let store = self.store.clone();
        let node = detached(async move {
            let update = |tx: &mut Tx| -> Answer<Arc<Node>> {
                let mut node = fetch_mut::<Node>(tx, "node", &request.node_id)?;
                if is_desired_manager(&node) && desired_role == NodeRole::Worker {
                    check_demotion(tx, &node, members.as_deref())?;
                }
                set_version(&mut node, version);
                node.spec = Some(spec);
                Ok(tx.update(node)?)
            };
            store.update(update).await
        })
        .await?;
        let node = Some(Arc::unwrap_or_clone(node));
        Ok(Response::new(UpdateNodeResponse { node }))
    }

    pub(super) async fn remove_node(
        &self,
        request: RemoveNodeRequest,
    ) -> Answer<Response<RemoveNodeResponse>> {
        required(&request.node_id)?;
        let members = self.members.members();
        let store = self.store.clone();
        detached(async move {
            let id = request.node_id.as_str();
            let orphaned = store
                .update(|tx: &mut Tx| remove(tx, id, request.force, members.as_deref()))
                .await?;
            if orphaned == Orphaned::TooMany {
                orphans::orphan_in_batches(&store, id).await?;
            }
            Ok(())
        })
        .await?;
        Ok(Response::new(RemoveNodeResponse {}))
    }
}

/// The values of a spec that must be known ones; returns the desired role.
fn check_spec(spec: &NodeSpec) -> Answer<NodeRole> {
    known_enum::<node_spec::Membership>("membership", spec.membership)?;
    known_enum::<node_spec::Availability>("availability", spec.availability)?;
    known_enum::<NodeRole>("desired role", spec.desired_role)
}

fn is_desired_manager(node: &Node) -> bool {
    let desired = node.spec.as_ref().map_or(0, |spec| spec.desired_role);
    desired == NodeRole::Manager as i32
}

fn no_raft_access() -> ControlError {
    ControlError::precondition(
        "the members of the raft group are not known: this manager is not one of them",
    )
}

fn check_demotion(tx: &Tx, node: &Node, members: Option<&[Member]>) -> Answer<()> {
    let managers = tx.find::<Node>(By::Role(NodeRole::Manager))?;
    if managers.len() == 1 && managers.iter().all(|manager| manager.id == node.id) {
        return Err(ControlError::precondition(
            "attempting to demote the last manager of the swarm",
        ));
    }
    let members = members.ok_or_else(no_raft_access)?;
    let member = members::of_node(members, &node.id).ok_or_else(|| ControlError::NotFound {
        kind: "raft member of node",
        id: node.id.clone(),
    })?;
    members::check_removal(members, member.raft_id).map_err(|shortage| {
        ControlError::FailedPrecondition(format!(
            "can't remove member from the raft: this would result in a loss of quorum \
             (without it {} managers are reachable, {} are needed)",
            shortage.reachable, shortage.needed
        ))
    })
}

/// Removes a node: revokes its certificate, orphans its tasks, deletes it.
fn remove(tx: &mut Tx, id: &str, force: bool, members: Option<&[Member]>) -> Answer<Orphaned> {
    let node = fetch_mut::<Node>(tx, "node", id)?;
    if is_desired_manager(&node) {
        let members = members.ok_or_else(no_raft_access)?;
        if members::of_node(members, id).is_some() {
            return Err(ControlError::FailedPrecondition(format!(
                "node {id} is a cluster manager and is a member of the raft cluster. \
                 It must be demoted to worker before removal"
            )));
        }
    }
    let state = node.status.as_ref().map_or(0, |status| status.state);
    if !force && state == node_status::State::Ready as i32 {
        return Err(ControlError::FailedPrecondition(format!(
            "node {id} is not down and can't be removed"
        )));
    }
    let mut cluster = default_cluster(tx)?;
    let revoked = BlacklistedCertificate {
        expiry: certificate_expiry(&node),
    };
    cluster
        .blacklisted_certificates
        .insert(id.to_owned(), revoked);
    purge_expired_revocations(&mut cluster);
    tx.update(cluster)?;
    let orphaned = orphans::orphan_now(tx, id)?;
    tx.delete::<Node>(id)?;
    Ok(orphaned)
}

fn default_cluster(tx: &Tx) -> Answer<Cluster> {
    let clusters = tx.find::<Cluster>(By::Name(super::cluster::DEFAULT_NAME.into()))?;
    match <[Arc<Cluster>; 1]>::try_from(clusters) {
        Ok([only]) => Ok(Arc::unwrap_or_clone(only)),
        Err(found) => Err(ControlError::Internal(format!(
            "expected exactly one cluster object named default, found {}",
            found.len()
        ))),
    }
}

/// When a node's certificate expires, if it has one that can be read.
fn certificate_expiry(node: &Node) -> Option<prost_types::Timestamp> {
    let pem = node.certificate.as_ref()?.certificate.as_slice();
    let certificate = Certificate::from_der(&pem::first(pem)?.der).ok()?;
    Some(prost_types::Timestamp {
        seconds: certificate.not_after,
        nanos: 0,
    })
}

/// Drops revocations of certificates that have been expired for long; those without a known expiry stay.
pub(super) fn purge_expired_revocations(cluster: &mut Cluster) {
    let keep_after = time::now().seconds - REVOCATION_GRACE_SECONDS;
    cluster.blacklisted_certificates.retain(|_, revoked| {
        revoked
            .expiry
            .is_none_or(|expiry| expiry.seconds > keep_after)
    });
}

fn matches(names: &NameFilters<'_>, filters: &list_nodes_request::Filters, node: &Node) -> bool {
    let description = node.description.as_ref();
    let engine = description.and_then(|description| description.engine.as_ref());
    let spec = node.spec.as_ref();
    let node_labels = spec.and_then(|s| s.annotations.as_ref()).map(|a| &a.labels);
    let wants_name = !(names.names.is_empty() && names.name_prefixes.is_empty());
    let hostname = description.map_or("", |description| &description.hostname);
    (description.is_some() || !wants_name)
        && names.all_match(&node.id, hostname)
        && labels_match(&filters.labels, engine.map(|engine| &engine.labels))
        && labels_match(&filters.node_labels, node_labels)
        && enum_matches(&filters.roles, node.role)
        && enum_matches(&filters.memberships, spec.map_or(0, |spec| spec.membership))
}
