//! A small world in virtual time, for stories about leader services.
//!
//! A store, the services under test, and simulated agents take turns, one after the other, until nothing is
//! left to do; then the clock jumps to the next moment at which something is due. Nothing happens at the
//! same time as anything else, so the same story always ends the same way. [`script`] makes stories of text
//! files, which show every change of a task, entry by entry.

pub mod objects;
mod script;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::allocator::Allocation;
use super::orchestrator::reaper::Reaper;
use super::orchestrator::replicated::Replicated;
use super::orchestrator::task::{self, ASSIGNED, COMPLETE, IdSource, READY, RUNNING, SHUTDOWN};
use super::reconcile::{Now, Reconciler};
use super::scheduler::Scheduling;
use crate::api::time;
use crate::api::types::{Node, Task, TaskStatus, node_status};
use crate::storage::testing::TestStore;
use crate::storage::{
    Action, AnyObject, By, EventBatch, Interest, Store, StoreError, Subscription, Tx,
};

/// Turns after which a story is taken for endless.
const TURNS_MAX: usize = 10_000;

/// When virtual time begins, in seconds since 1970.
const BEGINNING: i64 = 1_700_000_000;

thread_local! {
    static IDS: Cell<usize> = const { Cell::new(0) };
}

/// IDs in the order in which tasks are created, so that the same story ends the same way.
fn next_id() -> String {
    let number = IDS.replace(IDS.get() + 1);
    format!("task{number:06}")
}

/// A service under test.
trait Machine {
    fn hear(&mut self, now: Now);
    fn due(&self) -> Option<Instant>;
    fn work(&mut self, store: &Store, runtime: &Runtime, now: Now);
}

struct Running<R: Reconciler> {
    machine: R,
    news: Subscription,
}

impl<R: Reconciler> Running<R> {
    fn start(mut machine: R, store: &Store, now: Now) -> Box<dyn Machine> {
        let interests = machine.interests();
        let (loaded, news) = store.view_and_watch(&interests, |view| machine.load(view, now));
        loaded.expect("loading");
        Box::new(Running { machine, news })
    }
}

impl<R: Reconciler> Machine for Running<R> {
    fn hear(&mut self, now: Now) {
        while let Some(batch) = self.news.try_recv().expect("news") {
            self.machine.observe(&batch, now);
        }
    }

    fn due(&self) -> Option<Instant> {
        self.machine.next_due()
    }

    fn work(&mut self, store: &Store, runtime: &Runtime, now: Now) {
        if let Some(work) = self.machine.plan(now) {
            let outcome = runtime.block_on(R::perform(store.clone(), work));
            self.machine.settle(outcome.expect("work"), now);
        }
    }
}

/// How the simulated agents behave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agents {
    /// They do what they are told, at once.
    Obedient,
    /// They start what they are told, but never stop anything.
    Stubborn,
    /// They do nothing by themselves.
    Silent,
}

/// A store, services and agents.
pub struct World {
    store: TestStore,
    runtime: Runtime,
    machines: Vec<Box<dyn Machine>>,
    agents: Agents,
    started: Instant,
    passed: Duration,
    log: Subscription,
    story: String,
    /// What tasks are called in stories.
    names: BTreeMap<String, String>,
    counts: BTreeMap<(String, u64), usize>,
}

impl World {
    pub fn new() -> World {
        IDS.set(0);
        let store = TestStore::new();
        let log = store.watch(&[Interest::All]);
        World {
            runtime: tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("runtime"),
            machines: Vec::new(),
            agents: Agents::Obedient,
            started: Instant::now(),
            passed: Duration::ZERO,
            log,
            story: String::new(),
            names: BTreeMap::new(),
            counts: BTreeMap::new(),
            store,
        }
    }

    fn now(&self) -> Now {
        let since = time::from_std(self.passed);
        let beginning = prost_types::Timestamp {
            seconds: BEGINNING,
            nanos: 0,
        };
        Now {
            instant: self.started + self.passed,
            wall: time::add(&beginning, &since),
        }
    }

    /// Starts services, in the order of a term.
    fn start(&mut self, names: &[&str]) {
        let now = self.now();
        let store = self.store.store();
        for name in names {
            self.machines.push(match *name {
                "allocator" => Running::start(Allocation::default(), &store, now),
                "scheduler" => Running::start(Scheduling::default(), &store, now),
                "reaper" => Running::start(Reaper::default(), &store, now),
                "replicated" => Running::start(Replicated::new(IdSource(next_id)), &store, now),
                other => panic!("no service {other}"),
            });
        }
    }

    fn stop(&mut self) {
        self.machines.clear();
    }

    fn update(&self, f: impl FnOnce(&mut Tx) -> Result<(), StoreError> + Send) {
        let updated = self.runtime.block_on(self.store.update(f));
        updated.expect("update");
    }

    fn tasks(&self) -> Vec<std::sync::Arc<Task>> {
        self.store
            .view(|view| view.find::<Task>(By::All))
            .expect("tasks")
    }

    /// Everybody takes turns until nobody has anything to do now.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let now = self.now();
            let mut idle = true;
            for machine in &mut self.machines {
                machine.hear(now);
                if machine.due().is_some_and(|due| due <= now.instant) {
                    idle = false;
                    machine.work(&self.store, &self.runtime, now);
                }
            }
            self.listen();
            if idle && !self.run_agents() {
                return;
            }
        }
        panic!("the services never come to rest");
    }

    /// Lets time pass.
    fn advance(&mut self, span: Duration) {
        let until = self.passed + span;
        loop {
            self.settle();
            let due = self
                .machines
                .iter()
                .filter_map(|machine| machine.due())
                .min();
            match due.map(|due| due.duration_since(self.started)) {
                Some(due) if due <= until => self.passed = self.passed.max(due),
                _ => break,
            }
        }
        self.passed = until;
        self.settle();
    }

    /// Lets every agent do one step. `false` if there was nothing to do.
    fn run_agents(&mut self) -> bool {
        let mut busy = false;
        for task in self.tasks() {
            if let Some(state) = self.next_state(&task) {
                self.report(&task.id, state, "");
                busy = true;
            }
        }
        busy
    }

    fn next_state(&self, task: &Task) -> Option<i32> {
        let state = task::observed(task);
        if self.agents == Agents::Silent || !(ASSIGNED..=RUNNING).contains(&state) {
            return None;
        }
        let node = self
            .store
            .view(|view| view.get::<Node>(&task.node_id))
            .expect("node");
        if node?.status.as_ref()?.state != node_status::State::Ready as i32 {
            return None;
        }
        match task.desired_state {
            desired if desired >= SHUTDOWN => (self.agents == Agents::Obedient).then_some(SHUTDOWN),
            RUNNING | COMPLETE => (state < RUNNING).then_some(RUNNING),
            READY => (state < READY).then_some(READY),
            _ => None,
        }
    }

    /// An agent reports a state.
    fn report(&self, task_id: &str, state: i32, err: &str) {
        let now = self.now().wall;
        self.update(|tx| {
            let mut task = Task::clone(&*tx.get::<Task>(task_id)?.expect("task"));
            task.status = Some(TaskStatus {
                state,
                timestamp: Some(now),
                applied_at: Some(now),
                err: err.to_owned(),
                ..TaskStatus::default()
            });
            tx.update(task).map(|_| ())
        });
    }

    /// What has happened to tasks since the last call, entry by entry.
    fn story(&mut self) -> String {
        self.listen();
        std::mem::take(&mut self.story)
    }

    fn listen(&mut self) {
        let mut story = std::mem::take(&mut self.story);
        while let Some(batch) = self.log.try_recv().expect("log") {
            self.tell(&batch, &mut story);
        }
        self.story = story;
    }

    fn tell(&mut self, batch: &EventBatch, story: &mut String) {
        let mut first = true;
        for change in &batch.changes {
            let AnyObject::Task(task) = &change.object else {
                continue;
            };
            let name = self.name(task);
            let text = match change.action {
                Action::Create => format!("{name} created {}", states(task)),
                Action::Remove => format!("{name} deleted {}", states(task)),
                Action::Update => {
                    let old = change.old::<Task>().expect("old task");
                    format!("{name} {} → {}", states(old), news(old, task))
                }
            };
            let mark = if first { '+' } else { '|' };
            story.push_str(&format!(
                "{:>6.2}s {mark} {text}\n",
                self.passed.as_secs_f64()
            ));
            first = false;
        }
    }

    /// A task is called after its service and slot, and by a letter after its turn there.
    fn name(&mut self, task: &Task) -> String {
        if let Some(name) = self.names.get(&task.id) {
            return name.clone();
        }
        let count = self
            .counts
            .entry((task.service_id.clone(), task.slot))
            .or_default();
        let letter = char::from(b'a' + (*count % 26) as u8);
        *count += 1;
        let name = format!("{}.{}{letter}", task.service_id, task.slot);
        self.names.insert(task.id.clone(), name.clone());
        name
    }

    fn task_id(&self, name: &str) -> Option<String> {
        let mut names = self.names.iter();
        names
            .find(|(_, known)| *known == name)
            .map(|(id, _)| id.clone())
    }
}

/// Observed and desired state.
fn states(task: &Task) -> String {
    format!(
        "{}/{}",
        state_name(task::observed(task)),
        state_name(task.desired_state)
    )
}

/// What is new about a task.
fn news(old: &Task, task: &Task) -> String {
    let mut news = states(task);
    if task.node_id != old.node_id {
        news.push_str(&format!(" on {:?}", task.node_id));
    }
    let err = |task: &Task| {
        task.status
            .as_ref()
            .map_or(String::new(), |status| status.err.clone())
    };
    if err(task) != err(old) {
        news.push_str(&format!(" {:?}", err(task)));
    }
    news
}

fn state_name(state: i32) -> String {
    crate::api::types::TaskState::try_from(state)
        .map_or(state.to_string(), |state| state.as_str_name().to_owned())
}
