//! How many tasks of a service there should be, run, and are done.

use std::collections::HashMap;

use tonic::Response;

use super::ControlService;
use super::error::Answer;
use crate::api::types::list_service_statuses_response::ServiceStatus;
use crate::api::types::service_spec::Mode;
use crate::api::types::*;
use crate::storage::{By, ReadTx};

impl ControlService {
    /// One status per requested ID, in the order of the request. Never fails for an ID: a service that
    /// is gone wants nothing.
    pub(super) async fn list_service_statuses(
        &self,
        request: ListServiceStatusesRequest,
    ) -> Answer<Response<ListServiceStatusesResponse>> {
        self.list(move |tx| {
            let mut known: HashMap<&str, ServiceStatus> = HashMap::new();
            let mut statuses = Vec::with_capacity(request.services.len());
            for id in &request.services {
                let status = match known.get(id.as_str()) {
                    Some(status) => status.clone(),
                    None => {
                        let status = status_of(tx, id)?;
                        known.insert(id, status.clone());
                        status
                    }
                };
                statuses.push(status);
            }
            Ok(ListServiceStatusesResponse { statuses })
        })
        .await
    }
}

/// Counts the tasks of a service one at a time, so that their number does not matter.
fn status_of(tx: &ReadTx, id: &str) -> Answer<ServiceStatus> {
    let service = tx.get::<Service>(id)?;
    let mode = service
        .as_ref()
        .and_then(|service| service.spec.as_ref()?.mode.as_ref());
    let job = service
        .as_ref()
        .and_then(|service| service.job_status.as_ref());
    let iteration = job.map(|job| job.job_iteration.unwrap_or_default());
    let mut status = ServiceStatus {
        service_id: id.to_owned(),
        desired_tasks: match mode {
            Some(Mode::Replicated(mode)) => mode.replicas,
            Some(Mode::ReplicatedJob(mode)) => mode.max_concurrent,
            _ => 0,
        },
        ..Default::default()
    };
    tx.each::<Task>(By::ServiceId(id.to_owned()), |task| {
        count(&mut status, mode, iteration, task);
    })?;
    Ok(status)
}

/// Counts one task. Jobs count the tasks of their current iteration only.
fn count(status: &mut ServiceStatus, mode: Option<&Mode>, iteration: Option<Version>, task: &Task) {
    if iteration.is_some() && task.job_iteration != iteration {
        return;
    }
    let state = task.status.as_ref().map_or(0, |status| status.state);
    if state == TaskState::Running as i32 {
        status.running_tasks += 1;
    }
    if iteration.is_some() && state == TaskState::Complete as i32 {
        status.completed_tasks += 1;
    }
    if is_desired(mode, task.desired_state, state) {
        status.desired_tasks += 1;
    }
}

/// Whether a task counts as desired, in the modes where tasks and not the spec decide how many.
fn is_desired(mode: Option<&Mode>, desired: i32, state: i32) -> bool {
    let (running, complete) = (TaskState::Running as i32, TaskState::Complete as i32);
    match mode {
        Some(Mode::Global(_)) => desired == running,
        Some(Mode::GlobalJob(_)) => {
            desired == running || (desired == complete && state != complete)
        }
        _ => false,
    }
}
