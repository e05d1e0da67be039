//! The shim: the small process that stands between the agent and one task's program.
//!
//! It is this same executable, started with a hidden first argument, in a session of its own. It holds the
//! program's output and writes the log; it stops the program when asked; and it waits for the program and
//! writes down how it ended. The agent may die, be upgraded and come back meanwhile: shim and program do
//! not notice, and no exit code is lost.
//!
//! Guarantees: a task's program is started at most once, whoever asks and how often (lock, `shim.json`,
//! `void`); it dies if the shim is killed; when it has ended, no descendant of it is left; and the record
//! of its end is written whatever the state of the disk, later if need be.
//!
//! The agent talks to a shim in three ways: once, at the start, over a socket on descriptor 0 (what to run,
//! which nobody else can read there); by signals (`SIGTERM`: stop politely, then by force; `SIGUSR1`: kill);
//! and through the files of [`super::record`].

use super::cgroup;
use super::log::{LogConfig, LogWriter};
use super::record::{BoundPort, ControlDir, ExitRecord, FailedStep, ProcessId, ShimRecord};
use super::spawn::{Apart, Ids, ResourceLimit, Spawn};
use crate::api::time;
use crate::api::types::LogStream;
use crate::storage::seal::Dek;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// First argument that makes the executable a shim.
pub const SHIM_ARGUMENT: &str = "__shim";

/// Largest order that a shim reads: a task spec is at most a few MiB.
const ORDER_BYTES_MAX: u32 = 16 << 20;
/// Time for the agent to hand over the order; it writes it at once.
const ORDER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the output of an ended program is still read: a descendant that left may hold it open.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Bound on killing what a program left behind.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between rounds of killing.
const SWEEP_PAUSE: Duration = Duration::from_millis(2);
/// Pause between tries to write the exit record to a disk that refuses it.
const EXIT_RETRY: Duration = Duration::from_secs(1);
/// Bytes read from the program's output at a time: the size of a pipe.
const READ_BYTES: usize = 64 << 10;

/// What a shim is to do.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) task_id: String,
    pub(crate) control: PathBuf,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) dir: PathBuf,
    pub(crate) ids: Option<Ids>,
    pub(crate) limits: Vec<ResourceLimit>,
    /// Directories of the control groups to join.
    pub(crate) cgroups: Vec<PathBuf>,
    pub(crate) stop_signal: i32,
    pub(crate) grace: Duration,
    pub(crate) ports: Vec<BoundPort>,
    pub(crate) log_key: Vec<u8>,
    pub(crate) log_file_bytes_max: u64,
    pub(crate) log_files_max: u64,
}

/// A shim's answer to its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The program runs.
    Started,
    /// Another shim has or had this task; nothing was done.
    Taken,
    /// The task must not be started any more; nothing was done.
    Void,
    /// The program could not be started: which step, and the system's error number.
    Failed(FailedStep, i32),
    /// The shim could not even do its own part.
    Broken(String),
}

/// Runs as a shim: the whole program if the first argument is [`SHIM_ARGUMENT`].
pub fn shim_main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody reads our output; what the agent needs to know was answered or recorded.
        Err(_) => ExitCode::FAILURE,
    }
}

fn run() -> io::Result<()> {
    let mut socket = take_socket()?;
    std::env::set_current_dir("/")?;
    let order = read_order(&mut socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match Shim::start(order) {
            Ok(shim) => {
                answer(socket, &Answer::Started);
                shim.supervise().await
            }
            Err(refusal) => {
                answer(socket, &refusal);
                Ok(())
            }
        }
    })
}

/// The socket on descriptor 0, which is then closed for everybody else.
fn take_socket() -> io::Result<UnixStream> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    socket.set_read_timeout(Some(ORDER_TIMEOUT))?;
    Ok(socket)
}

fn read_order(socket: &mut UnixStream) -> io::Result<Order> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > ORDER_BYTES_MAX {
        return Err(io::Error::other("the order is too long"));
    }
    let mut bytes = vec![0; length as usize];
    socket.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// An order as the agent sends it. A length in front tells a whole order from one cut short.
pub(crate) fn encode_order(order: &Order) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(order)?;
    match u32::try_from(body.len()) {
        Ok(length) if length <= ORDER_BYTES_MAX => {
            Ok([&length.to_le_bytes()[..], body.as_slice()].concat())
        }
        _ => Err(io::Error::other(format!(
            "the task needs {} bytes of arguments and environment, at most {ORDER_BYTES_MAX} are possible",
            body.len()
        ))),
    }
}

fn answer(mut socket: UnixStream, answer: &Answer) {
    if let Ok(text) = serde_json::to_vec(answer) {
        // The agent may be gone; then it finds the records.
        let _ = socket.write_all(&text);
    }
}

/// A shim whose program runs.
struct Shim {
    control: ControlDir,
    /// Held for as long as we live.
    _lock: File,
    child: Child,
    program: Pid,
    pumps: mpsc::Receiver<()>,
    cgroups: Vec<PathBuf>,
    stop_signal: Signal,
    grace: Duration,
    signals: Signals,
}

struct Signals {
    stop: tokio::signal::unix::Signal,
    kill: tokio::signal::unix::Signal,
    child: tokio::signal::unix::Signal,
    /// Never read: having them keeps these signals from ending us.
    _ignored: [tokio::signal::unix::Signal; 2],
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        Ok(Signals {
            stop: signal(SignalKind::terminate())?,
            kill: signal(SignalKind::user_defined1())?,
            child: signal(SignalKind::child())?,
            _ignored: [
                signal(SignalKind::hangup())?,
                signal(SignalKind::interrupt())?,
            ],
        })
    }
}

fn broken(attempt: &str) -> impl Fn(io::Error) -> Answer {
    move |error| Answer::Broken(format!("cannot {attempt}: {error}"))
}

impl Shim {
    /// Takes the task, if nobody else has or had it, and starts its program.
    fn start(order: Order) -> Result<Shim, Answer> {
        let signals = Signals::listen().map_err(broken("listen for signals"))?;
        let control = ControlDir(order.control.clone());
        let lock = match control.lock().map_err(broken("lock the task"))? {
            Some(lock) => lock,
            None => return Err(Answer::Taken),
        };
        if control.is_void() {
            return Err(Answer::Void);
        }
        if control.shim().map_err(broken("look for a shim"))?.is_some() {
            return Err(Answer::Taken);
        }
        let mut record = ShimRecord {
            shim: ProcessId::of(std::process::id() as i32).map_err(broken("name the shim"))?,
            program: None,
            ports: order.ports.clone(),
        };
        control
            .prepare_exit()
            .map_err(broken("reserve room for the exit record"))?;
        control
            .write_shim(&record)
            .map_err(broken("record the shim"))?;
        // From here on the task counts as started, and its end must be recorded.
        let (child, pumps) = match start_program(&order) {
            Ok(started) => started,
            Err((step, error)) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                record_end(&control, &ExitRecord::not_started(step, errno));
                return Err(Answer::Failed(step, errno));
            }
        };
        let pid = child.id() as i32;
        record.program = ProcessId::of(pid).ok();
        if control.write_shim(&record).is_err() {
            // The agent then does without the number; everything else works.
            record.program = None;
        }
        let program = Pid::from_raw(pid).ok_or_else(|| Answer::Broken("no process".to_owned()))?;
        Ok(Shim {
            control,
            _lock: lock,
            child,
            program,
            pumps,
            cgroups: order.cgroups,
            stop_signal: stop_signal(order.stop_signal),
            grace: order.grace,
            signals,
        })
    }

    /// Waits for the program, stops it when asked, and records its end.
    async fn supervise(mut self) -> io::Result<()> {
        let ended = super::record::ProcessHandle(rustix::process::pidfd_open(
            self.program,
            rustix::process::PidfdFlags::empty(),
        )?)
        .ended();
        tokio::pin!(ended);
        let mut kill_at: Option<Instant> = None;
        loop {
            let deadline = kill_at.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                biased;
                result = &mut ended => { result?; break }
                _ = self.signals.child.recv() => self.reap_adopted(),
                _ = self.signals.kill.recv() => self.signal(Signal::KILL),
                _ = self.signals.stop.recv() => {
                    self.signal(self.stop_signal);
                    kill_at.get_or_insert(Instant::now() + self.grace);
                }
                () = tokio::time::sleep_until(deadline), if kill_at.is_some() => {
                    self.signal(Signal::KILL);
                    kill_at = None;
                }
            }
        }
        // The program is not reaped yet, so its number and its group cannot mean anything else.
        self.signal(Signal::KILL);
        let status = self.child.wait()?;
        self.sweep();
        let drained = std::time::Instant::now() + DRAIN_TIMEOUT;
        for _ in 0..2 {
            let left = drained.saturating_duration_since(std::time::Instant::now());
            // Either a stream has ended, or time is up; the record of the end matters more.
            let _ = self.pumps.recv_timeout(left);
        }
        record_end(&self.control, &ExitRecord::of(status));
        Ok(())
    }

    /// Signals the whole process group of the program.
    fn signal(&self, signal: Signal) {
        // It may have ended a moment ago.
        let _ = rustix::process::kill_process_group(self.program, signal);
    }

    /// Descendants whose parent ended become our children; they must not stay as zombies.
    fn reap_adopted(&self) {
        for pid in children() {
            if pid != self.program {
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
            }
        }
    }

    /// Kills everything the program left behind.
    fn sweep(&self) {
        let end = std::time::Instant::now() + SWEEP_TIMEOUT;
        for cgroup in &self.cgroups {
            cgroup::kill_all(cgroup);
        }
        loop {
            let left = children();
            if left.is_empty() || std::time::Instant::now() > end {
                return;
            }
            for pid in left {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                // Once it has ended, its own children are ours.
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
            }
            std::thread::sleep(SWEEP_PAUSE);
        }
    }
}

/// The signal with this number, or `SIGTERM` if there is none.
fn stop_signal(number: i32) -> Signal {
    Signal::from_named_raw(number).unwrap_or(Signal::TERM)
}

/// Our children, as far as the kernel lists them.
fn children() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
                .collect::<Vec<Pid>>()
        })
        .collect()
}

type Started = (Child, mpsc::Receiver<()>);

fn start_program(order: &Order) -> Result<Started, (FailedStep, io::Error)> {
    let log = open_log(order).map_err(|error| (FailedStep::Log, error))?;
    let cgroups = order
        .cgroups
        .iter()
        .map(|dir| open_procs(dir))
        .collect::<io::Result<Vec<OwnedFd>>>()
        .map_err(|error| (FailedStep::Cgroup, error))?;
    let program = |error| (FailedStep::Program, error);
    // Whatever loses its parent below us becomes our child, so that we can end it.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| program(error.into()))?;
    let (name, args) = order
        .argv
        .split_first()
        .ok_or_else(|| program(io::Error::from_raw_os_error(libc::ENOENT)))?;
    let mut child = Spawn {
        args: args.iter().map(Into::into).collect(),
        env: order
            .env
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        dir: Some(order.dir.clone()),
        stdout: Stdio::piped(),
        stderr: Stdio::piped(),
        apart: Apart::Group,
        ids: order.ids.clone(),
        limits: order.limits.clone(),
        cgroups,
        die_with_parent: true,
        ..Spawn::new(name)
    }
    .start()
    .map_err(program)?;
    let (done, pumps) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        pump(stdout, LogStream::Stdout, log.clone(), done.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        pump(stderr, LogStream::Stderr, log, done);
    }
    Ok((child, pumps))
}

fn open_log(order: &Order) -> io::Result<Arc<Mutex<LogWriter>>> {
    let config = LogConfig {
        dir: ControlDir(order.control.clone()).log_dir(),
        task_id: order.task_id.clone(),
        file_bytes_max: order.log_file_bytes_max,
        files_max: order.log_files_max,
    };
    let key = Dek::from_bytes(&order.log_key).map_err(io::Error::other)?;
    Ok(Arc::new(Mutex::new(LogWriter::open(config, key)?)))
}

fn open_procs(cgroup: &std::path::Path) -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .write(true)
        .open(cgroup.join("cgroup.procs"))?;
    Ok(file.into())
}

/// Moves what the program writes into the log, on a thread of its own: reading must go on whatever the
/// disk does.
fn pump(
    mut source: impl Read + Send + 'static,
    stream: LogStream,
    log: Arc<Mutex<LogWriter>>,
    done: mpsc::Sender<()>,
) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => log.lock().write(stream, &buffer[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        log.lock().end(stream);
        // The shim may have stopped waiting.
        let _ = done.send(());
    });
}

/// Writes the record of the end, as often as it takes.
fn record_end(control: &ControlDir, record: &ExitRecord) {
    while control.write_exit(record).is_err() {
        if !control.0.exists() {
            // The task is removed; nobody will ask.
            return;
        }
        std::thread::sleep(EXIT_RETRY);
    }
}

impl ExitRecord {
    fn of(status: ExitStatus) -> ExitRecord {
        let now = time::now();
        let signal = status.signal();
        ExitRecord {
            code: status
                .code()
                .or(signal.map(|signal| 128 + signal))
                .unwrap_or(-1),
            signal,
            failed: None,
            time: (now.seconds, now.nanos),
        }
    }

    fn not_started(step: FailedStep, errno: i32) -> ExitRecord {
        let now = time::now();
        ExitRecord {
            code: 0,
            signal: None,
            failed: Some((step, errno)),
            time: (now.seconds, now.nanos),
        }
    }
}
