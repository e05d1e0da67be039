//! Secrets and configs as files, and what must not be readable on a disk.

use super::*;
use crate::api::types::{
    Assignment, AssignmentChange, Config, ConfigReference, ConfigSpec, Driver, FileTarget, Secret,
    SecretReference, SecretSpec, assignment, config_reference, secret_reference,
};

fn file(name: &str, mode: u32) -> FileTarget {
    FileTarget {
        name: name.to_owned(),
        uid: "0".to_owned(),
        gid: "0".to_owned(),
        mode,
    }
}

/// A task with a secret and a templated config, and the objects themselves.
fn with_files(script: &str) -> (Task, Vec<AssignmentChange>) {
    let mut spec = shell(script);
    spec.secrets = vec![SecretReference {
        secret_id: "s1".to_owned(),
        secret_name: "password".to_owned(),
        target: Some(secret_reference::Target::File(file("db/password", 0o400))),
    }];
    spec.configs = vec![ConfigReference {
        config_id: "c1".to_owned(),
        config_name: "settings".to_owned(),
        target: Some(config_reference::Target::File(file("/etc/app.conf", 0o444))),
    }];
    let items = [
        assignment::Item::Secret(Secret {
            id: "s1".to_owned(),
            spec: Some(SecretSpec {
                data: b"hunter2".to_vec(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        assignment::Item::Config(Config {
            id: "c1".to_owned(),
            spec: Some(ConfigSpec {
                data: b"task={{.Task.Name}} password={{secret \"db/password\"}}".to_vec(),
                templating: Some(Driver {
                    name: "golang".to_owned(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
    ];
    let changes = items
        .map(|item| AssignmentChange {
            assignment: Some(Assignment { item: Some(item) }),
            action: 0,
        })
        .to_vec();
    (task(spec), changes)
}

#[tokio::test]
async fn secrets_and_configs_are_files() {
    let host = Host::new();
    let (task, changes) =
        with_files("cat secrets/db/password; echo; cat configs/etc/app.conf; exit 0");
    let controller = host.controller(task.clone()).await;
    assert!(
        matches!(controller.prepare().await, Err(TaskError::Temporary(_))),
        "the managers have not spoken yet"
    );
    host.dependencies.replace(&changes);
    assert_eq!(run(&*controller).await, Ok(()));
    assert_eq!(
        host.lines(LogStream::Stdout),
        ["hunter2", "task=web.3.t password=hunter2"]
    );
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &str| {
        let metadata = std::fs::metadata(host.task_dir().join(path)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode("secrets/db/password"), 0o400);
    assert_eq!(mode("configs/etc/app.conf"), 0o444);
    assert_eq!(mode(""), 0o700);
    controller.remove().await.unwrap();

    // Without a file system in memory nothing of it may be written.
    let mut executor = host.executor();
    Arc::get_mut(&mut executor.inner).unwrap().roots.volatile = false;
    let controller = executor.controller(Arc::new(task)).await.unwrap();
    let error = controller.prepare().await.unwrap_err().to_string();
    assert!(error.contains("--task-tmpfs"), "{error}");
    assert!(!host.task_dir().exists());
}

#[tokio::test]
async fn nothing_a_person_wrote_is_readable_on_disk() {
    let host = Host::new();
    let (mut task, changes) = with_files("echo canary-in-output; echo $WORD; exec sleep 300");
    if let Some(TaskSpec {
        runtime: Some(Runtime::Container(spec)),
        ..
    }) = &mut task.spec
    {
        spec.env.push("WORD=canary-in-env".to_owned());
        spec.args.push("canary-in-args".to_owned());
    }
    host.dependencies.replace(&changes);
    let controller = host.controller(task).await;
    controller.prepare().await.unwrap();
    controller.start().await.unwrap();
    eventually("it has written", || {
        host.lines(LogStream::Stdout) == ["canary-in-output", "canary-in-env"]
    })
    .await;
    let mut files = vec![host.dir.path().join("worker")];
    let mut seen = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            continue;
        }
        seen += 1;
        let content = std::fs::read(&path).unwrap();
        for word in ["canary", "web", "hunter2"] {
            let found = content.windows(word.len()).any(|w| w == word.as_bytes());
            assert!(!found, "{word} in {}", path.display());
        }
    }
    assert!(seen >= 3, "lock, shim.json, log");
    controller.remove().await.unwrap();
}
