//! Control groups: limits on memory, processor time and number of processes of a task.
//!
//! Below a group `swarmd` at the root of the hierarchy (version 2, else version 1 per controller) each task
//! with limits gets a group of its own, named after it. Where that is not possible (no rights, no
//! controllers) the limits are not enforced, and the caller is told why.

use rustix::process::{Pid, Signal};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel's groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// The group that holds those of all tasks.
const PARENT: &str = "swarmd";
/// Length of the period in which a share of processor time is granted, 100 ms: the kernel's default.
const CPU_PERIOD_US: i64 = 100_000;
/// Smallest share the kernel grants, 1 ms per period.
const CPU_QUOTA_MIN_US: i64 = 1_000;
/// Rounds of killing what is in a group of version 1; each finds only what was forked in the one before.
const KILL_ROUNDS: usize = 100;

/// What a task may use at most; 0 means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: i64,
    pub(crate) nano_cpus: i64,
    pub(crate) pids: i64,
}

impl Limits {
    pub(crate) fn any(&self) -> bool {
        *self != Limits::default()
    }

    /// Version 2: controller, file, value.
    fn unified(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut settings = Vec::new();
        if self.memory_bytes > 0 {
            settings.push(("memory", "memory.max", self.memory_bytes.to_string()));
        }
        if self.nano_cpus > 0 {
            let value = format!("{} {CPU_PERIOD_US}", self.cpu_quota_us());
            settings.push(("cpu", "cpu.max", value));
        }
        if self.pids > 0 {
            settings.push(("pids", "pids.max", self.pids.to_string()));
        }
        settings
    }

    /// Version 1: controller, file, value.
    fn separate(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut settings = Vec::new();
        if self.memory_bytes > 0 {
            let value = self.memory_bytes.to_string();
            settings.push(("memory", "memory.limit_in_bytes", value));
        }
        if self.nano_cpus > 0 {
            settings.push(("cpu", "cpu.cfs_period_us", CPU_PERIOD_US.to_string()));
            settings.push(("cpu", "cpu.cfs_quota_us", self.cpu_quota_us().to_string()));
        }
        if self.pids > 0 {
            settings.push(("pids", "pids.max", self.pids.to_string()));
        }
        settings
    }

    fn cpu_quota_us(&self) -> i64 {
        let quota = i128::from(self.nano_cpus) * i128::from(CPU_PERIOD_US) / 1_000_000_000;
        i64::try_from(quota)
            .unwrap_or(i64::MAX)
            .max(CPU_QUOTA_MIN_US)
    }
}

/// Creates the groups of a task and sets their limits. Returns the directories; the task is to join all
/// of them. On an error nothing is left.
pub(crate) fn create(task_id: &str, limits: &Limits) -> io::Result<Vec<PathBuf>> {
    create_in(Path::new(ROOT), task_id, limits)
}

fn create_in(root: &Path, task_id: &str, limits: &Limits) -> io::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    let result = if root.join("cgroup.controllers").exists() {
        create_unified(root, task_id, limits, &mut made)
    } else {
        create_separate(root, task_id, limits, &mut made)
    };
    match result {
        Ok(()) => Ok(made),
        Err(error) => {
            made.iter().for_each(|dir| remove(dir));
            Err(error)
        }
    }
}

fn create_unified(
    root: &Path,
    task_id: &str,
    limits: &Limits,
    made: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let parent = root.join(PARENT);
    create_dir(&parent)?;
    let settings = limits.unified();
    for (controller, ..) in &settings {
        let enable = format!("+{controller}");
        write(&root.join("cgroup.subtree_control"), &enable)?;
        write(&parent.join("cgroup.subtree_control"), &enable)?;
    }
    let dir = parent.join(task_id);
    create_dir(&dir)?;
    made.push(dir.clone());
    settings
        .iter()
        .try_for_each(|(_, file, value)| write(&dir.join(file), value))
}

fn create_separate(
    root: &Path,
    task_id: &str,
    limits: &Limits,
    made: &mut Vec<PathBuf>,
) -> io::Result<()> {
    for (controller, file, value) in limits.separate() {
        let hierarchy = root.join(controller);
        if !hierarchy.join("cgroup.procs").exists() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no {controller} controller in {}", root.display()),
            ));
        }
        let parent = hierarchy.join(PARENT);
        create_dir(&parent)?;
        let dir = parent.join(task_id);
        create_dir(&dir)?;
        if !made.contains(&dir) {
            made.push(dir.clone());
        }
        write(&dir.join(file), &value)?;
    }
    Ok(())
}

/// The groups that a task has, whatever its limits were.
pub(crate) fn of_task(task_id: &str) -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    ["", "memory", "cpu", "pids"]
        .iter()
        .map(|controller| root.join(controller).join(PARENT).join(task_id))
        .filter(|dir| dir.exists())
        .collect()
}

/// Kills every process in a group.
pub(crate) fn kill_all(dir: &Path) {
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for _ in 0..KILL_ROUNDS {
        let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        let pids: Vec<Pid> = procs
            .split_whitespace()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect();
        if pids.is_empty() {
            return;
        }
        for pid in pids {
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Removes a group that holds no process any more.
pub(crate) fn remove(dir: &Path) {
    if let Err(error) = fs::remove_dir(dir)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(dir = %dir.display(), %error, "cannot remove a control group");
    }
}

fn create_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(at(dir, error)),
        _ => Ok(()),
    }
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    // Not created if missing: a missing file means that there is no such limit.
    fs::OpenOptions::new()
        .write(true)
        .open(file)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|error| at(file, error))
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        memory_bytes: 64 << 20,
        nano_cpus: 1_500_000_000,
        pids: 10,
    };

    /// A directory that looks like a mounted hierarchy, except that files in new groups do not appear by
    /// themselves.
    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn version_2() {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "cgroup.controllers",
            "cgroup.subtree_control",
            "swarmd/cgroup.subtree_control",
            "swarmd/t/memory.max",
            "swarmd/t/cpu.max",
            "swarmd/t/pids.max",
        ] {
            touch(&root.path().join(file));
        }
        let made = create_in(root.path(), "t", &LIMITS).unwrap();
        assert_eq!(made, [root.path().join("swarmd/t")]);
        let read = |file: &str| fs::read_to_string(made[0].join(file)).unwrap();
        assert_eq!(read("memory.max"), "67108864");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("pids.max"), "10");
    }

    #[test]
    fn version_1() {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "memory/cgroup.procs",
            "cpu/cgroup.procs",
            "pids/cgroup.procs",
            "memory/swarmd/t/memory.limit_in_bytes",
            "cpu/swarmd/t/cpu.cfs_period_us",
            "cpu/swarmd/t/cpu.cfs_quota_us",
            "pids/swarmd/t/pids.max",
        ] {
            touch(&root.path().join(file));
        }
        let made = create_in(root.path(), "t", &LIMITS).unwrap();
        assert_eq!(
            made,
            ["memory", "cpu", "pids"].map(|name| root.path().join(name).join("swarmd/t"))
        );
        let read = |file: &str| fs::read_to_string(root.path().join(file)).unwrap();
        assert_eq!(read("cpu/swarmd/t/cpu.cfs_quota_us"), "150000");
    }

    #[test]
    fn what_is_not_there_is_named() {
        let root = tempfile::tempdir().unwrap();
        let error = create_in(root.path(), "t", &LIMITS)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no memory controller"), "{error}");
        touch(&root.path().join("cgroup.controllers"));
        let error = create_in(root.path(), "t", &LIMITS)
            .unwrap_err()
            .to_string();
        assert!(error.contains("cgroup.subtree_control"), "{error}");
    }

    #[test]
    fn tiny_shares_are_raised_to_what_the_kernel_takes() {
        let limits = Limits {
            nano_cpus: 1_000_000,
            ..Default::default()
        };
        assert_eq!(limits.cpu_quota_us(), CPU_QUOTA_MIN_US);
        assert!(limits.any() && !Limits::default().any());
    }
}
