//! Three or five members that hand each other their messages in memory.

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
    /// Directions, from and to, in which everything is lost.
    lost: Arc<Mutex<BTreeSet<(u64, u64)>>>,
}

impl Outbox for Network {
    fn send(&mut self, messages: Vec<raftpb::Message>) {
        for message in messages {
            let ends = [message.from(), message.to()];
            let cut = ends.iter().any(|id| self.cut.lock().contains(id));
            if cut || self.lost.lock().contains(&(ends[0], ends[1])) {
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
        Group::of(3)
    }

    fn of(members: u64) -> Group {
        let network = Network::default();
        let records: Vec<_> = (1..=members).map(record).collect();
        let (hard_state, entries) = first_log(&records);
        let subjects = (1..=members).map(|id| {
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

/// Numbers that look random, the same ones in every run.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// The requests that a member has applied, in order.
fn requests(subject: &Subject) -> Vec<Vec<u8>> {
    let told = subject.machine.told().into_iter();
    told.filter_map(|told| match told {
        Told::Request(_, data) => Some(data),
        _ => None,
    })
    .collect()
}

/// Whether a proposal is applied where it was made before leadership is lost there, or for a moment.
fn acknowledged(subject: &Subject, term: u64, data: &[u8]) -> bool {
    let deadline = std::time::Instant::now() + 30 * TICK;
    if subject.propose(term, data).is_err() {
        return false;
    }
    while std::time::Instant::now() < deadline {
        if requests(subject).iter().any(|found| found == data) {
            return true;
        }
        if subject.member.leadership().borrow().term() != Some(term) {
            return false;
        }
        std::thread::yield_now();
    }
    false
}

/// Cuts of one or two members, lost directions, and healing, one after another without a pause, while every
/// member that believes to lead is written to: what was acknowledged stays, once, in one order for all.
// 03-A3, 03-A4
#[test]
fn nothing_acknowledged_is_lost_under_changing_partitions() {
    let group = Group::of(5);
    let mut dice = Dice(2377);
    let mut kept = Vec::new();
    let (_, first_term) = group.leader(None);
    for round in 0..12 {
        let mut cut = BTreeSet::new();
        let mut lost = BTreeSet::new();
        match round % 4 {
            0 => cut.extend([1 + dice.throw(5), 1 + dice.throw(5)]),
            1 => lost.extend((0..6).map(|_| (1 + dice.throw(5), 1 + dice.throw(5)))),
            2 => {
                let leading = group
                    .subjects
                    .iter()
                    .find(|subject| subject.member.leadership().borrow().term().is_some());
                cut.extend(leading.map(|subject| subject.member.raft_id()));
            }
            _ => {}
        }
        *group.network.cut.lock() = cut;
        *group.network.lost.lock() = lost;
        // Whoever is cut off, three remain; lost directions may leave no quorum, and get a moment.
        let patience = match round % 4 {
            1 => 30 * TICK,
            _ => PATIENCE,
        };
        let deadline = std::time::Instant::now() + patience;
        let before = kept.len();
        let mut attempt = 0;
        while kept.len() == before && std::time::Instant::now() < deadline {
            for subject in &group.subjects {
                let term = subject.member.leadership().borrow().term();
                attempt += 1;
                let data = format!("{round} {attempt}").into_bytes();
                if term.is_some_and(|term| acknowledged(subject, term, &data)) {
                    kept.push(data);
                }
            }
            std::thread::yield_now();
        }
        assert!(round % 4 == 1 || kept.len() > before, "a quorum goes on");
    }
    group.network.cut.lock().clear();
    group.network.lost.lock().clear();
    // Leadership may still move until the group has settled.
    let settled = (0..100).find(|attempt| {
        let (leader, term) = group.leader(None);
        acknowledged(leader, term, format!("settled {attempt}").as_bytes())
    });
    let last = format!("settled {}", settled.expect("a group that settles"));
    for subject in &group.subjects {
        subject.machine.wait_for(last.as_bytes());
    }
    let upto = |subject| {
        let mut all = requests(subject);
        let end = all.iter().position(|found| found == last.as_bytes());
        all.truncate(end.unwrap() + 1);
        all
    };
    let order = upto(&group.subjects[0]);
    for subject in &group.subjects {
        assert_eq!(upto(subject), order, "all apply the same");
    }
    let once: BTreeSet<_> = order.iter().collect();
    assert_eq!(once.len(), order.len(), "nothing is applied twice");
    let (_, last_term) = group.leader(None);
    assert!(last_term > first_term, "leadership moved");
    for data in &kept {
        assert!(once.contains(data), "an acknowledged write is lost");
    }
    group.stop();
}

/// Three of five are cut off from each other: nothing is acknowledged, the leader gives up, and the return of
/// one of them is enough.
// 03-A3
#[test]
fn a_group_without_a_quorum_waits_for_one_member() {
    let group = Group::of(5);
    let (leader, term) = group.leader(None);
    leader.write(term, b"before");
    let old = leader.member.raft_id();
    let others = group.subjects.iter().map(|s| s.member.raft_id());
    let gone: Vec<u64> = others.filter(|id| *id != old).take(3).collect();
    group.network.cut.lock().extend(gone.iter().copied());
    leader.propose(term, b"in vain").unwrap();
    leader.until(|now| now.term().is_none().then_some(()));
    for subject in &group.subjects {
        let found = requests(subject);
        assert!(!found.contains(&b"in vain".to_vec()), "no quorum, no entry");
        assert_eq!(subject.member.leadership().borrow().term(), None);
    }
    group.network.cut.lock().remove(&gone[0]);
    let settled = (0..100).any(|_| {
        let (next, term) = group.leader(None);
        term > 0 && acknowledged(next, term, b"after")
    });
    assert!(settled);
    group.stop();
}
