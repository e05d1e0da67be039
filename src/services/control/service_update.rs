//! Changing a service, or going back to what it was before (spec 05 section 6.3).
//!
//! Until rolling updates exist, a change of what the tasks are or of the endpoint is refused: nothing
//! would carry it out. Replicas, labels and policies can be changed.

use std::mem;
use std::sync::Arc;

use tonic::Response;

use super::error::{Answer, ControlError};
use super::ports::PortClaim;
use super::service::{check_ingress, check_networks, check_references, claim_ports};
use super::{
    ControlService, detached, fetch_mut, known_enum, present, required, service_check, set_version,
};
use crate::api::time;
use crate::api::types::update_service_request::Rollback;
use crate::api::types::update_status::UpdateState;
use crate::api::types::*;
use crate::storage::Tx;

/// What a caller wants a service to become.
struct Change {
    id: String,
    version: Version,
    spec: ServiceSpec,
    rollback: bool,
}

impl ControlService {
    pub(super) async fn update_service(
        &self,
        request: UpdateServiceRequest,
    ) -> Answer<Response<UpdateServiceResponse>> {
        required(&request.service_id)?;
        let version = present(request.service_version)?;
        let spec = present(request.spec)?;
        service_check::check(&spec)?;
        let rollback = known_enum::<Rollback>("rollback", request.rollback)?;
        let change = Change {
            id: request.service_id,
            version,
            spec,
            rollback: rollback == Rollback::Previous,
        };
        let store = self.store.clone();
        let ports = self.ports.clone();
        let service = detached(async move {
            let claim = claim_ports(ports, &change.id, change.spec.endpoint.as_ref()).await?;
            store.update(|tx: &mut Tx| update(tx, change, &claim)).await
        })
        .await?;
        let service = Some(Arc::unwrap_or_clone(service));
        Ok(Response::new(UpdateServiceResponse { service }))
    }
}

fn update(tx: &mut Tx, change: Change, ports: &PortClaim) -> Answer<Arc<Service>> {
    check_networks(tx, &change.spec)?;
    let mut service = fetch_mut::<Service>(tx, "service", &change.id)?;
    let old = service.spec.clone().unwrap_or_default();
    if change.spec.endpoint.is_some() && change.spec.endpoint != old.endpoint {
        ports.check(tx)?;
    }
    check_network_migration(&old, &change.spec)?;
    check_references(tx, &change.spec)?;
    check_unchangeable(&old, &change.spec)?;
    if let Some(job) = &mut service.job_status {
        let iteration = job.job_iteration.unwrap_or_default().index + 1;
        job.job_iteration = Some(Version { index: iteration });
        job.last_execution = Some(time::now());
    }
    if change.rollback {
        roll_back(&mut service)?;
    } else {
        service.previous_spec = service.spec.replace(change.spec);
        service.previous_spec_version = service.spec_version.replace(change.version);
        service.update_status = None;
    }
    let new = service.spec.clone().unwrap_or_default();
    check_ingress(tx, &new)?;
    check_available(&old, &new)?;
    set_version(&mut service, change.version);
    Ok(tx.update(service)?)
}

/// The deprecated list of networks may only be moved into the task spec.
fn check_network_migration(old: &ServiceSpec, new: &ServiceSpec) -> Answer<()> {
    let task_networks = |spec: &ServiceSpec| {
        spec.task
            .as_ref()
            .map(|task| task.networks.clone())
            .unwrap_or_default()
    };
    let in_use = !(old.networks.is_empty() && new.networks.is_empty());
    if in_use && old.networks != new.networks && task_networks(old) == task_networks(new) {
        return Err(ControlError::Unimplemented(
            "networks must be migrated to TaskSpec before being changed".into(),
        ));
    }
    Ok(())
}

/// What no update can change.
fn check_unchangeable(old: &ServiceSpec, new: &ServiceSpec) -> Answer<()> {
    let kind = |spec: &ServiceSpec| spec.mode.as_ref().map(mem::discriminant);
    if kind(old) != kind(new) {
        return Err(ControlError::Unimplemented(
            "service mode change is not allowed".into(),
        ));
    }
    let name = |spec: &ServiceSpec| spec.annotations.clone().unwrap_or_default().name;
    if name(old) != name(new) {
        return Err(ControlError::Unimplemented(
            "renaming services is not supported".into(),
        ));
    }
    Ok(())
}

/// Swaps what the service is with what it was before.
fn roll_back(service: &mut Service) -> Answer<()> {
    if service.previous_spec.is_none() {
        return Err(ControlError::FailedPrecondition(format!(
            "service {} does not have a previous spec",
            service.id
        )));
    }
    mem::swap(&mut service.spec, &mut service.previous_spec);
    mem::swap(
        &mut service.spec_version,
        &mut service.previous_spec_version,
    );
    service.update_status = Some(UpdateStatus {
        state: UpdateState::RollbackStarted as i32,
        message: "manually requested rollback".into(),
        started_at: Some(time::now()),
        ..Default::default()
    });
    Ok(())
}

/// Refuses changes that only a rolling update can carry out.
fn check_available(old: &ServiceSpec, new: &ServiceSpec) -> Answer<()> {
    if old.task.clone().unwrap_or_default() != new.task.clone().unwrap_or_default() {
        return Err(ControlError::not_available(
            "changing the task template of a service",
        ));
    }
    if old.endpoint.clone().unwrap_or_default() != new.endpoint.clone().unwrap_or_default() {
        return Err(ControlError::not_available(
            "changing the endpoint of a service",
        ));
    }
    Ok(())
}
