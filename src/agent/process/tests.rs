//! Real programs under real shims. The shim is this test executable, entered through [`shim_entry`].

use super::*;
use crate::agent::executor::TaskError;
use crate::api::types::task_spec::Runtime;
use crate::api::types::{
    ContainerSpec, Endpoint, HealthConfig, PortConfig, ResourceRequirements, Resources, TaskSpec,
};
use crate::api::types::{LogStream, container_spec::Ulimit};
use rustix::process::Signal;
use std::time::Duration;

mod files;

/// Set for a process of this test executable that is to be a shim.
const SHIM_VARIABLE: &str = "SWARM_TEST_SHIM";

/// Not a test: what a shim process runs instead of one.
#[test]
fn shim_entry() {
    if std::env::var_os(SHIM_VARIABLE).is_some() {
        let code = shim_main();
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
}

/// A shim command that enters [`shim_entry`].
pub(crate) fn test_shim() -> ShimCommand {
    ShimCommand {
        program: PathBuf::from("/proc/self/exe"),
        args: [
            "agent::process::tests::shim_entry",
            "--exact",
            "--nocapture",
        ]
        .map(str::to_owned)
        .to_vec(),
        env: vec![(SHIM_VARIABLE.into(), "1".into())],
    }
}

/// A node's directory, and executors on it as an agent makes them at each start.
struct Host {
    dir: tempfile::TempDir,
    dependencies: Arc<Dependencies>,
}

impl Host {
    fn new() -> Host {
        Host {
            dir: tempfile::tempdir().unwrap(),
            dependencies: Dependencies::new(),
        }
    }

    fn config(&self) -> ProcessConfig {
        ProcessConfig {
            shim: test_shim(),
            ..ProcessConfig::new("node", self.dir.path().join("worker"))
        }
    }

    /// Pretends that the tasks' directory is a tmpfs: what lies in it is the same.
    fn executor_with(&self, config: ProcessConfig) -> ProcessExecutor {
        let key = WorkerKey::open_or_create(&self.dir.path().join("key")).unwrap();
        let mut executor = ProcessExecutor::new(config, key, self.dependencies.clone()).unwrap();
        let inner = Arc::get_mut(&mut executor.inner).unwrap();
        inner.roots.tasks = self.dir.path().join("tasks");
        inner.roots.volatile = true;
        executor
    }

    fn executor(&self) -> ProcessExecutor {
        self.executor_with(self.config())
    }

    async fn controller(&self, task: Task) -> Arc<dyn Controller> {
        self.executor().controller(Arc::new(task)).await.unwrap()
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("worker/run/t")
    }

    fn task_dir(&self) -> PathBuf {
        self.dir.path().join("tasks/t")
    }

    fn lines(&self, stream: LogStream) -> Vec<String> {
        let filter = LogFilter {
            streams: vec![stream],
            ..Default::default()
        };
        let entries = self.executor().log("t", &filter).unwrap();
        entries
            .into_iter()
            .map(|entry| String::from_utf8(entry.text).unwrap())
            .collect()
    }
}

/// Waits for something that happens soon, by looking often.
async fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !happened() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn shell(script: &str) -> ContainerSpec {
    ContainerSpec {
        image: HOST_IMAGE.to_owned(),
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        ..Default::default()
    }
}

fn task(spec: ContainerSpec) -> Task {
    Task {
        id: "t".to_owned(),
        node_id: "node".to_owned(),
        slot: 3,
        service_annotations: Some(crate::api::types::Annotations {
            name: "web".to_owned(),
            ..Default::default()
        }),
        spec: Some(TaskSpec {
            runtime: Some(Runtime::Container(spec)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn exit(code: i32, signal: Option<i32>) -> TaskError {
    TaskError::Exit {
        code,
        cause: signal.map(|signal| format!("killed by signal {signal}")),
    }
}

async fn run(controller: &dyn Controller) -> Result<(), TaskError> {
    controller.prepare().await?;
    controller.start().await?;
    controller.wait().await
}

#[tokio::test]
async fn exit_codes_and_output() {
    let host = Host::new();
    let controller = host
        .controller(task(shell("echo out; echo err >&2; exit 3")))
        .await;
    assert_eq!(run(&*controller).await, Err(exit(3, None)));
    assert_eq!(host.lines(LogStream::Stdout), ["out"]);
    assert_eq!(host.lines(LogStream::Stderr), ["err"]);
    let status = controller.container_status().await.unwrap();
    assert_eq!((status.container_id.as_str(), status.exit_code), ("t", 3));
    assert_eq!(controller.start().await, Err(TaskError::AlreadyStarted));
    assert_eq!(controller.prepare().await, Err(TaskError::AlreadyPrepared));

    controller.remove().await.unwrap();
    assert!(!host.control().exists() && !host.task_dir().exists());
    assert_eq!(controller.container_status().await, None);
    controller.close().await;
    assert_eq!(controller.start().await, Err(TaskError::Closed));

    let controller = host.controller(task(shell("exit 0"))).await;
    assert_eq!(run(&*controller).await, Ok(()));
    controller.remove().await.unwrap();

    let controller = host.controller(task(shell("kill -9 $$"))).await;
    assert_eq!(run(&*controller).await, Err(exit(137, Some(9))));
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let host = Host::new();
    let mut spec = shell("");
    spec.command = vec!["/no/such/program".to_owned()];
    let controller = host.controller(task(spec)).await;
    let error = TaskError::fatal(
        "process executor: cannot run \"/no/such/program\": No such file or directory (os error 2)",
    );
    assert_eq!(run(&*controller).await, Err(error.clone()));
    // The next agent learns the same from the record.
    let controller = host.controller(task(shell(""))).await;
    assert_eq!(controller.start().await, Err(TaskError::AlreadyStarted));
    assert!(matches!(controller.wait().await, Err(TaskError::Fatal(_))));
}

#[tokio::test]
async fn stopping_is_polite_then_forceful() {
    let host = Host::new();
    let polite = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let controller = host.controller(task(shell(polite))).await;
    controller.prepare().await.unwrap();
    controller.start().await.unwrap();
    eventually("it is up", || host.lines(LogStream::Stdout) == ["up"]).await;
    controller.shutdown().await.unwrap();
    assert_eq!(host.lines(LogStream::Stdout), ["up", "bye"]);
    assert_eq!(controller.wait().await, Ok(()));
    assert_eq!(controller.shutdown().await, Ok(()), "again");
    controller.remove().await.unwrap();

    let mut stubborn = shell("trap '' TERM USR1; echo up; while :; do sleep 0.01; done");
    stubborn.stop_grace_period = Some(prost_types::Duration {
        seconds: 0,
        nanos: 50_000_000,
    });
    let controller = host.controller(task(stubborn.clone())).await;
    controller.prepare().await.unwrap();
    controller.start().await.unwrap();
    eventually("it is up", || host.lines(LogStream::Stdout) == ["up"]).await;
    controller.shutdown().await.unwrap();
    assert_eq!(controller.wait().await, Err(exit(137, Some(9))));
    controller.remove().await.unwrap();

    stubborn.stop_grace_period = None;
    stubborn.stop_signal = "SIGUSR1".to_owned();
    let controller = host.controller(task(stubborn)).await;
    controller.prepare().await.unwrap();
    controller.start().await.unwrap();
    controller.terminate().await.unwrap();
    assert_eq!(controller.wait().await, Err(exit(137, Some(9))));
    controller.remove().await.unwrap();
}

/// The program's children, even those that left its process group and session, end with it.
#[tokio::test]
async fn nothing_of_a_task_is_left() {
    let host = Host::new();
    let script = "setsid sh -c 'echo $$ > left; exec sleep 300' & \
                  while ! [ -s left ]; do sleep 0.01; done; exit 0";
    let controller = host.controller(task(shell(script))).await;
    assert_eq!(run(&*controller).await, Ok(()));
    let pid = std::fs::read_to_string(host.task_dir().join("left")).unwrap();
    assert!(
        record::ProcessId::of(pid.trim().parse().unwrap()).is_err(),
        "the daemon is gone"
    );
}

// 08-A33
#[tokio::test]
async fn another_agent_takes_over_running_tasks() {
    let host = Host::new();
    let script = "echo started; while ! [ -e go ]; do sleep 0.01; done; exit 7";
    let first = host.controller(task(shell(script))).await;
    first.prepare().await.unwrap();
    first.start().await.unwrap();
    let pid = first.container_status().await.unwrap().pid;
    assert!(pid > 0);
    drop(first);

    let second = host.controller(task(shell(script))).await;
    assert_eq!(second.prepare().await, Err(TaskError::AlreadyPrepared));
    assert_eq!(second.start().await, Err(TaskError::AlreadyStarted));
    assert_eq!(second.container_status().await.unwrap().pid, pid);
    std::fs::write(host.task_dir().join("go"), "").unwrap();
    assert_eq!(second.wait().await, Err(exit(7, None)));
    drop(second);

    // The end that came while no agent was there is known too.
    let third = host.controller(task(shell(script))).await;
    assert_eq!(third.start().await, Err(TaskError::AlreadyStarted));
    assert_eq!(third.wait().await, Err(exit(7, None)));
    assert_eq!(host.lines(LogStream::Stdout), ["started"], "started once");
}

// 08-A33
#[tokio::test]
async fn however_many_start_a_task_it_is_started_once() {
    let host = Host::new();
    let script = "echo started; while ! [ -e go ]; do sleep 0.01; done";
    let controllers: Vec<Arc<dyn Controller>> = {
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(host.controller(task(shell(script))).await);
        }
        all
    };
    controllers[0].prepare().await.unwrap();
    let starts = controllers.iter().map(|controller| controller.start());
    let results = futures::future::join_all(starts).await;
    let ours = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!(ours, 1, "{results:?}");
    std::fs::write(host.task_dir().join("go"), "").unwrap();
    for controller in &controllers {
        assert_eq!(controller.wait().await, Ok(()));
    }
    assert_eq!(host.lines(LogStream::Stdout), ["started"]);
}

/// A start that nobody waits for any more is either undone or never was.
#[tokio::test]
async fn an_interrupted_start_is_stopped_reliably() {
    for pause_us in [0, 100, 1000, 5000, 20_000] {
        let host = Host::new();
        let controller = host.controller(task(shell("exec sleep 300"))).await;
        controller.prepare().await.unwrap();
        let start = controller.start();
        let interrupted = tokio::time::timeout(Duration::from_micros(pause_us), start).await;
        controller.shutdown().await.unwrap();
        let phase = host.executor().inner.roots.site("t").unwrap();
        // Void, or ended: in no case running, now or later.
        match phase.phase().unwrap() {
            site::Phase::NotStarted => assert!(phase.control.is_void(), "{interrupted:?}"),
            site::Phase::Ended(exit) => assert_eq!(exit.signal, Some(15)),
            other => panic!("{other:?}"),
        }
        assert!(controller.start().await.is_err());
    }
}

#[tokio::test]
async fn a_killed_shim_takes_its_task_along() {
    let host = Host::new();
    let controller = host.controller(task(shell("exec sleep 300"))).await;
    controller.prepare().await.unwrap();
    controller.start().await.unwrap();
    let site = host.executor().inner.roots.site("t").unwrap();
    let shim = site.control.shim().unwrap().unwrap();
    shim.shim.open().unwrap().signal(Signal::KILL).unwrap();
    let error = controller.wait().await.unwrap_err().to_string();
    assert!(error.contains("supervisor was killed"), "{error}");
    let program = shim.program.unwrap();
    eventually("the program dies", || program.open().is_none()).await;
    controller.remove().await.unwrap();
}

#[tokio::test]
async fn the_environment_is_what_the_spec_says() {
    let host = Host::new();
    let mut spec = shell("env | grep -v ^PATH= | grep -v ^PWD= | sort; pwd");
    spec.env = vec![
        "NAME={{.Task.Name}}".to_owned(),
        "SLOT={{.Task.Slot}}".to_owned(),
        "SWARM_TASK_ID=forged".to_owned(),
        "UNSET".to_owned(),
    ];
    let mut task = task(spec);
    task.endpoint = Some(Endpoint {
        ports: [(80, 8080), (81, 0)]
            .map(|(target_port, published_port)| PortConfig {
                target_port,
                published_port,
                publish_mode: 1,
                ..Default::default()
            })
            .to_vec(),
        ..Default::default()
    });
    let controller = host.controller(task).await;
    controller.prepare().await.unwrap();
    controller.start().await.unwrap();
    controller.wait().await.unwrap();
    let lines = host.lines(LogStream::Stdout);
    let dir = host.task_dir();
    let dir = dir.display();
    let free_port = lines
        .iter()
        .find(|line| line.starts_with("SWARM_PORT_81="))
        .unwrap()
        .clone();
    assert!(free_port["SWARM_PORT_81=".len()..].parse::<u16>().unwrap() > 0);
    let mut expected = vec![
        "NAME=web.3.t".to_owned(),
        "SLOT=3".to_owned(),
        "SWARM_NODE_ID=node".to_owned(),
        free_port,
        "SWARM_PORT_80=8080".to_owned(),
        format!("SWARM_SECRETS_DIR={dir}/secrets"),
        "SWARM_SERVICE_NAME=web".to_owned(),
        format!("SWARM_TASK_DIR={dir}"),
        "SWARM_TASK_ID=t".to_owned(),
        "SWARM_TASK_NAME=web.3.t".to_owned(),
        dir.to_string(),
    ];
    let mut lines: Vec<String> = lines
        .into_iter()
        .filter(|line| !line.starts_with("SHLVL=") && !line.starts_with("_="))
        .collect();
    lines.sort();
    expected.sort();
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn health_decides_about_running_and_failing() {
    let host = Host::new();
    let short = |millis: i32| {
        Some(prost_types::Duration {
            seconds: 0,
            nanos: millis * 1_000_000,
        })
    };
    let mut spec = shell("exec sleep 300");
    spec.healthcheck = Some(HealthConfig {
        test: vec!["CMD-SHELL".to_owned(), "test -e healthy".to_owned()],
        interval: short(10),
        retries: 2,
        start_period: Some(prost_types::Duration {
            seconds: 300,
            nanos: 0,
        }),
        ..Default::default()
    });
    let controller = host.controller(task(spec.clone())).await;
    controller.prepare().await.unwrap();
    {
        let start = controller.start();
        tokio::pin!(start);
        let early = tokio::time::timeout(Duration::from_millis(100), &mut start).await;
        assert!(early.is_err(), "not healthy yet: {early:?}");
        std::fs::write(host.task_dir().join("healthy"), "").unwrap();
        assert_eq!(start.await, Ok(()));
    }
    std::fs::remove_file(host.task_dir().join("healthy")).unwrap();
    let reason = TaskError::fatal("unhealthy: 2 health checks failed in a row");
    assert_eq!(controller.wait().await, Err(reason));
    assert!(matches!(
        host.executor().inner.roots.site("t").unwrap().phase(),
        Ok(site::Phase::Ended(_))
    ));
    controller.remove().await.unwrap();

    // An end before the first success is a failure to start.
    spec.command = ["/bin/sh", "-c", "exit 4"].map(str::to_owned).to_vec();
    let controller = host.controller(task(spec)).await;
    controller.prepare().await.unwrap();
    assert_eq!(controller.start().await, Err(exit(4, None)));
}

#[tokio::test]
async fn limits_reach_the_program() {
    let host = Host::new();
    let mut spec = shell("ulimit -n; id -u; exit 0");
    spec.ulimits = vec![Ulimit {
        name: "nofile".to_owned(),
        soft: 99,
        hard: 99,
    }];
    let root = rustix::process::geteuid().is_root();
    if root {
        spec.user = "65534:65534".to_owned();
    }
    // Control groups belong to the whole machine, so this task needs a name of its own.
    let id = crate::api::ids::new_id();
    let mut task = task(spec);
    task.id.clone_from(&id);
    if let Some(spec) = &mut task.spec {
        spec.resources = Some(ResourceRequirements {
            limits: Some(Resources {
                memory_bytes: 256 << 20,
                nano_cpus: 500_000_000,
                ..Default::default()
            }),
            ..Default::default()
        });
    }
    let controller = host.controller(task).await;
    assert_eq!(run(&*controller).await, Ok(()));
    let own = rustix::process::geteuid().as_raw().to_string();
    let uid = if root { "65534" } else { own.as_str() };
    let entries = host.executor().log(&id, &LogFilter::default()).unwrap();
    let lines: Vec<&[u8]> = entries.iter().map(|entry| entry.text.as_slice()).collect();
    assert_eq!(lines, [b"99", uid.as_bytes()]);
    // Enforced, or said to be not.
    let enforced = !cgroup::of_task(&id).is_empty();
    assert_ne!(enforced, controller.warning().is_some());
    controller.remove().await.unwrap();
    assert!(cgroup::of_task(&id).is_empty());
}

#[tokio::test]
async fn strangers_are_removed() {
    let host = Host::new();
    let controller = host.controller(task(shell("exec sleep 300"))).await;
    controller.prepare().await.unwrap();
    controller.start().await.unwrap();
    drop(controller);
    let executor = host.executor();
    executor.retain(BTreeSet::from(["t".to_owned()])).await;
    assert!(host.control().exists());
    executor.retain(BTreeSet::new()).await;
    eventually("it is gone", || !host.control().exists()).await;
    assert!(!host.task_dir().exists());
}

#[tokio::test]
async fn the_node_describes_itself() {
    let host = Host::new();
    let description = host.executor().describe().await.unwrap();
    let engine = description.engine.unwrap();
    let plugins: Vec<(&str, &str)> = engine
        .plugins
        .iter()
        .map(|plugin| (plugin.r#type.as_str(), plugin.name.as_str()))
        .collect();
    assert_eq!(
        plugins,
        [
            ("Executor", "process"),
            ("Log", "local"),
            ("Network", "host")
        ]
    );
    assert_eq!(
        engine.engine_version,
        format!("swarmd/{}", env!("CARGO_PKG_VERSION"))
    );
    let resources = description.resources.unwrap();
    assert!(resources.nano_cpus >= 1_000_000_000 && resources.memory_bytes > 1 << 20);
    assert_eq!(description.platform.unwrap().os, "linux");
    assert!(!description.hostname.is_empty());
}

#[tokio::test]
async fn a_directory_that_is_no_tmpfs_is_refused() {
    let host = Host::new();
    let key = WorkerKey::open_or_create(&host.dir.path().join("key")).unwrap();
    let refused = ProcessExecutor::new(
        ProcessConfig {
            task_tmpfs: Some(host.dir.path().join("disk")),
            ..host.config()
        },
        key,
        Dependencies::new(),
    );
    if !in_memory(host.dir.path()).unwrap() {
        assert!(
            refused
                .err()
                .unwrap()
                .to_string()
                .contains("is not on a tmpfs")
        );
    }
}
