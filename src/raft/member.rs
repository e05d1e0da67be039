//! Starting a member: its two threads, and what happens when one of them ends.
//!
//! A manager without its raft thread or its applier must not keep answering. So a panic or an error on
//! either of them is logged and ends the process at once (settled P2). The threads' state lives outside
//! of what a panic unwinds: after a failed sync nothing may touch the files again, not even to close
//! them.

use super::applier::{Applier, Machine};
use super::error::{Fatal, RaftError};
use super::handle::{End, Handle, Leadership, Shared, Status};
use super::inbox::{Inbox, Progress};
use super::log_store::{LogStore, LogView, ReadFailure};
use super::membership::Book;
use super::node::{APPLY_TASKS_MAX, Node};
use super::outbox::Outbox;
use super::phase::Phase;
use super::reads::Reads;
use super::retention::{LogLife, Retention};
use super::space::Space;
use super::upkeep::Upkeep;
use super::{convert, logging};
use crate::storage::Membership;
use crate::storage::snapshot::Incoming;
use raft::RawNode;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Bytes of entries per append message; a single larger entry travels alone (spec 03 section 1).
const MESSAGE_BYTES_MAX: u64 = 65_535;
/// Append messages under way to one follower.
const INFLIGHT_MAX: usize = 256;
/// Uncommitted bytes above which the library would drop proposals. Intake stops far below it, so that
/// this never happens; it only has the library keep count.
const UNCOMMITTED_BYTES_LIMIT: u64 = 256 * 1024 * 1024;
/// Committed bytes handed out per turn.
const COMMITTED_BYTES_PER_TURN: u64 = 4 * 1024 * 1024;

/// What is told of an unexpected end; see [`Config::on_death`].
pub type OnDeath = Arc<dyn Fn(&str) + Send + Sync>;

/// Settings of one member.
#[derive(Clone)]
pub struct Config {
    /// This member's raft ID, as stored in its log.
    pub raft_id: u64,
    /// Length of a tick; 100 ms, or 1 s in a group with Docker Engines (settled R1).
    pub tick: Duration,
    pub heartbeat_ticks: usize,
    pub election_ticks: usize,
    /// Where free disk space is watched.
    pub state_dir: PathBuf,
    /// Free bytes below which writes are refused: two log files and one memtable (spec 01 section 8).
    pub reserve_bytes: u64,
    /// Bytes of log above which it is compacted before its time (spec 03 section 20.2, R5).
    pub log_bytes_max: u64,
    /// Where snapshots of other members arrive; without one they are dropped.
    pub incoming: Option<Arc<Incoming>>,
    /// Called after a thread ended unexpectedly and the reason was logged. It should not return.
    pub on_death: OnDeath,
}

impl Config {
    pub fn new(raft_id: u64, state_dir: PathBuf) -> Config {
        Config {
            raft_id,
            tick: Duration::from_millis(100),
            heartbeat_ticks: 1,
            election_ticks: 10,
            state_dir,
            reserve_bytes: 96 * 1024 * 1024,
            log_bytes_max: 1024 * 1024 * 1024,
            incoming: None,
            on_death: Arc::new(|_| std::process::abort()),
        }
    }

    fn library(&self, applied: u64) -> raft::Config {
        raft::Config {
            id: self.raft_id,
            election_tick: self.election_ticks,
            heartbeat_tick: self.heartbeat_ticks,
            applied,
            max_size_per_msg: MESSAGE_BYTES_MAX,
            max_inflight_msgs: INFLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            max_uncommitted_size: UNCOMMITTED_BYTES_LIMIT,
            max_committed_size_per_ready: COMMITTED_BYTES_PER_TURN,
            ..raft::Config::default()
        }
    }
}

/// What the state machine knows of the group at the start.
pub struct Applied {
    pub index: u64,
    pub membership: Membership,
    pub retention: Retention,
}

/// Starts a member on its log and state machine. Both were checked against each other when they were
/// opened: the log reaches at least to what is applied, and the stored commit index as well.
/// `announce` is shown the handle before the threads run.
pub fn start<L: LogStore, M: Machine>(
    config: Config,
    log: L,
    machine: M,
    applied: Applied,
    outbox: Box<dyn Outbox>,
    announce: impl FnOnce(&Handle),
) -> Result<Handle, RaftError> {
    let failure = ReadFailure::default();
    let book = Book::new(applied.membership.members, applied.membership.removed);
    let mut outbox = outbox;
    outbox.follow(&book);
    let shared = Arc::new(shared(
        &config,
        &log,
        applied.index,
        applied.retention,
        &book,
    ));
    let (send, tasks) = crossbeam_channel::bounded(APPLY_TASKS_MAX);
    let life = LogLife::new(log.first_index().saturating_sub(1), applied.retention);
    let space = Space::new(config.state_dir.clone(), config.reserve_bytes);
    let conf_state = convert::conf_state_to_library(applied.membership.conf_state);
    let view = LogView::new(log, conf_state, failure.clone());
    let removed = book.is_removed(config.raft_id);
    let node = Node {
        raw: library(&config, applied.index, view)?,
        outbox,
        applier: send,
        shared: shared.clone(),
        book,
        phase: Phase::Follower,
        begins: 0,
        handed: applied.index,
        handed_bytes: 0,
        applied: applied.index,
        applied_bytes: 0,
        campaign: true,
        reads: Reads::default(),
        change: None,
        last_change: 0,
        handing: None,
        handed_over: false,
        removed,
        incoming: config.incoming.clone(),
        upkeep: Upkeep::new(life, config.log_bytes_max),
        space,
        tick: config.tick,
        next_tick: Instant::now() + config.tick,
    };
    let applier = Applier {
        machine,
        tasks,
        shared: shared.clone(),
        applied: applied.index,
        given_up: false,
    };
    let handle = Handle { shared };
    announce(&handle);
    spawn(&config, node, applier, failure)?;
    Ok(handle)
}

fn shared<L: LogStore>(
    config: &Config,
    log: &L,
    applied: u64,
    retention: Retention,
    book: &Book,
) -> Shared {
    let progress = Progress {
        applied,
        retention,
        ..Progress::default()
    };
    Shared {
        raft_id: config.raft_id,
        inbox: Inbox::new(progress),
        leadership: watch::Sender::new(Leadership::Follower { leader: None }),
        signalled: AtomicU64::new(0),
        commit: AtomicU64::new(log.hard_state().commit),
        last: AtomicU64::new(log.last_index()),
        status: parking_lot::Mutex::new(Status {
            raft_id: config.raft_id,
            applied,
            ..Status::default()
        }),
        book: arc_swap::ArcSwap::from_pointee(book.clone()),
        ended: watch::Sender::new(None),
    }
}

/// Builds the library's node. It panics on a state that contradicts itself; here that is an error.
fn library<L: LogStore>(
    config: &Config,
    applied: u64,
    view: LogView<L>,
) -> Result<RawNode<LogView<L>>, RaftError> {
    let settings = config.library(applied);
    let build = || RawNode::new(&settings, view, &logging::logger());
    match catch_unwind(AssertUnwindSafe(build)) {
        Ok(node) => node.map_err(|error| RaftError::Start(error.to_string())),
        Err(panic) => Err(RaftError::Start(panic_text(&*panic))),
    }
}

fn spawn<L: LogStore, M: Machine>(
    config: &Config,
    mut node: Node<L>,
    mut applier: Applier<M>,
    failure: ReadFailure,
) -> Result<(), RaftError> {
    let shared = node.shared.clone();
    let on_death = config.on_death.clone();
    let apply = thread("apply", move || {
        let end = supervise(|| applier.run(), &ReadFailure::default());
        report("apply", &end, &on_death);
        end
    })?;
    let on_death = config.on_death.clone();
    thread("raft", move || {
        let end = supervise(|| node.run(), &failure);
        report("raft", &end, &on_death);
        // The files are closed before anyone learns that the member has ended.
        drop(node);
        let end = end.and(join(apply));
        shared.close(end);
    })?;
    Ok(())
}

fn thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, RaftError> {
    Builder::new()
        .name(name.into())
        .spawn(body)
        .map_err(|error| RaftError::Start(format!("creating the {name} thread: {error}")))
}

/// Runs a thread's loop. What it owns is not dropped when it panics.
fn supervise(run: impl FnOnce() -> Result<(), Fatal>, failure: &ReadFailure) -> End {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Err(Fatal::Removed)) => Err(RaftError::MemberRemoved),
        Ok(Err(Fatal::BeginAnew)) => Err(RaftError::BeginAnew),
        Ok(result) => result.map_err(|fatal| RaftError::Stopped(fatal.to_string())),
        Err(panic) => {
            let read = failure.lock().take();
            let text = read.unwrap_or_else(|| panic_text(&*panic));
            Err(RaftError::Stopped(text))
        }
    }
}

fn report(thread: &str, end: &End, on_death: &OnDeath) {
    if let Err(error) = end
        && !matches!(error, RaftError::MemberRemoved | RaftError::BeginAnew)
    {
        tracing::error!(thread, %error, "a thread of the raft member ended: ending the process");
        on_death(&error.to_string());
    }
}

fn join(thread: JoinHandle<End>) -> End {
    let lost = |_| Err(RaftError::Stopped("the apply thread is lost".into()));
    thread.join().unwrap_or_else(lost)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("panic without a message").to_owned()
}
