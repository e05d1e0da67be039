//! The one place of the program that starts other programs (settled P4).
//!
//! A child must not inherit what it was not given: the log engine opens its files without close-on-exec,
//! and a child that kept them open would keep the log of a dead manager, and its disk space, alive. So
//! between fork and exec every descriptor from 3 up is marked close-on-exec. A child is always in a
//! process group of its own, gets exactly the environment it is given, and never the parent's signal
//! mask or umask.

use rustix::process::{Resource, Rlimit};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// How far a child is set apart from us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Apart {
    /// A process group of its own; ends up dead if we die (see [`Spawn::die_with_parent`]).
    Group,
    /// A session of its own: signals of our terminal do not reach it.
    Session,
}

/// Whose rights a child gets.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, all of them.
    pub groups: Vec<u32>,
}

/// Resources that can be limited, as container engines name them.
const RESOURCES: [(&str, Resource); 15] = [
    ("core", Resource::Core),
    ("cpu", Resource::Cpu),
    ("data", Resource::Data),
    ("fsize", Resource::Fsize),
    ("locks", Resource::Locks),
    ("memlock", Resource::Memlock),
    ("msgqueue", Resource::Msgqueue),
    ("nice", Resource::Nice),
    ("nofile", Resource::Nofile),
    ("nproc", Resource::Nproc),
    ("rss", Resource::Rss),
    ("rtprio", Resource::Rtprio),
    ("rttime", Resource::Rttime),
    ("sigpending", Resource::Sigpending),
    ("stack", Resource::Stack),
];

/// One resource limit; `None` means unlimited.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ResourceLimit {
    /// One of the names that [`ResourceLimit::knows`].
    pub resource: String,
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

impl ResourceLimit {
    /// Whether there is a resource of this name.
    pub fn knows(resource: &str) -> bool {
        RESOURCES.iter().any(|(name, _)| *name == resource)
    }

    /// The limit in the form the system call takes.
    fn raw(&self) -> io::Result<(Resource, Rlimit)> {
        let known = RESOURCES.iter().find(|(name, _)| *name == self.resource);
        let (_, resource) = known.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("there is no resource {:?}", self.resource),
            )
        })?;
        let value = Rlimit {
            current: self.soft,
            maximum: self.hard,
        };
        Ok((*resource, value))
    }
}

/// A program to start.
#[derive(Debug)]
pub struct Spawn {
    /// Looked up in the `PATH` of `env` if it has no slash.
    pub program: OsString,
    /// The name it sees itself under; `None` for that of the program.
    pub name: Option<OsString>,
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    pub dir: Option<PathBuf>,
    pub stdin: Stdio,
    pub stdout: Stdio,
    pub stderr: Stdio,
    pub apart: Apart,
    /// `None` leaves the rights as they are.
    pub ids: Option<Ids>,
    pub limits: Vec<ResourceLimit>,
    /// `cgroup.procs` files, open for writing, of the control groups to join.
    pub cgroups: Vec<OwnedFd>,
    /// Kill the child when the thread that started it ends.
    pub die_with_parent: bool,
}

impl Spawn {
    /// A program with these arguments, no environment and no input or output.
    pub fn new(program: impl Into<OsString>) -> Spawn {
        Spawn {
            program: program.into(),
            name: None,
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
            stdin: Stdio::null(),
            stdout: Stdio::null(),
            stderr: Stdio::null(),
            apart: Apart::Group,
            ids: None,
            limits: Vec::new(),
            cgroups: Vec::new(),
            die_with_parent: false,
        }
    }

    /// Starts the program. An error says that it never ran.
    pub fn start(self) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env);
        command.stdin(self.stdin);
        command.stdout(self.stdout);
        command.stderr(self.stderr);
        if let Some(name) = &self.name {
            command.arg0(name);
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        let setup = ChildSetup {
            apart: self.apart,
            ids: self.ids.map(RawIds::from),
            limits: self
                .limits
                .iter()
                .map(ResourceLimit::raw)
                .collect::<io::Result<_>>()?,
            cgroups: self.cgroups,
            parent: self.die_with_parent.then(rustix::process::getpid),
        };
        // SAFETY: the closure runs in the child between fork and exec, where only async-signal-safe
        // calls are allowed. `ChildSetup::apply` only makes system calls on data prepared before the
        // fork; it neither allocates nor takes a lock.
        unsafe {
            command.pre_exec(move || setup.apply());
        }
        command.spawn()
    }
}

/// [`Ids`] in the form the system calls take, so that the child need not convert anything.
struct RawIds {
    uid: rustix::process::Uid,
    gid: rustix::process::Gid,
    groups: Vec<rustix::process::Gid>,
}

impl From<Ids> for RawIds {
    fn from(ids: Ids) -> RawIds {
        RawIds {
            uid: rustix::process::Uid::from_raw(ids.uid),
            gid: rustix::process::Gid::from_raw(ids.gid),
            groups: ids
                .groups
                .into_iter()
                .map(rustix::process::Gid::from_raw)
                .collect(),
        }
    }
}

/// What a child does to itself before it becomes another program.
struct ChildSetup {
    apart: Apart,
    ids: Option<RawIds>,
    limits: Vec<(Resource, Rlimit)>,
    cgroups: Vec<OwnedFd>,
    /// Our process ID, if the child is to die with us.
    parent: Option<rustix::process::Pid>,
}

impl ChildSetup {
    fn apply(&self) -> io::Result<()> {
        match self.apart {
            Apart::Group => rustix::process::setpgid(None, None)?,
            Apart::Session => {
                rustix::process::setsid()?;
            }
        }
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        for cgroup in &self.cgroups {
            // "0" stands for the process that writes it.
            rustix::io::write(cgroup, b"0")?;
        }
        close_on_exec_from_3()?;
        for (resource, limit) in &self.limits {
            rustix::process::setrlimit(*resource, *limit)?;
        }
        if let Some(ids) = &self.ids {
            rustix::thread::set_thread_groups(&ids.groups)?;
            rustix::thread::set_thread_res_gid(ids.gid, ids.gid, ids.gid)?;
            rustix::thread::set_thread_res_uid(ids.uid, ids.uid, ids.uid)?;
        }
        // A change of user clears the death signal, so this comes last.
        if let Some(parent) = self.parent {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ECHILD));
            }
        }
        Ok(())
    }
}

/// Marks every descriptor from 3 up, so that exec closes it.
fn close_on_exec_from_3() -> io::Result<()> {
    // SAFETY: the call takes no pointers; it only sets flags of descriptors.
    let result = unsafe {
        libc::close_range(
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC as libc::c_int,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Kernels before 5.11: one by one, up to the limit on descriptors.
        Some(libc::ENOSYS | libc::EINVAL) => {
            mark_one_by_one();
            Ok(())
        }
        _ => Err(error),
    }
}

fn mark_one_by_one() {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    let end = libc::c_int::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(1 << 20);
    for descriptor in 3..end {
        // SAFETY: the call takes no pointers. Numbers that are no open descriptor fail with EBADF, which
        // is what most of them do.
        unsafe {
            libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn survives_exec(descriptor: &OwnedFd) -> bool {
        !rustix::io::fcntl_getfd(descriptor)
            .unwrap()
            .contains(rustix::io::FdFlags::CLOEXEC)
    }

    fn shell(script: &str) -> Spawn {
        Spawn {
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            stdout: Stdio::piped(),
            ..Spawn::new("sh")
        }
    }

    fn output(spawn: Spawn) -> String {
        let mut child = spawn.start().unwrap();
        let mut text = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert!(child.wait().unwrap().success());
        text
    }

    #[test]
    fn descriptors_are_not_inherited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        // Opened as the log engine does: without close-on-exec.
        let file = rustix::fs::open(
            &path,
            rustix::fs::OFlags::CREATE | rustix::fs::OFlags::RDWR,
            rustix::fs::Mode::RUSR,
        )
        .unwrap();
        assert!(survives_exec(&file));
        let listed = output(shell("ls -l /proc/self/fd/"));
        assert!(!listed.contains("log"), "{listed}");
        assert!(survives_exec(&file), "our own flag is left alone");
    }

    #[test]
    fn environment_and_limits_are_exactly_those_given() {
        let mut spawn = shell("env; ulimit -n; umask");
        spawn.env.push(("GREETING".into(), "hello".into()));
        spawn.limits = vec![ResourceLimit {
            resource: "nofile".to_owned(),
            soft: Some(64),
            hard: Some(64),
        }];
        let text = output(spawn);
        let mut lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("PWD="))
            .collect();
        lines.retain(|line| !line.starts_with("_=") && !line.starts_with("SHLVL="));
        assert_eq!(
            lines,
            ["GREETING=hello", "PATH=/usr/bin:/bin", "64", "0022"],
            "{text}"
        );
    }

    #[test]
    fn groups_and_sessions_are_their_own() {
        // Fields 5 and 6 of stat: process group and session.
        let script = "read -r pid name state parent group session rest < /proc/self/stat; echo $pid $group $session";
        let fields = |apart| {
            let text = output(Spawn {
                apart,
                ..shell(script)
            });
            let fields: Vec<i32> = text
                .split_whitespace()
                .map(|field| field.parse().unwrap())
                .collect();
            (fields[0], fields[1], fields[2])
        };
        // Read where the script reads it: the session may be one that this PID namespace cannot name, which is a 0.
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (_, own) = own.rsplit_once(')').unwrap();
        let own_session = own.split_whitespace().nth(3).unwrap().parse().unwrap();
        let (pid, group, session) = fields(Apart::Group);
        assert_eq!((group, session), (pid, own_session));
        let (pid, group, session) = fields(Apart::Session);
        assert_eq!((group, session), (pid, pid));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let error = Spawn::new("/no/such/program").start().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
