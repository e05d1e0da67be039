//! Full disks, broken files, and threads that end.

use super::*;
use std::process::{Command, Stdio};
use std::time::Instant;

fn no_space() -> DiskError {
    DiskError::Full("no space left on device".into())
}

#[test]
fn a_full_disk_fails_writes_and_nothing_else() {
    // 01-A17
    let subject = Subject::first();
    let term = subject.leads();
    let before = subject.write(term, b"before");
    subject.log.0.with(|log| log.fails = Some(no_space()));
    subject.propose(term, b"unlucky").unwrap();
    let full = ProposeError::DiskFull("no space left on device".into());
    subject.machine.wait_told(&Told::End(full.clone()));
    assert_eq!(subject.propose(term, b"refused"), Err(full.clone()));
    assert_eq!(
        subject
            .member
            .changes_between(before - 1, before)
            .unwrap()
            .len(),
        1
    );
    let refusal = subject.member.status().refusal;
    assert_eq!(refusal, Some(full.to_string()));
    assert!(subject.member.is_member());

    subject.log.0.with(|log| log.fails = None);
    wait_for_second_beginning(&subject, term);
    subject.write(term, b"after");
    assert_eq!(subject.member.leadership().borrow().term(), Some(term));
    assert!(subject.deaths.with(|deaths| deaths.is_empty()));
    subject.stop();
}

fn wait_for_second_beginning(subject: &Subject, term: u64) {
    subject.machine.0.wait("a new beginning", |notes| {
        let begins = notes.told.iter().filter(|told| **told == Told::Begin(term));
        (begins.count() == 2).then_some(())
    });
}

#[test]
fn a_full_disk_under_the_tables_is_waited_out() {
    let subject = Subject::first();
    let term = subject.leads();
    subject.write(term, b"before");
    subject
        .machine
        .0
        .with(|notes| notes.fails = Some(no_space()));
    subject.propose(term, b"late").unwrap();
    let full = ProposeError::DiskFull("no space left on device".into());
    subject.machine.wait_told(&Told::End(full.clone()));
    let deadline = Instant::now() + PATIENCE;
    while subject.propose(term, b"refused") != Err(full.clone()) {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    // Proposals that slipped in before the refusal may still be on their way to the log.
    let before = subject.member.position().unwrap().commit;
    let confirmed = block_on(subject.member.confirm_leader()).unwrap();
    let after = subject.member.position().unwrap().commit;
    assert!((before..=after).contains(&confirmed));

    subject.machine.0.with(|notes| notes.fails = None);
    // What is in the log is applied all the same, before the term begins anew.
    subject.machine.wait_for(b"late");
    wait_for_second_beginning(&subject, term);
    while subject.propose(term, b"after").is_err() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    subject.machine.wait_for(b"after");
    assert!(subject.deaths.with(|deaths| deaths.is_empty()));
    subject.stop();
}

#[test]
fn a_full_disk_under_the_tables_does_not_prevent_a_stop() {
    let subject = Subject::first();
    let term = subject.leads();
    subject
        .machine
        .0
        .with(|notes| notes.fails = Some(no_space()));
    subject.propose(term, b"kept").unwrap();
    let full = ProposeError::DiskFull("no space left on device".into());
    subject.machine.wait_told(&Told::End(full));
    subject.stop();
    assert!(subject.deaths.with(|deaths| deaths.is_empty()));
    subject.machine.0.with(|notes| notes.fails = None);
    let subject = Subject::start(subject.log.clone(), subject.machine.clone());
    subject.machine.wait_for(b"kept");
    subject.stop();
}

#[test]
fn a_full_disk_does_not_prevent_a_stop() {
    let subject = Subject::first();
    let term = subject.leads();
    subject.log.0.with(|log| log.fails = Some(no_space()));
    subject.propose(term, b"unlucky").unwrap();
    subject.machine.wait_told(&Told::End(ProposeError::DiskFull(
        "no space left on device".into(),
    )));
    subject.stop();
}

#[test]
fn a_reserve_is_kept_free() {
    let (hard_state, entries) = first_log(&[record(1)]);
    let mut config = Config::new(1, std::env::temp_dir());
    config.tick = TICK;
    config.reserve_bytes = u64::MAX / 2;
    let machine = NotingMachine::default();
    let applied = Applied {
        index: 0,
        membership: Default::default(),
        retention: Default::default(),
    };
    let log = MemLog::new(hard_state, entries);
    let member = start(config, log, machine, applied, Box::new(NoPeers), |_| {}).unwrap();
    let mut leadership = member.leadership();
    let term = block_on(async {
        let leads = leadership.wait_for(|now| now.term().is_some()).await;
        leads.unwrap().term().unwrap()
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let proposal = Proposal {
            request_id: 1,
            data: vec![1],
            term,
        };
        match member.propose(proposal) {
            Err(ProposeError::DiskFull(reason)) => {
                assert!(reason.contains("writes stop below"), "{reason}");
                break;
            }
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        std::thread::yield_now();
    }
    block_on(member.stop()).unwrap();
}

#[test]
fn a_panic_of_the_applier_is_reported_as_death() {
    // 01-A18
    let subject = Subject::first();
    let term = subject.leads();
    subject
        .machine
        .0
        .with(|notes| notes.poison = Some(b"poison".to_vec()));
    subject.propose(term, b"poison").unwrap();
    let why = subject
        .deaths
        .wait("a death", |deaths| deaths.first().cloned());
    assert!(why.contains("poisoned entry"), "{why}");
}

#[test]
fn a_broken_log_is_death_and_nothing_is_acknowledged() {
    // 01-A16
    let subject = Subject::first();
    let term = subject.leads();
    let broken = DiskError::Broken("the log file is damaged".into());
    subject.log.0.with(|log| log.fails = Some(broken));
    subject.propose(term, b"lost").unwrap();
    let why = subject
        .deaths
        .wait("a death", |deaths| deaths.first().cloned());
    assert!(why.contains("the log file is damaged"), "{why}");
    let ended = block_on(subject.member.ended());
    assert!(ended.is_err());
    let told = subject.machine.told();
    assert!(!told.iter().any(|told| matches!(told, Told::Request(..))));
    assert_eq!(subject.propose(term, b"x"), Err(ProposeError::Stopped));
}

#[test]
fn an_unreadable_entry_is_reported_with_its_reason() {
    let subject = Subject::first();
    let term = subject.leads();
    subject.write(term, b"x");
    subject.stop();
    subject
        .log
        .0
        .with(|log| log.unreadable = Some("checksum mismatch in file 3".into()));
    let subject = Subject::start(subject.log.clone(), NotingMachine::default());
    let why = subject
        .deaths
        .wait("a death", |deaths| deaths.first().cloned());
    assert!(
        why.contains("reading entries 1 to 3: checksum mismatch in file 3"),
        "{why}"
    );
}

#[test]
fn a_state_that_contradicts_itself_is_an_error() {
    let (mut hard_state, entries) = first_log(&[record(1)]);
    hard_state.commit = 7;
    let applied = Applied {
        index: 0,
        membership: Default::default(),
        retention: Default::default(),
    };
    let log = MemLog::new(hard_state, entries);
    let config = Config::new(1, std::env::temp_dir());
    let machine = NotingMachine::default();
    let started = start(config, log, machine, applied, Box::new(NoPeers), |_| {});
    let text = started.err().unwrap().to_string();
    assert!(text.contains("commit 7 is out of range"), "{text}");
}

/// Set for the process that is to die.
const CHILD: &str = "SWARM_TEST_RAFT_CHILD";

/// Not a test of its own: what the child process of the next one does.
#[test]
fn child_of_a_process_that_dies() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let (hard_state, entries) = first_log(&[record(1)]);
    let machine = NotingMachine::default();
    machine
        .0
        .with(|notes| notes.poison = Some(b"poison".to_vec()));
    let applied = Applied {
        index: 0,
        membership: Default::default(),
        retention: Default::default(),
    };
    let log = MemLog::new(hard_state, entries);
    let config = Config::new(1, std::env::temp_dir());
    let member = start(config, log, machine, applied, Box::new(NoPeers), |_| {}).unwrap();
    let mut leadership = member.leadership();
    let term = block_on(async {
        let leads = leadership.wait_for(|now| now.term().is_some()).await;
        leads.unwrap().term().unwrap()
    });
    let proposal = Proposal {
        request_id: 1,
        data: b"poison".to_vec(),
        term,
    };
    member.propose(proposal).unwrap();
    std::thread::sleep(PATIENCE);
}

#[test]
fn the_process_dies_with_its_raft_member() {
    // 01-A18
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .args([
            "--exact",
            "raft::tests::faults::child_of_a_process_that_dies",
        ])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(6),
        "{status}"
    );
}
