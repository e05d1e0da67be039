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
    for name in [
        "FORMAT",
        "MARK",
        "log",
        "db/ACTIVE",
        "db/1/CURRENT",
        "incoming",
    ] {
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

// 01-A12
#[test]
fn a_flipped_byte_in_an_entry_is_refused_by_file_and_index() {
    let temp = TempDir::new().unwrap();
    let mut engines = member(temp.path(), 5);
    for index in 6..=12 {
        append(&mut engines, index);
    }
    engines.log.mark().unwrap();
    let place = scan::locate(engines.log.dir(), 8).unwrap();
    drop(engines);
    flip(&place.file, place.offset as usize + 30, 1);

    let error = open(temp.path(), &options()).err().unwrap().to_string();
    let name = place.file.file_name().unwrap().to_str().unwrap();
    assert!(error.contains(name), "{error}");
    assert!(error.contains("entry 8 cannot be read"), "{error}");
    assert!(error.contains("--rejoin"), "{error}");

    let engines = open(temp.path(), &accepting()).unwrap();
    let loss = engines.loss.as_ref().unwrap();
    assert_eq!(loss.entries, Some((8, 12)));
    assert!(
        loss.to_string()
            .starts_with("5 log entries are lost (8 to 12)")
    );
    assert_eq!(
        engines.log.entries(6, 8, u64::MAX).unwrap(),
        [entry(6), entry(7)]
    );
    assert_eq!(engines.log.last_index(), 8);
    drop(engines);
    let engines = open(temp.path(), &options()).unwrap();
    assert_eq!(engines.loss, None);
}

// 01-A13
#[test]
fn a_damaged_footer_that_would_hide_later_entries_is_refused() {
    let temp = TempDir::new().unwrap();
    let engines = member(temp.path(), 30);
    let (first, second) = (
        scan::locate(engines.log.dir(), 20).unwrap(),
        scan::locate(engines.log.dir(), 21).unwrap(),
    );
    drop(engines);
    // The last byte of a batch belongs to the checksum of its items.
    assert_eq!(first.file, second.file);
    flip(&first.file, second.offset as usize - 1, 0x40);

    let error = open(temp.path(), &options()).err().unwrap();
    let OpenError::Refused {
        refusal: Refusal::Damage(damage),
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(damage.place, first);
    assert!(error.to_string().contains("--accept-log-loss"), "{error}");
    let before = files_below(&temp.path().join("raft"));

    let engines = open(temp.path(), &accepting()).unwrap();
    assert_eq!(engines.applied.index, 30);
    check_log(&engines, 30);
    check_rows(&engines);
    let loss = engines.loss.clone().unwrap();
    // All of them are applied: the log lost them, the state did not.
    assert_eq!(loss.entries, None);
    let kept = loss.kept_in.unwrap();
    for (path, content) in before {
        if path.starts_with(temp.path().join("raft/log")) && path.extension().is_some() {
            let copy = kept.join(path.file_name().unwrap());
            assert_eq!(fs::read(copy).unwrap(), content);
        }
    }
    drop(engines);
    check_log(&open(temp.path(), &options()).unwrap(), 30);
}

/// A member of a group must not forget what it promised.
#[test]
fn log_loss_is_accepted_only_by_a_manager_that_is_alone() {
    let temp = TempDir::new().unwrap();
    let mut engines = member(temp.path(), 30);
    append(&mut engines, 31);
    let membership = Membership {
        conf_state: ConfState {
            voters: vec![11, 12, 13],
            ..ConfState::default()
        },
        ..Membership::default()
    };
    let mut changes = engines.db.changes();
    rows::put_membership(&mut changes, &engines.db, &membership).unwrap();
    changes.commit().unwrap();
    let place = scan::locate(engines.log.dir(), 21).unwrap();
    let unapplied = scan::locate(engines.log.dir(), 31).unwrap();
    drop(engines);
    for place in [place, unapplied] {
        let copy = TempDir::new().unwrap();
        copy_dir(temp.path(), copy.path());
        let file = copy
            .path()
            .join(place.file.strip_prefix(temp.path()).unwrap());
        fs::OpenOptions::new()
            .write(true)
            .open(&file)
            .unwrap()
            .set_len(place.offset)
            .unwrap();
        let before = files_below(&copy.path().join("raft/log"));
        match open(copy.path(), &accepting()) {
            // Nothing proves that the last entry was there: it was neither applied nor marked.
            Ok(engines) => check_log(&engines, 30),
            Err(error) => {
                assert!(
                    matches!(
                        &error,
                        OpenError::Refused {
                            refusal: Refusal::NotAlone { voters: 3 },
                            ..
                        }
                    ),
                    "{error}"
                );
                assert!(error.to_string().contains("2 fellow managers"), "{error}");
                assert!(files_below(&copy.path().join("raft/log")) == before);
            }
        }
    }
}

/// Damage in an older file, which the log engine alone would not open at all.
#[test]
fn an_older_file_is_cut_on_request_and_the_state_survives() {
    let temp = TempDir::new().unwrap();
    let engines = member(temp.path(), 200);
    let place = scan::locate(engines.log.dir(), 50).unwrap();
    drop(engines);
    assert!(place.file < *log_files(temp.path()).last().unwrap());
    flip(&place.file, place.offset as usize + 2, 0x80);
    let error = open(temp.path(), &options()).err().unwrap().to_string();
    assert!(error.contains(place.file.to_str().unwrap()), "{error}");
    assert!(
        error.contains(&format!("offset {}", place.offset)),
        "{error}"
    );
    let mut engines = open(temp.path(), &accepting()).unwrap();
    assert_eq!(engines.applied.index, 200);
    assert_eq!(engines.log.first_index(), 201);
    check_rows(&engines);
    append(&mut engines, 201);
    drop(engines);
    let engines = open(temp.path(), &options()).unwrap();
    assert_eq!(engines.loss, None);
    check_log(&engines, 201);
}

#[test]
fn a_missing_log_file_is_refused() {
    let temp = TempDir::new().unwrap();
    drop(member(temp.path(), 200));
    let files = log_files(temp.path());
    assert!(files.len() >= 4, "{}", files.len());
    for lost in [&files[0], &files[1], &files[files.len() - 1]] {
        let copy = TempDir::new().unwrap();
        copy_dir(temp.path(), copy.path());
        fs::remove_file(copy.path().join(lost.strip_prefix(temp.path()).unwrap())).unwrap();
        let error = open(copy.path(), &options()).err().unwrap().to_string();
        assert!(
            error.contains("raft/log") || error.contains("/raft "),
            "{error}"
        );
    }
    // All of them, and the whole database.
    for gone in ["log", "db"] {
        let copy = TempDir::new().unwrap();
        copy_dir(temp.path(), copy.path());
        fs::remove_dir_all(copy.path().join("raft").join(gone)).unwrap();
        let error = open(copy.path(), &options()).err().unwrap();
        assert!(
            matches!(
                &error,
                OpenError::Refused {
                    refusal: Refusal::NoIdentity | Refusal::NoDatabase(_),
                    ..
                }
            ),
            "{error}"
        );
    }
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

// 03-A20
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

/// One flipped bit anywhere: the opening finds everything that was acknowledged, or it refuses. It never
/// panics and never serves anything wrong.
#[test]
fn random_flips_lose_nothing_silently() {
    let scale: f64 = std::env::var("SWARM_TEST_SCALE")
        .ok()
        .and_then(|scale| scale.parse().ok())
        .unwrap_or(0.1);
    let template = TempDir::new().unwrap();
    let last = killed_member(template.path());
    let root = template.path().join("raft");
    let files: Vec<(PathBuf, usize)> = files_below(&root)
        .into_iter()
        .filter(|(_, content)| !content.is_empty())
        .map(|(path, content)| {
            (
                path.strip_prefix(template.path()).unwrap().into(),
                content.len(),
            )
        })
        .collect();
    let mut random = StdRng::seed_from_u64(20_240_229);
    let (mut opened, mut refused) = (0, 0);
    for trial in 0..(500.0 * scale) as usize {
        // Every file is hit equally often, however small it is.
        let (file, bytes) = &files[trial % files.len()];
        let (offset, bit) = (random.random_range(0..*bytes), random.random_range(0..8));
        let copy = TempDir::new().unwrap();
        copy_dir(template.path(), copy.path());
        flip(&copy.path().join(file), offset, 1 << bit);
        let place = format!("{} offset {offset} bit {bit}", file.display());
        let outcome = catch_unwind(AssertUnwindSafe(|| open(copy.path(), &options())))
            .unwrap_or_else(|_| panic!("opening panicked: {place}"));
        match outcome {
            Ok(engines) => {
                opened += 1;
                check_rows(&engines);
                assert!(engines.log.identity() == Some(&identity()), "{place}");
                assert!(engines.log.hard_state().term == 1, "{place}");
                check_log(&engines, last);
            }
            Err(error) => {
                refused += 1;
                let text = error.to_string();
                assert!(
                    text.contains("/raft") || text.contains("raft/"),
                    "{place}: {text}"
                );
            }
        }
    }
    assert!(
        opened > 0 && refused > 0,
        "{opened} opened, {refused} refused"
    );
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
