//! The gRPC face of the dispatcher: checks who calls and hands the call to the running term.
//!
//! The node is always the one of the caller's certificate, never one that a message names.

use std::sync::Arc;

use prost::Message as _;
use tonic::{Request, Response, Status};

use super::active::ActiveTerm;
use super::counters::add;
use super::feed::Feed;
use super::live_session::OpenStream;
use super::refusal::Refusal;
use super::registration::Arrival;
use super::settings::STATUS_BYTES_MAX;
use super::writes::TaskReport;
use super::{Dispatcher, assignment_stream, session_stream, task_stream};
use crate::api::time;
use crate::api::types::dispatcher_server::Dispatcher as DispatcherApi;
use crate::api::types::update_task_status_request::TaskStatusUpdate;
use crate::api::types::{
    AssignmentsMessage, AssignmentsRequest, HeartbeatRequest, HeartbeatResponse, SessionMessage,
    SessionRequest, Task, TaskState, TaskStatus, TasksMessage, TasksRequest,
    UpdateTaskStatusRequest, UpdateTaskStatusResponse, UpdateVolumeStatusRequest,
    UpdateVolumeStatusResponse,
};
use crate::identity::Caller;

/// The identified node behind a request.
fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = Caller::of(request)?;
    if caller.node_id.is_empty() {
        return Err(Refusal::Anonymous.into());
    }
    Ok(caller)
}

impl ActiveTerm {
    /// A place for one more stream in the caller's session.
    fn open_stream(&self, node_id: &str, session_id: &str) -> Result<OpenStream, Refusal> {
        let session = self.registry.lock().session(node_id, session_id)?;
        session.open_stream(self.settings.session_streams_max)
    }

    /// Picks the reports that are to be written. What lacks a status, or speaks of a task that is
    /// gone, is passed over, so that an agent does not repeat it for ever; one task of another node
    /// spoils them all.
    fn select_reports(
        &self,
        node_id: &Arc<str>,
        updates: Vec<TaskStatusUpdate>,
    ) -> Result<Vec<TaskReport>, Refusal> {
        self.store.view(|tx| {
            let mut reports = Vec::with_capacity(updates.len());
            for TaskStatusUpdate { task_id, status } in updates {
                let Some(status) = status else { continue };
                check_status(&task_id, &status)?;
                let Some(task) = tx.get::<Task>(&task_id)? else {
                    continue;
                };
                if task.node_id.as_str() != &**node_id {
                    return Err(Refusal::ForeignTask);
                }
                reports.push(TaskReport {
                    node_id: Arc::clone(node_id),
                    task_id,
                    status,
                });
            }
            Ok(reports)
        })
    }

    async fn update_task_status(
        &self,
        node_id: &str,
        request: UpdateTaskStatusRequest,
    ) -> Result<(), Refusal> {
        let session = self.registry.lock().session(node_id, &request.session_id)?;
        let reports = self.select_reports(&session.node_id, request.updates)?;
        let count = reports.len();
        let queued = async {
            tokio::select! {
                biased;
                end = session.ended() => Err(end.refusal()),
                queued = self.writer.report_tasks(reports) => queued,
            }
        };
        self.tracker.track_future(queued).await?;
        add(&self.counters.task_reports, count);
        Ok(())
    }
}

fn check_status(task_id: &str, status: &TaskStatus) -> Result<(), Refusal> {
    if TaskState::try_from(status.state).is_err() {
        return Err(Refusal::UnknownTaskState {
            task_id: task_id.to_owned(),
            state: status.state,
        });
    }
    let bytes = status.encoded_len();
    if bytes > STATUS_BYTES_MAX {
        return Err(Refusal::TooLarge {
            what: format!("status of task {task_id}"),
            bytes,
            bytes_max: STATUS_BYTES_MAX,
        });
    }
    Ok(())
}

#[tonic::async_trait]
impl DispatcherApi for Dispatcher {
    type SessionStream = Feed<SessionMessage>;
    type TasksStream = Feed<TasksMessage>;
    type AssignmentsStream = Feed<AssignmentsMessage>;

    async fn session(
        &self,
        request: Request<SessionRequest>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let caller = caller(&request)?;
        let active = self.active()?;
        let request = request.into_inner();
        let arrival = {
            let managers = active.managers.borrow();
            Arrival::new(&caller, request.session_id, request.description, &managers)?
        };
        let session = active.open_session(arrival).await?;
        let stream = session.open_stream(active.settings.session_streams_max)?;
        Ok(Response::new(session_stream::start(&active, stream).await?))
    }

    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        let caller = caller(&request)?;
        let active = self.active()?;
        let period = active.choose_period();
        let expiry = active.expiry(period);
        let session_id = &request.get_ref().session_id;
        active.with_registry(|registry| registry.beat(&caller.node_id, session_id, expiry))?;
        add(&active.counters.beats, 1);
        Ok(Response::new(HeartbeatResponse {
            period: Some(time::from_std(period)),
        }))
    }

    async fn update_task_status(
        &self,
        request: Request<UpdateTaskStatusRequest>,
    ) -> Result<Response<UpdateTaskStatusResponse>, Status> {
        let caller = caller(&request)?;
        let active = self.active()?;
        let request = request.into_inner();
        active.update_task_status(&caller.node_id, request).await?;
        Ok(Response::new(UpdateTaskStatusResponse {}))
    }

    async fn update_volume_status(
        &self,
        request: Request<UpdateVolumeStatusRequest>,
    ) -> Result<Response<UpdateVolumeStatusResponse>, Status> {
        let caller = caller(&request)?;
        let active = self.active()?;
        let session_id = &request.get_ref().session_id;
        active
            .registry
            .lock()
            .session(&caller.node_id, session_id)?;
        Err(Refusal::NoVolumes.into())
    }

    async fn tasks(
        &self,
        request: Request<TasksRequest>,
    ) -> Result<Response<Self::TasksStream>, Status> {
        let caller = caller(&request)?;
        let active = self.active()?;
        let stream = active.open_stream(&caller.node_id, &request.get_ref().session_id)?;
        Ok(Response::new(task_stream::start(&active, stream)?))
    }

    async fn assignments(
        &self,
        request: Request<AssignmentsRequest>,
    ) -> Result<Response<Self::AssignmentsStream>, Status> {
        let caller = caller(&request)?;
        let active = self.active()?;
        let stream = active.open_stream(&caller.node_id, &request.get_ref().session_id)?;
        Ok(Response::new(assignment_stream::start(&active, stream)?))
    }
}
