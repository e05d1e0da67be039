use super::*;
use crate::api::raftpb::ConfState;
use crate::storage::Membership;
use crate::storage::log::{Identity, LogPosition};
use crate::storage::seal::Dek;
use raft::eraftpb::{Entry, HardState};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tempfile::TempDir;

mod damage;
mod database;

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

/// Small files, so that a short log has several.
fn options() -> EngineOptions {
    EngineOptions {
        log: LogOptions {
            file_bytes: 8 << 10,
            purge_bytes: 24 << 10,
        },
        ..EngineOptions::default()
    }
}

fn accepting() -> EngineOptions {
    EngineOptions {
        accept_log_loss: true,
        ..options()
    }
}

fn data(index: u64) -> Vec<u8> {
    format!("request {index} ").repeat(8).into_bytes()
}

fn entry(index: u64) -> Entry {
    Entry {
        index,
        term: 1,
        data: data(index).into(),
        ..Entry::default()
    }
}

fn key(index: u64) -> Vec<u8> {
    format!("row {index:06}").into_bytes()
}

/// Appends one entry.
fn append(engines: &mut Engines, index: u64) {
    let state = HardState {
        term: 1,
        vote: 11,
        commit: index - 1,
        ..HardState::default()
    };
    engines.log.append(&[entry(index)], Some(&state)).unwrap();
}

/// Writes the row of one entry and the applied index, as an applier does.
fn apply(engines: &Engines, index: u64) {
    let key = key(index);
    let sealed = engines.db.sealer().seal(&[b"obj", &key], b"", &data(index));
    let mut changes = engines.db.changes();
    changes.put(Family::Obj, &key, &sealed.unwrap());
    let applied = Applied { index, term: 1 };
    changes.put_record(meta::APPLIED, &applied).unwrap();
    changes.commit().unwrap();
}

fn open(path: &Path, options: &EngineOptions) -> Result<Engines, OpenError> {
    Engines::open(&StateDir::open(path).unwrap(), &ring(), options)
}

/// A member with `last` entries, all applied.
fn member(path: &Path, last: u64) -> Engines {
    let mut engines = open(path, &options()).unwrap();
    engines
        .log
        .claim(identity(), &HardState::default(), &[])
        .unwrap();
    for index in 1..=last {
        append(&mut engines, index);
        apply(&engines, index);
    }
    engines
}

fn copy_dir(from: &Path, to: &Path) {
    state_dir::create_dir(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let target = to.join(item.file_name());
        if item.path().is_dir() {
            copy_dir(&item.path(), &target);
        } else {
            fs::copy(item.path(), target).unwrap();
        }
    }
}

fn files_below(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for item in fs::read_dir(path).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            files.append(&mut files_below(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

fn log_files(path: &Path) -> Vec<PathBuf> {
    let files = scan::list(&path.join("raft/log"), scan::Queue::Append).unwrap();
    files.into_iter().map(|file| file.path).collect()
}

/// Every row is right or its damage is reported; nothing wrong is served.
fn check_rows(engines: &Engines) {
    for index in 1..=engines.applied.index {
        let key = key(index);
        let Ok(value) = engines.db.get(Family::Obj, &key) else {
            continue;
        };
        let value = value.unwrap_or_else(|| panic!("row {index} is gone"));
        if let Ok(opened) = engines.db.sealer().open(&[b"obj", &key], 0, &value) {
            assert_eq!(opened.body, data(index), "row {index}");
        }
    }
}

/// Everything behind the applied index is in the log, up to `last`.
fn check_log(engines: &Engines, last: u64) {
    assert_eq!(engines.log.last_index(), last);
    for index in engines.applied.index + 1..=last {
        let entries = engines.log.entries(index, index + 1, 0).unwrap();
        assert_eq!(entries, [entry(index)]);
    }
}

fn flip(path: &Path, offset: usize, mask: u8) {
    let mut content = fs::read(path).unwrap();
    content[offset] ^= mask;
    fs::write(path, content).unwrap();
}

#[test]
fn a_new_directory_is_laid_out_and_found_again() {
    let temp = TempDir::new().unwrap();
    let engines = member(temp.path(), 3);
    for name in ["FORMAT", "MARK", "log", "db/ACTIVE", "db/1/CURRENT"] {
        assert!(temp.path().join("raft").join(name).exists(), "{name}");
    }
    drop(engines);
    let engines = open(temp.path(), &options()).unwrap();
    assert_eq!(engines.applied, Applied { index: 3, term: 1 });
    assert_eq!(engines.loss, None);
    // A lagging commit index is raised to the applied one.
    assert_eq!(engines.log.hard_state().commit, 3);
    check_log(&engines, 3);
}

/// Files of the log that were kept for later use hold old entries; the next start removes them.
#[test]
fn recycled_log_files_do_not_outlive_a_start() {
    let temp = TempDir::new().unwrap();
    let mut engines = member(temp.path(), 600);
    engines.db.sync_wal().unwrap();
    engines.log.compact(590).unwrap();
    engines.log.purge().unwrap();
    drop(engines);
    let recycled = || {
        let files = fs::read_dir(temp.path().join("raft/log")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".reserved")).count()
    };
    assert!(recycled() > 0);
    let engines = open(temp.path(), &options()).unwrap();
    assert_eq!(recycled(), 0);
    check_log(&engines, 600);
}

/// A start may be killed anywhere before the log belongs to a member.
#[test]
fn an_interrupted_first_start_is_repeated() {
    let temp = TempDir::new().unwrap();
    drop(open(temp.path(), &options()).unwrap());
    for lost in ["db/ACTIVE", "FORMAT"] {
        let path = temp.path().join("raft").join(lost);
        fs::remove_file(&path).unwrap();
        if lost == "FORMAT" {
            fs::remove_dir_all(temp.path().join("raft/log")).unwrap();
            fs::remove_dir_all(temp.path().join("raft/db")).unwrap();
        }
        drop(open(temp.path(), &options()).unwrap());
        assert!(path.exists());
    }
    let engines = member(temp.path(), 1);
    check_log(&engines, 1);
}

/// A write that was under way when the machine stopped is dropped; it was never acknowledged.
#[test]
fn a_torn_last_write_is_dropped() {
    let temp = TempDir::new().unwrap();
    let mut engines = member(temp.path(), 9);
    engines.log.mark().unwrap();
    append(&mut engines, 10);
    let place = scan::locate(engines.log.dir(), 10).unwrap();
    drop(engines);
    let whole = fs::metadata(&place.file).unwrap().len();
    for cut in [place.offset + 1, place.offset + 20, whole - 1] {
        let copy = TempDir::new().unwrap();
        copy_dir(temp.path(), copy.path());
        let file = copy
            .path()
            .join(place.file.strip_prefix(temp.path()).unwrap());
        let file = fs::OpenOptions::new().write(true).open(file).unwrap();
        file.set_len(cut).unwrap();
        check_log(&open(copy.path(), &options()).unwrap(), 9);
        // Space that was reserved but never written.
        file.set_len(cut + 5000).unwrap();
        check_log(&open(copy.path(), &options()).unwrap(), 9);
    }
}

#[test]
fn the_watermark_notices_a_lost_end_that_was_not_applied() {
    let temp = TempDir::new().unwrap();
    let mut engines = member(temp.path(), 5);
    append(&mut engines, 6);
    engines.log.mark().unwrap();
    let place = scan::locate(engines.log.dir(), 6).unwrap();
    drop(engines);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&place.file)
        .unwrap();
    file.set_len(place.offset).unwrap();
    let error = open(temp.path(), &options()).err().unwrap();
    assert!(
        matches!(
            &error,
            OpenError::Refused {
                refusal: Refusal::TailLost {
                    last: 5,
                    expected: 6,
                    ..
                },
                ..
            }
        ),
        "{error}"
    );
    let engines = open(temp.path(), &accepting()).unwrap();
    assert_eq!(engines.loss.as_ref().unwrap().entries, Some((6, 6)));
    drop(engines);
    open(temp.path(), &options()).unwrap();
}

#[test]
fn data_of_another_cluster_or_format_is_refused() {
    let temp = TempDir::new().unwrap();
    drop(member(temp.path(), 2));
    let other = EngineOptions {
        cluster_id: Some("another".into()),
        ..options()
    };
    let error = open(temp.path(), &other).err().unwrap().to_string();
    assert!(error.contains("belongs to cluster cluster"), "{error}");
    let same = EngineOptions {
        cluster_id: Some("cluster".into()),
        ..options()
    };
    drop(open(temp.path(), &same).unwrap());
    for text in ["swarm-manager raft data, format 2\n", "?"] {
        fs::write(temp.path().join("raft/FORMAT"), text).unwrap();
        let error = open(temp.path(), &options()).err().unwrap();
        assert!(
            matches!(
                &error,
                OpenError::Refused {
                    refusal: Refusal::Format(_),
                    ..
                }
            ),
            "{error}"
        );
    }
}

// 04-A37
#[test]
fn an_interrupted_snapshot_installation_is_finished() {
    let temp = TempDir::new().unwrap();
    let engines = member(temp.path(), 9);
    let snapshot = Applied { index: 40, term: 3 };
    let mut changes = engines.db.changes();
    changes.put_record(meta::APPLIED, &snapshot).unwrap();
    changes.put_record(meta::INSTALLING, &snapshot).unwrap();
    changes.commit_synced().unwrap();
    drop(engines);
    let mut engines = open(temp.path(), &options()).unwrap();
    assert_eq!(engines.log.truncated(), LogPosition { index: 40, term: 3 });
    assert_eq!(
        engines.db.record::<Applied>(meta::INSTALLING).unwrap(),
        None
    );
    engines
        .log
        .append(
            &[Entry {
                term: 3,
                ..entry(41)
            }],
            None,
        )
        .unwrap();
    drop(engines);
    assert_eq!(open(temp.path(), &options()).unwrap().log.last_index(), 41);
}

/// The image of a member whose process was killed: several log files, a compaction, rows in table files
/// and in the write-ahead log, and something still to be applied.
fn killed_member(path: &Path) -> u64 {
    let mut engines = member(path, 150);
    engines.db.flush().unwrap();
    for index in 151..=220 {
        append(&mut engines, index);
        apply(&engines, index);
    }
    engines.db.sync_wal().unwrap();
    engines.log.compact(100).unwrap();
    engines.log.purge().unwrap();
    for index in 221..=300 {
        append(&mut engines, index);
        apply(&engines, index);
    }
    for index in 301..=310 {
        append(&mut engines, index);
    }
    engines.log.mark().unwrap();
    let image = TempDir::new().unwrap();
    copy_dir(path, image.path());
    drop(engines);
    fs::remove_dir_all(path.join("raft")).unwrap();
    copy_dir(&image.path().join("raft"), &path.join("raft"));
    310
}

/// Reading leaves every byte as it is, also after a kill and on files that cannot be written.
#[test]
fn reading_changes_nothing() {
    let temp = TempDir::new().unwrap();
    let last = killed_member(temp.path());
    let before = files_below(temp.path());
    let dir = StateDir::open_shared(temp.path()).unwrap();
    let engines = ReadOnlyEngines::open(&dir, &ring(), &options()).unwrap();
    assert_eq!(engines.verdict.as_ref().unwrap().index, 300);
    let log = engines.log.as_ref().unwrap();
    assert_eq!((log.truncated().index, log.last_index()), (100, last));
    assert_eq!(log.entries(301, 302, 0).unwrap(), [entry(301)]);
    assert!(
        engines
            .db
            .as_ref()
            .unwrap()
            .get(Family::Obj, &key(300))
            .unwrap()
            .is_some()
    );
    drop(engines);
    drop(dir);
    assert!(files_below(temp.path()) == before);
}

#[test]
fn reading_a_damaged_directory_says_what_a_start_would_say() {
    let temp = TempDir::new().unwrap();
    let engines = member(temp.path(), 30);
    let place = scan::locate(engines.log.dir(), 21).unwrap();
    drop(engines);
    flip(&place.file, place.offset as usize + 3, 1);
    let started = open(temp.path(), &options()).err().unwrap().to_string();
    let before = files_below(temp.path());
    let dir = StateDir::open_shared(temp.path()).unwrap();
    let engines = ReadOnlyEngines::open(&dir, &ring(), &options()).unwrap();
    assert_eq!(engines.verdict.as_ref().unwrap_err().to_string(), started);
    assert!(engines.db.is_ok());
    drop(engines);
    assert!(files_below(temp.path()) == before);
}
