//! From a task to what has to be done for it: everything that can be decided without touching the disk.
//!
//! A task that asks for something this driver cannot give is refused here, by name. What is asked for as
//! a limit and may not be enforceable on this machine is not decided here but reported as a warning.

use super::cgroup::Limits;
use super::health::Health;
use super::spawn::ResourceLimit;
use crate::agent::executor::TaskError;
use crate::api::template::{self, Context, Expander};
use crate::api::types::port_config::{Protocol, PublishMode};
use crate::api::types::task_spec::Runtime;
use crate::api::types::{
    ConfigReference, ContainerSpec, NodeDescription, SecretReference, Task, config_reference,
    secret_reference,
};
use crate::api::{naming, time};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The one image name that stands for "a program of this host" (settled P9).
pub const HOST_IMAGE: &str = "host";
/// Time between the polite signal and the kill if a spec names none (spec 08 section 17.2).
const GRACE: Duration = Duration::from_secs(10);

/// How strictly what cannot be given is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strictness {
    /// Refuse a task whose limits cannot be enforced, instead of warning.
    pub strict_limits: bool,
    /// Ignore tmpfs mounts with a warning, instead of refusing the task.
    pub lenient_mounts: bool,
}

/// A file made from a secret or config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilePlan {
    pub(crate) id: String,
    /// The name in the spec, by which templates refer to it.
    pub(crate) target: String,
    /// Below `secrets` or `configs` of the task's directory.
    pub(crate) path: PathBuf,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) mode: u32,
}

/// A port that the task wants on the node itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortPlan {
    pub(crate) target: u32,
    /// 0 for any free one.
    pub(crate) published: u32,
    pub(crate) protocol: i32,
}

/// All that has to be done for a task.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) argv: Vec<String>,
    /// Of the spec, expanded; what the driver adds comes later.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) dir: Option<PathBuf>,
    /// Of the spec as it is, for templates in payloads.
    pub(crate) spec_env: Vec<String>,
    /// As in the spec; names are looked up when the task starts.
    pub(crate) user: String,
    pub(crate) groups: Vec<String>,
    pub(crate) resource_limits: Vec<ResourceLimit>,
    pub(crate) limits: Limits,
    pub(crate) stop_signal: i32,
    pub(crate) grace: Duration,
    pub(crate) health: Option<Health>,
    pub(crate) secrets: Vec<FilePlan>,
    pub(crate) configs: Vec<FilePlan>,
    pub(crate) ports: Vec<PortPlan>,
    pub(crate) warnings: Vec<String>,
    /// What templates may ask for.
    pub(crate) context: Context,
}

fn refused(reason: impl std::fmt::Display) -> TaskError {
    TaskError::Fatal(format!("process executor: {reason}"))
}

/// The plan of a task, or why it cannot run here.
pub(crate) fn plan(
    task: &Task,
    node: &NodeDescription,
    strictness: Strictness,
) -> Result<Plan, TaskError> {
    let spec = task.spec.as_ref();
    let Some(Runtime::Container(container)) = spec.and_then(|spec| spec.runtime.as_ref()) else {
        return Err(refused("only container specs can run on this node"));
    };
    if container.image != HOST_IMAGE {
        return Err(refused(format!(
            "image {:?} needs a container engine; this node only runs programs of its host (image \"{HOST_IMAGE}\")",
            container.image
        )));
    }
    let context = context(task, node);
    let spec_env = container.env.clone();
    let container = expanded(container, &context)?;
    let argv: Vec<String> = [&container.command[..], &container.args[..]].concat();
    if argv.is_empty() {
        return Err(TaskError::fatal("process: no command"));
    }
    let mut warnings = Vec::new();
    refuse_unsupported(task, &container)?;
    check_mounts(&container, strictness, &mut warnings)?;
    let resources = spec.and_then(|spec| spec.resources.as_ref());
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    if resources.is_some_and(|r| r.swap_bytes.is_some() || r.memory_swappiness.is_some()) {
        let reason = "limits on swapping are not enforced";
        if strictness.strict_limits {
            return Err(refused(reason));
        }
        warnings.push(reason.to_owned());
    }
    Ok(Plan {
        argv,
        env: environment(&container),
        spec_env,
        dir: directory(&container)?,
        user: container.user.clone(),
        groups: container.groups.clone(),
        resource_limits: resource_limits(&container)?,
        limits: Limits {
            memory_bytes: limits.map_or(0, |limits| limits.memory_bytes.max(0)),
            nano_cpus: limits.map_or(0, |limits| limits.nano_cpus.max(0)),
            pids: container.pids_limit.max(0),
        },
        stop_signal: stop_signal(&container.stop_signal)?,
        grace: container
            .stop_grace_period
            .as_ref()
            .map_or(GRACE, |grace| time::to_std_or_zero(Some(grace))),
        health: Health::of(container.healthcheck.as_ref()).map_err(refused)?,
        secrets: secret_files(&container.secrets)?,
        configs: config_files(&container.configs)?,
        ports: ports(task)?,
        warnings,
        context,
    })
}

/// The values that the task's templates may ask for (spec 08 section 16.2).
fn context(task: &Task, node: &NodeDescription) -> Context {
    let service = task.service_annotations.clone().unwrap_or_default();
    let platform = node.platform.clone().unwrap_or_default();
    Context {
        service_id: task.service_id.clone(),
        service_name: service.name,
        service_labels: service.labels,
        node_id: task.node_id.clone(),
        node_hostname: node.hostname.clone(),
        node_os: platform.os,
        node_architecture: platform.architecture,
        task_id: task.id.clone(),
        task_name: naming::task_name(task),
        task_slot: match task.slot {
            0 => task.node_id.clone(),
            slot => slot.to_string(),
        },
    }
}

fn expanded(container: &ContainerSpec, context: &Context) -> Result<ContainerSpec, TaskError> {
    let mut container = container.clone();
    let mut expander = Expander::new(context);
    template::visit(&mut container, |text| match expander.expand(text) {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err(refused(format!(
            "the template {text:?} uses a part of the language that is not known here"
        ))),
        Err(error) => Err(refused(error)),
    })?;
    Ok(container)
}

/// Whatever changes how safe or how visible a program is must not be ignored silently.
fn refuse_unsupported(task: &Task, container: &ContainerSpec) -> Result<(), TaskError> {
    let dns = container.dns_config.as_ref();
    let unsupported = [
        ("a terminal", container.tty),
        ("an open standard input", container.open_stdin),
        ("a read-only root file system", container.read_only),
        ("privileges", container.privileges.is_some()),
        ("capabilities", !container.capability_add.is_empty()),
        ("capabilities", !container.capability_drop.is_empty()),
        ("sysctls", !container.sysctls.is_empty()),
        ("a hosts file", !container.hosts.is_empty()),
        (
            "a DNS configuration",
            dns.is_some_and(|dns| *dns != Default::default()),
        ),
        ("a host name of its own", !container.hostname.is_empty()),
        ("an init process", container.init.unwrap_or(false)),
        ("isolation", container.isolation != 0),
        ("an OOM score", container.oom_score_adj != 0),
        ("cluster volumes", !task.volumes.is_empty()),
    ];
    if let Some((what, _)) = unsupported.iter().find(|(_, asked)| *asked) {
        return Err(refused(format!(
            "the spec asks for {what}, which a program of the host cannot have"
        )));
    }
    let overlay = task.networks.iter().find(|attachment| {
        let network = attachment.network.as_ref();
        let spec = network.and_then(|network| network.spec.as_ref());
        let name = spec.and_then(|spec| spec.annotations.as_ref());
        name.is_none_or(|annotations| annotations.name != "host")
    });
    match overlay {
        Some(_) => Err(refused("networks other than \"host\" are not supported")),
        None => Ok(()),
    }
}

fn check_mounts(
    container: &ContainerSpec,
    strictness: Strictness,
    warnings: &mut Vec<String>,
) -> Result<(), TaskError> {
    use crate::api::types::mount::Type;
    for mount in &container.mounts {
        let tmpfs = mount.r#type == Type::Tmpfs as i32;
        if !(tmpfs && strictness.lenient_mounts) {
            return Err(refused("mounts are not supported"));
        }
        warnings.push("a tmpfs mount is ignored".to_owned());
    }
    Ok(())
}

/// Variables of the spec. An entry without `=` names one that is to be absent, and all are.
fn environment(container: &ContainerSpec) -> Vec<(String, String)> {
    container
        .env
        .iter()
        .filter_map(|entry| entry.split_once('='))
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn directory(container: &ContainerSpec) -> Result<Option<PathBuf>, TaskError> {
    match container.dir.as_str() {
        "" => Ok(None),
        dir if dir.starts_with('/') => Ok(Some(PathBuf::from(dir))),
        dir => Err(refused(format!(
            "the working directory {dir:?} is not an absolute path"
        ))),
    }
}

fn resource_limits(container: &ContainerSpec) -> Result<Vec<ResourceLimit>, TaskError> {
    let bound = |value: i64| u64::try_from(value).ok();
    container
        .ulimits
        .iter()
        .map(|ulimit| {
            if !ResourceLimit::knows(&ulimit.name) {
                return Err(refused(format!("unknown ulimit {:?}", ulimit.name)));
            }
            Ok(ResourceLimit {
                resource: ulimit.name.clone(),
                soft: bound(ulimit.soft),
                hard: bound(ulimit.hard),
            })
        })
        .collect()
}

/// Signals that make sense to stop a program with.
const SIGNALS: [(&str, i32); 14] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ABRT", libc::SIGABRT),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("WINCH", libc::SIGWINCH),
    ("PWR", libc::SIGPWR),
];

/// A signal by name, with or without `SIG`, or by number; `SIGTERM` if there is none.
fn stop_signal(text: &str) -> Result<i32, TaskError> {
    if text.is_empty() {
        return Ok(libc::SIGTERM);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let by_name = SIGNALS.iter().find(|(known, _)| *known == name);
    let by_number = || {
        SIGNALS
            .iter()
            .find(|(_, number)| number.to_string() == text)
    };
    by_name
        .or_else(by_number)
        .map(|(_, number)| *number)
        .ok_or_else(|| refused(format!("unknown stop signal {text:?}")))
}

fn secret_files(references: &[SecretReference]) -> Result<Vec<FilePlan>, TaskError> {
    references
        .iter()
        .filter_map(|reference| {
            let secret_reference::Target::File(target) = reference.target.as_ref()?;
            Some((&reference.secret_id, target))
        })
        .map(|(id, target)| file_plan(id, target))
        .collect()
}

/// Configs with a runtime target appear nowhere as a file.
fn config_files(references: &[ConfigReference]) -> Result<Vec<FilePlan>, TaskError> {
    references
        .iter()
        .filter_map(|reference| match &reference.target {
            Some(config_reference::Target::File(target)) => Some((&reference.config_id, target)),
            _ => None,
        })
        .map(|(id, target)| file_plan(id, target))
        .collect()
}

fn file_plan(id: &str, target: &crate::api::types::FileTarget) -> Result<FilePlan, TaskError> {
    let number = |what: &str, text: &str| match text {
        "" => Ok(None),
        text => text.parse::<u32>().map(Some).map_err(|_| {
            refused(format!(
                "{what} {text:?} of file {:?} is no number",
                target.name
            ))
        }),
    };
    Ok(FilePlan {
        id: id.to_owned(),
        target: target.name.clone(),
        path: relative_path(&target.name)?,
        uid: number("owner", &target.uid)?,
        gid: number("group", &target.gid)?,
        mode: target.mode & 0o777,
    })
}

/// Where a file goes below its directory. Absolute targets are placed below it too; nothing gets out.
fn relative_path(target: &str) -> Result<PathBuf, TaskError> {
    let mut path = PathBuf::new();
    for component in Path::new(target).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(refused(format!(
                    "the file name {target:?} leads out of its directory"
                )));
            }
        }
    }
    if path.as_os_str().is_empty() {
        return Err(refused(format!("{target:?} is not a file name")));
    }
    Ok(path)
}

fn ports(task: &Task) -> Result<Vec<PortPlan>, TaskError> {
    let ports = task.endpoint.as_ref().map_or(&[][..], |endpoint| {
        let allocated = &endpoint.ports[..];
        match (&endpoint.spec, allocated) {
            (Some(spec), []) => &spec.ports[..],
            _ => allocated,
        }
    });
    ports
        .iter()
        .map(|port| {
            if port.publish_mode != PublishMode::Host as i32 {
                return Err(refused(
                    "ports published in ingress mode are not supported; use mode=host",
                ));
            }
            Ok(PortPlan {
                target: port.target_port,
                published: port.published_port,
                protocol: port.protocol,
            })
        })
        .collect()
}

impl PortPlan {
    pub(crate) fn is_udp(&self) -> bool {
        self.protocol == Protocol::Udp as i32
    }
}
