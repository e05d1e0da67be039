use super::*;
use crate::agent::key::WorkerKey;
use crate::agent::testing::{Shared, TestExecutor, change, put, remove, task};
use crate::api::types::{Config, Secret};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// A worker on a directory that outlives it.
struct Bench {
    dir: PathBuf,
    executor: Arc<TestExecutor>,
    dependencies: Arc<Dependencies>,
    worker: Worker,
    actor: JoinHandle<()>,
}

impl Bench {
    fn start(dir: &std::path::Path) -> Bench {
        Bench::start_with(dir, TestExecutor::new())
    }

    fn start_with(dir: &std::path::Path, executor: Arc<TestExecutor>) -> Bench {
        let (db, stored) = open_db(dir);
        let dependencies = Dependencies::new();
        let (worker, actor) = Worker::start(
            db,
            stored,
            Arc::new(Shared(executor.clone())),
            dependencies.clone(),
            Reporter::new(),
        );
        Bench {
            dir: dir.to_owned(),
            executor,
            dependencies,
            worker,
            actor,
        }
    }

    async fn complete(&self, changes: Vec<AssignmentChange>) {
        self.worker
            .assign(ListKind::Complete, changes)
            .await
            .unwrap();
    }

    async fn incremental(&self, changes: Vec<AssignmentChange>) {
        self.worker
            .assign(ListKind::Incremental, changes)
            .await
            .unwrap();
    }

    /// `id state` of every task, once they are as expected.
    async fn expect(&self, expected: &[&str]) {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let statuses = self.worker.statuses().await.unwrap();
            let seen: Vec<String> = statuses
                .iter()
                .map(|(id, status)| format!("{id} {}", status.state))
                .collect();
            if seen == expected {
                return;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "{seen:?}, not {expected:?}"
            );
            tokio::task::yield_now().await;
        }
    }

    async fn stop(self) -> PathBuf {
        self.worker.stop().await.unwrap();
        self.actor.await.unwrap();
        self.dir
    }
}

fn open_db(dir: &std::path::Path) -> (TaskDb, Vec<StoredTask>) {
    let key = WorkerKey::open_or_create(&dir.join("key")).unwrap();
    TaskDb::open(&dir.join("tasks"), &key, Arc::new(|_, _| {})).unwrap()
}

/// What is on the disk: `id state assigned` per task.
fn on_disk(dir: &std::path::Path) -> Vec<String> {
    let (_, stored) = open_db(dir);
    stored
        .iter()
        .map(|stored| {
            let state = stored.task.status.as_ref().unwrap().state;
            format!("{} {state} {}", stored.task.id, stored.assigned)
        })
        .collect()
}

fn runs(id: &str) -> AssignmentChange {
    put(task(id, TaskState::Running, TaskState::Assigned))
}

fn secret(id: &str, update: bool) -> AssignmentChange {
    change(
        Item::Secret(Secret {
            id: id.to_owned(),
            ..Default::default()
        }),
        update,
    )
}

fn config(id: &str, update: bool) -> AssignmentChange {
    change(
        Item::Config(Config {
            id: id.to_owned(),
            ..Default::default()
        }),
        update,
    )
}

// 08-A32
#[tokio::test]
async fn complete_lists_replace_everything() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::start(dir.path());
    bench
        .complete(vec![
            runs("a"),
            runs("b"),
            secret("s1", true),
            config("c1", true),
        ])
        .await;
    bench.expect(&["a 512", "b 512"]).await;
    bench
        .complete(vec![runs("b"), runs("c"), secret("s2", true)])
        .await;
    bench.expect(&["b 512", "c 512"]).await;
    let (secrets, configs, _) = bench.dependencies.ids();
    assert_eq!((secrets, configs), (vec!["s2".to_owned()], vec![]));
    let log = bench.executor.taken_log();
    assert!(log.contains(&"remove a".to_owned()), "{log:?}");
    assert!(
        !log.contains(&"update b".to_owned()),
        "nothing new for b: {log:?}"
    );
    // Empty, and with changes that say nothing.
    bench.complete(vec![AssignmentChange::default()]).await;
    bench.expect(&[]).await;
    let dir_path = bench.stop().await;
    assert!(on_disk(&dir_path).is_empty());
}

// 08-A32
#[tokio::test]
async fn differences_add_and_remove() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::start(dir.path());
    bench.complete(vec![]).await;
    bench
        .incremental(vec![
            runs("a"),
            runs("b"),
            remove("unknown"),
            secret("s1", true),
            secret("unknown", false),
        ])
        .await;
    bench.expect(&["a 512", "b 512"]).await;
    bench
        .incremental(vec![
            put(task("a", TaskState::Shutdown, TaskState::Running)),
            remove("b"),
            // Within a list the last change wins.
            remove("c"),
            runs("c"),
            runs("d"),
            remove("d"),
            secret("s1", false),
            config("c1", true),
        ])
        .await;
    bench.expect(&["a 640", "c 512"]).await;
    let (secrets, configs, _) = bench.dependencies.ids();
    assert_eq!((secrets, configs), (vec![], vec!["c1".to_owned()]));
    // A desired state never goes back.
    bench
        .incremental(vec![put(task(
            "a",
            TaskState::Running,
            TaskState::Assigned,
        ))])
        .await;
    bench.expect(&["a 640", "c 512"]).await;
    let dir_path = bench.stop().await;
    assert_eq!(on_disk(&dir_path), ["a 640 true", "c 512 true"]);
}

// 08-A33
#[tokio::test]
async fn tasks_go_on_with_their_stored_status() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::start(dir.path());
    bench.complete(vec![runs("a"), runs("b")]).await;
    bench.expect(&["a 512", "b 512"]).await;
    bench.executor.exit("b");
    bench.expect(&["a 512", "b 576"]).await;
    bench.stop().await;

    let bench = Bench::start(dir.path());
    bench.expect(&["a 512", "b 576"]).await;
    assert!(
        bench.executor.taken_log().is_empty(),
        "nothing is started twice"
    );
    bench.complete(vec![runs("a"), runs("b")]).await;
    bench.executor.exit("a");
    bench.expect(&["a 576", "b 576"]).await;
    assert_eq!(bench.executor.taken_log(), ["retain a b"]);
    bench.stop().await;
}

/// A removal that was under way is finished after a restart, and the task may come back meanwhile.
#[tokio::test]
async fn removals_survive_a_restart_and_tasks_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::start(dir.path());
    bench.complete(vec![runs("a")]).await;
    bench.expect(&["a 512"]).await;
    bench.executor.stuck.store(true, Ordering::Release);
    bench.complete(vec![]).await;
    bench.expect(&[]).await;
    let path = bench.stop().await;
    assert_eq!(on_disk(&path), ["a 512 false"]);

    let executor = TestExecutor::new();
    executor.stuck.store(true, Ordering::Release);
    let bench = Bench::start_with(dir.path(), executor);
    bench.expect(&[]).await;
    bench.complete(vec![runs("a")]).await;
    assert_eq!(bench.executor.taken_log(), ["retain a"]);
    let path = bench.stop().await;
    assert_eq!(
        on_disk(&path),
        ["a 512 true"],
        "assigned again, not yet removed"
    );

    let bench = Bench::start(dir.path());
    bench.complete(vec![]).await;
    bench.expect(&[]).await;
    bench.complete(vec![runs("a")]).await;
    bench.expect(&["a 512"]).await;
    bench.stop().await;
}

#[tokio::test]
async fn leaving_removes_everything() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::start(dir.path());
    bench.complete(vec![runs("a"), runs("b")]).await;
    bench.expect(&["a 512", "b 512"]).await;
    let left = bench.worker.leave(Duration::from_secs(60)).await.unwrap();
    assert_eq!(left, Left::Clean);
    let refused = bench
        .worker
        .assign(ListKind::Complete, vec![runs("c")])
        .await;
    assert!(refused.is_err(), "a node that leaves takes nothing more");
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn leaving_does_not_wait_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::start(dir.path());
    bench.complete(vec![runs("a"), runs("b")]).await;
    bench.expect(&["a 512", "b 512"]).await;
    bench.executor.stuck.store(true, Ordering::Release);
    let left = bench.worker.leave(Duration::from_secs(60)).await.unwrap();
    assert_eq!(left, Left::Remaining(2));
    bench.stop().await;
}

#[tokio::test]
async fn a_panic_fails_its_task_only() {
    let dir = tempfile::tempdir().unwrap();
    let executor = TestExecutor::new();
    *executor.panicking.lock() = Some("bad".to_owned());
    let bench = Bench::start_with(dir.path(), executor);
    bench.complete(vec![runs("bad"), runs("good")]).await;
    // Tried a few times, then left out until the next start.
    bench.expect(&["good 512"]).await;
    let path = bench.stop().await;
    assert_eq!(on_disk(&path), ["bad 704 true", "good 512 true"]);
}
