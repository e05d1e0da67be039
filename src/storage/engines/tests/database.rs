//! Files of the object database that are missing, cut, exchanged or of another layout.

use super::*;
use crate::storage::engine::Schema;

/// The files of the database of a killed member, by path below the state directory.
fn database_files(template: &Path) -> Vec<PathBuf> {
    let files = files_below(&template.join("raft/db/1")).into_keys();
    files
        .map(|path| path.strip_prefix(template).unwrap().to_owned())
        .collect()
}

/// Opens a copy of the template that `damage` has changed: nothing is lost, or it is refused with the
/// place and what to do. True if it opened.
fn judge_copy(template: &Path, last: u64, place: &str, damage: impl FnOnce(&Path)) -> bool {
    let copy = TempDir::new().unwrap();
    copy_dir(template, copy.path());
    damage(copy.path());
    let outcome = catch_unwind(AssertUnwindSafe(|| open(copy.path(), &options())));
    match outcome.unwrap_or_else(|_| panic!("opening panicked: {place}")) {
        Ok(engines) => {
            println!("opened at {}: {place}", engines.applied.index);
            assert!(
                engines.applied.index >= engines.log.truncated().index,
                "{place}"
            );
            check_rows(&engines);
            check_log(&engines, last);
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.contains("raft/db") || text.contains("/raft "),
                "{place}: {text}"
            );
            let advised = ["backup", "rejoin", "disk", "release"];
            assert!(
                advised.iter().any(|word| text.contains(word)),
                "{place}: {text}"
            );
            false
        }
    }
}

#[test]
fn a_missing_file_of_the_database_is_noticed() {
    let template = TempDir::new().unwrap();
    let last = killed_member(template.path());
    let mut refused = 0;
    for file in database_files(template.path()) {
        let place = format!("{} is missing", file.display());
        let opened = judge_copy(template.path(), last, &place, |copy| {
            fs::remove_file(copy.join(&file)).unwrap();
        });
        refused += u32::from(!opened);
        let extension = file.extension().unwrap_or_default();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if extension == "sst" || name == "CURRENT" || name.starts_with("MANIFEST") {
            assert!(!opened, "{place}");
        }
    }
    assert!(refused >= 3, "{refused}");
}

/// A power loss may cut the end of what was not synced.
#[test]
fn a_cut_file_of_the_database_is_noticed_or_replayed() {
    let template = TempDir::new().unwrap();
    let last = killed_member(template.path());
    for file in database_files(template.path()) {
        let bytes = fs::metadata(template.path().join(&file)).unwrap().len();
        for keep in [bytes / 2, bytes.saturating_sub(1)] {
            let place = format!("{} cut to {keep} of {bytes}", file.display());
            judge_copy(template.path(), last, &place, |copy| {
                let cut = fs::OpenOptions::new().write(true).open(copy.join(&file));
                cut.unwrap().set_len(keep).unwrap();
            });
        }
    }
}

#[test]
fn exchanged_files_of_the_database_are_noticed() {
    let template = TempDir::new().unwrap();
    let last = killed_member(template.path());
    let mut files = database_files(template.path());
    files.retain(|file| {
        matches!(
            file.extension().and_then(|e| e.to_str()),
            Some("sst" | "log")
        )
    });
    assert!(files.len() >= 3, "{files:?}");
    for pair in files.windows(2) {
        let place = format!("{} and {} exchanged", pair[0].display(), pair[1].display());
        judge_copy(template.path(), last, &place, |copy| {
            let [one, other] = [copy.join(&pair[0]), copy.join(&pair[1])];
            let aside = copy.join("aside");
            fs::rename(&one, &aside).unwrap();
            fs::rename(&other, &one).unwrap();
            fs::rename(&aside, &other).unwrap();
        });
    }
}

/// The database of another member, or of an earlier time, in the place of this one's.
#[test]
fn another_database_is_refused() {
    let template = TempDir::new().unwrap();
    killed_member(template.path());
    let stranger = TempDir::new().unwrap();
    drop(member(stranger.path(), 20));
    let copy = TempDir::new().unwrap();
    copy_dir(template.path(), copy.path());
    fs::remove_dir_all(copy.path().join("raft/db/1")).unwrap();
    copy_dir(
        &stranger.path().join("raft/db/1"),
        &copy.path().join("raft/db/1"),
    );
    // It ends where the log has been forgotten already.
    let error = open(copy.path(), &options()).err().unwrap().to_string();
    assert!(error.contains("raft"), "{error}");
    assert!(
        error.contains("backup") || error.contains("rejoin"),
        "{error}"
    );
}

#[test]
fn another_layout_is_refused() {
    let temp = TempDir::new().unwrap();
    drop(member(temp.path(), 5));
    for version in [0, 2] {
        let path = temp.path().join("raft/db/1");
        let db = Db::open(&path, &ring(), &DbOptions::default()).unwrap();
        let schema = Schema {
            version,
            created_by: "0.0.9".into(),
        };
        let mut changes = db.changes();
        changes.put_record(meta::SCHEMA, &schema).unwrap();
        changes.commit_synced().unwrap();
        drop(db);
        let error = open(temp.path(), &options()).err().unwrap().to_string();
        let wanted = format!("has layout {version}, this release knows layout 1");
        assert!(error.contains(&wanted), "{error}");
        assert!(error.contains("start the release that wrote it"), "{error}");
        // Put back what was there, past the check.
        rocksdb_put_schema(&path);
        assert!(open(temp.path(), &options()).is_ok());
    }
}

/// Writes the present layout into a database that this program refuses to open.
fn rocksdb_put_schema(path: &Path) {
    use crate::storage::codec;
    let schema = Schema {
        version: 1,
        created_by: "0.0.9".into(),
    };
    let names = std::iter::once("default").chain(Family::ALL.map(Family::name));
    let db = rocksdb::DB::open_cf(&rocksdb::Options::default(), path, names).unwrap();
    let family = db.cf_handle(Family::Meta.name()).unwrap();
    let bytes = codec::encode(&schema).unwrap();
    db.put_cf(family, meta::SCHEMA, bytes).unwrap();
}
