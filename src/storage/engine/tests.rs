use super::*;
use crate::storage::seal::{Dek, SealError};
use std::ops::Bound;

fn ring() -> DekRing {
    DekRing::single(Dek::from_bytes(&[7; 32]).unwrap())
}

fn keys(rows: &mut Rows<'_>) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    while let Some((key, _)) = rows.next_row().unwrap() {
        keys.push(key.to_vec());
    }
    keys
}

fn put(db: &Db, family: Family, key: &[u8], value: &[u8]) {
    let mut changes = db.changes();
    changes.put(family, key, value);
    changes.commit().unwrap();
}

#[test]
fn what_is_written_is_there_after_a_reopen() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("db");
    let db = Db::create(&path, &ring(), &DbOptions::default()).unwrap();
    let hash = db.hasher().hash(b"n", b"web");
    let mut changes = db.changes();
    changes.put(Family::Obj, b"key", b"value");
    changes
        .put_record(meta::APPLIED, &Applied { index: 4, term: 2 })
        .unwrap();
    changes.commit().unwrap();
    drop(db);

    let db = Db::open(&path, &ring(), &DbOptions::default()).unwrap();
    assert_eq!(db.applied().unwrap(), Applied { index: 4, term: 2 });
    assert_eq!(db.get(Family::Obj, b"key").unwrap().unwrap(), b"value");
    assert_eq!(db.get(Family::Task, b"key").unwrap(), None);
    assert_eq!(db.hasher().hash(b"n", b"web"), hash);
    drop(db);
    // An option that only the engine's own file of options tells of.
    let options = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let options = options.filter(|path| path.to_string_lossy().contains("/OPTIONS-"));
    let options: Vec<_> = options
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    assert!(!options.is_empty());
    for text in options {
        assert!(text.contains("track_and_verify_wals_in_manifest=true"));
        assert!(text.contains("atomic_flush=true") && text.contains("paranoid_checks=true"));
    }
}

#[test]
fn a_view_does_not_change_and_scans_exact_ranges() {
    let temp = tempfile::tempdir().unwrap();
    let db = Arc::new(Db::create(&temp.path().join("db"), &ring(), &DbOptions::default()).unwrap());
    for key in [b"a".as_slice(), b"b", b"ba", b"b\xff", b"c"] {
        put(&db, Family::Idx, key, b"");
    }
    let view = db.view();
    put(&db, Family::Idx, b"bb", b"");
    drop(db);

    assert_eq!(view.get(Family::Idx, b"bb").unwrap(), None);
    let mut rows = view.rows_with_prefix(Family::Idx, b"b").unwrap();
    assert_eq!(keys(&mut rows), [b"b".as_slice(), b"ba", b"b\xff"]);
    assert!(rows.next_row().unwrap().is_none());
    let (from, until) = (
        Bound::Excluded(b"b".as_slice()),
        Bound::Included(b"c".as_slice()),
    );
    let mut rows = view.rows(Family::Idx, from, until).unwrap();
    assert_eq!(keys(&mut rows), [b"ba".as_slice(), b"b\xff", b"c"]);
    rows.seek(b"bb");
    assert_eq!(keys(&mut rows), [b"b\xff".as_slice(), b"c"]);
    let values = view.get_many(Family::Idx, [b"a".as_slice(), b"x"]).unwrap();
    assert_eq!(values, [Some(Vec::new()), None]);
}

#[test]
fn another_key_does_not_open_it() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("db");
    drop(Db::create(&path, &ring(), &DbOptions::default()).unwrap());
    let other = DekRing::single(Dek::from_bytes(&[8; 32]).unwrap());
    let error = Db::open(&path, &other, &DbOptions::default()).unwrap_err();
    assert!(matches!(
        error,
        DbError::Sealed {
            error: SealError::UnknownKey { .. },
            ..
        }
    ));
}

#[test]
fn new_keys_reseal_the_index_key() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("db");
    let db = Db::create(&path, &ring(), &DbOptions::default()).unwrap();
    let hash = db.hasher().hash(b"n", b"web");
    let new = Dek::from_bytes(&[8; 32]).unwrap();
    let both = DekRing::new(new.clone(), vec![ring().current().clone()]);
    db.set_keys(both).unwrap();
    drop(db);
    let db = Db::open(&path, &DekRing::single(new), &DbOptions::default()).unwrap();
    assert_eq!(db.hasher().hash(b"n", b"web"), hash);
}

#[test]
fn an_open_database_refuses_a_second_opener() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("db");
    let _db = Db::create(&path, &ring(), &DbOptions::default()).unwrap();
    assert!(Db::open(&path, &ring(), &DbOptions::default()).is_err());
    assert!(Db::open(&temp.path().join("none"), &ring(), &DbOptions::default()).is_err());
    assert!(!temp.path().join("none/CURRENT").exists());
}

#[test]
fn a_checkpoint_opens_read_only_and_stays_unchanged() {
    let temp = tempfile::tempdir().unwrap();
    let db = Db::create(&temp.path().join("db"), &ring(), &DbOptions::default()).unwrap();
    put(&db, Family::Obj, b"key", b"value");
    let copy = temp.path().join("copy");
    db.checkpoint(&copy).unwrap();
    put(&db, Family::Obj, b"key", b"later");

    let names = |path: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = names(&copy);
    let messages = tempfile::tempdir().unwrap();
    let read = Db::open_read_only(&copy, &ring(), &DbOptions::default(), messages.path()).unwrap();
    assert_eq!(read.get(Family::Obj, b"key").unwrap().unwrap(), b"value");
    let mut changes = read.changes();
    changes.put(Family::Obj, b"key", b"no");
    assert!(changes.commit().is_err());
    drop(read);
    assert_eq!(names(&copy), before);
}
