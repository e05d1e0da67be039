use super::*;
use crate::agent::dependencies::Dependencies;
use crate::agent::process::plan::{Strictness, plan};
use crate::api::types::assignment::Item;
use crate::api::types::task_spec::Runtime;
use crate::api::types::{
    Annotations, Assignment, AssignmentChange, Config, ConfigReference, ConfigSpec, ContainerSpec,
    FileTarget, NodeDescription, Secret, SecretReference, SecretSpec, Task, TaskSpec,
    config_reference, secret_reference,
};
use std::sync::Arc;

fn file(name: &str) -> FileTarget {
    FileTarget {
        name: name.to_owned(),
        mode: 0o444,
        ..Default::default()
    }
}

fn templating(name: &str) -> Option<Driver> {
    (!name.is_empty()).then(|| Driver {
        name: name.to_owned(),
        ..Default::default()
    })
}

/// Expands a config `c` beside a secret with target `word`, another with bytes, and a config `raw`.
fn expanded(template: &str, language: &str) -> Result<Payload, TaskError> {
    let secrets = [
        ("s", "word", &b"{{not expanded}}"[..]),
        ("b", "bytes", b"\xff"),
    ];
    let configs = [
        ("c", "conf", template, language),
        ("r", "raw", "{{.Task.ID}}", "golang"),
    ];
    let mut items = Vec::new();
    for (id, _, data) in secrets {
        items.push(Item::Secret(Secret {
            id: id.to_owned(),
            spec: Some(SecretSpec {
                data: data.to_vec(),
                ..Default::default()
            }),
            ..Default::default()
        }));
    }
    for (id, _, data, language) in configs {
        items.push(Item::Config(Config {
            id: id.to_owned(),
            spec: Some(ConfigSpec {
                data: data.as_bytes().to_vec(),
                templating: templating(language),
                ..Default::default()
            }),
            ..Default::default()
        }));
    }
    let dependencies = Dependencies::new();
    let changes: Vec<AssignmentChange> = items
        .into_iter()
        .map(|item| AssignmentChange {
            assignment: Some(Assignment { item: Some(item) }),
            action: 0,
        })
        .collect();
    dependencies.replace(&changes);
    let spec = ContainerSpec {
        image: "host".to_owned(),
        command: vec!["true".to_owned()],
        env: ["A=1", "B={{.Task.ID}}", "A=2", "C"]
            .map(str::to_owned)
            .to_vec(),
        secrets: secrets
            .map(|(id, target, _)| SecretReference {
                secret_id: id.to_owned(),
                target: Some(secret_reference::Target::File(file(target))),
                ..Default::default()
            })
            .to_vec(),
        configs: configs
            .map(|(id, target, _, _)| ConfigReference {
                config_id: id.to_owned(),
                target: Some(config_reference::Target::File(file(target))),
                ..Default::default()
            })
            .to_vec(),
        ..Default::default()
    };
    let task = Arc::new(Task {
        id: "t".to_owned(),
        slot: 1,
        service_annotations: Some(Annotations {
            name: "web".to_owned(),
            ..Default::default()
        }),
        spec: Some(TaskSpec {
            runtime: Some(Runtime::Container(spec)),
            ..Default::default()
        }),
        ..Default::default()
    });
    let node = NodeDescription {
        hostname: "box".to_owned(),
        ..Default::default()
    };
    let plan = plan(&task, &node, Strictness::default()).unwrap();
    let all = payloads(&plan, &dependencies.restricted(task))?;
    assert_eq!(all.len(), 4);
    assert!(all[..2].iter().all(|secret| secret.sensitive));
    Ok(all
        .into_iter()
        .find(|payload| payload.file.id == "c")
        .unwrap())
}

// 08-A36
#[test]
fn functions_of_payloads() {
    for (template, text, sensitive) in [
        ("plain", "plain", false),
        ("{{.Task.Name}} {{.Task.Slot}}", "web.1.t 1", false),
        ("[{{.Node.Hostname}}]", "[]", false),
        ("{{env \"A\"}}{{env \"C\"}}{{env \"D\"}}", "1", false),
        ("{{env \"B\"}}", "{{.Task.ID}}", false),
        ("{{config \"raw\"}}", "{{.Task.ID}}", false),
        ("x={{secret \"word\"}}", "x={{not expanded}}", true),
        ("{{if secret \"word\"}}yes{{end}}", "yes", true),
    ] {
        let payload = expanded(template, "golang").unwrap();
        assert_eq!(String::from_utf8(payload.data).unwrap(), text, "{template}");
        assert_eq!(payload.sensitive, sensitive, "{template}");
    }
    let raw = expanded("{{secret \"word\"}}", "").unwrap();
    assert_eq!(raw.data, b"{{secret \"word\"}}");
    assert!(!raw.sensitive);
}

// 08-A36
#[test]
fn errors_of_payloads() {
    let error =
        |template: &str, language: &str| expanded(template, language).unwrap_err().to_string();
    assert_eq!(error("x", "jinja"), "unrecognized template type");
    assert_eq!(
        error("SECRET_VAL={{secret \"x\"}}", "golang"),
        "failed to expand templated config c: template: expansion:1:13: executing \"expansion\" at \
         <secret \"x\">: error calling secret: secret target x not found"
    );
    assert_eq!(
        error("a\n  {{config \"y\"}}", "golang"),
        "failed to expand templated config c: template: expansion:2:4: executing \"expansion\" at \
         <config \"y\">: error calling config: config target y not found"
    );
    let text = error("{{secret \"bytes\"}}", "golang");
    assert!(text.ends_with("secret target bytes is not text"), "{text}");
    assert!(error("{{env}}", "golang").contains("wants one argument, got 0"));
    assert!(error("{{nofunction}}", "golang").contains("not defined"));
}
