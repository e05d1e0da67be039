//! One pass of the allocator: services first, then the tasks that can go on because of them.

use std::collections::BTreeSet;

use prost_types::Timestamp;

use super::inert::{self, ServiceNeed, UNSUPPORTED};
use super::{Pass, Passed};
use crate::api::types::{Endpoint, Service, Task, TaskStatus};
use crate::services::orchestrator::task::{self, COMPLETE, NEW, PENDING};
use crate::services::reconcile::{each_in_batches, read};
use crate::storage::{By, Store, StoreError, Tx};

/// Message of a task that has been allocated (spec 09 section 1).
const PENDING_MESSAGE: &str = "pending task scheduling";

/// Allocates what can be allocated. Everything is read again in the transaction that changes it.
pub async fn run(store: Store, pass: Pass) -> Result<Passed, StoreError> {
    let services: Vec<String> = pass.services.iter().cloned().collect();
    each_in_batches(&store, services, "allocate a service", |tx, id| {
        allocate_service(tx, id)
    })
    .await?;

    let mut tasks: BTreeSet<String> = pass.tasks.into_iter().collect();
    for service_id in pass.services {
        let by = By::ServiceId(service_id);
        let waiting = read(&store, move |view| {
            let mut waiting = Vec::new();
            view.each::<Task>(by, |task| {
                if task::observed(task) == NEW {
                    waiting.push(task.id.clone());
                }
            })?;
            Ok(waiting)
        });
        tasks.extend(waiting.await?);
    }
    let now = pass.now;
    let tasks: Vec<String> = tasks.into_iter().collect();
    let done = each_in_batches(&store, tasks, "allocate a task", move |tx, id| {
        allocate_task(tx, id, now)
    });
    let waited_for = done
        .await?
        .into_iter()
        .filter_map(|(_, waits)| waits.flatten());
    Ok(Passed {
        waited_for: waited_for.collect(),
    })
}

fn allocate_service(tx: &mut Tx, id: &str) -> Result<(), StoreError> {
    if let Some(stored) = tx.get::<Service>(id)?
        && let ServiceNeed::Endpoint(endpoint) = inert::service_need(&stored)
    {
        let mut service = Service::clone(&stored);
        service.endpoint = endpoint;
        tx.update(service)?;
    }
    Ok(())
}

/// What keeps a task from being scheduled.
enum Hindrance {
    Unsupported,
    /// Its service does not exist yet, or is not allocated.
    Service,
}

/// Lets a task go on if nothing hinders it, else says why. Yields the service that it waits for.
fn allocate_task(tx: &mut Tx, id: &str, now: Timestamp) -> Result<Option<String>, StoreError> {
    let Some(stored) = tx.get::<Task>(id)? else {
        return Ok(None);
    };
    if task::observed(&stored) != NEW || stored.desired_state > COMPLETE {
        return Ok(None);
    }
    let waits = (!stored.service_id.is_empty()).then(|| stored.service_id.clone());
    match endpoint_for(tx, &stored)? {
        Ok(endpoint) => {
            task::edit(tx, id, |task| {
                make_pending(task, endpoint, now);
                true
            })?;
            Ok(None)
        }
        Err(Hindrance::Service) => Ok(waits),
        Err(Hindrance::Unsupported) => {
            task::edit(tx, id, |task| explain(task, now))?;
            Ok(waits)
        }
    }
}

/// The endpoint that a task takes over from its service, if it has one.
fn endpoint_for(tx: &Tx, task: &Task) -> Result<Result<Option<Endpoint>, Hindrance>, StoreError> {
    if inert::is_attached(task) {
        return Ok(Err(Hindrance::Unsupported));
    }
    if task.service_id.is_empty() {
        return Ok(Ok(None));
    }
    let Some(service) = tx.get::<Service>(&task.service_id)? else {
        return Ok(Err(Hindrance::Service));
    };
    Ok(match inert::service_need(&service) {
        ServiceNeed::Nothing => Ok(service.endpoint.clone()),
        ServiceNeed::Endpoint(_) => Err(Hindrance::Service),
        ServiceNeed::Unsupported => Err(Hindrance::Unsupported),
    })
}

fn make_pending(task: &mut Task, endpoint: Option<Endpoint>, now: Timestamp) {
    if endpoint.is_some() {
        task.endpoint = endpoint;
    }
    task.status = Some(TaskStatus {
        state: PENDING,
        timestamp: Some(now),
        message: PENDING_MESSAGE.to_owned(),
        ..TaskStatus::default()
    });
}

/// Says once why a task stays as it is.
fn explain(task: &mut Task, now: Timestamp) -> bool {
    let status = task.status.get_or_insert_default();
    if status.err == UNSUPPORTED {
        return false;
    }
    status.err = UNSUPPORTED.to_owned();
    status.timestamp = Some(now);
    true
}
