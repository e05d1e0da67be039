use super::*;
use crate::agent::connect::DialError;
use crate::agent::remotes::Remote;
use crate::agent::testing::{
    Asked, FakeDialer, FakeManager, Mood, Shared, TestExecutor, complete, incremental, put, remove,
    task,
};
use crate::api::types::{
    EncryptionKey, Node, NodeRole, Peer, SessionMessage, TaskState, WeightedPeer,
};
use std::path::Path;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;
use tonic::Status;

/// An agent with one manager, both in memory; only the task database is on disk.
struct Bench {
    dir: tempfile::TempDir,
    manager: FakeManager,
    asked: UnboundedReceiver<Asked>,
    executor: Arc<TestExecutor>,
    tls_info: watch::Sender<Option<NodeTlsInfo>>,
    remotes: SharedRemotes,
    local: watch::Sender<Option<tonic::transport::Channel>>,
}

fn remote(node_id: &str, addr: &str) -> Remote {
    Remote {
        node_id: node_id.to_owned(),
        addr: addr.to_owned(),
    }
}

fn peer(node_id: &str, addr: &str) -> WeightedPeer {
    WeightedPeer {
        peer: Some(Peer {
            node_id: node_id.to_owned(),
            addr: addr.to_owned(),
        }),
        weight: 10,
    }
}

impl Bench {
    fn new() -> Bench {
        let (manager, asked) = FakeManager::start();
        manager.set_message(SessionMessage {
            node: Some(Node {
                id: "node".to_owned(),
                ..Default::default()
            }),
            managers: vec![peer("m1", "manager:1")],
            network_bootstrap_keys: vec![EncryptionKey::default(); 6],
            root_ca: b"root".to_vec(),
            ..Default::default()
        });
        Bench {
            dir: tempfile::tempdir().unwrap(),
            manager,
            asked,
            executor: TestExecutor::new(),
            tls_info: watch::Sender::new(None),
            remotes: SharedRemotes::new([remote("", "manager:1")]),
            local: watch::Sender::new(None),
        }
    }

    fn config(&self) -> AgentConfig {
        let dialer = FakeDialer([("manager:1".to_owned(), self.manager.clone())].into());
        let broker = Broker::new(
            self.remotes.clone(),
            Arc::new(dialer),
            self.local.subscribe(),
        );
        AgentConfig {
            hostname: "box".to_owned(),
            worker_dir: self.dir.path().join("worker"),
            worker_key: WorkerKey::open_or_create(&self.dir.path().join("key")).unwrap(),
            state_file: self.dir.path().join("state.json"),
            broker,
            executor: Arc::new(Shared(self.executor.clone())),
            dependencies: Dependencies::new(),
            tls_info: self.tls_info.subscribe(),
            fail_if_untrusted: false,
        }
    }

    async fn start(&self) -> AgentHandle {
        Agent::start(self.config()).await.unwrap()
    }

    /// The next question of a kind; others are skipped.
    async fn next<T>(&mut self, wanted: impl Fn(&Asked) -> Option<T>) -> T {
        loop {
            let asked = self.asked.recv().await.unwrap();
            if let Some(found) = wanted(&asked) {
                return found;
            }
        }
    }

    async fn next_session(&mut self) -> String {
        self.next(|asked| match asked {
            Asked::Session { id, .. } => Some(id.clone()),
            _ => None,
        })
        .await
    }

    async fn next_assignments(&mut self) -> String {
        self.next(|asked| match asked {
            Asked::Assignments(id) => Some(id.clone()),
            _ => None,
        })
        .await
    }

    /// The next report of a task.
    async fn next_state(&mut self, task: &str) -> i32 {
        self.next(|asked| match asked {
            Asked::Statuses(call) => call
                .iter()
                .find(|(id, _)| id == task)
                .map(|(_, status)| status.state),
            _ => None,
        })
        .await
    }

    async fn until_state(&mut self, task: &str, state: TaskState) {
        while self.next_state(task).await != state as i32 {}
    }
}

fn heartbeat(asked: &Asked) -> Option<String> {
    match asked {
        Asked::Heartbeat(id) => Some(id.clone()),
        _ => None,
    }
}

fn listen(asked: &Asked) -> Option<()> {
    (*asked == Asked::Listen).then_some(())
}

#[tokio::test(start_paused = true)]
async fn a_node_registers_and_learns_about_the_cluster() {
    let mut bench = Bench::new();
    bench.executor.description.lock().hostname = "kernel's name".to_owned();
    let agent = bench.start().await;
    agent.ready().await.unwrap();
    let Asked::Session { id, description } = bench.asked.recv().await.unwrap() else {
        panic!("the first call opens a session");
    };
    assert_eq!((id.as_str(), description.hostname.as_str()), ("", "box"));
    assert_eq!(bench.next(heartbeat).await, "session-1");

    let mut changes = agent.changes();
    use crate::agent::view::NodeChange;
    let root = Arc::new(b"root".to_vec());
    assert_eq!(changes.next().await, Some(NodeChange::RootCa(root)));
    assert_eq!(
        changes.next().await,
        Some(NodeChange::Role(NodeRole::Worker))
    );
    assert_eq!(bench.remotes.watch().borrow()[0], remote("m1", "manager:1"));
    let log = bench.executor.taken_log();
    assert_eq!(log[..2], ["configure node", "6 keys"]);

    // Further messages count too; a status alone is no change for the executor.
    let mut node = Node {
        id: "node".to_owned(),
        ..Default::default()
    };
    node.status = Some(Default::default());
    let message = |node: &Node| {
        Ok(SessionMessage {
            node: Some(node.clone()),
            managers: vec![peer("m1", "manager:1"), peer("m2", "manager:2")],
            ..Default::default()
        })
    };
    bench.manager.say(message(&node));
    node.role = NodeRole::Manager as i32;
    bench.manager.say(message(&node));
    assert_eq!(
        changes.next().await,
        Some(NodeChange::Role(NodeRole::Manager))
    );
    assert_eq!(bench.remotes.watch().borrow().len(), 2);
    let configured = bench.executor.taken_log();
    let count = configured.iter().filter(|l| l.starts_with("configure"));
    assert_eq!(count.count(), 1);
    agent.stop().await.unwrap();
    assert_eq!(changes.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn the_list_of_managers_is_remembered() {
    let bench = Bench::new();
    let agent = bench.start().await;
    agent.ready().await.unwrap();
    let path = bench.dir.path().join("state.json");
    let wanted = [remote("m1", "manager:1")];
    while !crate::agent::remotes::load(&path).is_ok_and(|list| list == wanted) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_follow_the_period_they_are_given() {
    let mut bench = Bench::new();
    bench.manager.set_period(7);
    let agent = bench.start().await;
    agent.ready().await.unwrap();
    bench.next(heartbeat).await;
    let begin = Instant::now();
    for _ in 0..3 {
        bench.next(heartbeat).await;
    }
    let waited = begin.elapsed().as_secs_f64();
    assert!((21.0..21.5).contains(&waited), "{waited}");
}

// 08-A30
#[tokio::test(start_paused = true)]
async fn a_new_description_opens_a_session_with_the_same_id() {
    let mut bench = Bench::new();
    let _agent = bench.start().await;
    assert_eq!(bench.next_session().await, "");
    bench.next(heartbeat).await;

    // Nothing changes: no new session, however long.
    bench.tls_info.send_replace(None);
    let quiet = Instant::now() + Duration::from_secs(300);
    while Instant::now() < quiet {
        let asked = bench.asked.recv().await.unwrap();
        assert!(!matches!(asked, Asked::Session { .. }), "{asked:?}");
    }

    // The executor's part is looked at every 20 s.
    let begin = Instant::now();
    bench.executor.description.lock().fips = true;
    assert_eq!(bench.next_session().await, "session-1");
    assert!(begin.elapsed() <= Duration::from_millis(20_100));

    // The certificate's part at once, and there is no pause before the new session.
    bench.next(heartbeat).await;
    let begin = Instant::now();
    let info = NodeTlsInfo {
        trust_root: b"new".to_vec(),
        ..Default::default()
    };
    bench.tls_info.send_replace(Some(info.clone()));
    let described = bench
        .next(|asked| match asked {
            Asked::Session { id, description } => Some((id.clone(), description.clone())),
            _ => None,
        })
        .await;
    assert_eq!(described.0, "session-1");
    assert_eq!(described.1.tls_info, Some(info));
    assert!(begin.elapsed() < Duration::from_millis(50));
}

// 08-A31
#[tokio::test(start_paused = true)]
async fn a_node_comes_back_whatever_its_manager_does() {
    let mut bench = Bench::new();
    let _agent = bench.start().await;
    bench.next_session().await;
    bench.next(heartbeat).await;

    // The session stream ends, with and without a word.
    bench
        .manager
        .say(Err(Status::aborted("node must disconnect")));
    assert_eq!(bench.next_session().await, "session-1");
    bench.next(heartbeat).await;
    bench.manager.hang_up();
    assert_eq!(bench.next_session().await, "session-1");
    bench.next(heartbeat).await;

    // Heartbeats are refused, or not answered. A mood counts from the next beat on.
    bench
        .manager
        .set_heartbeat(Mood::Bad(Status::invalid_argument("session invalid")));
    bench.next_session().await;
    bench.next(heartbeat).await;
    bench.manager.set_heartbeat(Mood::Silent);
    bench.next_session().await;
    bench.next(heartbeat).await;
    bench.manager.set_heartbeat(Mood::Well);
    bench.next_session().await;
    bench.next(heartbeat).await;

    // The log broker fails; one that is not there at all does not matter.
    bench
        .manager
        .set_logs(Some(Mood::Bad(Status::unavailable("no"))));
    bench.manager.hang_up();
    bench.next_session().await;
    bench.next(listen).await;
    bench.next_session().await;
    bench.manager.set_logs(Some(Mood::Well));
}

// 08-A31
#[tokio::test(start_paused = true)]
async fn delays_grow_with_failures_and_start_over_after_success() {
    let mut bench = Bench::new();
    bench.manager.set_session(Mood::Bad(Status::unavailable(
        "node node exceeded rate limit count of registrations",
    )));
    let _agent = bench.start().await;
    bench.next_session().await;
    let mut last = Instant::now();
    for ceiling_ms in [100, 300, 700, 1500, 3100, 6300, 8000, 8000] {
        bench.next_session().await;
        let waited = last.elapsed();
        assert!(
            waited <= Duration::from_millis(ceiling_ms + 50),
            "{waited:?} > {ceiling_ms}"
        );
        last = Instant::now();
    }
    bench.manager.set_session(Mood::Well);
    bench.next_session().await;
    bench.next(heartbeat).await;
    bench.manager.hang_up();
    let last = Instant::now();
    bench.next_session().await;
    assert!(last.elapsed() <= Duration::from_millis(150));

    // A manager that takes the call and says nothing is given 5 s.
    bench.manager.set_session(Mood::Silent);
    bench.manager.hang_up();
    bench.next_session().await;
    let last = Instant::now();
    bench.next_session().await;
    let waited = last.elapsed();
    assert!(
        waited >= Duration::from_secs(5) && waited < Duration::from_millis(5350),
        "{waited:?}"
    );
}

// 08-A31
#[tokio::test(start_paused = true)]
async fn a_foreign_manager_ends_only_a_node_that_never_registered() {
    let foreign = || Some(DialError::Untrusted("unknown issuer".to_owned()));
    let bench = Bench::new();
    bench.manager.refuse(foreign());
    let config = AgentConfig {
        fail_if_untrusted: true,
        ..bench.config()
    };
    let agent = Agent::start(config).await.unwrap();
    let error = agent.ready().await.unwrap_err();
    assert!(matches!(error, AgentError::Untrusted(_)), "{error}");
    assert!(error.to_string().contains("unknown issuer"), "{error}");
    assert!(agent.ended().await.is_err());

    let mut bench = Bench::new();
    let config = AgentConfig {
        fail_if_untrusted: true,
        ..bench.config()
    };
    let _agent = Agent::start(config).await.unwrap();
    bench.next_session().await;
    bench.next(heartbeat).await;
    bench.manager.refuse(foreign());
    bench.manager.hang_up();
    tokio::time::sleep(Duration::from_secs(60)).await;
    bench.manager.refuse(None);
    bench.next_session().await;
}

#[tokio::test(start_paused = true)]
async fn assignments_are_run_and_reported() {
    let mut bench = Bench::new();
    let running = |id: &str| put(task(id, TaskState::Running, TaskState::Assigned));
    bench
        .manager
        .set_assignments(Some(complete(vec![running("a")])));
    let agent = bench.start().await;
    bench.until_state("a", TaskState::Running).await;
    bench.manager.assign(incremental(1, vec![running("b")]));
    bench.until_state("b", TaskState::Running).await;
    bench.executor.exit("b");
    bench.until_state("b", TaskState::Complete).await;
    bench.manager.assign(incremental(2, vec![remove("b")]));

    // After a new registration everything is reported again, and only what is still there.
    bench.manager.set_assignments(None);
    bench.manager.hang_up();
    bench.next_session().await;
    assert_eq!(bench.next_state("a").await, TaskState::Running as i32);

    // Stopping leaves the tasks alone.
    bench.executor.taken_log();
    agent.stop().await.unwrap();
    assert!(bench.executor.taken_log().is_empty());
    agent.ended().await.unwrap();
    agent.ready().await.unwrap_err();

    // The next agent knows them before it has a manager, and reports them when it has one.
    bench
        .manager
        .refuse(Some(DialError::Failed("away".to_owned())));
    let agent = bench.start().await;
    bench.manager.refuse(None);
    assert_eq!(bench.next_state("a").await, TaskState::Running as i32);
    assert!(!bench.executor.taken_log().contains(&"start a".to_owned()));
    // From here on the disk is waited for, which takes real time.
    tokio::time::resume();
    assert_eq!(agent.leave().await.unwrap(), Left::Clean);
    assert!(bench.executor.taken_log().contains(&"remove a".to_owned()));
}

/// A list that does not follow is not applied; everything is asked for again.
#[tokio::test(start_paused = true)]
async fn a_gap_is_healed_by_a_complete_list() {
    let mut bench = Bench::new();
    let running = |id: &str| put(task(id, TaskState::Running, TaskState::Assigned));
    bench
        .manager
        .set_assignments(Some(complete(vec![running("a")])));
    let _agent = bench.start().await;
    bench.until_state("a", TaskState::Running).await;
    bench.executor.taken_log();
    bench
        .manager
        .assign(incremental(5, vec![running("wrong"), remove("a")]));
    bench.next_assignments().await;
    bench.manager.assign(incremental(1, vec![running("b")]));
    bench.until_state("b", TaskState::Running).await;
    let log = bench.executor.taken_log();
    assert!(
        !log.iter()
            .any(|line| line.contains("wrong") || line == "remove a"),
        "{log:?}"
    );

    // A manager that never gets it right costs the session, not a busy loop.
    bench
        .manager
        .set_assignments(Some(incremental(3, vec![running("wrong")])));
    bench.manager.hang_up();
    bench.next_session().await;
    let mut asked = 0;
    loop {
        match bench.asked.recv().await.unwrap() {
            Asked::Assignments(_) => asked += 1,
            Asked::Session { .. } => break,
            _ => {}
        }
    }
    assert_eq!(asked, 4);
}

#[tokio::test(start_paused = true)]
async fn the_own_manager_is_preferred_and_noticed_at_once() {
    let mut bench = Bench::new();
    let (own, mut own_asked) = FakeManager::start();
    bench
        .manager
        .set_session(Mood::Bad(Status::unavailable("no leader")));
    let agent = bench.start().await;
    for _ in 0..8 {
        bench.next_session().await;
    }
    let begin = Instant::now();
    bench.local.send_replace(Some(own.channel().await));
    agent.ready().await.unwrap();
    assert!(begin.elapsed() < Duration::from_millis(20), "no back-off");
    assert!(matches!(
        own_asked.recv().await,
        Some(Asked::Session { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_node_without_managers_waits_for_one() {
    let bench = Bench::new();
    let config = AgentConfig {
        broker: Broker::remote_only(SharedRemotes::new([]), Arc::new(FakeDialer::default())),
        ..bench.config()
    };
    let agent = Agent::start(config).await.unwrap();
    let early = tokio::time::timeout(Duration::from_secs(600), agent.ready()).await;
    assert!(early.is_err());
    agent.stop().await.unwrap();
    assert!(matches!(agent.ready().await, Err(AgentError::Stopped)));
}

#[tokio::test]
async fn the_worker_directory_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    let agent = bench.start().await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&bench.dir.path().join("worker")), 0o700);
    agent.stop().await.unwrap();
}
