//! A tiny container image made of the host's static busybox.

use super::which;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Applets that the tests use inside containers.
const APPLETS: [&str; 6] = ["sh", "sleep", "cat", "echo", "ls", "env"];

/// Writes `image.tar` into `dir`: a root file system with busybox.
pub fn write_tar(dir: &Path) -> std::path::PathBuf {
    let root = dir.join("image-root");
    let bin = root.join("bin");
    std::fs::create_dir_all(&bin).expect("a directory");
    std::fs::copy(which("busybox").expect("busybox"), bin.join("busybox")).expect("a copy");
    for applet in APPLETS {
        symlink("busybox", bin.join(applet)).expect("a link");
    }
    let tar = dir.join("image.tar");
    let status = Command::new("tar")
        .args(["-C"])
        .arg(&root)
        .arg("-cf")
        .arg(&tar)
        .arg(".")
        .status()
        .expect("tar runs");
    assert!(status.success(), "tar failed");
    tar
}
