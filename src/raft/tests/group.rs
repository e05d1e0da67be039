//! Three members that hand each other their messages in memory.

use super::*;
use crate::api::raftpb;
use crate::raft::convert;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Carries messages between members, as bytes, and can cut members off.
#[derive(Clone, Default)]
struct Network {
    members: Arc<Mutex<BTreeMap<u64, Handle>>>,
    cut: Arc<Mutex<BTreeSet<u64>>>,
}

impl Outbox for Network {
    fn send(&mut self, messages: Vec<raftpb::Message>) {
        for message in messages {
            let ends = [message.from(), message.to()];
            if ends.iter().any(|id| self.cut.lock().contains(id)) {
                continue;
            }
            let bytes = prost::Message::encode_to_vec(&message);
            let message: raftpb::Message = prost::Message::decode(bytes.as_slice()).unwrap();
            let receiver = self.members.lock().get(&message.to()).cloned();
            if let Some(receiver) = receiver {
                receiver.step(convert::message_from_wire(message).unwrap());
            }
        }
    }
}

struct Group {
    subjects: Vec<Subject>,
    network: Network,
}

impl Group {
    fn of_three() -> Group {
        let network = Network::default();
        let (hard_state, entries) = first_log(&[record(1), record(2), record(3)]);
        let subjects = (1..=3).map(|id| {
            let log = MemLog::new(hard_state.clone(), entries.clone());
            let outbox = Box::new(network.clone());
            let subject = Subject::start_as(id, log, NotingMachine::default(), outbox);
            network.members.lock().insert(id, subject.member.clone());
            subject
        });
        Group {
            subjects: subjects.collect(),
            network,
        }
    }

    /// Waits until a member other than `not` leads.
    fn leader(&self, not: Option<u64>) -> (&Subject, u64) {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let found = self.subjects.iter().find_map(|subject| {
                let term = subject.member.leadership().borrow().term()?;
                (Some(subject.member.raft_id()) != not).then_some((subject, term))
            });
            if let Some(found) = found {
                return found;
            }
            assert!(std::time::Instant::now() < deadline, "no leader");
            std::thread::yield_now();
        }
    }

    fn stop(self) {
        for subject in &self.subjects {
            subject.member.shared.inbox.stop();
        }
        for subject in &self.subjects {
            block_on(subject.member.ended()).unwrap();
        }
    }
}

#[test]
fn a_group_replicates_and_survives_its_leader() {
    let group = Group::of_three();
    let (leader, term) = group.leader(None);
    let old = leader.member.raft_id();
    leader.write(term, b"first");
    for subject in &group.subjects {
        subject.machine.wait_for(b"first");
    }
    for subject in group.subjects.iter().filter(|s| s.member.raft_id() != old) {
        assert_eq!(
            subject.propose(term, b"x"),
            Err(ProposeError::LostLeadership)
        );
        subject.until(|now| (now == Leadership::Follower { leader: Some(old) }).then_some(()));
    }

    group.network.cut.lock().insert(old);
    leader.propose(term, b"cut off").unwrap();
    let (next, next_term) = group.leader(Some(old));
    assert!(next_term > term);
    assert_eq!(next.propose(term, b"x"), Err(ProposeError::LostLeadership));
    next.write(next_term, b"second");
    // Without a quorum the old leader steps down, and its transaction fails.
    leader.until(|now| now.term().is_none().then_some(()));
    leader
        .machine
        .wait_told(&Told::End(ProposeError::LostLeadership));

    assert_eq!(
        leader.propose(term, b"x"),
        Err(ProposeError::LostLeadership)
    );

    group.network.cut.lock().clear();
    leader.machine.wait_for(b"second");
    let told = leader.machine.told();
    let markers = told
        .into_iter()
        .filter(|told| matches!(told, Told::Begin(_) | Told::End(_)));
    assert!(markers.eq([Told::Begin(term), Told::End(ProposeError::LostLeadership)]));
    for subject in &group.subjects {
        let told = subject.machine.told();
        let lost = Told::Request(0, b"cut off".to_vec());
        assert!(!told.iter().any(|told| matches!((told, &lost),
            (Told::Request(_, a), Told::Request(_, b)) if a == b)));
    }
    group.stop();
}

#[test]
fn a_heartbeat_beyond_the_log_is_not_believed() {
    let group = Group::of_three();
    let (leader, term) = group.leader(None);
    leader.write(term, b"first");
    let id = leader.member.raft_id();
    let victim = group.subjects.iter().find(|s| s.member.raft_id() != id);
    let victim = victim.unwrap();
    let mut message = raft::eraftpb::Message::default();
    message.set_msg_type(raft::eraftpb::MessageType::MsgHeartbeat);
    (message.from, message.to) = (id, victim.member.raft_id());
    (message.term, message.commit) = (term, 1000);
    victim.member.step(message);
    leader.write(term, b"second");
    victim.machine.wait_for(b"second");
    assert!(victim.deaths.with(|deaths| deaths.is_empty()));
    group.stop();
}

#[test]
fn reads_are_confirmed_by_a_quorum() {
    let group = Group::of_three();
    let (leader, term) = group.leader(None);
    let index = leader.write(term, b"x");
    let confirmed = block_on(async {
        let member = &leader.member;
        tokio::join!(member.confirm_leader(), member.confirm_leader())
    });
    assert!(confirmed.0.unwrap() >= index && confirmed.1.unwrap() >= index);

    let old = leader.member.raft_id();
    group.network.cut.lock().insert(old);
    let lost = block_on(leader.member.confirm_leader());
    assert_eq!(lost, Err(ProposeError::LostLeadership));
    let follower = group.subjects.iter().find(|s| s.member.raft_id() != old);
    let (next, next_term) = group.leader(Some(old));
    next.write(next_term, b"y");
    assert!(follower.is_some());
    group.stop();
}

#[test]
fn a_full_disk_of_the_leader_moves_leadership() {
    let group = Group::of_three();
    let (leader, term) = group.leader(None);
    let old = leader.member.raft_id();
    leader.write(term, b"first");
    leader
        .log
        .0
        .with(|log| log.fails = Some(DiskError::Full("full".into())));
    leader.propose(term, b"unlucky").unwrap();
    leader.until(|now| now.term().is_none().then_some(()));
    let (next, next_term) = group.leader(Some(old));
    next.write(next_term, b"second");
    leader.log.0.with(|log| log.fails = None);
    leader.machine.wait_for(b"second");
    group.stop();
}
