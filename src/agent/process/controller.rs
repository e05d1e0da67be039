//! Runs one task as a program of this host.

use super::cgroup;
use super::health::{Health, Tracker, Verdict};
use super::launch;
use super::payload::{self, Kind, Payload};
use super::plan::Plan;
use super::record::{BoundPort, ExitRecord, FailedStep};
use super::shim::Answer;
use super::site::{End, Phase, Site, disk_error};
use super::spawn::{Ids, Spawn};
use super::users::Users;
use super::{Inner, check};
use crate::agent::executor::{Controller, TaskError};
use crate::api::types::port_config::PublishMode;
use crate::api::types::{ContainerStatus, PortConfig, PortStatus, Task};
use crate::storage::files;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use rustix::process::Signal;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// A start under way. It goes on even if nobody waits for it any more.
type Launch = Shared<BoxFuture<'static, Result<Answer, TaskError>>>;

/// Controls one task.
pub(crate) struct ProcessController {
    inner: Arc<Inner>,
    task: Arc<Task>,
    site: Site,
    /// An error if the task cannot run here; it may still have to be stopped and removed.
    plan: Result<Plan, TaskError>,
    launch: Mutex<Option<Launch>>,
    started: Mutex<Option<Instant>>,
    warnings: Mutex<Vec<String>>,
    /// Why we stopped the program ourselves.
    unhealthy: Mutex<Option<String>>,
    closed: AtomicBool,
}

impl ProcessController {
    pub(crate) fn new(
        inner: Arc<Inner>,
        task: Arc<Task>,
        site: Site,
        plan: Result<Plan, TaskError>,
    ) -> ProcessController {
        let warnings = plan
            .as_ref()
            .map_or(Vec::new(), |plan| plan.warnings.clone());
        ProcessController {
            inner,
            task,
            site,
            plan,
            launch: Mutex::new(None),
            started: Mutex::new(None),
            warnings: Mutex::new(warnings),
            unhealthy: Mutex::new(None),
            closed: AtomicBool::new(false),
        }
    }

    fn plan(&self) -> Result<&Plan, TaskError> {
        self.plan.as_ref().map_err(Clone::clone)
    }

    fn check_open(&self) -> Result<(), TaskError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(TaskError::Closed);
        }
        Ok(())
    }

    async fn prepare(&self) -> Result<(), TaskError> {
        self.check_open()?;
        if !matches!(self.site.phase()?, Phase::NotStarted) {
            return Err(TaskError::AlreadyPrepared);
        }
        let plan = self.plan()?.clone();
        let dependencies = self.inner.dependencies.restricted(self.task.clone());
        let payloads = payload::payloads(&plan, &dependencies)?;
        if payloads.iter().any(|payload| payload.sensitive) && !self.inner.roots.volatile {
            return Err(TaskError::fatal(
                "process executor: secrets are never written to a disk; give the node a tmpfs for its tasks (--task-tmpfs)",
            ));
        }
        let site = self.site.clone();
        let strict = self.inner.config.strictness.strict_limits;
        let warnings = blocking(move || prepare(&site, &plan, &payloads, strict)).await?;
        let mut all = self.plan()?.warnings.clone();
        all.extend(warnings);
        *self.warnings.lock() = all;
        Ok(())
    }

    async fn start(&self) -> Result<(), TaskError> {
        self.check_open()?;
        let fresh = match self.site.phase()? {
            Phase::NotStarted => self.launch().await?,
            Phase::Running(..) => false,
            Phase::Ended(_) | Phase::Lost(_) => return Err(TaskError::AlreadyStarted),
        };
        self.started.lock().get_or_insert_with(Instant::now);
        if let Some(health) = self.plan()?.health.clone() {
            tokio::select! {
                biased;
                end = self.site.ended() => return self.judge(end?),
                result = self.until_healthy(&health) => result?,
            }
        }
        if fresh {
            Ok(())
        } else {
            Err(TaskError::AlreadyStarted)
        }
    }

    /// Starts the program through a shim. Returns whether it was us who started it.
    async fn launch(&self) -> Result<bool, TaskError> {
        let launch = {
            let mut launch = self.launch.lock();
            match &*launch {
                Some(running) => running.clone(),
                None => launch.insert(self.new_launch()?).clone(),
            }
        };
        let answer = launch.await;
        *self.launch.lock() = None;
        match answer? {
            Answer::Started => Ok(true),
            Answer::Taken => Ok(false),
            Answer::Void => Err(TaskError::fatal(
                "process executor: the task was stopped before it was started",
            )),
            Answer::Failed(step, errno) => Err(self.not_started(step, errno)),
            Answer::Broken(reason) => Err(TaskError::Temporary(format!(
                "process executor: the task's supervisor {reason}"
            ))),
        }
    }

    fn new_launch(&self) -> Result<Launch, TaskError> {
        let plan = self.plan()?.clone();
        let (inner, site, task) = (self.inner.clone(), self.site.clone(), self.task.clone());
        let started = tokio::spawn(blocking(move || {
            launch::launch(&inner, &site, &task, &plan)
        }));
        let result = async move {
            match started.await {
                Ok(result) => result,
                Err(_) => Err(TaskError::Cancelled),
            }
        };
        Ok(result.boxed().shared())
    }

    /// Lets a start that is under way come to its end.
    async fn settle_launch(&self) {
        let running = self.launch.lock().clone();
        if let Some(running) = running {
            // Whether it worked shows in the records.
            let _ = running.await;
            *self.launch.lock() = None;
        }
    }

    async fn wait(&self) -> Result<(), TaskError> {
        self.check_open()?;
        let health = self.plan.as_ref().ok().and_then(|plan| plan.health.clone());
        let end = match health {
            None => self.site.ended().await?,
            Some(health) => tokio::select! {
                biased;
                end = self.site.ended() => end?,
                result = self.while_healthy(&health) => return result,
            },
        };
        self.judge(end)
    }

    async fn stop(&self, signal: Signal) -> Result<(), TaskError> {
        self.check_open()?;
        self.settle_launch().await;
        self.site.stop(signal).await.map(|_| ())
    }

    async fn remove(&self) -> Result<(), TaskError> {
        self.stop(Signal::TERM).await?;
        let site = self.site.clone();
        blocking(move || site.delete()).await
    }

    /// What the end of the program means for the task.
    fn judge(&self, end: End) -> Result<(), TaskError> {
        if let Some(reason) = self.unhealthy.lock().clone() {
            return Err(TaskError::Fatal(reason));
        }
        match end {
            End::Recorded(ExitRecord {
                failed: Some((step, errno)),
                ..
            }) => Err(self.not_started(step, errno)),
            End::Recorded(ExitRecord { code: 0, .. }) => Ok(()),
            End::Recorded(exit) => Err(TaskError::Exit {
                code: exit.code,
                cause: exit
                    .signal
                    .map(|signal| format!("killed by signal {signal}")),
            }),
            End::Lost => Err(TaskError::fatal(
                "process executor: the task's supervisor was killed, and the task with it",
            )),
            End::NeverStarted => Err(TaskError::fatal(
                "process executor: nothing is known of the task's program",
            )),
        }
    }

    fn not_started(&self, step: FailedStep, errno: i32) -> TaskError {
        let error = io::Error::from_raw_os_error(errno);
        let what = match step {
            FailedStep::Log => "open the log of the task".to_owned(),
            FailedStep::Cgroup => "join the control groups of the task".to_owned(),
            FailedStep::Program => {
                let program = self.plan.as_ref().ok().and_then(|plan| plan.argv.first());
                format!("run {:?}", program.map_or("", String::as_str))
            }
        };
        TaskError::Fatal(format!("process executor: cannot {what}: {error}"))
    }

    /// Checks until the task is healthy; an error if it turns out not to be.
    async fn until_healthy(&self, health: &Health) -> Result<(), TaskError> {
        let mut tracker = Tracker::new(health);
        self.check_until(health, &mut tracker, Some(Verdict::Healthy))
            .await
    }

    /// Checks for as long as the task is healthy.
    async fn while_healthy(&self, health: &Health) -> Result<(), TaskError> {
        let mut tracker = Tracker::new(health);
        tracker.observe(true, Duration::ZERO);
        self.check_until(health, &mut tracker, None).await
    }

    async fn check_until(
        &self,
        health: &Health,
        tracker: &mut Tracker,
        goal: Option<Verdict>,
    ) -> Result<(), TaskError> {
        loop {
            let age = || self.started.lock().map_or(Duration::MAX, |at| at.elapsed());
            tokio::time::sleep(tracker.pause(health, age())).await;
            let began = age();
            let success = check::run(self.check_spawn(health)?, health.timeout).await;
            let verdict = tracker.observe(success, began);
            if Some(verdict) == goal {
                return Ok(());
            }
            if verdict == Verdict::Unhealthy {
                let reason = format!(
                    "unhealthy: {} health checks failed in a row",
                    tracker.failures()
                );
                *self.unhealthy.lock() = Some(reason.clone());
                self.site.stop(Signal::TERM).await?;
                return Err(TaskError::Fatal(reason));
            }
        }
    }

    /// The check, in the same surroundings as the task's program.
    fn check_spawn(&self, health: &Health) -> Result<Spawn, TaskError> {
        let plan = self.plan()?;
        let (program, args) = health
            .test
            .split_first()
            .ok_or_else(|| TaskError::fatal("process executor: empty health check"))?;
        let env = launch::environment(&self.inner, &self.site, &self.task, plan, &self.ports());
        let ids = ids(plan)?;
        Ok(Spawn {
            args: args.iter().map(Into::into).collect(),
            env: env
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            dir: Some(launch::directory(&self.site, plan)),
            ids,
            cgroups: cgroup::of_task(&self.site.id)
                .iter()
                .filter_map(|group| open_procs(group).ok())
                .collect(),
            ..Spawn::new(program)
        })
    }

    fn ports(&self) -> Vec<BoundPort> {
        match self.site.phase() {
            Ok(Phase::Running(shim, _) | Phase::Lost(shim)) => shim.ports,
            _ => Vec::new(),
        }
    }

    fn container_status(&self) -> Option<ContainerStatus> {
        let shim = self.site.control.shim().ok()??;
        let exit = self.site.control.exit().ok().flatten();
        Some(ContainerStatus {
            container_id: self.site.id.clone(),
            pid: match &exit {
                Some(_) => 0,
                None => shim.program.map_or(0, |program| program.pid),
            },
            exit_code: exit.map_or(0, |exit| exit.code),
        })
    }

    fn port_status(&self) -> Option<PortStatus> {
        let ports = self.ports();
        (!ports.is_empty()).then(|| PortStatus {
            ports: ports
                .iter()
                .map(|port| PortConfig {
                    name: String::new(),
                    protocol: port.protocol,
                    target_port: port.target,
                    published_port: port.published,
                    publish_mode: PublishMode::Host as i32,
                })
                .collect(),
        })
    }
}

fn open_procs(group: &std::path::Path) -> io::Result<std::os::fd::OwnedFd> {
    let procs = fs::OpenOptions::new()
        .write(true)
        .open(group.join("cgroup.procs"))?;
    Ok(procs.into())
}

/// Whose rights the task gets; `None` for ours.
pub(crate) fn ids(plan: &Plan) -> Result<Option<Ids>, TaskError> {
    if plan.user.is_empty() && plan.groups.is_empty() {
        return Ok(None);
    }
    let refuse = |reason: String| TaskError::Fatal(format!("process executor: {reason}"));
    let own = rustix::process::geteuid().as_raw();
    let user = match plan.user.as_str() {
        "" => own.to_string(),
        user => user.to_owned(),
    };
    let users = Users::read().map_err(|error| disk_error("read the list of users", &error))?;
    let ids = users.ids(&user, &plan.groups).map_err(refuse)?;
    if own != 0 {
        let gid = rustix::process::getegid().as_raw();
        if ids.uid == own && (ids.gid == gid || !user.contains(':')) && plan.groups.is_empty() {
            return Ok(None);
        }
        return Err(refuse(format!(
            "only root can run a task as user {user:?} with other groups"
        )));
    }
    Ok(Some(ids))
}

/// Makes directories, files and control groups. Returns warnings.
fn prepare(
    site: &Site,
    plan: &Plan,
    payloads: &[Payload],
    strict_limits: bool,
) -> Result<Vec<String>, TaskError> {
    let ids = ids(plan)?;
    let attempt = |what: &'static str| move |error: io::Error| disk_error(what, &error);
    site.control
        .create()
        .map_err(attempt("create the task's control directory"))?;
    make_task_dir(&site.dir, ids.as_ref()).map_err(attempt("create the task's directory"))?;
    for payload in payloads {
        write_payload(site, payload).map_err(|error| {
            disk_error(
                &format!("write {} {}", payload.kind.name(), payload.file.id),
                &error,
            )
        })?;
    }
    if !plan.limits.any() {
        return Ok(Vec::new());
    }
    match cgroup::create(&site.id, &plan.limits) {
        Ok(_) => Ok(Vec::new()),
        Err(error) if strict_limits => Err(TaskError::Fatal(format!(
            "process executor: the limits cannot be enforced: {error}"
        ))),
        Err(error) => Ok(vec![format!("limits are not enforced: {error}")]),
    }
}

/// The task's own directory: private to its user, who may have to pass through those above it.
fn make_task_dir(dir: &std::path::Path, ids: Option<&Ids>) -> io::Result<()> {
    files::create_directory(dir, 0o700)?;
    for kind in [Kind::Secret, Kind::Config] {
        let files = dir.join(format!("{}s", kind.name()));
        files::create_directory(&files, 0o755)?;
        fs::set_permissions(&files, fs::Permissions::from_mode(0o755))?;
    }
    if let Some(ids) = ids {
        std::os::unix::fs::chown(dir, Some(ids.uid), Some(ids.gid))?;
    }
    Ok(())
}

fn write_payload(site: &Site, payload: &Payload) -> io::Result<()> {
    let file = &payload.file;
    let path: PathBuf = site
        .dir
        .join(format!("{}s", payload.kind.name()))
        .join(&file.path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    files::write_new(&path, &payload.data, 0o600)?;
    // Only root can give files away; for anybody else the task has our own rights anyway.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, file.uid, file.gid)?;
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))
}

/// Runs what waits for the disk beside the runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TaskError> + Send + 'static,
) -> Result<T, TaskError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(TaskError::Cancelled),
    }
}

impl Controller for ProcessController {
    /// What a spec says about the program cannot change while the task lives; only its desired state does.
    fn update(&self, _task: Arc<Task>) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(std::future::ready(self.check_open()))
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.prepare())
    }

    fn start(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.start())
    }

    fn wait(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.wait())
    }

    fn shutdown(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.stop(Signal::TERM))
    }

    fn terminate(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.stop(Signal::USR1))
    }

    fn remove(&self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(self.remove())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.closed.store(true, Ordering::Release);
        Box::pin(std::future::ready(()))
    }

    fn container_status(&self) -> BoxFuture<'_, Option<ContainerStatus>> {
        Box::pin(std::future::ready(self.container_status()))
    }

    fn port_status(&self) -> BoxFuture<'_, Option<PortStatus>> {
        Box::pin(std::future::ready(self.port_status()))
    }

    fn warning(&self) -> Option<String> {
        let warnings = self.warnings.lock();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }
}
