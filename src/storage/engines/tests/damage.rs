//! Damaged and missing files: refused by name, or, on request, given up with the loss reported.

use super::*;

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
    let files = files_below(&root).into_iter();
    let files = files.filter(|(_, content)| !content.is_empty());
    let (database, others): (Vec<_>, Vec<_>) = files
        .map(|(path, content)| {
            let path = path.strip_prefix(template.path()).unwrap();
            (path.to_owned(), content.len())
        })
        .partition(|(path, _)| path.starts_with("raft/db/1"));
    let mut random = StdRng::seed_from_u64(20_240_229);
    let (mut opened, mut refused) = (0, 0);
    for trial in 0..(1000.0 * scale) as usize {
        // Half of the flips hit the database. Every file is hit equally often, however small it is.
        let files = [&database, &others][trial % 2];
        let (file, bytes) = &files[trial / 2 % files.len()];
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
