use super::*;
use crate::storage::engine::{Applied, Db, meta};
use crate::storage::engines::{EngineOptions, Engines};
use crate::storage::seal::{Dek, DekRing};
use crate::storage::state_dir::StateDir;

fn ring() -> DekRing {
    DekRing::single(Dek::from_bytes(&[7; 32]).unwrap())
}

fn identity() -> Identity {
    Identity {
        raft_id: 11,
        node_id: "node".into(),
        cluster_id: "cluster".into(),
        address: "127.0.0.1:2377".into(),
        created_unix_s: 1,
    }
}

fn entry(index: u64, term: u64) -> Entry {
    Entry {
        index,
        term,
        data: format!("request {index} of term {term}")
            .into_bytes()
            .into(),
        ..Entry::default()
    }
}

fn entries(indexes: impl Iterator<Item = u64>, term: u64) -> Vec<Entry> {
    indexes.map(|index| entry(index, term)).collect()
}

fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState {
        term,
        vote,
        commit,
        ..HardState::default()
    }
}

/// A state directory with its engines, opened and closed at will.
struct Fixture {
    temp: tempfile::TempDir,
    options: EngineOptions,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture {
            temp: tempfile::tempdir().unwrap(),
            options: EngineOptions::default(),
        }
    }

    fn dir(&self) -> StateDir {
        StateDir::open(self.temp.path()).unwrap()
    }

    fn open(&self) -> RaftLog {
        Engines::open(&self.dir(), &ring(), &self.options)
            .unwrap()
            .log
    }

    /// Lets the closed database say that this entry was applied.
    fn apply(&self, index: u64, term: u64) {
        let path = self.temp.path().join("raft/db/1");
        let db = Db::open(&path, &ring(), &self.options.db).unwrap();
        let mut changes = db.changes();
        changes
            .put_record(meta::APPLIED, &Applied { index, term })
            .unwrap();
        changes.commit().unwrap();
    }

    /// A log of a member with entries 1 to `last` of term 1.
    fn claimed(&self, last: u64) -> RaftLog {
        let mut log = self.open();
        log.claim(identity(), &hard_state(1, 11, 0), &[]).unwrap();
        log.append(&entries(1..=last, 1), None).unwrap();
        log
    }
}

fn assert_holds(log: &RaftLog, expected: &[Entry]) {
    let (first, last) = (log.first_index(), log.last_index());
    let held = log.entries(first, last + 1, u64::MAX).unwrap();
    assert_eq!(held, expected);
    for entry in expected {
        assert_eq!(log.term(entry.index).unwrap(), entry.term);
    }
}

#[test]
fn what_was_appended_is_there_after_a_reopen() {
    let fixture = Fixture::new();
    let mut log = fixture.open();
    assert_eq!(log.identity(), None);
    assert_eq!((log.first_index(), log.last_index()), (1, 0));
    log.claim(identity(), &hard_state(1, 11, 0), &entries(1..=1, 1))
        .unwrap();
    log.append(&entries(2..=9, 1), Some(&hard_state(2, 0, 5)))
        .unwrap();
    log.set_marker("forced", Some("at noon")).unwrap();
    drop(log);

    let mut log = fixture.open();
    assert_eq!(log.identity(), Some(&identity()));
    assert_eq!(log.hard_state(), hard_state(2, 0, 5));
    assert_eq!(log.marker("forced").unwrap().unwrap(), "at noon");
    assert_holds(&log, &entries(1..=9, 1));
    log.set_marker("forced", None).unwrap();
    assert_eq!(log.marker("forced").unwrap(), None);
    assert!(matches!(
        log.claim(identity(), &hard_state(1, 11, 0), &[]),
        Err(LogError::Taken { raft_id: 11, .. })
    ));
}

#[test]
fn reads_are_limited_but_make_progress() {
    let fixture = Fixture::new();
    let log = fixture.claimed(9);
    assert_eq!(log.entries(3, 7, 0).unwrap(), entries(3..=3, 1));
    assert_eq!(log.entries(3, 7, u64::MAX).unwrap(), entries(3..=6, 1));
    assert_eq!(log.entries(3, 3, 0).unwrap(), []);
    let some = log.entries(1, 10, 200).unwrap();
    assert!((2..9).contains(&some.len()), "{}", some.len());
    assert!(matches!(
        log.entries(9, 11, 0),
        Err(LogError::Unavailable { index: 10, last: 9 })
    ));
}

#[test]
fn a_commit_index_alone_is_not_written_until_the_next_batch_or_the_end() {
    let fixture = Fixture::new();
    let mut log = fixture.claimed(9);
    let size = log.engine.get_used_size();
    let written = std::fs::metadata(
        scan::list(log.dir(), scan::Queue::Append).unwrap()[0]
            .path
            .clone(),
    );
    log.append(&[], Some(&hard_state(1, 11, 7))).unwrap();
    assert_eq!(log.hard_state().commit, 7);
    assert_eq!(log.engine.get_used_size(), size);
    assert_eq!(
        written.unwrap().modified().unwrap(),
        std::fs::metadata(
            scan::list(log.dir(), scan::Queue::Append).unwrap()[0]
                .path
                .clone()
        )
        .unwrap()
        .modified()
        .unwrap()
    );
    drop(log);
    let mut log = fixture.open();
    assert_eq!(log.hard_state(), hard_state(1, 11, 0));
    log.append(&[], Some(&hard_state(1, 11, 8))).unwrap();
    log.close().unwrap();
    drop(log);
    assert_eq!(fixture.open().hard_state().commit, 8);
}

/// Nothing is wrong with a log that is merely open, so nobody is told to give it up.
#[test]
fn a_log_that_is_open_is_not_called_damaged() {
    let fixture = Fixture::new();
    let log = fixture.claimed(1);
    let (dir, options) = (fixture.dir(), LogOptions::default());
    let files = Arc::new(Disk);
    let again = RaftLog::open_with(&dir, log.dir(), files, None, &ring(), &options);
    let error = again.err().unwrap().to_string();
    assert!(error.contains("is open already"), "{error}");
    assert!(!error.contains("--accept-log-loss"), "{error}");
}

/// The engine would panic on these.
#[test]
fn gaps_and_forgotten_places_are_refused_before_the_engine_sees_them() {
    let fixture = Fixture::new();
    let mut log = fixture.claimed(9);
    log.compact(4).unwrap();
    for bad in [
        entries(11..=12, 1),
        entries(4..=5, 1),
        vec![entry(10, 1), entry(12, 1)],
        vec![entry(10, 1), entry(10, 1)],
    ] {
        let error = log.append(&bad, None).unwrap_err();
        assert!(
            matches!(
                error,
                LogError::Gap {
                    log_first: 5,
                    log_last: 9,
                    ..
                }
            ),
            "{error}"
        );
    }
    log.append(&entries(10..=10, 1), None).unwrap();
    assert_holds(&log, &entries(5..=10, 1));
}

#[test]
fn a_lower_index_cuts_the_old_tail_off() {
    let fixture = Fixture::new();
    let mut log = fixture.claimed(9);
    log.mark().unwrap();
    log.append(&entries(6..=7, 2), Some(&hard_state(2, 0, 5)))
        .unwrap();
    let expected = [entries(1..=5, 1), entries(6..=7, 2)].concat();
    assert_holds(&log, &expected);
    // The mark of entry 9 must not make the shorter log look damaged.
    drop(log);
    let log = fixture.open();
    assert_holds(&log, &expected);
    assert_eq!(log.last(), LogPosition { index: 7, term: 2 });
}

#[test]
fn compaction_forgets_and_keeps_the_term_of_the_last_forgotten_entry() {
    let fixture = Fixture::new();
    let mut log = fixture.claimed(9);
    log.compact(4).unwrap();
    log.compact(3).unwrap();
    let check = |log: &RaftLog| {
        assert_eq!(log.truncated(), LogPosition { index: 4, term: 1 });
        assert_eq!(log.term(4).unwrap(), 1);
        assert!(matches!(
            log.term(3),
            Err(LogError::Compacted { index: 3, first: 5 })
        ));
        assert!(matches!(
            log.entries(4, 6, 0),
            Err(LogError::Compacted { .. })
        ));
        assert_holds(log, &entries(5..=9, 1));
    };
    check(&log);
    drop(log);
    fixture.apply(4, 1);
    check(&fixture.open());
}

#[test]
fn a_wholly_compacted_log_goes_on() {
    let fixture = Fixture::new();
    let mut log = fixture.claimed(9);
    log.compact(9).unwrap();
    assert_eq!(
        (log.first_index(), log.last_index(), log.term(9).unwrap()),
        (10, 9, 1)
    );
    log.append(&entries(10..=11, 1), None).unwrap();
    assert_holds(&log, &entries(10..=11, 1));
    assert!(log.compact(12).is_err());
}

// 01-A15
#[test]
fn after_a_snapshot_the_log_begins_behind_it() {
    for last in [0, 9, 60] {
        let fixture = Fixture::new();
        let mut log = fixture.claimed(last);
        log.append(&[], Some(&hard_state(3, 12, 0))).unwrap();
        log.mark().unwrap();
        let at = LogPosition { index: 50, term: 3 };
        log.reset(at).unwrap();
        assert_eq!((log.first_index(), log.last_index()), (51, 50));
        assert_eq!(log.term(50).unwrap(), 3);
        assert_eq!(log.hard_state(), hard_state(3, 12, 50));
        log.append(&entries(51..=52, 3), None).unwrap();
        assert_holds(&log, &entries(51..=52, 3));

        log.reset(LogPosition { index: 70, term: 4 }).unwrap();
        assert_eq!(log.hard_state(), hard_state(4, 0, 70));
        drop(log);
        fixture.apply(70, 4);
        let mut log = fixture.open();
        assert_eq!((log.first_index(), log.last_index()), (71, 70));
        assert_eq!(log.hard_state(), hard_state(4, 0, 70));
        log.append(&entries(71..=71, 4), None).unwrap();
        assert_holds(&log, &entries(71..=71, 4));
        assert!(matches!(
            log.entries(52, 53, 0),
            Err(LogError::Compacted { .. })
        ));
    }
}

// 01-A31
#[test]
fn an_entry_moved_to_another_index_or_term_does_not_open() {
    let fixture = Fixture::new();
    let log = fixture.claimed(3);
    for (index, term) in [(4, 1), (3, 2)] {
        let mut moved = log.read_entry(3).unwrap();
        (moved.index, moved.term) = (index, term);
        let error = log.unseal(&mut moved).unwrap_err().to_string();
        assert!(
            error.contains(&format!("entry {index} cannot be read")),
            "{error}"
        );
        assert!(error.contains("seal is broken"), "{error}");
    }
}

/// Nothing of an entry's data can be read in the files.
// 01-A30
#[test]
fn entries_are_sealed_on_disk() {
    let fixture = Fixture::new();
    let mut log = fixture.claimed(9);
    let dir = log.dir().to_owned();
    log.close().unwrap();
    for file in scan::list(&dir, scan::Queue::Append).unwrap() {
        let content = std::fs::read(file.path).unwrap();
        assert!(!content.windows(8).any(|window| window == b"request "));
    }
}

// 01-A20
#[test]
fn purging_bounds_the_directory() {
    let scale: f64 = std::env::var("SWARM_TEST_SCALE")
        .ok()
        .and_then(|scale| scale.parse().ok())
        .unwrap_or(0.1);
    let mut fixture = Fixture::new();
    // A sixteenth of the real sizes, for entries of a sixteenth of the usual size.
    fixture.options.log = LogOptions {
        file_bytes: 1 << 20,
        purge_bytes: 4 << 20,
    };
    let mut log = fixture.claimed(1);
    let total = (1_000_000.0 * scale) as u64;
    let bound = 6 * (1 << 20) + 2 * (1 << 20);
    let mut next = 2;
    while next < total {
        log.append(&entries(next..next + 500, 1), None).unwrap();
        next += 500;
        if next % 10_000 == 2 {
            log.compact(next - 500).unwrap();
            log.purge().unwrap();
        }
        assert!(
            log.size_bytes() < bound,
            "{} bytes at entry {next}",
            log.size_bytes()
        );
    }
    let truncated = log.truncated();
    drop(log);
    fixture.apply(truncated.index, truncated.term);
    let log = fixture.open();
    assert_eq!(log.truncated(), truncated);
    assert_eq!(log.last_index(), next - 1);
    assert_eq!(log.identity(), Some(&identity()));
}

#[cfg(feature = "failpoints")]
mod failpoints {
    use super::*;

    // 01-A17
    #[test]
    fn a_full_disk_refuses_writes_and_nothing_else() {
        let scenario = fail::FailScenario::setup();
        let fixture = Fixture::new();
        let mut log = fixture.claimed(9);
        for point in ["log::write::no_space", "log::write::short"] {
            fail::cfg(point, "return").unwrap();
            let last = log.last_index();
            for _ in 0..3 {
                let error = log
                    .append(&entries(last + 1..=last + 3, 1), None)
                    .unwrap_err();
                assert!(matches!(error, LogError::NoSpace { .. }), "{error}");
                assert_eq!(log.last_index(), last);
                assert_holds(&log, &entries(1..=last, 1));
            }
            fail::remove(point);
            log.append(&entries(last + 1..=last + 2, 1), None).unwrap();
        }
        drop(log);
        assert_holds(&fixture.open(), &entries(1..=13, 1));
        scenario.teardown();
    }

    // 01-A16
    #[test]
    fn a_failed_sync_ends_the_thread_before_anything_is_acknowledged() {
        let scenario = fail::FailScenario::setup();
        let fixture = Fixture::new();
        let mut log = fixture.claimed(9);
        fail::cfg("log::sync", "return").unwrap();
        let appended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            log.append(&entries(10..=10, 1), None)
        }));
        assert!(appended.is_err(), "the append returned");
        scenario.teardown();
    }
}
