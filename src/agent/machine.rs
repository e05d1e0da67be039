//! What the kernel says about this machine.

use crate::api::types::{NodeDescription, Platform, Resources};
use std::io;

/// Host name, platform, processors and memory.
pub(crate) fn describe() -> io::Result<NodeDescription> {
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let cpus = std::thread::available_parallelism()?;
    Ok(NodeDescription {
        hostname: text(system.nodename()),
        platform: Some(Platform {
            architecture: text(system.machine()),
            os: text(system.sysname()).to_lowercase(),
        }),
        resources: Some(Resources {
            nano_cpus: i64::try_from(cpus.get())
                .unwrap_or(i64::MAX)
                .saturating_mul(1_000_000_000),
            memory_bytes: total_memory_bytes()?,
            generic: Vec::new(),
        }),
        ..Default::default()
    })
}

/// The version our own drivers report.
pub(crate) fn engine_version() -> String {
    format!("swarmd/{}", env!("CARGO_PKG_VERSION"))
}

fn total_memory_bytes() -> io::Result<i64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    text.lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<i64>().ok())
        .map(|kib| kib.saturating_mul(1024))
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/proc/meminfo does not say how much memory there is",
            )
        })
}
