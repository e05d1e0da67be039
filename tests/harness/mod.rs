//! Starts the real programs for tests: `swarmd` in a state directory of its own, `swarmctl` against it,
//! and a Docker Engine with its own roots. Nothing here sleeps to synchronise: it waits for log lines,
//! process ends and answers, each with a limit.
#![allow(dead_code)]

pub mod authority;
pub mod engine;
pub mod image;
pub mod swarmd;

use std::time::{Duration, Instant};

/// Longest wait for anything that should happen soon, on a loaded two-core machine.
pub const SOON: Duration = Duration::from_secs(60);

/// The share of the full counts that this run does: 0.1 in `make test`, 1.0 in `make soak`.
pub fn scale() -> f64 {
    std::env::var("SWARM_TEST_SCALE")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.1)
}

/// A full count scaled to this run, at least one.
pub fn scaled(full: usize) -> usize {
    ((full as f64 * scale()) as usize).max(1)
}

/// Polls until `probe` gives a value; panics with `what` and the last reason after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match probe() {
            Ok(value) => return value,
            Err(reason) if Instant::now() >= deadline => {
                panic!("{what}: not within {limit:?}: {reason}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// True when the tests that need a Docker Engine can run here. In CI a missing part is a failure; on a
/// developer's machine without root or an Engine the test says that it was skipped.
pub fn engine_available(test: &str) -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        Some("root")
    } else {
        ["dockerd", "docker", "busybox"]
            .into_iter()
            .find(|program| which(program).is_none())
    };
    match missing {
        None => true,
        Some(part)
            if std::env::var_os("SWARM_TEST_REQUIRE_ALL").is_some()
                || std::env::var_os("CI").is_some() =>
        {
            panic!("{test} needs {part}, which is missing here")
        }
        Some(part) => {
            eprintln!("SKIPPED {test}: needs {part}");
            false
        }
    }
}

/// Path of a program, if it is installed. Debian's own folder comes first.
pub fn which(program: &str) -> Option<std::path::PathBuf> {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"]
        .iter()
        .map(|dir| std::path::Path::new(dir).join(program))
        .find(|path| path.exists())
}

/// A loopback port that was free a moment ago.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port()
}
