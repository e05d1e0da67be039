//! How long a group of managers takes no writes after its leader was killed.
//!
//! Starts a throw-away group of `swarmd` processes on this machine's loopback address, kills its leader
//! with SIGKILL, writes through another manager until a write is acknowledged, starts the killed manager
//! again, waits until it has caught up, and so on. All managers share one disk and one set of cores, so
//! the figures are for this machine, not for a cluster.

use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use swarm_manager::api::admin::admin_client::AdminClient;
use swarm_manager::api::admin::{StatusRequest, StatusResponse};
use swarm_manager::api::ids::new_id;
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::*;
use swarm_manager::cli::connect::control_socket;
use tonic::transport::Channel;

/// How long the group may take to be complete, at the beginning and after each restart.
const COMPLETE_WITHIN: Duration = Duration::from_secs(60);
/// How long one failover may take before the run is given up.
const FAILOVER_WITHIN: Duration = Duration::from_secs(60);
/// How long one write may take; a call that waits for a dead leader is given up after this.
const WRITE_WITHIN: Duration = Duration::from_millis(500);
/// Pause between two looks and between two refused writes: the resolution of the figures.
const PAUSE: Duration = Duration::from_millis(5);

/// What is measured.
pub struct Plan {
    pub managers: usize,
    pub runs: usize,
    pub swarmd: PathBuf,
    /// Parent of the state directories.
    pub dir: PathBuf,
    /// Passed on to every manager.
    pub flags: Vec<String>,
}

/// One manager of the group; killed when dropped.
struct Member {
    number: usize,
    socket: PathBuf,
    command: Vec<String>,
    log: PathBuf,
    process: Child,
}

impl Drop for Member {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Member {
    fn start(
        plan: &Plan,
        dir: &Path,
        number: usize,
        join: Option<(&str, &str)>,
    ) -> anyhow::Result<Member> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let socket = dir.join(format!("{number}.sock"));
        let mut command = vec![
            "--state-dir".to_owned(),
            dir.join(number.to_string()).display().to_string(),
            "--listen-remote-api".to_owned(),
            format!("127.0.0.1:{port}"),
            "--listen-control-api".to_owned(),
            socket.display().to_string(),
            "--executor".to_owned(),
            "none".to_owned(),
        ];
        if let Some((addr, token)) = join {
            command.extend(["--join-addr", addr, "--join-token", token].map(str::to_owned));
        }
        command.extend(plan.flags.iter().cloned());
        let log = dir.join(format!("{number}.log"));
        let process = spawn(&plan.swarmd, &command, &log)?;
        Ok(Member {
            number,
            socket,
            command,
            log,
            process,
        })
    }

    fn addr(&self) -> &str {
        self.command.get(3).map_or("", String::as_str)
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().context("cannot kill a manager")?;
        self.process.wait().context("cannot wait for a manager")?;
        Ok(())
    }

    /// Starts it again after [`Member::kill`].
    fn start_again(&mut self, swarmd: &Path) -> anyhow::Result<()> {
        self.process = spawn(swarmd, &self.command, &self.log)?;
        Ok(())
    }

    async fn status(&self) -> anyhow::Result<StatusResponse> {
        let channel = control_socket(&self.socket).await?;
        let mut request = tonic::Request::new(StatusRequest {});
        request.set_timeout(WRITE_WITHIN);
        Ok(AdminClient::new(channel)
            .status(request)
            .await?
            .into_inner())
    }

    /// Whether it leads a group of `count` members that it all reaches and that have its whole log.
    async fn leads_all(&self, count: usize) -> bool {
        self.status().await.is_ok_and(|status| {
            let last = status.last_index;
            let up = status.members.iter();
            let up = up.filter(|member| member.reachable && member.match_index == last);
            status.is_leader && up.count() == count
        })
    }
}

fn spawn(swarmd: &Path, command: &[String], log: &Path) -> anyhow::Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(log);
    Command::new(swarmd)
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.context("cannot open a log file")?)
        .spawn()
        .with_context(|| format!("cannot start {}; see --swarmd", swarmd.display()))
}

/// The times from the kill of the leader to the next acknowledged write, in the order of the runs.
/// `progress` is told after each run.
pub async fn measure(
    plan: &Plan,
    mut progress: impl FnMut(usize, Duration),
) -> anyhow::Result<Vec<Duration>> {
    anyhow::ensure!(
        plan.managers >= 3,
        "a group that survives its leader has at least 3 managers"
    );
    let dir = tempfile::tempdir_in(&plan.dir)
        .with_context(|| format!("cannot make a directory in {}", plan.dir.display()))?;
    let mut members = vec![Member::start(plan, dir.path(), 0, None)?];
    wait_complete(&members).await?;
    let token = manager_token(&members[0].socket).await?;
    let addr = members[0].addr().to_owned();
    for number in 1..plan.managers {
        members.push(Member::start(
            plan,
            dir.path(),
            number,
            Some((&addr, &token)),
        )?);
    }
    let mut times = Vec::with_capacity(plan.runs);
    for run in 0..plan.runs {
        let leader = wait_complete(&members).await?;
        // The next one, so that every follower has its turn.
        let other = (leader + 1) % members.len();
        let mut control = ControlClient::new(control_socket(&members[other].socket).await?);
        write(&mut control)
            .await
            .with_context(|| format!("a write through manager {}", members[other].number))?;
        members[leader].kill()?;
        let killed = Instant::now();
        while let Err(error) = write(&mut control).await {
            anyhow::ensure!(
                killed.elapsed() < FAILOVER_WITHIN,
                "no write for {FAILOVER_WITHIN:?} after the leader was killed: {error}"
            );
            tokio::time::sleep(PAUSE).await;
        }
        times.push(killed.elapsed());
        progress(run, killed.elapsed());
        members[leader].start_again(&plan.swarmd)?;
    }
    Ok(times)
}

/// Waits until one member leads all of them, and returns its position.
async fn wait_complete(members: &[Member]) -> anyhow::Result<usize> {
    let begin = Instant::now();
    loop {
        for (position, member) in members.iter().enumerate() {
            if member.leads_all(members.len()).await {
                return Ok(position);
            }
        }
        anyhow::ensure!(
            begin.elapsed() < COMPLETE_WITHIN,
            "the group of {} managers was not complete within {COMPLETE_WITHIN:?}",
            members.len()
        );
        tokio::time::sleep(PAUSE * 10).await;
    }
}

async fn manager_token(socket: &Path) -> anyhow::Result<String> {
    let mut control = ControlClient::new(control_socket(socket).await?);
    let answer = control.list_clusters(ListClustersRequest::default());
    let cluster = answer.await?.into_inner().clusters.into_iter().next();
    let tokens = cluster
        .and_then(|cluster| cluster.root_ca)
        .and_then(|root_ca| root_ca.join_tokens);
    Ok(tokens.context("the cluster has no join tokens")?.manager)
}

async fn write(control: &mut ControlClient<Channel>) -> Result<(), tonic::Status> {
    let mut request = tonic::Request::new(CreateConfigRequest {
        spec: Some(ConfigSpec {
            annotations: Some(Annotations {
                name: format!("bench-{}", new_id()),
                ..Default::default()
            }),
            data: vec![b'x'],
            ..Default::default()
        }),
    });
    request.set_timeout(WRITE_WITHIN);
    control.create_config(request).await.map(drop)
}
