//! What the program is made of and how its threads share the work.

use crate::harness::scaled;
use crate::harness::swarmd::Swarmd;
use crate::harness::{SOON, free_port, wait_for};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use swarm_manager::api::types::*;

/// Threads of the network and the services, as `swarmd` names them.
const WORKERS: &str = "net";
/// The thread that syncs what is acknowledged.
const DISK_THREAD: &str = "raft";
/// Callers that create objects at a time, and for how long at full scale.
const CALLERS: usize = 16;
const LOAD_SECONDS: usize = 10;

/// Versions of each package in the lock file, which lists at least what is compiled.
fn locked() -> BTreeMap<String, Vec<String>> {
    let text = include_str!("../../Cargo.lock");
    let quoted = |line: &str, key: &str| {
        let value = line.strip_prefix(key)?.strip_prefix(" = \"")?;
        value.strip_suffix('"').map(str::to_owned)
    };
    let mut packages: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(found) = quoted(line, "name") {
            name = found;
        } else if let Some(version) = quoted(line, "version") {
            packages.entry(name.clone()).or_default().push(version);
        }
    }
    packages
}

#[test]
fn one_of_each_and_no_second_crypto_library() {
    // 01-A3, 01-A4
    let packages = locked();
    for unwanted in ["aws-lc-sys", "openssl-sys", "native-tls"] {
        assert!(!packages.contains_key(unwanted), "{unwanted}");
    }
    for single in [
        "tokio",
        "tonic",
        "prost",
        "hyper",
        "h2",
        "rustls",
        "axum",
        "prometheus",
        "protobuf",
    ] {
        let versions = packages.get(single).map_or(&[][..], Vec::as_slice);
        assert_eq!(versions.len(), 1, "{single}: {versions:?}");
    }
}

#[test]
fn rocksdb_is_the_systems_unless_bundled() {
    // 01-A5
    let output = Command::new("ldd")
        .arg(env!("CARGO_BIN_EXE_swarmd"))
        .output()
        .expect("ldd runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let is_shared = text.contains("librocksdb.so.7.8");
    assert_eq!(is_shared, !cfg!(feature = "bundled"), "{text}");
}

#[test]
fn one_page_shows_all_metrics() {
    // 01-A34
    let address = format!("127.0.0.1:{}", free_port());
    let node = Swarmd::start(&["--executor", "none", "--listen-metrics", &address]);
    let page = wait_for("the page shows the first write", SOON, || {
        let page = get(&address, "/metrics").map_err(|error| error.to_string())?;
        if page.contains("\nswarm_manager_leader 1\n") {
            Ok(page)
        } else {
            Err(page)
        }
    });
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    for prefix in ["raft_engine_", "swarm_"] {
        assert!(
            page.lines().any(|line| line.starts_with(prefix)),
            "nothing begins with {prefix}:\n{page}"
        );
    }
    drop(node);
}

fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// What one thread of another process is doing in the system: its name, the number of the call and the
/// call's first argument. Nothing for a thread that is computing or gone.
fn sample(task: &Path) -> Option<(String, i64, u64)> {
    let name = std::fs::read_to_string(task.join("comm")).ok()?;
    let call = std::fs::read_to_string(task.join("syscall")).ok()?;
    let mut words = call.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let argument = words.next()?.trim_start_matches("0x");
    let argument = u64::from_str_radix(argument, 16).ok()?;
    Some((name.trim().to_owned(), number, argument))
}

/// A sync, or a write of a file under a directory, that was seen going on.
type DiskCall = (String, PathBuf);

/// Threads of a process, by name, in syncs or in writes of files under a directory, with how often each
/// was seen.
fn disk_calls(pid: u32, dir: &Path, duration: Duration) -> BTreeMap<DiskCall, u32> {
    const SYNCS: [i64; 3] = [
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_sync_file_range,
    ];
    const WRITES: [i64; 4] = [
        libc::SYS_write,
        libc::SYS_pwrite64,
        libc::SYS_writev,
        libc::SYS_pwritev,
    ];
    let process = Path::new("/proc").join(pid.to_string());
    let target = |descriptor: u64| {
        let link = process.join("fd").join(descriptor.to_string());
        std::fs::read_link(link).unwrap_or_default()
    };
    let mut seen = BTreeMap::new();
    let until = Instant::now() + duration;
    while Instant::now() < until {
        let tasks = std::fs::read_dir(process.join("task")).expect("a running process");
        for task in tasks.flatten() {
            let Some((name, call, argument)) = sample(&task.path()) else {
                continue;
            };
            let is_sync = SYNCS.contains(&call);
            if !is_sync && !WRITES.contains(&call) {
                continue;
            }
            let file = target(argument);
            if is_sync || file.starts_with(dir) {
                *seen.entry((name, file)).or_insert(0) += 1;
            }
        }
    }
    seen
}

fn secret(name: String) -> CreateSecretRequest {
    CreateSecretRequest {
        spec: Some(SecretSpec {
            annotations: Some(Annotations {
                name,
                ..Default::default()
            }),
            data: vec![7; 100],
            ..Default::default()
        }),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_network_thread_waits_for_the_disk() {
    // 01-A19
    let node = Swarmd::start(&["--executor", "none"]);
    let control = node.control().await;
    let done = Arc::new(AtomicBool::new(false));
    let callers = (0..CALLERS).map(|caller| {
        let (mut control, done) = (control.clone(), done.clone());
        tokio::spawn(async move {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                let created = control.create_secret(secret(format!("s-{caller}-{count}")));
                created.await.expect("a secret");
                count += 1;
            }
            count
        })
    });
    let callers: Vec<_> = callers.collect();
    let (pid, dir) = (node.pid(), node.state_dir());
    let duration = Duration::from_secs(scaled(LOAD_SECONDS).max(2) as u64);
    let sampling = tokio::task::spawn_blocking(move || disk_calls(pid, &dir, duration));
    let seen = sampling.await.expect("a sample");
    done.store(true, Ordering::Relaxed);
    let mut count = 0;
    for caller in callers {
        count += caller.await.expect("a caller");
    }
    assert!(count > CALLERS, "only {count} writes");
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    let has_workers = tasks.flatten().any(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.trim() == WORKERS)
    });
    assert!(has_workers, "no thread is named {WORKERS}");
    let is_seen = |thread: &str| seen.keys().any(|(name, _)| name == thread);
    assert!(
        is_seen(DISK_THREAD),
        "the sample missed the disk: {seen:?} in {count} writes"
    );
    assert!(!is_seen(WORKERS), "{seen:?} in {count} writes");
}
