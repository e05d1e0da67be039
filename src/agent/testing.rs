//! Doubles for the agent's tests: a manager in memory, and an executor that runs nothing.

use super::connect::{DialError, Dialer};
use super::executor::{Controller, Executor, ExecutorError, TaskError};
use crate::api::types::dispatcher_server::{Dispatcher, DispatcherServer};
use crate::api::types::log_broker_server::{LogBroker, LogBrokerServer};
use crate::api::types::*;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::DuplexStream;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::transport::{Channel, Endpoint as TonicEndpoint};
use tonic::{Request, Response, Status, Streaming};

/// What an executor double saw, in order.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

/// Tasks run until they are told to end; `exit` ends one.
#[derive(Default)]
pub(crate) struct TestExecutor {
    pub(crate) log: Log,
    pub(crate) description: Mutex<NodeDescription>,
    exits: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// Removals hang while this is set.
    pub(crate) stuck: AtomicBool,
    /// The driver of this task panics.
    pub(crate) panicking: Mutex<Option<String>>,
}

impl TestExecutor {
    pub(crate) fn new() -> Arc<TestExecutor> {
        Arc::default()
    }

    fn note(&self, text: String) {
        self.log.lock().push(text);
    }

    pub(crate) fn taken_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock())
    }

    /// Ends a running task with code 0.
    pub(crate) fn exit(&self, id: &str) {
        self.exit_of(id).notify_one();
    }

    fn exit_of(&self, id: &str) -> Arc<Notify> {
        self.exits.lock().entry(id.to_owned()).or_default().clone()
    }
}

/// So that the executor can be shared between a test and the agent.
pub(crate) struct Shared(pub(crate) Arc<TestExecutor>);

impl Executor for Shared {
    fn describe(&self) -> BoxFuture<'_, Result<NodeDescription, ExecutorError>> {
        Box::pin(std::future::ready(Ok(self.0.description.lock().clone())))
    }

    fn configure(&self, node: Arc<Node>) -> BoxFuture<'_, Result<(), ExecutorError>> {
        self.0.note(format!("configure {}", node.id));
        Box::pin(std::future::ready(Ok(())))
    }

    fn set_network_keys(
        &self,
        keys: Arc<Vec<EncryptionKey>>,
    ) -> BoxFuture<'_, Result<(), ExecutorError>> {
        self.0.note(format!("{} keys", keys.len()));
        Box::pin(std::future::ready(Ok(())))
    }

    fn controller(&self, task: Arc<Task>) -> BoxFuture<'_, Result<Arc<dyn Controller>, TaskError>> {
        if self.0.panicking.lock().as_deref() == Some(&task.id) {
            panic!("as the test wants it");
        }
        let controller = TestController {
            executor: self.0.clone(),
            exit: self.0.exit_of(&task.id),
            id: task.id.clone(),
        };
        Box::pin(std::future::ready(Ok(
            Arc::new(controller) as Arc<dyn Controller>
        )))
    }

    fn retain(&self, task_ids: BTreeSet<String>) -> BoxFuture<'_, ()> {
        let ids: Vec<String> = task_ids.into_iter().collect();
        self.0.note(format!("retain {}", ids.join(" ")));
        Box::pin(std::future::ready(()))
    }
}

struct TestController {
    executor: Arc<TestExecutor>,
    exit: Arc<Notify>,
    id: String,
}

impl TestController {
    fn done(&self, what: &str) -> BoxFuture<'_, Result<(), TaskError>> {
        self.executor.note(format!("{what} {}", self.id));
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Controller for TestController {
    fn update(&self, _task: Arc<Task>) -> BoxFuture<'_, Result<(), TaskError>> {
        self.done("update")
    }
    fn prepare(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        self.done("prepare")
    }
    fn start(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        self.done("start")
    }
    fn wait(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async {
            self.exit.notified().await;
            Ok(())
        })
    }
    fn shutdown(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        self.done("shutdown")
    }
    fn terminate(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        self.done("terminate")
    }
    fn remove(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async {
            if self.executor.stuck.load(Ordering::Acquire) {
                std::future::pending::<()>().await;
            }
            self.done("remove").await
        })
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// What a manager double is asked.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    Session {
        id: String,
        description: Box<NodeDescription>,
    },
    Heartbeat(String),
    Assignments(String),
    Statuses(Vec<(String, TaskStatus)>),
    Listen,
}

/// How a manager double answers a call.
#[derive(Clone, Default)]
pub(crate) enum Mood {
    #[default]
    Well,
    /// With this error.
    Bad(Status),
    /// Never.
    Silent,
}

type Answers<T> = mpsc::UnboundedSender<Result<T, Status>>;

#[derive(Default)]
struct State {
    sessions: u32,
    session: Mood,
    heartbeat: Mood,
    statuses: Mood,
    /// `None`: the log broker is not implemented.
    logs: Option<Mood>,
    period: Option<prost_types::Duration>,
    /// The open streams, newest last.
    session_streams: Vec<Answers<SessionMessage>>,
    assignment_streams: Vec<Answers<AssignmentsMessage>>,
    log_streams: Vec<Answers<SubscriptionMessage>>,
    /// What each first session message says besides the session.
    message: SessionMessage,
    /// Sent at once to whoever asks for assignments.
    assignments: Option<AssignmentsMessage>,
}

/// A manager in memory.
#[derive(Clone)]
pub(crate) struct FakeManager {
    state: Arc<Mutex<State>>,
    asked: mpsc::UnboundedSender<Asked>,
    connections: mpsc::Sender<Result<DuplexStream, std::io::Error>>,
    refuse: Arc<Mutex<Option<DialError>>>,
}

impl FakeManager {
    /// A manager, and what it is asked. Its log broker is not implemented, and nothing is assigned.
    pub(crate) fn start() -> (FakeManager, mpsc::UnboundedReceiver<Asked>) {
        let (asked, questions) = mpsc::unbounded_channel();
        let (connections, incoming) = mpsc::channel(1);
        let manager = FakeManager {
            state: Arc::default(),
            asked,
            connections,
            refuse: Arc::default(),
        };
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(DispatcherServer::new(manager.clone()))
                .add_service(LogBrokerServer::new(manager.clone()))
                .serve_with_incoming(ReceiverStream::new(incoming)),
        );
        manager.set_assignments(Some(complete(Vec::new())));
        (manager, questions)
    }

    pub(crate) fn set_session(&self, mood: Mood) {
        self.state.lock().session = mood;
    }

    pub(crate) fn set_heartbeat(&self, mood: Mood) {
        self.state.lock().heartbeat = mood;
    }

    pub(crate) fn set_statuses(&self, mood: Mood) {
        self.state.lock().statuses = mood;
    }

    pub(crate) fn set_logs(&self, mood: Option<Mood>) {
        self.state.lock().logs = mood;
    }

    pub(crate) fn set_period(&self, seconds: i64) {
        self.state.lock().period = Some(prost_types::Duration { seconds, nanos: 0 });
    }

    pub(crate) fn set_message(&self, message: SessionMessage) {
        self.state.lock().message = message;
    }

    pub(crate) fn set_assignments(&self, message: Option<AssignmentsMessage>) {
        self.state.lock().assignments = message;
    }

    /// Connections fail like this until further notice.
    pub(crate) fn refuse(&self, error: Option<DialError>) {
        *self.refuse.lock() = error;
    }

    /// Says something on the newest session stream.
    pub(crate) fn say(&self, message: Result<SessionMessage, Status>) {
        let state = self.state.lock();
        let _ = state.session_streams.last().unwrap().send(message);
    }

    /// Assigns on the newest stream of assignments.
    pub(crate) fn assign(&self, message: AssignmentsMessage) {
        let state = self.state.lock();
        let _ = state.assignment_streams.last().unwrap().send(Ok(message));
    }

    /// Ends the newest session stream without a word.
    pub(crate) fn hang_up(&self) {
        self.state.lock().session_streams.pop();
    }

    async fn mood(mood: Mood) -> Result<(), Status> {
        match mood {
            Mood::Well => Ok(()),
            Mood::Bad(status) => Err(status),
            Mood::Silent => std::future::pending().await,
        }
    }

    fn note(&self, asked: Asked) {
        let _ = self.asked.send(asked);
    }
}

/// Dials manager doubles by address.
#[derive(Default)]
pub(crate) struct FakeDialer(pub(crate) BTreeMap<String, FakeManager>);

impl Dialer for FakeDialer {
    fn dial(&self, addr: &str) -> BoxFuture<'static, Result<Channel, DialError>> {
        let manager = self.0.get(addr).cloned();
        Box::pin(async move {
            let manager = manager.ok_or_else(|| DialError::Failed("nobody there".to_owned()))?;
            if let Some(error) = manager.refuse.lock().clone() {
                return Err(error);
            }
            Ok(manager.channel().await)
        })
    }
}

impl FakeManager {
    /// A connection to this manager.
    pub(crate) async fn channel(&self) -> Channel {
        let connections = self.connections.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let connections = connections.clone();
            async move {
                let (ours, theirs) = tokio::io::duplex(1 << 16);
                let gone = |_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                connections.send(Ok(theirs)).await.map_err(gone)?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(ours))
            }
        });
        TonicEndpoint::from_static("http://manager")
            .connect_with_connector(connector)
            .await
            .unwrap()
    }
}

fn stream<T>() -> (Answers<T>, UnboundedReceiverStream<Result<T, Status>>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, UnboundedReceiverStream::new(receiver))
}

#[tonic::async_trait]
impl Dispatcher for FakeManager {
    type SessionStream = UnboundedReceiverStream<Result<SessionMessage, Status>>;
    type TasksStream = UnboundedReceiverStream<Result<TasksMessage, Status>>;
    type AssignmentsStream = UnboundedReceiverStream<Result<AssignmentsMessage, Status>>;

    async fn session(
        &self,
        request: Request<SessionRequest>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let request = request.into_inner();
        self.note(Asked::Session {
            id: request.session_id.clone(),
            description: Box::new(request.description.unwrap_or_default()),
        });
        let mood = self.state.lock().session.clone();
        Self::mood(mood).await?;
        let mut state = self.state.lock();
        state.sessions += 1;
        let session_id = match request.session_id.as_str() {
            "" => format!("session-{}", state.sessions),
            known => known.to_owned(),
        };
        let (sender, receiver) = stream();
        let first = SessionMessage {
            session_id,
            ..state.message.clone()
        };
        let _ = sender.send(Ok(first));
        state.session_streams.push(sender);
        Ok(Response::new(receiver))
    }

    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        self.note(Asked::Heartbeat(request.into_inner().session_id));
        let (mood, period) = {
            let state = self.state.lock();
            (state.heartbeat.clone(), state.period)
        };
        Self::mood(mood).await?;
        Ok(Response::new(HeartbeatResponse { period }))
    }

    async fn update_task_status(
        &self,
        request: Request<UpdateTaskStatusRequest>,
    ) -> Result<Response<UpdateTaskStatusResponse>, Status> {
        let mood = self.state.lock().statuses.clone();
        let updates = request.into_inner().updates;
        self.note(Asked::Statuses(
            updates
                .into_iter()
                .map(|update| (update.task_id, update.status.unwrap_or_default()))
                .collect(),
        ));
        Self::mood(mood).await?;
        Ok(Response::new(UpdateTaskStatusResponse {}))
    }

    async fn update_volume_status(
        &self,
        _request: Request<UpdateVolumeStatusRequest>,
    ) -> Result<Response<UpdateVolumeStatusResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn tasks(
        &self,
        _request: Request<TasksRequest>,
    ) -> Result<Response<Self::TasksStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn assignments(
        &self,
        request: Request<AssignmentsRequest>,
    ) -> Result<Response<Self::AssignmentsStream>, Status> {
        self.note(Asked::Assignments(request.into_inner().session_id));
        let (sender, receiver) = stream();
        let mut state = self.state.lock();
        if let Some(message) = state.assignments.clone() {
            let _ = sender.send(Ok(message));
        }
        state.assignment_streams.push(sender);
        Ok(Response::new(receiver))
    }
}

#[tonic::async_trait]
impl LogBroker for FakeManager {
    type ListenSubscriptionsStream = UnboundedReceiverStream<Result<SubscriptionMessage, Status>>;

    async fn listen_subscriptions(
        &self,
        _request: Request<ListenSubscriptionsRequest>,
    ) -> Result<Response<Self::ListenSubscriptionsStream>, Status> {
        self.note(Asked::Listen);
        let mood = self.state.lock().logs.clone();
        match mood {
            None => Err(Status::unimplemented("no log broker")),
            Some(mood) => {
                Self::mood(mood).await?;
                let (sender, receiver) = stream();
                self.state.lock().log_streams.push(sender);
                Ok(Response::new(receiver))
            }
        }
    }

    async fn publish_logs(
        &self,
        _request: Request<Streaming<PublishLogsMessage>>,
    ) -> Result<Response<PublishLogsResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// A task with these states.
pub(crate) fn task(id: &str, desired: TaskState, state: TaskState) -> Task {
    Task {
        id: id.to_owned(),
        desired_state: desired as i32,
        status: Some(TaskStatus {
            state: state as i32,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A change that adds or updates a task.
pub(crate) fn put(task: Task) -> AssignmentChange {
    change(assignment::Item::Task(task), true)
}

/// A change that removes a task.
pub(crate) fn remove(id: &str) -> AssignmentChange {
    let task = Task {
        id: id.to_owned(),
        ..Default::default()
    };
    change(assignment::Item::Task(task), false)
}

pub(crate) fn change(item: assignment::Item, update: bool) -> AssignmentChange {
    AssignmentChange {
        assignment: Some(Assignment { item: Some(item) }),
        action: i32::from(!update),
    }
}

/// A complete list.
pub(crate) fn complete(changes: Vec<AssignmentChange>) -> AssignmentsMessage {
    AssignmentsMessage {
        r#type: assignments_message::Type::Complete as i32,
        applies_to: String::new(),
        results_in: "1".to_owned(),
        changes,
    }
}

/// A list of differences.
pub(crate) fn incremental(from: u32, changes: Vec<AssignmentChange>) -> AssignmentsMessage {
    AssignmentsMessage {
        r#type: assignments_message::Type::Incremental as i32,
        applies_to: from.to_string(),
        results_in: (from + 1).to_string(),
        changes,
    }
}
