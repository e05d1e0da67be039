//! Tests of the running member: both threads, over a log in memory and a state machine that takes notes.

use super::bootstrap::first_log;
use super::handle::{Handle, Leadership};
use super::log_store::DiskError;
use super::member::{Applied, Config, start};
use super::outbox::{NoPeers, Outbox};
use super::testing::{MemLog, NotingMachine, PATIENCE, Told, Watched};
use crate::api::types::RaftMember;
use crate::storage::{Proposal, ProposeError, Proposer};
use std::sync::Arc;
use std::time::Duration;

mod alone;
mod faults;
mod group;
mod real;
mod rpc;

/// A tick short enough for tests that wait for elections.
const TICK: Duration = Duration::from_millis(10);

fn record(raft_id: u64) -> RaftMember {
    RaftMember {
        raft_id,
        node_id: format!("node{raft_id}"),
        addr: format!("10.0.0.{raft_id}:2377"),
        status: None,
    }
}

/// A member with everything a test may want to touch.
struct Subject {
    member: Handle,
    log: MemLog,
    machine: NotingMachine,
    /// What the death hook was told.
    deaths: Arc<Watched<Vec<String>>>,
}

impl Subject {
    /// The first member of a new group.
    fn first() -> Subject {
        let (hard_state, entries) = first_log(&[record(1)]);
        Subject::start(MemLog::new(hard_state, entries), NotingMachine::default())
    }

    fn start(log: MemLog, machine: NotingMachine) -> Subject {
        Subject::start_as(1, log, machine, Box::new(NoPeers))
    }

    fn start_as(
        raft_id: u64,
        log: MemLog,
        machine: NotingMachine,
        outbox: Box<dyn Outbox>,
    ) -> Subject {
        let deaths = Watched::new(Vec::new());
        let hook = deaths.clone();
        let mut config = Config::new(raft_id, std::env::temp_dir());
        config.tick = TICK;
        config.reserve_bytes = 0;
        config.on_death = Arc::new(move |why| hook.with(|deaths| deaths.push(why.to_owned())));
        let applied = machine.0.with(|notes| Applied {
            index: notes.applied,
            membership: notes.membership.clone(),
            retention: notes.retention,
        });
        let member = start(
            config,
            log.clone(),
            machine.clone(),
            applied,
            outbox,
            |_| {},
        )
        .unwrap();
        Subject {
            member,
            log,
            machine,
            deaths,
        }
    }

    /// Waits until this member leads; returns the term.
    fn leads(&self) -> u64 {
        self.until(|leadership| leadership.term())
    }

    /// Waits for a leadership that `wanted` accepts.
    fn until<R>(&self, wanted: impl Fn(Leadership) -> Option<R>) -> R {
        let mut leadership = self.member.leadership();
        block_on(async {
            let found = leadership.wait_for(|now| wanted(*now).is_some()).await;
            wanted(*found.unwrap()).unwrap()
        })
    }

    fn propose(&self, term: u64, data: &[u8]) -> Result<(), ProposeError> {
        self.member.propose(Proposal {
            request_id: 1,
            data: data.to_vec(),
            term,
        })
    }

    /// Proposes and waits until it is applied; returns the index.
    fn write(&self, term: u64, data: &[u8]) -> u64 {
        self.propose(term, data).unwrap();
        self.machine.wait_for(data)
    }

    fn stop(&self) {
        block_on(self.member.stop()).unwrap();
    }

    /// Stops the member and starts another one on what it left.
    fn restart(self) -> Subject {
        self.stop();
        self.log.0.with(|log| log.closed = false);
        Subject::start(self.log.clone(), self.machine.clone())
    }
}

/// Runs a future to its end, within the patience of all tests.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let patient = async { tokio::time::timeout(PATIENCE, future).await };
    runtime.block_on(patient).expect("waited in vain")
}
