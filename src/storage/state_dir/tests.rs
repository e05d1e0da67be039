use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

// 01-A21
#[test]
fn directories_and_files_are_the_owners_only() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("a/state");
    let dir = StateDir::open(&root).unwrap();
    assert_eq!(mode(&temp.path().join("a")), 0o700);
    assert_eq!(mode(&root), 0o700);
    assert_eq!(mode(&root.join("LOCK")), 0o600);

    create_dir(&dir.raft_log()).unwrap();
    assert_eq!(mode(&dir.raft()), 0o700);
    write_atomic(&dir.raft_format(), b"1", FILE_MODE).unwrap();
    assert_eq!(mode(&dir.raft_format()), 0o600);
    write_atomic(&dir.raft_format(), b"2", FILE_MODE).unwrap();
    assert_eq!(fs::read(dir.raft_format()).unwrap(), b"2");
    assert_eq!(fs::read_dir(dir.raft()).unwrap().count(), 2);
}

#[test]
fn an_existing_empty_directory_is_restricted() {
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let _dir = StateDir::open(temp.path()).unwrap();
    assert_eq!(mode(temp.path()), 0o700);
}

#[test]
fn a_directory_of_something_else_is_refused_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(temp.path().join("docker-state.json"), "{}").unwrap();
    let error = StateDir::open(temp.path()).unwrap_err().to_string();
    assert!(error.contains("docker-state.json"), "{error}");
    assert_eq!(mode(temp.path()), 0o755);
    assert!(!temp.path().join("LOCK").exists());
    let file = temp.path().join("docker-state.json");
    let error = StateDir::open(&file).unwrap_err().to_string();
    assert!(error.contains("is not a directory"), "{error}");
}

// 01-A22
#[test]
fn a_second_opener_is_told_who_holds_the_directory() {
    let temp = tempfile::tempdir().unwrap();
    let first = StateDir::open(temp.path()).unwrap();
    type Attempt = fn(&Path) -> Result<StateDir, StateDirError>;
    let attempts: [Attempt; 2] = [
        |path| StateDir::open(path),
        |path| StateDir::open_shared(path),
    ];
    for attempt in attempts {
        let start = Instant::now();
        let error = attempt(temp.path()).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(1));
        let text = error.to_string();
        assert!(matches!(error, StateDirError::InUse { .. }), "{text}");
        assert!(
            text.contains(&format!("process {}", std::process::id())),
            "{text}"
        );
    }
    drop(first);
    StateDir::open(temp.path()).unwrap();
}

#[test]
fn readers_share_and_keep_writers_out() {
    let temp = tempfile::tempdir().unwrap();
    drop(StateDir::open(temp.path()).unwrap());
    let one = StateDir::open_shared(temp.path()).unwrap();
    let two = StateDir::open_shared(temp.path()).unwrap();
    assert_eq!(one.access(), Access::Shared);
    assert!(StateDir::open(temp.path()).is_err());
    drop((one, two));
    StateDir::open(temp.path()).unwrap();
}

#[test]
fn a_reader_creates_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let _dir = StateDir::open_shared(temp.path()).unwrap();
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    let missing = temp.path().join("missing");
    assert!(matches!(
        StateDir::open_shared(&missing),
        Err(StateDirError::Missing { .. })
    ));
    assert!(!missing.exists());
}
