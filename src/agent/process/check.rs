//! Runs one health check.

use super::record::ProcessHandle;
use super::spawn::Spawn;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::io;
use std::process::Child;
use std::time::Duration;

/// Whether the check ended in time with code 0.
pub(crate) async fn run(spawn: Spawn, timeout: Duration) -> bool {
    let Ok(child) = spawn.start() else {
        return false;
    };
    let mut running = Running(child);
    match tokio::time::timeout(timeout, running.ended()).await {
        Ok(Ok(())) => running.0.wait().is_ok_and(|status| status.success()),
        Ok(Err(_)) | Err(_) => false,
    }
}

/// A check that does not outlive our interest in it.
struct Running(Child);

impl Running {
    async fn ended(&mut self) -> io::Result<()> {
        let pid = Pid::from_child(&self.0);
        ProcessHandle(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
            .ended()
            .await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        // Not reaped yet, so its group cannot mean anything else.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Spawn {
        Spawn {
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            ..Spawn::new("sh")
        }
    }

    #[tokio::test]
    async fn results() {
        let long = Duration::from_secs(60);
        assert!(run(shell("exit 0"), long).await);
        assert!(!run(shell("exit 1"), long).await);
        assert!(!run(Spawn::new("/no/such/check"), long).await);
        assert!(!run(shell("sleep 60"), Duration::from_millis(50)).await);
    }
}
