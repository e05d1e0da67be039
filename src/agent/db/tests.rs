use super::*;
use crate::agent::testing::task;
use crate::api::types::{Annotations, TaskState};
use tokio::sync::mpsc;

/// A database directory, and what was handed on.
struct Bench {
    dir: tempfile::TempDir,
    key: WorkerKey,
    handed_on: mpsc::UnboundedReceiver<(String, i32)>,
    on_status: OnStatus,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let key = WorkerKey::open_or_create(&dir.path().join("key")).unwrap();
        let (sender, handed_on) = mpsc::unbounded_channel();
        Bench {
            dir,
            key,
            handed_on,
            on_status: Arc::new(move |id, status| {
                let _ = sender.send((id.to_owned(), status.state));
            }),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("tasks")
    }

    fn open(&self) -> (TaskDb, Vec<StoredTask>) {
        TaskDb::open(&self.path(), &self.key, self.on_status.clone()).unwrap()
    }

    /// What an agent that starts now finds: `id state assigned` per task.
    fn stored(&self) -> Vec<String> {
        let (_, stored) = self.open();
        stored
            .iter()
            .map(|stored| {
                let state = stored.task.status.as_ref().unwrap().state;
                format!("{} {state} {}", stored.task.id, stored.assigned)
            })
            .collect()
    }
}

fn assigned(id: &str) -> Arc<Task> {
    let mut task = task(id, TaskState::Running, TaskState::Assigned);
    task.service_annotations = Some(Annotations {
        name: "canary-service".to_owned(),
        ..Default::default()
    });
    Arc::new(task)
}

fn running() -> TaskStatus {
    TaskStatus {
        state: TaskState::Running as i32,
        message: "canary-message".to_owned(),
        ..Default::default()
    }
}

fn assignments(put: &[&str], unassign: &[&str]) -> Assignments {
    Assignments {
        put: put.iter().map(|id| assigned(id)).collect(),
        unassign: unassign.iter().map(|id| (*id).to_owned()).collect(),
    }
}

// 08-A32
#[tokio::test]
async fn tasks_and_statuses_survive() {
    let mut bench = Bench::new();
    {
        let (db, stored) = bench.open();
        assert!(stored.is_empty());
        db.assign(assignments(&["a", "b", "c"], &[])).await.unwrap();
        db.put_status("a", running());
        assert_eq!(
            bench.handed_on.recv().await,
            Some(("a".to_owned(), TaskState::Running as i32))
        );
        // A newer version of a known task does not touch our status.
        db.assign(assignments(&["a"], &["b"])).await.unwrap();
        db.delete(vec!["c".to_owned()]).await.unwrap();
    }
    assert_eq!(bench.stored(), ["a 512 true", "b 192 false"]);
    let (_, stored) = bench.open();
    let service = stored[0].task.service_annotations.as_ref().unwrap();
    assert_eq!(service.name, "canary-service");
}

#[tokio::test]
async fn a_status_of_an_unknown_task_is_dropped() {
    let mut bench = Bench::new();
    {
        let (db, _) = bench.open();
        db.put_status("ghost", running());
        db.assign(assignments(&["a"], &[])).await.unwrap();
        db.delete(vec!["a".to_owned()]).await.unwrap();
        db.put_status("a", running());
        db.assign(assignments(&["b"], &[])).await.unwrap();
    }
    assert!(bench.handed_on.try_recv().is_err());
    assert_eq!(bench.stored(), ["b 192 true"]);
}

#[tokio::test]
async fn what_waits_on_closing_is_written() {
    let mut bench = Bench::new();
    {
        let (db, _) = bench.open();
        db.assign(assignments(&["a"], &[])).await.unwrap();
        for _ in 0..100 {
            db.put_status("a", running());
        }
    }
    assert_eq!(bench.stored(), ["a 512 true"]);
    assert!(bench.handed_on.recv().await.is_some());
}

#[tokio::test]
async fn nothing_but_task_ids_is_readable() {
    let bench = Bench::new();
    {
        let (db, _) = bench.open();
        db.assign(assignments(&["task-id-1"], &[])).await.unwrap();
        db.put_status("task-id-1", running());
    }
    let mut all = Vec::new();
    for entry in std::fs::read_dir(bench.path()).unwrap() {
        all.extend(std::fs::read(entry.unwrap().path()).unwrap());
    }
    let holds = |word: &str| all.windows(word.len()).any(|w| w == word.as_bytes());
    assert!(holds("task-id-1"));
    assert!(!holds("canary"));
}

#[tokio::test]
async fn an_unreadable_database_is_set_aside() {
    let bench = Bench::new();
    {
        let (db, _) = bench.open();
        db.assign(assignments(&["a"], &[])).await.unwrap();
    }
    let other = WorkerKey::open_or_create(&bench.dir.path().join("other")).unwrap();
    let error = TaskDb::open(&bench.path(), &other, bench.on_status.clone())
        .err()
        .unwrap();
    assert!(error.is_damage(), "{error}");
    let (db, stored) =
        TaskDb::open_or_replace(&bench.path(), &other, bench.on_status.clone()).unwrap();
    assert!(stored.is_empty());
    assert!(bench.dir.path().join("tasks.damaged").exists());
    db.assign(assignments(&["b"], &[])).await.unwrap();
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let bench = Bench::new();
    {
        let (db, _) = bench.open();
        drop(db);
        let names = [META, TASK, STATUS, ASSIGNED];
        let raw = DB::open_cf(&Options::default(), bench.path(), names).unwrap();
        let meta = raw.cf_handle(META).unwrap();
        raw.put_cf(meta, "version", "2").unwrap();
    }
    let error = TaskDb::open_or_replace(&bench.path(), &bench.key, bench.on_status.clone())
        .err()
        .unwrap();
    assert!(matches!(error, DbError::Version { .. }), "{error}");
}

/// After many tasks have come and gone the database is as small as ever.
#[tokio::test]
async fn its_size_follows_the_live_tasks() {
    let bench = Bench::new();
    {
        let (db, _) = bench.open();
        for round in 0..4 {
            let ids: Vec<String> = (0..600).map(|n| format!("{round}-{n}")).collect();
            let names: Vec<&str> = ids.iter().map(String::as_str).collect();
            db.assign(assignments(&names, &[])).await.unwrap();
            db.delete(ids).await.unwrap();
        }
        db.assign(assignments(&["last"], &[])).await.unwrap();
    }
    assert_eq!(bench.stored(), ["last 192 true"]);
    let tables: u64 = std::fs::read_dir(bench.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().extension().is_some_and(|ext| ext == "sst"))
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert!(tables < 200_000, "{tables} bytes");
}
