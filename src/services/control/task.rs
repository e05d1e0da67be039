//! Tasks: reading and deleting. They are made by orchestrators only (spec 05 section 5).

use std::collections::HashMap;
use std::sync::Arc;

use tonic::Response;

use super::error::Answer;
use super::filter::{NameFilters, Values, any_of, enum_matches, first_of, labels_match};
use super::{ControlService, detached, fetch, fetch_mut, required};
use crate::api::naming::task_name;
use crate::api::types::*;
use crate::services::task_diff;
use crate::storage::{By, ReadTx, Tx};

impl ControlService {
    pub(super) async fn get_task(
        &self,
        request: GetTaskRequest,
    ) -> Answer<Response<GetTaskResponse>> {
        let id = required(&request.task_id)?;
        let task = |tx: &ReadTx| fetch::<Task>(tx, "task", id);
        self.read(|tx| {
            Ok(GetTaskResponse {
                task: Some(task(tx)?),
            })
        })
        .await
    }

    pub(super) async fn list_tasks(
        &self,
        request: ListTasksRequest,
    ) -> Answer<Response<ListTasksResponse>> {
        let filters = request.filters.unwrap_or_default();
        let mut found = self.collector();
        self.list(move |tx| {
            let filter = TaskFilter::new(&filters)?;
            let mut services = HashMap::new();
            // One at a time: most tasks of a large table do not match.
            let mut outcome = Ok(());
            tx.each::<Task>(filter.by(), |task| {
                if outcome.is_ok() && filter.matches(task) {
                    outcome =
                        is_wanted(tx, &filters, &mut services, task).and_then(
                            |wanted| match wanted {
                                true => found.push((**task).clone()),
                                false => Ok(()),
                            },
                        );
                }
            })?;
            outcome?;
            Ok(ListTasksResponse {
                tasks: found.objects,
            })
        })
        .await
    }

    pub(super) async fn remove_task(
        &self,
        request: RemoveTaskRequest,
    ) -> Answer<Response<RemoveTaskResponse>> {
        required(&request.task_id)?;
        let store = self.store.clone();
        detached(async move {
            let id = request.task_id.as_str();
            let remove = |tx: &mut Tx| -> Answer<(Task, bool)> {
                let task = fetch_mut::<Task>(tx, "task", id)?;
                let has_service = tx.get::<Service>(&task.service_id)?.is_some();
                tx.delete::<Task>(id)?;
                Ok((task, has_service))
            };
            let (task, has_service) = store.update(remove).await?;
            if has_service {
                let service = task.service_id.as_str();
                tracing::warn!(
                    target: "audit",
                    task = id,
                    service,
                    "task of a living service removed by request; the service will replace it"
                );
            }
            Ok(())
        })
        .await?;
        Ok(Response::new(RemoveTaskResponse {}))
    }
}

/// The runtime of a task or service as filters name it; `None` if it has none.
pub(super) fn runtime_name(spec: Option<&TaskSpec>) -> Option<String> {
    Some(match spec?.runtime.as_ref()? {
        task_spec::Runtime::Container(_) => "container".to_owned(),
        task_spec::Runtime::Attachment(_) => "attachment".to_owned(),
        task_spec::Runtime::Generic(generic) => generic.kind.to_lowercase(),
    })
}

struct TaskFilter<'a> {
    filters: &'a list_tasks_request::Filters,
    names: NameFilters<'a>,
    services: Values<'a>,
    runtimes: Values<'a>,
    nodes: Values<'a>,
}

impl<'a> TaskFilter<'a> {
    fn new(filters: &'a list_tasks_request::Filters) -> Answer<TaskFilter<'a>> {
        Ok(TaskFilter {
            filters,
            names: NameFilters::new(&filters.names, &filters.name_prefixes, &filters.id_prefixes)?,
            services: Values::new(&filters.service_ids)?,
            runtimes: Values::new(&filters.runtimes)?,
            nodes: Values::new(&filters.node_ids)?,
        })
    }

    fn by(&self) -> By {
        let [by_name, by_name_prefix, by_id_prefix] = self.names.selectors();
        let desired = &self.filters.desired_states;
        let desired = desired
            .iter()
            .filter_map(|state| TaskState::try_from(*state).ok());
        first_of([
            by_name,
            by_name_prefix,
            by_id_prefix,
            self.services.by(By::ServiceId),
            self.runtimes.by(By::Runtime),
            self.nodes.by(By::NodeId),
            any_of(desired.map(By::DesiredState)),
        ])
    }

    fn matches(&self, task: &Task) -> bool {
        let labels = task.service_annotations.as_ref().map(|a| &a.labels);
        let wants_name = !(self.names.names.is_empty() && self.names.name_prefixes.is_empty());
        let name = if wants_name {
            task_name(task)
        } else {
            String::new()
        };
        let runtime_matches = self.runtimes.is_empty()
            || runtime_name(task.spec.as_ref()).is_some_and(|name| self.runtimes.contain(&name));
        self.names.all_match(&task.id, &name)
            && self.services.contain(&task.service_id)
            && runtime_matches
            && self.nodes.contain(&task.node_id)
            && enum_matches(&self.filters.desired_states, task.desired_state)
            && labels_match(&self.filters.labels, labels)
    }
}

/// Whether a task passes the one filter that needs other objects.
fn is_wanted(
    tx: &ReadTx,
    filters: &list_tasks_request::Filters,
    services: &mut HashMap<String, Option<Arc<Service>>>,
    task: &Task,
) -> Answer<bool> {
    Ok(!filters.up_to_date || is_up_to_date(tx, services, task)?)
}

/// Whether the task's service exists and would not replace the task. Services are looked up once.
fn is_up_to_date(
    tx: &ReadTx,
    services: &mut HashMap<String, Option<Arc<Service>>>,
    task: &Task,
) -> Answer<bool> {
    let service = match services.get(&task.service_id) {
        Some(known) => known.clone(),
        None => {
            let service = tx.get::<Service>(&task.service_id)?;
            services.insert(task.service_id.clone(), service.clone());
            service
        }
    };
    let Some(service) = service else {
        return Ok(false);
    };
    let node = match task.node_id.as_str() {
        "" => None,
        id => tx.get::<Node>(id)?,
    };
    Ok(!task_diff::is_dirty(&service, task, node.as_deref()))
}
