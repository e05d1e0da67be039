//! One `swarmd` process and the tools pointed at it.

use super::{SOON, free_port};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use swarm_manager::api::admin::admin_client::AdminClient;
use swarm_manager::api::types::control_client::ControlClient;
use tempfile::TempDir;
use tonic::transport::Channel;

/// Line that `swarmd` logs when its node may be used.
const READY_LINE: &str = "node is ready";

/// How a node is started; the same again after a kill.
pub struct Swarmd {
    pub dir: TempDir,
    pub port: u16,
    pub extra: Vec<String>,
    child: Option<Child>,
    log: Option<mpsc::Receiver<String>>,
    /// Everything the node logged since its last start.
    pub seen: Vec<String>,
}

impl Swarmd {
    /// A node that is not started yet, with an empty state directory.
    pub fn prepare(extra: &[&str]) -> Swarmd {
        Swarmd {
            dir: TempDir::with_prefix("swarmd-test-").expect("a temporary directory"),
            port: free_port(),
            extra: extra.iter().map(|flag| flag.to_string()).collect(),
            child: None,
            log: None,
            seen: Vec::new(),
        }
    }

    /// A running one-manager cluster.
    pub fn start(extra: &[&str]) -> Swarmd {
        let mut node = Swarmd::prepare(extra);
        node.spawn();
        node.wait_ready();
        node
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    pub fn remote(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_swarmd"));
        command
            .arg("--state-dir")
            .arg(self.state_dir())
            .arg("--listen-remote-api")
            .arg(self.remote())
            .arg("--listen-control-api")
            .arg(self.socket())
            .arg("--task-tmpfs")
            .arg("/dev/shm")
            .args(&self.extra);
        command
    }

    /// Starts the process and begins to collect its log.
    pub fn spawn(&mut self) {
        let mut child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("swarmd starts");
        let stderr = child.stderr.take().expect("a pipe");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        self.child = Some(child);
        self.log = Some(receiver);
        self.seen.clear();
    }

    /// Waits until a log line contains `text`.
    pub fn wait_line(&mut self, text: &str) {
        let deadline = std::time::Instant::now() + SOON;
        let log = self.log.as_ref().expect("a started node");
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match log.recv_timeout(left) {
                Ok(line) => {
                    let found = line.contains(text);
                    self.seen.push(line);
                    if found {
                        return;
                    }
                }
                Err(error) => panic!(
                    "swarmd did not log {text:?} ({error}); it logged:\n{}",
                    self.seen.join("\n")
                ),
            }
        }
    }

    /// What the node has logged since its last start, as far as it has arrived.
    pub fn drain(&mut self) -> &[String] {
        if let Some(log) = &self.log {
            self.seen.extend(log.try_iter());
        }
        &self.seen
    }

    pub fn wait_ready(&mut self) {
        self.wait_line(READY_LINE);
    }

    /// SIGKILL, and wait for the end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a kill");
            child.wait().expect("an end");
        }
    }

    /// SIGTERM; returns how the process ended and how long that took.
    pub fn stop(&mut self) -> (ExitStatus, Duration) {
        let mut child = self.child.take().expect("a running node");
        let begin = std::time::Instant::now();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
        let status = super::wait_for("swarmd ends after SIGTERM", SOON, || {
            child
                .try_wait()
                .map_err(|error| error.to_string())?
                .ok_or_else(|| "still running".to_string())
        });
        (status, begin.elapsed())
    }

    pub fn restart(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running node").id()
    }

    pub fn is_running(&mut self) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => false,
        }
    }

    /// Runs `swarmctl` against this node.
    pub fn ctl_output(&self, args: &[&str]) -> Output {
        swarmctl(&self.socket(), args)
    }

    /// Runs `swarmctl`, which must succeed; returns what it printed.
    pub fn ctl(&self, args: &[&str]) -> String {
        let output = self.ctl_output(args);
        assert!(
            output.status.success(),
            "swarmctl {args:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `swarmctl --format json`.
    pub fn ctl_json(&self, args: &[&str]) -> serde_json::Value {
        let mut all = vec!["--format", "json"];
        all.extend_from_slice(args);
        let text = self.ctl(&all);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
    }

    pub async fn channel(&self) -> Channel {
        swarm_manager::cli::connect::control_socket(&self.socket())
            .await
            .expect("the control socket answers")
    }

    pub async fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel().await).max_decoding_message_size(1 << 30)
    }

    pub async fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.channel().await)
    }

    /// The join token of a role, `worker` or `manager`.
    pub fn token(&self, role: &str) -> String {
        self.ctl_json(&["cluster", "tokens"])[role]
            .as_str()
            .expect("a token")
            .to_string()
    }
}

impl Drop for Swarmd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if let Some(log) = &self.log {
                self.seen.extend(log.try_iter());
            }
            let from = self.seen.len().saturating_sub(80);
            eprintln!("last lines of swarmd:\n{}", self.seen[from..].join("\n"));
        }
        self.kill();
        kill_shims(&self.state_dir());
    }
}

/// Ends the task processes that a killed node left running: their command lines name its directories.
fn kill_shims(state_dir: &Path) {
    let marker = state_dir.to_string_lossy().into_owned();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return;
    };
    for entry in processes.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let text = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        let mentions = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).contains(&marker);
        if (mentions(text("cmdline")) || mentions(text("environ")))
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
            && pid != rustix::process::getpid()
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

pub fn swarmctl(socket: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_swarmctl"))
        .arg("--socket")
        .arg(socket)
        .args(args)
        .output()
        .expect("swarmctl runs")
}
