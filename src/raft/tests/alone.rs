//! A member that is the whole group.

use super::*;
use crate::raft::retention::Retention;
use crate::storage::proposer::{HistoryError, MAX_REQUEST_BYTES};
use raft::eraftpb::{Message, MessageType};
use std::time::Instant;

#[test]
fn a_new_group_gets_a_leader_that_has_applied_everything() {
    // 03-A1
    let subject = Subject::first();
    let term = subject.leads();
    assert_eq!(term, 2);
    let status = subject.member.status();
    assert!(status.is_leader);
    assert_eq!((status.leader, status.term), (Some(1), 2));
    assert_eq!(
        (status.first, status.last, status.commit, status.applied),
        (1, 2, 2, 2)
    );
    assert_eq!(status.members.len(), 1);
    let own = &status.members[0];
    assert_eq!((own.raft_id, own.node_id.as_str()), (1, "node1"));
    assert!(own.leader && own.reachable);
    let told = subject.machine.told();
    let [
        Told::Membership(1, membership),
        Told::Empty(2),
        Told::Begin(2),
    ] = told.as_slice()
    else {
        panic!("{told:?}");
    };
    assert_eq!(membership.members, [record(1)]);
    assert_eq!(membership.conf_state.voters, [1]);
    subject.stop();
}

#[test]
fn proposals_are_applied_in_order() {
    let subject = Subject::first();
    let term = subject.leads();
    let position = subject.member.position().unwrap();
    assert_eq!(
        (position.leader_term, position.commit, position.last),
        (Some(2), 2, 2)
    );
    for byte in 0..200u8 {
        subject.propose(term, &[byte]).unwrap();
    }
    assert_eq!(subject.machine.wait_for(&[199]), 202);
    let told = subject.machine.told();
    let expected = (0..200u8).map(|byte| Told::Request(u64::from(byte) + 3, vec![byte]));
    assert!(told[3..].iter().cloned().eq(expected));
    subject.stop();
}

#[test]
fn what_waits_during_a_write_becomes_one_write() {
    let subject = Subject::first();
    let term = subject.leads();
    subject.log.0.with(|log| log.held = true);
    subject.propose(term, b"first").unwrap();
    subject
        .log
        .0
        .wait("a write", |log| log.waiting.then_some(()));
    for number in 0..500u16 {
        subject.propose(term, &number.to_be_bytes()).unwrap();
    }
    subject.log.0.with(|log| {
        log.writes.clear();
        log.held = false;
    });
    subject.machine.wait_for(&499u16.to_be_bytes());
    assert_eq!(subject.log.0.with(|log| log.writes.clone()), [1, 500]);
    subject.stop();
}

#[test]
fn entries_that_wait_for_the_applier_become_few_runs() {
    let subject = Subject::first();
    let term = subject.leads();
    subject.machine.0.with(|notes| notes.held = true);
    for number in 0..300u16 {
        subject.propose(term, &number.to_be_bytes()).unwrap();
    }
    // Committed does not need applied.
    while subject.member.position().unwrap().commit < 302 {
        std::thread::yield_now();
    }
    subject.machine.0.with(|notes| {
        notes.runs.clear();
        notes.held = false;
    });
    subject.machine.wait_for(&299u16.to_be_bytes());
    let runs = subject.machine.0.with(|notes| notes.runs.clone());
    assert_eq!(runs.iter().sum::<usize>(), 300);
    // Runs of 32, the first one perhaps shorter.
    assert!(runs.len() <= 11, "{runs:?}");
    subject.stop();
}

#[test]
fn refused_proposals() {
    let subject = Subject::first();
    let term = subject.leads();
    assert_eq!(
        subject.propose(term + 1, b"x"),
        Err(ProposeError::LostLeadership)
    );
    assert_eq!(
        subject.propose(term - 1, b"x"),
        Err(ProposeError::LostLeadership)
    );
    let large = vec![0; MAX_REQUEST_BYTES + 1];
    assert_eq!(subject.propose(term, &large), Err(ProposeError::TooLarge));
    subject.stop();
    assert_eq!(subject.propose(term, b"x"), Err(ProposeError::Stopped));
    assert_eq!(subject.member.position(), None);
    assert!(!subject.member.is_member());
}

#[test]
fn a_slow_applier_bounds_memory_without_stopping_the_clock() {
    let subject = Subject::first();
    let term = subject.leads();
    subject.machine.0.with(|notes| notes.held = true);
    let large = vec![7; 1 << 20];
    // Backlog of the applier, uncommitted entries and the inbox are bounded, together below 120 MiB.
    let refused = (0..120).find_map(|_| {
        std::thread::sleep(Duration::from_millis(2));
        subject.propose(term, &large).err()
    });
    assert_eq!(refused, Some(ProposeError::Busy));
    // The member still leads and answers, several election timeouts later.
    std::thread::sleep(TICK * 30);
    assert_eq!(subject.member.leadership().borrow().term(), Some(term));
    subject.machine.0.with(|notes| notes.held = false);
    while subject.propose(term, b"at last").is_err() {
        std::thread::yield_now();
    }
    subject.machine.wait_for(b"at last");
    subject.stop();
}

#[test]
fn a_stop_serves_what_is_queued_and_closes_the_files() {
    let subject = Subject::first();
    let term = subject.leads();
    subject.log.0.with(|log| log.held = true);
    subject.propose(term, b"first").unwrap();
    subject
        .log
        .0
        .wait("a write", |log| log.waiting.then_some(()));
    subject.propose(term, b"second").unwrap();
    let member = subject.member.clone();
    let stopping = std::thread::spawn(move || block_on(member.stop()));
    while subject.propose(term, b"late") != Err(ProposeError::Stopped) {
        std::thread::yield_now();
    }
    subject.log.0.with(|log| log.held = false);
    stopping.join().unwrap().unwrap();
    let told = subject.machine.told();
    let second = told
        .iter()
        .position(|told| matches!(told, Told::Request(_, d) if d == b"second"));
    let ended = told
        .iter()
        .position(|told| *told == Told::End(ProposeError::Stopped));
    assert!(second.unwrap() < ended.unwrap(), "{told:?}");
    assert_eq!(told.last(), Some(&Told::Sync));
    let (closed, hard_state) = subject
        .log
        .0
        .with(|log| (log.closed, log.hard_state.clone()));
    assert!(closed);
    assert_eq!(
        hard_state.commit,
        subject.machine.0.with(|notes| notes.applied)
    );
    assert_eq!(
        *subject.member.leadership().borrow(),
        Leadership::Follower { leader: None }
    );
}

#[test]
fn a_restart_continues_at_once() {
    let subject = Subject::first();
    let term = subject.leads();
    let index = subject.write(term, b"kept");
    let began = Instant::now();
    let subject = subject.restart();
    let next = subject.leads();
    // Alone there is no election timeout to wait for.
    assert!(began.elapsed() < PATIENCE / 2);
    assert_eq!(next, term + 1);
    assert_eq!(subject.write(next, b"new"), index + 2);
    let requests = subject.machine.told();
    let kept = requests
        .iter()
        .filter(|told| matches!(told, Told::Request(_, d) if d == b"kept"));
    assert_eq!(kept.count(), 1, "nothing is applied twice");
    subject.stop();
}

#[test]
fn what_was_not_applied_is_applied_after_a_restart() {
    let subject = Subject::first();
    let term = subject.leads();
    for byte in 0..50u8 {
        subject.propose(term, &[byte]).unwrap();
    }
    subject.machine.wait_for(&[49]);
    subject.stop();
    // The state machine lost everything, as if it had never been synced.
    let subject = Subject::start(subject.log.clone(), NotingMachine::default());
    subject.leads();
    let told = subject.machine.told();
    let requests = told.iter().filter(|told| matches!(told, Told::Request(..)));
    assert_eq!(requests.count(), 50);
    assert_eq!(
        subject
            .machine
            .0
            .with(|notes| notes.membership.members.len()),
        1
    );
    subject.stop();
}

#[test]
fn strangers_cannot_depose_the_only_member() {
    let subject = Subject::first();
    let term = subject.leads();
    for kind in [
        MessageType::MsgHeartbeat,
        MessageType::MsgAppend,
        MessageType::MsgRequestVote,
        MessageType::MsgTimeoutNow,
    ] {
        let mut message = Message::default();
        message.set_msg_type(kind);
        (message.from, message.to, message.term) = (9, 1, term + 5);
        subject.member.step(message);
    }
    subject.write(term, b"still the leader");
    assert_eq!(subject.member.status().term, term);
    subject.stop();
}

#[test]
fn history() {
    let subject = Subject::first();
    let term = subject.leads();
    let large = vec![1; 700_000];
    for _ in 0..4 {
        subject.propose(term, &large).unwrap();
    }
    let last = subject.write(term, b"last");
    let history = |from, to| subject.member.changes_between(from, to);
    let found = history(0, last).unwrap();
    let indexes: Vec<u64> = found.iter().map(|(index, _)| *index).collect();
    assert_eq!(
        indexes,
        [3, 4, 5, 6, 7],
        "neither the configuration change nor the empty entry"
    );
    assert_eq!(found[4].1, b"last");
    assert_eq!(history(last, last).unwrap(), []);
    assert_eq!(history(6, 7).unwrap().len(), 1);
    assert!(matches!(history(3, 2), Err(HistoryError::OutOfOrder)));
    assert!(matches!(
        history(3, last + 1),
        Err(HistoryError::OutOfBounds)
    ));
    subject.stop();
    assert!(matches!(history(3, 4), Err(HistoryError::NoVersion)));
}

#[test]
fn the_log_is_compacted_once_the_state_is_durable() {
    let (hard_state, entries) = first_log(&[record(1)]);
    let machine = NotingMachine::default();
    machine.0.with(|notes| {
        notes.retention = Retention {
            interval: 100,
            slow: 10,
        };
    });
    let subject = Subject::start(MemLog::new(hard_state, entries), machine);
    let term = subject.leads();
    for byte in 0..250u8 {
        subject.write(term, &[byte]);
    }
    let truncated = subject.log.0.wait("a compaction", |log| {
        (log.truncated.0 >= 180).then_some(log.truncated)
    });
    let told = subject.machine.told();
    assert!(told.iter().filter(|told| **told == Told::Sync).count() <= 2);
    let synced = told.iter().rposition(|told| *told == Told::Sync).unwrap();
    let before = told[..synced].iter().filter_map(|told| match told {
        Told::Request(index, _) => Some(*index),
        _ => None,
    });
    assert!(truncated.0 + 10 <= before.max().unwrap());
    let compacted = subject.member.changes_between(3, 252);
    assert!(matches!(compacted, Err(HistoryError::Compacted)));
    assert_eq!(
        subject
            .member
            .changes_between(truncated.0, 252)
            .unwrap()
            .len() as u64,
        252 - truncated.0
    );

    let subject = subject.restart();
    let next = subject.leads();
    subject.write(next, b"after");
    subject.stop();
}

#[test]
fn reads_are_confirmed_without_a_round_when_alone() {
    let subject = Subject::first();
    let term = subject.leads();
    let index = subject.write(term, b"x");
    assert_eq!(block_on(subject.member.confirm_leader()), Ok(index));
    subject.stop();
    assert_eq!(
        block_on(subject.member.confirm_leader()),
        Err(ProposeError::Stopped)
    );
}
