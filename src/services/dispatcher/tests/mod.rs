//! The whole dispatcher over a real store, called as the transport would call it, in virtual time.

mod assignments;
mod nodes;
mod sessions;
mod status;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status};

use super::feed::Feed;
use super::*;
use crate::api::types::dispatcher_server::Dispatcher as DispatcherApi;
use crate::api::types::node_status::State as NodeState;
use crate::api::types::update_task_status_request::TaskStatusUpdate;
use crate::api::types::{
    AssignmentsMessage, AssignmentsRequest, Cluster, ClusterSpec, DispatcherConfig,
    HeartbeatRequest, Node, NodeDescription, NodeStatus, Peer, RootCa, SessionMessage,
    SessionRequest, Task, TaskState, TaskStatus, UpdateTaskStatusRequest,
};
use crate::identity::Caller;
use crate::services::keys::ensure_network_keys;
use crate::storage::testing::TestStore;
use crate::storage::{StoreError, StoreObject};

const CLUSTER: &str = "c1";
const LEADER: &str = "m1";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Settings under which a node may register as often as it likes.
fn unlimited() -> Settings {
    Settings {
        rate_limit_period: Duration::ZERO,
        ..Default::default()
    }
}

/// Repetitions of a test, scaled down for everyday runs.
fn scaled(count: usize) -> usize {
    let scale = std::env::var("SWARM_TEST_SCALE");
    let scale: f64 = scale.ok().and_then(|text| text.parse().ok()).unwrap_or(0.1);
    ((count as f64 * scale) as usize).max(1)
}

fn manager(node_id: &str, addr: &str) -> WeightedPeer {
    WeightedPeer {
        peer: Some(Peer {
            node_id: node_id.to_owned(),
            addr: addr.to_owned(),
        }),
        weight: MANAGER_WEIGHT,
    }
}

fn cluster() -> Cluster {
    let mut cluster = Cluster {
        id: CLUSTER.to_owned(),
        spec: Some(ClusterSpec::default()),
        root_ca: Some(RootCa {
            ca_cert: b"the root".to_vec(),
            ..Default::default()
        }),
        ..Default::default()
    };
    ensure_network_keys(&mut cluster);
    cluster
}

fn node(id: &str, state: NodeState) -> Node {
    Node {
        id: id.to_owned(),
        status: Some(NodeStatus {
            state: state as i32,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn task(id: &str, node_id: &str, state: TaskState) -> Task {
    Task {
        id: id.to_owned(),
        node_id: node_id.to_owned(),
        service_id: "s1".to_owned(),
        slot: 1,
        desired_state: TaskState::Running as i32,
        status: Some(TaskStatus {
            state: state as i32,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn described(hostname: &str) -> Option<NodeDescription> {
    Some(NodeDescription {
        hostname: hostname.to_owned(),
        ..Default::default()
    })
}

/// A request of a node that calls from `10.0.0.7`.
fn from<T>(node_id: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Caller {
        node_id: node_id.to_owned(),
        organization: CLUSTER.to_owned(),
        role: None,
        remote_addr: Some("10.0.0.7:40000".parse().unwrap()),
        forwarded_by: None,
        local: false,
    });
    request
}

#[track_caller]
fn refused<T>(result: Result<T, Status>, code: Code, text: &str) {
    let status = result.map(|_| ()).unwrap_err();
    assert_eq!((status.code(), status.message()), (code, text));
}

struct Leadership {
    cancel: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

/// A cluster with a store, a dispatcher and its surroundings.
struct World {
    store: TestStore,
    dispatcher: Dispatcher,
    managers: watch::Sender<Vec<WeightedPeer>>,
    leadership: Option<Leadership>,
}

impl World {
    /// A store with the cluster and these nodes; nobody leads.
    async fn new(settings: Settings, nodes: &[(&str, NodeState)]) -> World {
        World::over(TestStore::new(), settings, nodes).await
    }

    async fn over(store: TestStore, settings: Settings, nodes: &[(&str, NodeState)]) -> World {
        let managers = watch::Sender::new(vec![manager(LEADER, "10.0.0.1:2377")]);
        let world = World {
            dispatcher: Dispatcher::new(settings, managers.subscribe()),
            store,
            managers,
            leadership: None,
        };
        world.create(cluster()).await;
        for (id, state) in nodes {
            world.create(node(id, *state)).await;
        }
        world
    }

    /// The same, and the dispatcher leads.
    async fn leading(settings: Settings, nodes: &[(&str, NodeState)]) -> World {
        let mut world = World::new(settings, nodes).await;
        world.lead().await;
        world
    }

    fn start_term(&self) -> (Leadership, oneshot::Receiver<()>) {
        let cancel = CancellationToken::new();
        let term = Term {
            raft_term: 1,
            store: self.store.store(),
            cluster_id: CLUSTER.to_owned(),
            node_id: LEADER.to_owned(),
            cancel: cancel.clone(),
        };
        let (ready, loaded) = oneshot::channel();
        let task = tokio::spawn(self.dispatcher.run(term, Ready(ready)));
        (Leadership { cancel, task }, loaded)
    }

    async fn lead(&mut self) {
        let (leadership, loaded) = self.start_term();
        loaded.await.unwrap();
        self.leadership = Some(leadership);
    }

    async fn step_down(&mut self) {
        let leadership = self.leadership.take().unwrap();
        leadership.cancel.cancel();
        leadership.task.await.unwrap().unwrap();
    }

    async fn create<T: StoreObject>(&self, object: T) -> Arc<T> {
        let created = self.store.update(|tx| tx.create(object)).await;
        created.unwrap_or_else(|error: StoreError| panic!("{error}"))
    }

    /// Changes a stored object.
    async fn change<T: StoreObject>(&self, id: &str, change: impl FnOnce(&mut T) + Send) {
        let changed = self.store.update(|tx| {
            let mut object = T::clone(&*tx.get::<T>(id)?.unwrap());
            change(&mut object);
            tx.update(object)
        });
        changed
            .await
            .unwrap_or_else(|error: StoreError| panic!("{error}"));
    }

    async fn delete<T: StoreObject>(&self, id: &str) {
        let deleted = self.store.update(|tx| tx.delete::<T>(id)).await;
        deleted.unwrap_or_else(|error: StoreError| panic!("{error}"));
    }

    fn get<T: StoreObject>(&self, id: &str) -> Arc<T> {
        self.store.view(|tx| tx.get::<T>(id)).unwrap().unwrap()
    }

    fn node_status(&self, id: &str) -> (NodeState, String) {
        let status = self.get::<Node>(id).status.clone().unwrap();
        (status.state(), status.message)
    }

    fn task_state(&self, id: &str) -> TaskState {
        self.get::<Task>(id).status.as_ref().unwrap().state()
    }

    /// Number of the last change of anything.
    fn writes(&self) -> usize {
        self.store.proposer().history().len()
    }

    async fn session(
        &self,
        node_id: &str,
        session_id: &str,
        description: Option<NodeDescription>,
    ) -> Result<Feed<SessionMessage>, Status> {
        let request = SessionRequest {
            description,
            session_id: session_id.to_owned(),
        };
        let response = self.dispatcher.session(from(node_id, request)).await?;
        Ok(response.into_inner())
    }

    /// Registers a node and reads its first message.
    async fn register(&self, node_id: &str) -> (String, Feed<SessionMessage>) {
        let mut feed = self.session(node_id, "", None).await.unwrap();
        let first = next(&mut feed).await;
        (first.session_id, feed)
    }

    async fn beat(&self, node_id: &str, session_id: &str) -> Result<Duration, Status> {
        let request = HeartbeatRequest {
            session_id: session_id.to_owned(),
        };
        let response = self.dispatcher.heartbeat(from(node_id, request)).await?;
        let period = response.into_inner().period;
        Ok(crate::api::time::to_std_or_zero(period.as_ref()))
    }

    async fn assignments(
        &self,
        node_id: &str,
        session_id: &str,
    ) -> Result<Feed<AssignmentsMessage>, Status> {
        let request = AssignmentsRequest {
            session_id: session_id.to_owned(),
        };
        let response = self.dispatcher.assignments(from(node_id, request)).await?;
        Ok(response.into_inner())
    }

    async fn report(
        &self,
        node_id: &str,
        session_id: &str,
        updates: Vec<TaskStatusUpdate>,
    ) -> Result<(), Status> {
        let request = UpdateTaskStatusRequest {
            session_id: session_id.to_owned(),
            updates,
        };
        let response = self.dispatcher.update_task_status(from(node_id, request));
        response.await.map(drop)
    }
}

fn update(task_id: &str, state: TaskState) -> TaskStatusUpdate {
    TaskStatusUpdate {
        task_id: task_id.to_owned(),
        status: Some(TaskStatus {
            state: state as i32,
            message: "reported".to_owned(),
            ..Default::default()
        }),
    }
}

/// The next message of a stream that goes on.
async fn next<T>(feed: &mut Feed<T>) -> T {
    let message = tokio::time::timeout(seconds(60), feed.next()).await;
    message
        .expect("a message")
        .expect("a stream")
        .expect("no error")
}

/// Whether the stream has nothing to say for a while.
async fn silent<T>(feed: &mut Feed<T>, time: Duration) -> bool {
    tokio::time::timeout(time, feed.next()).await.is_err()
}

/// The error at the end of a stream, and what was sent before it.
async fn ending<T>(feed: &mut Feed<T>) -> (Vec<T>, Status) {
    let mut messages = Vec::new();
    loop {
        let item = tokio::time::timeout(seconds(1), feed.next()).await;
        match item.expect("an end within a second") {
            Some(Ok(message)) => messages.push(message),
            Some(Err(status)) => {
                assert!(feed.next().now_or_never().flatten().is_none());
                return (messages, status);
            }
            None => panic!("the stream ended without a reason"),
        }
    }
}
