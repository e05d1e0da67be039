//! Starts a task's program through a shim. Everything here blocks.

use super::Inner;
use super::cgroup;
use super::controller::ids;
use super::plan::{Plan, PortPlan};
use super::record::{BoundPort, ProcessHandle};
use super::shim::{Answer, Order, encode_order};
use super::site::{Site, disk_error};
use super::spawn::{Apart, Spawn};
use crate::agent::executor::TaskError;
use crate::api::types::Task;
use rustix::process::{Pid, PidfdFlags};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Time for a shim to answer: it starts the program at once, but writes to a disk before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Where programs are looked for if our own environment does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Has a shim start the program, and returns its answer.
pub(crate) fn launch(
    inner: &Inner,
    site: &Site,
    task: &Task,
    plan: &Plan,
) -> Result<Answer, TaskError> {
    let ports = bind_ports(&plan.ports)?;
    let key = inner
        .key
        .log_key(&site.id)
        .map_err(|error| TaskError::Fatal(format!("process executor: {error}")))?;
    let order = Order {
        task_id: site.id.clone(),
        control: site.control.0.clone(),
        argv: plan.argv.clone(),
        env: environment(inner, site, task, plan, &ports),
        dir: directory(site, plan),
        ids: ids(plan)?,
        limits: plan.resource_limits.clone(),
        cgroups: cgroup::of_task(&site.id),
        stop_signal: plan.stop_signal,
        grace: plan.grace,
        ports,
        log_key: key.expose().to_vec(),
        log_file_bytes_max: inner.config.log_file_bytes_max,
        log_files_max: inner.config.log_files_max,
    };
    let order = encode_order(&order)
        .map_err(|error| TaskError::Fatal(format!("process executor: {error}")))?;
    hand_over(inner, &order).map_err(|error| match error.kind() {
        // It may have got the order and gone on; the next try finds out.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => TaskError::Temporary(format!(
            "process executor: the task's supervisor gave no answer: {error}"
        )),
        _ => TaskError::Temporary(format!(
            "process executor: cannot start a supervisor for the task: {error}"
        )),
    })
}

fn hand_over(inner: &Inner, order: &[u8]) -> io::Result<Answer> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let shim = &inner.config.shim;
    let child = Spawn {
        name: Some("swarmd-shim".into()),
        args: shim.args.iter().map(Into::into).collect(),
        env: shim.env.clone(),
        stdin: Stdio::from(OwnedFd::from(theirs)),
        apart: Apart::Session,
        ..Spawn::new(&shim.program)
    }
    .start()?;
    reap_later(child);
    ours.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    ours.write_all(order)?;
    let mut answer = Vec::new();
    ours.read_to_end(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&answer)?)
}

/// A shim is our child for as long as we live, and must not stay as a zombie when it has ended.
fn reap_later(mut child: Child) {
    let handle = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    tokio::spawn(async move {
        if let Ok(handle) = handle
            && ProcessHandle(handle).ended().await.is_ok()
        {
            // It has ended, so this does not wait.
            let _ = child.wait();
        }
    });
}

/// The whole environment of a task's program (spec 08 section 17.4).
pub(crate) fn environment(
    inner: &Inner,
    site: &Site,
    task: &Task,
    plan: &Plan,
    ports: &[BoundPort],
) -> Vec<(String, String)> {
    let path = std::env::var("PATH").unwrap_or_else(|_| PATH.to_owned());
    let mut all = std::collections::BTreeMap::from([("PATH".to_owned(), path)]);
    all.extend(plan.env.iter().cloned());
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let own = [
        ("SWARM_TASK_ID", task.id.clone()),
        ("SWARM_TASK_NAME", plan.context.task_name.clone()),
        ("SWARM_SERVICE_NAME", plan.context.service_name.clone()),
        ("SWARM_NODE_ID", inner.config.node_id.clone()),
        ("SWARM_TASK_DIR", text(site.dir.clone())),
        ("SWARM_SECRETS_DIR", text(site.dir.join("secrets"))),
    ];
    all.extend(own.map(|(name, value)| (name.to_owned(), value)));
    for port in ports {
        let name = format!("SWARM_PORT_{}", port.target);
        all.entry(name)
            .or_insert_with(|| port.published.to_string());
    }
    all.into_iter().collect()
}

/// Where the program starts.
pub(crate) fn directory(site: &Site, plan: &Plan) -> PathBuf {
    plan.dir.clone().unwrap_or_else(|| site.dir.clone())
}

/// Settles which ports the task uses. Free ones are found by asking the kernel; the program binds them.
fn bind_ports(plans: &[PortPlan]) -> Result<Vec<BoundPort>, TaskError> {
    let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
    let mut ports = Vec::with_capacity(plans.len());
    for plan in plans {
        let published = match plan.published {
            0 => free_port(plan.is_udp(), &mut held)
                .map_err(|error| disk_error("find a free port", &error))?,
            published => published,
        };
        ports.push(BoundPort {
            target: plan.target,
            published,
            protocol: plan.protocol,
        });
    }
    Ok(ports)
}

/// A free port. Its socket is held until all ports are settled, so that none is found twice.
fn free_port(udp: bool, held: &mut Vec<Box<dyn std::any::Any>>) -> io::Result<u32> {
    let any = ("0.0.0.0", 0);
    let port = if udp {
        let socket = UdpSocket::bind(any)?;
        let port = socket.local_addr()?.port();
        held.push(Box::new(socket));
        port
    } else {
        let listener = TcpListener::bind(any)?;
        let port = listener.local_addr()?.port();
        held.push(Box::new(listener));
        port
    };
    Ok(u32::from(port))
}
