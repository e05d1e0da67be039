//! The dispatcher during one leadership: its state, and the tasks that keep it going.
//!
//! It starts closed. First it takes every node of the store into the registry and writes all that
//! are not down as unknown; only then are calls let in. It ends as a whole: sessions are told,
//! waiting calls return, queues and timers are dropped, and nothing of it can act afterwards.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::counters::{Counters, add};
use super::registry::{Fired, Registry};
use super::settings::{Settings, choose_period, heartbeat_period};
use super::writer::Writer;
use super::writes::NodeUpdate;
use crate::api::time;
use crate::api::types::node_status::State as NodeState;
use crate::api::types::{Cluster, EncryptionKey, Node, WeightedPeer};
use crate::services::leader::Term;
use crate::storage::{
    Action, By, Change, Interest, RecvError, Store, StoreError, Subscription, Table,
};

/// Message of a node after a change of leadership.
pub const MESSAGE_UNKNOWN: &str =
    r#"Node moved to "unknown" state due to leadership change in cluster"#;

/// Longest wait for handlers and streams at the end of a term. They hold nothing that could act.
const STOP_WAIT_MAX: Duration = Duration::from_secs(2);

/// What every session needs of the cluster object.
#[derive(Clone, PartialEq)]
pub struct ClusterFacts {
    pub heartbeat_period: Duration,
    pub network_keys: Vec<EncryptionKey>,
    /// The stored bytes, unchanged: agents compare them byte by byte.
    pub root_ca: Vec<u8>,
}

impl ClusterFacts {
    fn of(cluster: &Cluster) -> ClusterFacts {
        let root_ca = cluster.root_ca.as_ref();
        ClusterFacts {
            heartbeat_period: heartbeat_period(cluster),
            network_keys: cluster.network_bootstrap_keys.clone(),
            root_ca: root_ca.map_or_else(Vec::new, |root_ca| root_ca.ca_cert.clone()),
        }
    }
}

/// See the module's comment.
pub struct ActiveTerm {
    pub store: Store,
    pub settings: Settings,
    pub registry: Arc<Mutex<Registry>>,
    pub writer: Writer,
    pub facts: watch::Sender<ClusterFacts>,
    pub managers: watch::Receiver<Vec<WeightedPeer>>,
    pub counters: Arc<Counters>,
    /// Places for registrations under way.
    pub registrations: Arc<Semaphore>,
    /// Fires at the end of the term, before anything is taken down.
    pub cancel: CancellationToken,
    /// All streams, registrations and waiting calls.
    pub tracker: TaskTracker,
    cluster_id: String,
    timer_moved: Notify,
}

impl ActiveTerm {
    /// Reads the cluster and all nodes. The subscription continues where the reading ended.
    pub fn load(
        term: &Term,
        settings: Settings,
        managers: watch::Receiver<Vec<WeightedPeer>>,
        counters: Arc<Counters>,
    ) -> anyhow::Result<(Arc<ActiveTerm>, Subscription, Vec<Arc<Node>>)> {
        let (loaded, events) = read_and_watch(&term.store, &term.cluster_id);
        let (cluster, nodes) = loaded.context("reading the cluster and its nodes")?;
        let Some(cluster) = cluster else {
            bail!("the cluster object {} is missing", term.cluster_id);
        };
        let registry = Arc::new(Mutex::new(Registry::default()));
        let writer = Writer::new(
            term.store.clone(),
            settings.clone(),
            term.node_id.clone(),
            Arc::clone(&registry),
            Arc::clone(&counters),
        );
        let active = ActiveTerm {
            store: term.store.clone(),
            registrations: Arc::new(Semaphore::new(settings.registrations_max)),
            settings,
            registry,
            writer,
            facts: watch::Sender::new(ClusterFacts::of(&cluster)),
            managers,
            counters,
            cancel: term.cancel.child_token(),
            tracker: TaskTracker::new(),
            cluster_id: term.cluster_id.clone(),
            timer_moved: Notify::new(),
        };
        Ok((Arc::new(active), events, nodes))
    }

    /// Runs the term: `opened` is called once calls may be let in. Returns when the term ends, or
    /// with an error when the dispatcher cannot go on.
    pub async fn run(
        self: &Arc<ActiveTerm>,
        events: Subscription,
        nodes: Vec<Arc<Node>>,
        opened: impl FnOnce(),
    ) -> anyhow::Result<()> {
        self.register_all(&nodes);
        let mut tasks = JoinSet::new();
        let result = self.run_tasks(&mut tasks, events, nodes, opened).await;
        tasks.shutdown().await;
        result
    }

    async fn run_tasks(
        self: &Arc<ActiveTerm>,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        events: Subscription,
        nodes: Vec<Arc<Node>>,
        opened: impl FnOnce(),
    ) -> anyhow::Result<()> {
        let active = Arc::clone(self);
        tasks.spawn(async move { active.writer.run(active.cancel.clone()).await });
        let active = Arc::clone(self);
        tasks.spawn(async move { active.follow_store(events).await });

        tokio::select! {
            () = self.cancel.cancelled() => return Ok(()),
            ended = tasks.join_next() => return outcome(ended),
            () = self.write_unknown(&nodes) => {}
        }
        drop(nodes);
        let grace = self.choose_period() * self.settings.grace_periods_unknown;
        self.registry.lock().forgive(Instant::now() + grace);
        let active = Arc::clone(self);
        tasks.spawn(async move { active.run_timers().await });
        opened();
        tokio::select! {
            () = self.cancel.cancelled() => Ok(()),
            ended = tasks.join_next() => outcome(ended),
        }
    }

    /// Ends everything of this term. When it returns, nothing of it acts any more.
    pub async fn shut_down(&self) {
        self.cancel.cancel();
        self.registry.lock().end_all();
        self.tracker.close();
        if tokio::time::timeout(STOP_WAIT_MAX, self.tracker.wait())
            .await
            .is_err()
        {
            warn!(
                left = self.tracker.len(),
                "calls of agents did not end in time"
            );
        }
    }

    /// A heartbeat period for one node.
    pub fn choose_period(&self) -> Duration {
        choose_period(self.facts.borrow().heartbeat_period)
    }

    /// When a node that has just given a sign of life, and is told `period`, would expire.
    pub fn expiry(&self, period: Duration) -> Instant {
        Instant::now() + period * self.settings.grace_periods
    }

    /// Works on the registry, and wakes the timer if it has to wake earlier than it meant to.
    pub fn with_registry<R>(&self, work: impl FnOnce(&mut Registry) -> R) -> R {
        let mut registry = self.registry.lock();
        let result = work(&mut registry);
        if registry.take_earlier() {
            self.timer_moved.notify_one();
        }
        result
    }

    /// Takes all nodes of the store into the registry.
    fn register_all(&self, nodes: &[Arc<Node>]) {
        let grace = self.choose_period() * self.settings.grace_periods_unknown;
        let now = Instant::now();
        self.with_registry(|registry| {
            for node in nodes {
                if is_down(node) {
                    registry.add_down(&node.id, now + self.down_time_left(node));
                } else {
                    registry.add_unknown(&node.id, now + grace);
                }
            }
        });
    }

    /// How long a node that is down has until its tasks are given up, counted from when it was
    /// written as down, not from this change of leadership.
    fn down_time_left(&self, node: &Node) -> Duration {
        let written = node.meta.as_ref().and_then(|meta| meta.updated_at.as_ref());
        let down_for = written
            .and_then(time::to_system)
            .and_then(|written| SystemTime::now().duration_since(written).ok())
            .unwrap_or_default();
        self.settings.node_down_period.saturating_sub(down_for)
    }

    /// Writes every node that is not down as unknown, and waits until that is committed.
    async fn write_unknown(&self, nodes: &[Arc<Node>]) {
        let written: Vec<_> = nodes
            .iter()
            .filter(|node| !is_down(node))
            .map(|node| {
                let update = NodeUpdate {
                    state: NodeState::Unknown,
                    message: MESSAGE_UNKNOWN,
                    ..Default::default()
                };
                self.writer
                    .update_node_and_tell(Arc::from(node.id.as_str()), update)
            })
            .collect();
        // A node that was removed meanwhile needs no state.
        join_all(written).await;
    }

    /// Keeps the facts about the cluster and the set of nodes up to date.
    async fn follow_store(&self, mut events: Subscription) -> anyhow::Result<()> {
        loop {
            match events.recv().await {
                Ok(batch) => batch.changes.iter().for_each(|change| self.note(change)),
                Err(RecvError::Lagged(_)) => events = self.resynchronise()?,
                Err(RecvError::Closed) if self.cancel.is_cancelled() => return Ok(()),
                Err(error) => bail!("following the nodes of the cluster: {error}"),
            }
        }
    }

    fn note(&self, change: &Change) {
        if let Some(cluster) = change.get::<Cluster>()
            && change.action != Action::Remove
        {
            self.set_facts(cluster);
        }
        if let Some(node) = change.get::<Node>()
            && change.action == Action::Remove
        {
            self.registry.lock().remove(&node.id);
        }
    }

    fn set_facts(&self, cluster: &Cluster) {
        let facts = ClusterFacts::of(cluster);
        self.facts.send_if_modified(|known| {
            let differs = *known != facts;
            *known = facts;
            differs
        });
    }

    fn resynchronise(&self) -> anyhow::Result<Subscription> {
        let (loaded, events) = read_and_watch(&self.store, &self.cluster_id);
        let (cluster, nodes) = loaded.context("reading the cluster and its nodes again")?;
        if let Some(cluster) = cluster {
            self.set_facts(&cluster);
        }
        let present: HashSet<&str> = nodes.iter().map(|node| node.id.as_str()).collect();
        self.registry
            .lock()
            .retain(|node_id| present.contains(node_id));
        Ok(events)
    }

    /// Waits for deadlines and handles them.
    ///
    /// It also wakes twice in each period, to notice when it could not: a manager that was stopped
    /// or starved finds deadlines passed that its nodes would have met. Nodes beat three times
    /// before they expire, so a pause that is too short to be noticed harms nobody.
    async fn run_timers(&self) -> anyhow::Result<()> {
        loop {
            let period = self.choose_period();
            let next = self.registry.lock().next_deadline();
            let tick = Instant::now() + period / 2;
            let wake = next.map_or(tick, |next| next.min(tick));
            tokio::select! {
                () = self.timer_moved.notified() => continue,
                () = tokio::time::sleep_until(wake) => {}
            }
            let late = wake.elapsed();
            if late > period {
                warn!(
                    ?late,
                    "this manager stood still; nodes get more time to report"
                );
                let expiry = self.expiry(period);
                self.registry.lock().forgive(expiry);
            }
            self.handle_deadlines();
        }
    }

    fn handle_deadlines(&self) {
        let fired = self.with_registry(|registry| {
            registry.expire(Instant::now(), self.settings.node_down_period)
        });
        for fired in fired {
            match fired {
                Fired::Silent { node_id, message } => {
                    info!(node = %node_id, message, "node is down");
                    add(&self.counters.expiries, 1);
                    let update = NodeUpdate {
                        state: NodeState::Down,
                        message,
                        ..Default::default()
                    };
                    self.writer.update_node(node_id, update);
                }
                Fired::DownTooLong { node_id } => {
                    info!(node = %node_id, "node was down too long, giving up its tasks");
                    self.writer.orphan_tasks_of(node_id);
                }
            }
        }
    }
}

type Loaded = (Option<Arc<Cluster>>, Vec<Arc<Node>>);

fn read_and_watch(store: &Store, cluster_id: &str) -> (Result<Loaded, StoreError>, Subscription) {
    let interests = [
        Interest::Object(Table::Cluster, cluster_id.to_owned()),
        Interest::Table(Table::Node),
    ];
    store.view_and_watch(&interests, |tx| {
        Ok((tx.get::<Cluster>(cluster_id)?, tx.find::<Node>(By::All)?))
    })
}

fn is_down(node: &Node) -> bool {
    let state = node.status.as_ref().map(|status| status.state);
    state == Some(NodeState::Down as i32)
}

/// What the end of one of the term's own tasks means for the term.
fn outcome(
    ended: Option<Result<anyhow::Result<()>, tokio::task::JoinError>>,
) -> anyhow::Result<()> {
    match ended {
        Some(Ok(result)) => result,
        Some(Err(error)) => Err(error).context("a task of the dispatcher"),
        None => Ok(()),
    }
}
