//! A full disk is an ordinary event: writes are refused, reads go on, and all is well when space returns.

use crate::harness::swarmd::Swarmd;
use crate::harness::{SOON, wait_for};
use std::path::{Path, PathBuf};
use std::process::Command;
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::*;
use tonic::Code;
use tonic::transport::Channel;

/// Size of the file system: the reserve of 96 MiB, what a manager uses, and some room.
const DISK_MB: u64 = 256;

/// A file system in memory, mounted for one test.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this process may not mount.
    fn mount(at: &Path) -> Option<SmallDisk> {
        std::fs::create_dir_all(at).expect("a directory");
        let mounted = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={DISK_MB}m,mode=0700"),
                "tmpfs",
            ])
            .arg(at)
            .status();
        let mounted = mounted.is_ok_and(|status| status.success());
        mounted.then(|| SmallDisk(at.to_owned()))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).expect("the file system");
        stat.f_bavail * stat.f_frsize
    }

    /// Leaves `free` bytes.
    fn fill(&self, free: u64) {
        let bytes = self.free().saturating_sub(free);
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.filler())
            .expect("a file");
        let end = file.metadata().expect("a file").len() + bytes;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, end.max(1))
            .expect("space");
    }

    fn clear(&self) {
        std::fs::remove_file(self.filler()).expect("the filler");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

async fn create(client: &mut ControlClient<Channel>, name: &str) -> Result<(), tonic::Status> {
    let spec = ConfigSpec {
        annotations: Some(Annotations {
            name: name.into(),
            ..Default::default()
        }),
        // Nothing that compresses.
        data: (0..10_000).map(|_| rand::random()).collect(),
        ..Default::default()
    };
    let request = CreateConfigRequest { spec: Some(spec) };
    client.create_config(request).await.map(drop)
}

async fn names(client: &mut ControlClient<Channel>) -> Vec<String> {
    let configs = client.list_configs(ListConfigsRequest::default()).await;
    let configs = configs.expect("reads go on").into_inner().configs;
    configs
        .into_iter()
        .filter_map(|config| Some(config.spec?.annotations?.name))
        .collect()
}

/// Creates configs until one is refused, which has to be for the right reason; gives their number.
async fn create_until_refused(client: &mut ControlClient<Channel>, prefix: &str) -> usize {
    for number in 0..10_000 {
        if let Err(status) = create(client, &format!("{prefix}{number}")).await {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
            assert!(status.message().contains("free"), "{status:?}");
            return number;
        }
    }
    panic!("never refused");
}

/// Waits until writes are accepted again.
async fn accepted(client: &mut ControlClient<Channel>, prefix: &str) {
    let deadline = std::time::Instant::now() + SOON;
    for number in 0.. {
        match create(client, &format!("{prefix}{number}")).await {
            Ok(()) => return,
            Err(status) => {
                assert!(std::time::Instant::now() < deadline, "{status:?}");
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }
}

fn prepared() -> Option<(Swarmd, SmallDisk)> {
    let node = Swarmd::prepare(&["--executor", "none"]);
    match SmallDisk::mount(&node.state_dir()) {
        Some(disk) => Some((node, disk)),
        None if std::env::var_os("SWARM_TEST_REQUIRE_ALL").is_some() => {
            panic!("this test has to mount a small disk, which is not allowed here")
        }
        None => {
            eprintln!("SKIPPED: may not mount a small disk");
            None
        }
    }
}

#[tokio::test]
async fn writes_stop_before_the_disk_is_full_and_come_back_alone() {
    let Some((mut node, disk)) = prepared() else {
        return;
    };
    node.spawn();
    node.wait_ready();
    let mut client = node.control().await;
    create(&mut client, "before").await.expect("a write");
    // Below the reserve nothing is written any more, though the disk is not full.
    disk.fill(90 << 20);
    create_until_refused(&mut client, "refused").await;
    assert!(names(&mut client).await.contains(&"before".to_owned()));
    // Now nothing at all is free, and nobody is surprised.
    disk.fill(0);
    assert_eq!(create_until_refused(&mut client, "full").await, 0);
    assert!(names(&mut client).await.contains(&"before".to_owned()));
    assert!(node.is_running());
    disk.clear();
    accepted(&mut client, "after").await;
    assert!(node.is_running());
    let (status, _) = node.stop();
    assert!(status.success());
    drop(node);
    drop(disk);
}

#[tokio::test]
async fn a_kill_on_a_full_disk_loses_nothing() {
    let Some((mut node, disk)) = prepared() else {
        return;
    };
    node.spawn();
    node.wait_ready();
    let mut client = node.control().await;
    disk.fill(100 << 20);
    let written = create_until_refused(&mut client, "config").await;
    disk.fill(0);
    create_until_refused(&mut client, "full").await;
    node.kill();

    // On a disk without a free byte it starts, or it says what is in the way and changes nothing.
    node.spawn();
    let started = wait_for("swarmd starts or ends on a full disk", SOON, || {
        if !node.is_running() {
            return Ok(false);
        }
        match swarm_manager_ready(&mut node) {
            true => Ok(true),
            false => Err("neither".to_owned()),
        }
    });
    if started {
        let mut client = node.control().await;
        assert_eq!(create_until_refused(&mut client, "again").await, 0);
        assert!(names(&mut client).await.len() >= written);
        node.kill();
    } else {
        let log = node.drain().join("\n");
        assert!(log.contains("free some space"), "{log}");
        node.kill();
    }

    disk.clear();
    node.restart();
    let mut client = node.control().await;
    let found = names(&mut client).await;
    for number in 0..written {
        assert!(found.contains(&format!("config{number}")), "config{number}");
    }
    accepted(&mut client, "after").await;
    drop(node);
    drop(disk);
}

fn swarm_manager_ready(node: &mut Swarmd) -> bool {
    node.drain()
        .iter()
        .any(|line| line.contains("node is ready"))
}
