//! A real Docker Engine with its own data, runtime directory and socket.

use super::{SOON, image, wait_for, which};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Name of the image that [`Engine::start`] imports.
pub const IMAGE: &str = "busybox-test:1";

pub struct Engine {
    dir: TempDir,
    child: Option<Child>,
}

impl Engine {
    /// Starts an Engine and imports the test image.
    pub fn start() -> Engine {
        let dir = TempDir::with_prefix("engine-test-").expect("a temporary directory");
        let mut engine = Engine { dir, child: None };
        engine.spawn();
        let tar = image::write_tar(engine.dir.path());
        let tar = tar.to_string_lossy().into_owned();
        engine.docker(&["import", &tar, IMAGE]);
        engine
    }

    fn spawn(&mut self) {
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a log file");
        let child = Command::new(which("dockerd").expect("dockerd"))
            .arg("--data-root")
            .arg(self.dir.path().join("data"))
            .arg("--exec-root")
            .arg(self.dir.path().join("exec"))
            .arg("--pidfile")
            .arg(self.dir.path().join("pid"))
            .arg("-H")
            .arg(self.host())
            .arg("--storage-driver=vfs")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("dockerd starts");
        self.child = Some(child);
        wait_for("the Docker Engine answers", SOON, || {
            let output = self.docker_output(&["version"]);
            if output.status.success() {
                Ok(())
            } else {
                Err(format!(
                    "{}\n{}",
                    String::from_utf8_lossy(&output.stderr),
                    self.log_tail()
                ))
            }
        });
    }

    fn host(&self) -> String {
        format!("unix://{}", self.dir.path().join("docker.sock").display())
    }

    /// Control socket of the Engine's own manager, when it is one.
    pub fn control_socket(&self) -> PathBuf {
        self.dir.path().join("exec/swarm/control.sock")
    }

    pub fn docker_output(&self, args: &[&str]) -> Output {
        Command::new(which("docker").expect("docker"))
            .arg("-H")
            .arg(self.host())
            .args(args)
            .output()
            .expect("docker runs")
    }

    /// Runs `docker`, which must succeed; returns what it printed.
    pub fn docker(&self, args: &[&str]) -> String {
        let output = self.docker_output(args);
        assert!(
            output.status.success(),
            "docker {args:?}: {}{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.log_tail()
        );
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    /// IDs of running containers, sorted.
    pub fn running(&self) -> Vec<String> {
        let text = self.docker(&["ps", "-q", "--no-trunc"]);
        let mut ids: Vec<String> = text.lines().map(str::to_string).collect();
        ids.sort();
        ids
    }

    /// Waits until exactly `count` containers run and returns their IDs.
    pub fn wait_running(&self, count: usize, limit: Duration) -> Vec<String> {
        wait_for(&format!("{count} containers run"), limit, || {
            let ids = self.running();
            if ids.len() == count {
                Ok(ids)
            } else {
                Err(format!("{} run\n{}", ids.len(), self.log_tail()))
            }
        })
    }

    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("last lines of the Docker Engine:\n{}", self.log_tail());
        }
        let ids = self.docker_output(&["ps", "-aq"]);
        let ids = String::from_utf8_lossy(&ids.stdout).into_owned();
        let mut args = vec!["rm", "-f"];
        args.extend(ids.lines());
        if args.len() > 2 {
            self.docker_output(&args);
        }
        if let Some(mut child) = self.child.take() {
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            while matches!(child.try_wait(), Ok(None)) && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        // The Engine may leave network namespaces mounted under its runtime directory.
        let exec = self.dir.path().join("exec");
        let _ = Command::new("sh")
            .arg("-c")
            .arg("grep -F \"$1\" /proc/self/mounts | cut -d' ' -f2 | sort -r | xargs -r umount -l")
            .arg("sh")
            .arg(exec)
            .status();
    }
}
