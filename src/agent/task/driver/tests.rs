use super::*;
use crate::agent::executor::ExecutorError;
use crate::api::types::{EncryptionKey, Node, NodeDescription};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tokio::sync::mpsc;

/// What a scripted step does.
#[derive(Clone)]
enum Act {
    Return(Result<(), TaskError>),
    /// Never ends by itself.
    Hang,
}

/// A controller and executor that follow a script and count calls.
#[derive(Default)]
struct Script {
    acts: Mutex<BTreeMap<&'static str, VecDeque<Act>>>,
    calls: Mutex<Vec<&'static str>>,
    unresolvable: Option<TaskError>,
    warning: Option<String>,
}

impl Script {
    fn new(acts: &[(&'static str, Act)]) -> Script {
        let script = Script::default();
        for (call, act) in acts {
            let mut scripted = script.acts.lock();
            scripted.entry(call).or_default().push_back(act.clone());
        }
        script
    }

    async fn call(&self, name: &'static str) -> Result<(), TaskError> {
        self.calls.lock().push(name);
        let act = self.acts.lock().get_mut(name).and_then(VecDeque::pop_front);
        match act {
            None => Ok(()),
            Some(Act::Return(result)) => result,
            Some(Act::Hang) => std::future::pending().await,
        }
    }

    fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().clone()
    }
}

struct Scripted(Arc<Script>);

impl Controller for Scripted {
    fn update(&self, _task: Arc<Task>) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.0.call("update"))
    }
    fn prepare(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.0.call("prepare"))
    }
    fn start(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.0.call("start"))
    }
    fn wait(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.0.call("wait"))
    }
    fn shutdown(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.0.call("shutdown"))
    }
    fn terminate(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.0.call("terminate"))
    }
    fn remove(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.0.call("remove"))
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.0.calls.lock().push("close");
        })
    }
    fn container_status(&self) -> BoxFuture<'_, Option<ContainerStatus>> {
        Box::pin(std::future::ready(Some(ContainerStatus {
            container_id: "c".to_owned(),
            pid: 7,
            exit_code: 0,
        })))
    }
    fn warning(&self) -> Option<String> {
        self.0.warning.clone()
    }
}

struct ScriptedExecutor(Arc<Script>);

impl Executor for ScriptedExecutor {
    fn describe(&self) -> BoxFuture<'_, Result<NodeDescription, ExecutorError>> {
        Box::pin(std::future::ready(Ok(NodeDescription::default())))
    }
    fn configure(&self, _node: Arc<Node>) -> BoxFuture<'_, Result<(), ExecutorError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn set_network_keys(
        &self,
        _keys: Arc<Vec<EncryptionKey>>,
    ) -> BoxFuture<'_, Result<(), ExecutorError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn controller(
        &self,
        _task: Arc<Task>,
    ) -> BoxFuture<'_, Result<Arc<dyn Controller>, TaskError>> {
        Box::pin(std::future::ready(match &self.0.unresolvable {
            Some(error) => Err(error.clone()),
            None => Ok(Arc::new(Scripted(self.0.clone())) as Arc<dyn Controller>),
        }))
    }
    fn retain(&self, _task_ids: BTreeSet<String>) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

struct Sent(mpsc::UnboundedSender<TaskStatus>);

impl StatusSink for Sent {
    fn put(&self, _task_id: &str, status: TaskStatus) {
        let _ = self.0.send(status);
    }
}

/// A task under test.
struct Bench {
    script: Arc<Script>,
    handle: TaskHandle,
    join: JoinHandle<()>,
    statuses: mpsc::UnboundedReceiver<TaskStatus>,
}

fn task(desired: TaskState, state: TaskState) -> Task {
    Task {
        id: "t".to_owned(),
        desired_state: desired as i32,
        status: Some(TaskStatus {
            state: state as i32,
            message: "as assigned".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

impl Bench {
    fn new(script: Script, task: Task) -> Bench {
        let script = Arc::new(script);
        let (sender, statuses) = mpsc::unbounded_channel();
        let (handle, join) = TaskHandle::spawn(
            Arc::new(task),
            Arc::new(ScriptedExecutor(script.clone())),
            Arc::new(Sent(sender)),
        );
        Bench {
            script,
            handle,
            join,
            statuses,
        }
    }

    /// The next status as state and message.
    async fn next(&mut self) -> (TaskState, String) {
        let status = self.statuses.recv().await.unwrap();
        (
            TaskState::try_from(status.state).unwrap(),
            status.message.clone(),
        )
    }

    async fn expect(&mut self, expected: &[(TaskState, &str)]) {
        for (state, message) in expected {
            assert_eq!(self.next().await, (*state, (*message).to_owned()));
        }
    }

    /// No status, step or other activity is left; virtual time may pass.
    async fn expect_rest(&mut self) {
        let before = self.script.calls();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(self.statuses.try_recv().is_err());
        assert_eq!(self.script.calls(), before);
    }
}

const TO_RUNNING: [(TaskState, &str); 6] = [
    (TaskState::Accepted, "accepted"),
    (TaskState::Preparing, "preparing"),
    (TaskState::Ready, "prepared"),
    (TaskState::Starting, "starting"),
    (TaskState::Running, "started"),
    (TaskState::Complete, "finished"),
];

// 08-A34
#[tokio::test(start_paused = true)]
async fn a_task_runs_to_its_end() {
    let mut bench = Bench::new(
        Script::default(),
        task(TaskState::Running, TaskState::Assigned),
    );
    bench.expect(&TO_RUNNING).await;
    bench.expect_rest().await;
    assert_eq!(bench.script.calls(), ["prepare", "start", "wait"]);
    bench.handle.close();
    bench.join.await.unwrap();
    assert_eq!(bench.script.calls().last(), Some(&"close"));
}

// 08-A34
#[tokio::test(start_paused = true)]
async fn a_task_pauses_when_ready_until_it_shall_run() {
    let script = Script::new(&[("wait", Act::Hang)]);
    let mut bench = Bench::new(script, task(TaskState::Ready, TaskState::Assigned));
    bench.expect(&TO_RUNNING[..3]).await;
    bench.expect_rest().await;
    assert!(
        bench
            .handle
            .update(Arc::new(task(TaskState::Running, TaskState::Assigned)))
    );
    bench.expect(&TO_RUNNING[3..5]).await;
    bench.expect_rest().await;
    assert_eq!(bench.script.calls(), ["prepare", "update", "start", "wait"]);
}

// 08-A34
#[tokio::test(start_paused = true)]
async fn failures_end_the_task() {
    let fatal = Act::Return(Err(TaskError::fatal("no such user")));
    let mut bench = Bench::new(
        Script::new(&[("prepare", fatal)]),
        task(TaskState::Running, TaskState::Assigned),
    );
    bench.expect(&TO_RUNNING[..2]).await;
    let status = bench.statuses.recv().await.unwrap();
    assert_eq!(status.state, TaskState::Rejected as i32);
    assert_eq!(status.message, "preparing");
    assert_eq!(status.err, "no such user");
    bench.expect_rest().await;
    assert_eq!(bench.script.calls(), ["prepare"]);

    let exit = Act::Return(Err(TaskError::Exit {
        code: 1,
        cause: None,
    }));
    let mut bench = Bench::new(
        Script::new(&[("wait", exit)]),
        task(TaskState::Running, TaskState::Assigned),
    );
    bench.expect(&TO_RUNNING[..5]).await;
    let status = bench.statuses.recv().await.unwrap();
    assert_eq!(status.state, TaskState::Failed as i32);
    assert_eq!(status.message, "started");
    assert_eq!(status.err, "task: non-zero exit (1)");
    let Some(RuntimeStatus::Container(container)) = status.runtime_status else {
        panic!("a failed task says what ran");
    };
    assert_eq!(
        (
            container.container_id.as_str(),
            container.pid,
            container.exit_code
        ),
        ("c", 7, 1)
    );
    bench.expect_rest().await;
}

// 08-A34
#[tokio::test(start_paused = true)]
async fn interrupted_and_temporary_failures_are_tried_again() {
    let script = Script::new(&[
        ("prepare", Act::Return(Err(TaskError::temporary("away")))),
        ("prepare", Act::Return(Err(TaskError::temporary("away")))),
        ("wait", Act::Return(Err(TaskError::Cancelled))),
    ]);
    let mut bench = Bench::new(script, task(TaskState::Running, TaskState::Assigned));
    bench.expect(&TO_RUNNING[..2]).await;
    let begin = tokio::time::Instant::now();
    bench
        .expect(&[
            (TaskState::Preparing, "preparing (attempt 1)"),
            (TaskState::Preparing, "preparing (attempt 2)"),
            (TaskState::Ready, "prepared"),
        ])
        .await;
    let waited = begin.elapsed().as_secs_f64();
    assert!((2.25..3.75).contains(&waited), "1 s, then 2 s: {waited}");
    bench.expect(&TO_RUNNING[3..]).await;
    assert_eq!(
        bench.script.calls(),
        ["prepare", "prepare", "prepare", "start", "wait", "wait"]
    );
}

// 08-A34
#[tokio::test(start_paused = true)]
async fn wanted_removed_means_one_shutdown() {
    let script = Script::new(&[("wait", Act::Hang)]);
    let mut bench = Bench::new(script, task(TaskState::Running, TaskState::Assigned));
    bench.expect(&TO_RUNNING[..5]).await;
    bench
        .handle
        .update(Arc::new(task(TaskState::Remove, TaskState::Running)));
    bench.expect(&[(TaskState::Shutdown, "shutdown")]).await;
    bench.expect_rest().await;
    assert_eq!(
        bench.script.calls(),
        ["prepare", "start", "wait", "update", "shutdown"]
    );
}

// 08-A34
#[tokio::test(start_paused = true)]
async fn ended_tasks_are_left_alone() {
    for state in [
        TaskState::Complete,
        TaskState::Shutdown,
        TaskState::Failed,
        TaskState::Rejected,
        TaskState::Orphaned,
    ] {
        for desired in [TaskState::Running, TaskState::Shutdown, TaskState::Remove] {
            let mut bench = Bench::new(Script::default(), task(desired, state));
            bench.expect_rest().await;
            assert!(bench.script.calls().is_empty(), "{state:?} {desired:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_goes_on_where_the_task_is() {
    let script = Script::new(&[("start", Act::Return(Err(TaskError::AlreadyStarted)))]);
    let mut bench = Bench::new(script, task(TaskState::Running, TaskState::Starting));
    bench.expect(&TO_RUNNING[4..]).await;
    assert_eq!(bench.script.calls(), ["start", "wait"]);
}

#[tokio::test(start_paused = true)]
async fn a_task_without_controller_is_rejected_and_still_removable() {
    let script = Script {
        unresolvable: Some(TaskError::fatal("not on this node")),
        ..Default::default()
    };
    let mut bench = Bench::new(script, task(TaskState::Running, TaskState::Assigned));
    let status = bench.statuses.recv().await.unwrap();
    assert_eq!(status.state, TaskState::Rejected as i32);
    assert_eq!(status.message, "resolving controller failed");
    assert_eq!(status.err, "not on this node");
    bench.expect_rest().await;
    bench.handle.remove();
    bench.join.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn removal_interrupts_any_step_and_is_tried_until_it_works() {
    let script = Script::new(&[
        ("start", Act::Hang),
        ("remove", Act::Return(Err(TaskError::fatal("busy")))),
    ]);
    let mut bench = Bench::new(script, task(TaskState::Running, TaskState::Assigned));
    bench.expect(&TO_RUNNING[..4]).await;
    bench.handle.remove();
    bench.join.await.unwrap();
    assert_eq!(
        bench.script.calls(),
        ["prepare", "start", "remove", "remove", "close"]
    );
}

#[tokio::test(start_paused = true)]
async fn warnings_follow_the_message() {
    let script = Script {
        warning: Some("memory limit not enforced".to_owned()),
        ..Script::new(&[("wait", Act::Hang)])
    };
    let mut bench = Bench::new(script, task(TaskState::Running, TaskState::Starting));
    bench
        .expect(&[(
            TaskState::Running,
            "started (warning: memory limit not enforced)",
        )])
        .await;
}

#[test]
fn retry_delays_grow_and_are_bounded() {
    for (attempt, seconds) in [(0, 1.0), (1, 2.0), (4, 16.0), (5, 30.0), (1000, 30.0)] {
        let delay = retry_delay(attempt).as_secs_f64();
        assert!((seconds * 0.75..seconds * 1.25).contains(&delay), "{delay}");
    }
}
