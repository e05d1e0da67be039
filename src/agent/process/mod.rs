//! The driver `process`: runs tasks as programs of this host, no container engine needed.
//!
//! Only tasks whose image is exactly `host` run here (settled P9). Each gets a *shim* ([`shim`]), a small
//! process of its own that outlives the agent: stopping, upgrading or killing `swarmd` does not touch a
//! task, and the next agent takes up where the last one was.
//!
//! ```text
//! agent ── order through a socket ──▶ shim ── fork, exec ──▶ program (own process group, own rights)
//!   ▲                                  │ log, sealed and rotated ◀── stdout, stderr
//!   └── shim.json, exit.json ◀─────────┘
//! ```
//!
//! What a program gets is exactly what the spec says: its environment, its rights, no descriptor of ours.
//! Secrets lie in memory only, and nothing a person wrote is readable in the state directory.

mod cgroup;
mod check;
mod controller;
mod health;
mod launch;
mod log;
mod payload;
mod plan;
mod record;
pub mod shim;
mod site;
pub mod spawn;
mod users;

pub use log::{LogEntry, LogFilter};
pub use plan::{HOST_IMAGE, Strictness};
pub use shim::{SHIM_ARGUMENT, shim_main};

use super::dependencies::Dependencies;
use super::executor::{Controller, Executor, ExecutorError, TaskError};
use super::key::WorkerKey;
use super::machine;
use crate::api::types::{
    EncryptionKey, EngineDescription, GenericResource, Node, NodeDescription, PluginDescription,
    Task,
};
use crate::storage::files;
use controller::ProcessController;
use futures::future::BoxFuture;
use site::Roots;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Size of a log file before the next is begun, and files kept (spec 08 section 17.4).
pub const LOG_FILE_BYTES_MAX: u64 = 10 << 20;
pub const LOG_FILES_MAX: u64 = 3;
/// Below this, as root, lie the directories of tasks (settled P10).
const RUN_DIR: &str = "/run/swarmd";
/// File system types that are in memory only, as `statfs` names them.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// How a shim is started.
#[derive(Debug, Clone)]
pub struct ShimCommand {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(OsString, OsString)>,
}

impl Default for ShimCommand {
    /// This same executable, even if its file was replaced meanwhile.
    fn default() -> ShimCommand {
        ShimCommand {
            program: PathBuf::from("/proc/self/exe"),
            args: vec![SHIM_ARGUMENT.to_owned()],
            env: Vec::new(),
        }
    }
}

/// Settings of the driver.
#[derive(Debug, Clone)]
pub struct ProcessConfig {
    pub node_id: String,
    /// `<state directory>/worker`.
    pub worker_dir: PathBuf,
    /// Where the directories of tasks go, on a tmpfs. `None`: `/run/swarmd` as root if that is one.
    pub task_tmpfs: Option<PathBuf>,
    /// Labels of the engine, as operators set them per node.
    pub engine_labels: BTreeMap<String, String>,
    pub generic_resources: Vec<GenericResource>,
    pub strictness: Strictness,
    pub log_file_bytes_max: u64,
    pub log_files_max: u64,
    pub shim: ShimCommand,
}

impl ProcessConfig {
    /// The defaults for a node.
    pub fn new(node_id: impl Into<String>, worker_dir: impl Into<PathBuf>) -> ProcessConfig {
        ProcessConfig {
            node_id: node_id.into(),
            worker_dir: worker_dir.into(),
            task_tmpfs: None,
            engine_labels: BTreeMap::new(),
            generic_resources: Vec::new(),
            strictness: Strictness::default(),
            log_file_bytes_max: LOG_FILE_BYTES_MAX,
            log_files_max: LOG_FILES_MAX,
            shim: ShimCommand::default(),
        }
    }
}

/// What all controllers share.
pub(crate) struct Inner {
    config: ProcessConfig,
    roots: Roots,
    key: WorkerKey,
    dependencies: Arc<Dependencies>,
}

/// The driver.
pub struct ProcessExecutor {
    inner: Arc<Inner>,
}

impl ProcessExecutor {
    /// Settles where tasks live. `dependencies` is the same that the agent gets.
    pub fn new(
        config: ProcessConfig,
        key: WorkerKey,
        dependencies: Arc<Dependencies>,
    ) -> Result<ProcessExecutor, ExecutorError> {
        let roots = roots(&config).map_err(|error| failure("find a place for tasks", &error))?;
        if !roots.volatile {
            tracing::warn!(
                directory = %roots.tasks.display(),
                "no tmpfs for tasks: tasks with secrets will be rejected (see --task-tmpfs)"
            );
        }
        Ok(ProcessExecutor {
            inner: Arc::new(Inner {
                config,
                roots,
                key,
                dependencies,
            }),
        })
    }

    /// The log of a task on this node, oldest entry first.
    pub fn log(&self, task_id: &str, filter: &LogFilter) -> io::Result<Vec<LogEntry>> {
        let Some(site) = self.inner.roots.site(task_id) else {
            return Ok(Vec::new());
        };
        let key = self.inner.key.log_key(task_id).map_err(io::Error::other)?;
        log::read(&site.control.log_dir(), task_id, key, filter)
    }
}

/// Where tasks live. A directory that was asked for must be what it is meant to be.
fn roots(config: &ProcessConfig) -> io::Result<Roots> {
    let control = config.worker_dir.join("run");
    files::create_directory(&control, 0o700)?;
    let volatile = |root: &Path| -> io::Result<Roots> {
        // Tasks of other users pass through, but do not look around.
        files::create_directory(root, 0o711)?;
        let tasks = root.join(&config.node_id);
        files::create_directory(&tasks, 0o711)?;
        Ok(Roots {
            control: control.clone(),
            tasks,
            volatile: true,
        })
    };
    if let Some(root) = &config.task_tmpfs {
        let roots = volatile(root)?;
        if !in_memory(&roots.tasks)? {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is not on a tmpfs", root.display()),
            ));
        }
        return Ok(roots);
    }
    let run = Path::new(RUN_DIR);
    let usable = |dir: &Path| {
        dir.parent()
            .is_some_and(|run| in_memory(run).unwrap_or(false))
    };
    if rustix::process::geteuid().is_root() && usable(run) {
        return volatile(run);
    }
    let tasks = config.worker_dir.join("files");
    files::create_directory(&tasks, 0o700)?;
    Ok(Roots {
        control,
        tasks,
        volatile: false,
    })
}

fn in_memory(path: &Path) -> io::Result<bool> {
    let kind = rustix::fs::statfs(path)?.f_type as u64;
    Ok(kind == TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

fn failure(attempt: &str, reason: &dyn std::fmt::Display) -> ExecutorError {
    ExecutorError {
        executor: "process",
        attempt: attempt.to_owned(),
        reason: reason.to_string(),
    }
}

/// The machine, and what this driver offers on it.
fn describe(config: &ProcessConfig) -> Result<NodeDescription, ExecutorError> {
    let mut description =
        machine::describe().map_err(|error| failure("describe this machine", &error))?;
    if let Some(resources) = &mut description.resources {
        resources.generic.clone_from(&config.generic_resources);
    }
    let plugin = |kind: &str, name: &str| PluginDescription {
        r#type: kind.to_owned(),
        name: name.to_owned(),
    };
    description.engine = Some(EngineDescription {
        engine_version: machine::engine_version(),
        labels: config.engine_labels.clone(),
        // Sorted by type, then name. Without a list the scheduler takes a node to have every plugin.
        plugins: vec![
            plugin("Executor", "process"),
            plugin("Log", "local"),
            plugin("Network", "host"),
        ],
    });
    Ok(description)
}

impl Executor for ProcessExecutor {
    fn describe(&self) -> BoxFuture<'_, Result<NodeDescription, ExecutorError>> {
        Box::pin(std::future::ready(describe(&self.inner.config)))
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

    fn controller(&self, task: Arc<Task>) -> BoxFuture<'_, Result<Arc<dyn Controller>, TaskError>> {
        let made = || {
            let site = self.inner.roots.site(&task.id).ok_or_else(|| {
                TaskError::Fatal(format!("process executor: {:?} is no task ID", task.id))
            })?;
            let node = describe(&self.inner.config)
                .map_err(|error| TaskError::Temporary(error.to_string()))?;
            let plan = plan::plan(&task, &node, self.inner.config.strictness);
            // What was begun under other rules still has to be waited for, stopped and removed.
            if let Err(error) = &plan
                && !site.control.0.exists()
            {
                return Err(error.clone());
            }
            let controller = ProcessController::new(self.inner.clone(), task, site, plan);
            Ok(Arc::new(controller) as Arc<dyn Controller>)
        };
        Box::pin(std::future::ready(made()))
    }

    fn retain(&self, task_ids: BTreeSet<String>) -> BoxFuture<'_, ()> {
        let inner = self.inner.clone();
        Box::pin(async move {
            let strangers = inner.roots.all();
            for site in strangers {
                if task_ids.contains(&site.id) {
                    continue;
                }
                tracing::warn!(task = %site.id, "removing what is left of a task that is not assigned to this node");
                // Beside: whoever calls has other tasks to look after.
                tokio::spawn(remove_stranger(site));
            }
        })
    }
}

async fn remove_stranger(site: site::Site) {
    let removed = match site.stop(rustix::process::Signal::TERM).await {
        Ok(_) => {
            let place = site.clone();
            controller::blocking(move || place.delete()).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        tracing::warn!(task = %site.id, %error, "cannot remove it; the next complete list of assignments tries again");
    }
}
