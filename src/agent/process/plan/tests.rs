use super::*;
use crate::api::types::container_spec::Ulimit;
use crate::api::types::{
    Annotations, Endpoint, FileTarget, Mount, Network, NetworkAttachment, NetworkAttachmentSpec,
    NetworkSpec, Platform, PortConfig, TaskSpec,
};

fn container() -> ContainerSpec {
    ContainerSpec {
        image: "host".to_owned(),
        command: vec!["/bin/true".to_owned()],
        ..Default::default()
    }
}

fn task(spec: ContainerSpec) -> Task {
    Task {
        id: "taskID".to_owned(),
        service_id: "serviceID".to_owned(),
        node_id: "nodeID".to_owned(),
        slot: 10,
        service_annotations: Some(Annotations {
            name: "serviceName".to_owned(),
            labels: [("b", "2"), ("a", "1")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Default::default()
        }),
        spec: Some(TaskSpec {
            runtime: Some(Runtime::Container(spec)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn node() -> NodeDescription {
    NodeDescription {
        hostname: "box".to_owned(),
        platform: Some(Platform {
            architecture: "x86_64".to_owned(),
            os: "linux".to_owned(),
        }),
        ..Default::default()
    }
}

fn plan_of(spec: ContainerSpec) -> Result<Plan, TaskError> {
    plan(&task(spec), &node(), Strictness::default())
}

fn refusal(spec: ContainerSpec) -> String {
    plan_of(spec).unwrap_err().to_string()
}

#[test]
fn only_the_image_host_runs_here() {
    for image in ["nginx", "host:latest", "HOST", ""] {
        let mut spec = container();
        spec.image = image.to_owned();
        let text = refusal(spec);
        assert!(
            text.contains("needs a container engine") && text.contains(image),
            "{text}"
        );
    }
    assert_eq!(plan_of(container()).unwrap().argv, ["/bin/true"]);
}

#[test]
fn commands() {
    let mut spec = container();
    spec.args = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(plan_of(spec.clone()).unwrap().argv, ["/bin/true", "a", "b"]);
    spec.command.clear();
    assert_eq!(plan_of(spec.clone()).unwrap().argv, ["a", "b"]);
    spec.args.clear();
    assert_eq!(refusal(spec), "process: no command");
    let mut attachment = task(container());
    attachment.spec = Some(TaskSpec {
        runtime: Some(Runtime::Attachment(NetworkAttachmentSpec::default())),
        ..Default::default()
    });
    assert!(plan(&attachment, &node(), Strictness::default()).is_err());
}

// 08-A36
#[test]
fn templates_expand_in_values_only() {
    let mut spec = container();
    spec.env = [
        "TASK_NAME={{.Task.Name}}",
        "NODE={{.Node.Hostname}} {{.Node.Platform.OS}}/{{.Node.Platform.Architecture}}",
        "LABELS={{range $k, $v := .Service.Labels}}{{$k}}={{$v}},{{end}}",
        "{{.NotExpanded}}=foo",
        "NOVALUE",
    ]
    .map(str::to_owned)
    .to_vec();
    let plan = plan_of(spec.clone()).unwrap();
    let env: Vec<String> = plan
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(
        env,
        [
            "TASK_NAME=serviceName.10.taskID",
            "NODE=box linux/x86_64",
            "LABELS=a=1,b=2,",
            "{{.NotExpanded}}=foo"
        ]
    );
    assert_eq!(plan.spec_env, spec.env);

    let mut global = task(container());
    global.slot = 0;
    let plan = super::plan(&global, &node(), Strictness::default()).unwrap();
    assert_eq!(plan.context.task_slot, "nodeID");
    for bad in [
        "{{.Nothing.here}}",
        "{{",
        "{{printf \"%q\" 1}}",
        "{{.Service.Labels.x}}",
    ] {
        spec.env = vec![format!("X={bad}")];
        assert!(plan_of(spec.clone()).is_err(), "{bad}");
    }
}

#[test]
fn what_a_program_of_the_host_cannot_have_is_refused() {
    type Change = fn(&mut ContainerSpec);
    let cases: [(&str, Change); 6] = [
        ("a terminal", |spec| spec.tty = true),
        ("read-only", |spec| spec.read_only = true),
        ("capabilities", |spec| {
            spec.capability_drop = vec!["ALL".to_owned()]
        }),
        ("host name", |spec| spec.hostname = "x".to_owned()),
        ("sysctls", |spec| {
            spec.sysctls.insert("a".to_owned(), "b".to_owned());
        }),
        ("mounts", |spec| spec.mounts = vec![Mount::default()]),
    ];
    for (word, change) in cases {
        let mut spec = container();
        change(&mut spec);
        let text = refusal(spec);
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn tmpfs_mounts_may_be_ignored() {
    let mut spec = container();
    spec.mounts = vec![Mount {
        r#type: 2,
        target: "/cache".to_owned(),
        ..Default::default()
    }];
    assert!(plan_of(spec.clone()).is_err());
    let lenient = Strictness {
        lenient_mounts: true,
        ..Default::default()
    };
    let plan = plan(&task(spec.clone()), &node(), lenient).unwrap();
    assert_eq!(plan.warnings, ["a tmpfs mount is ignored"]);
    spec.mounts[0].r#type = 0;
    assert!(super::plan(&task(spec), &node(), lenient).is_err());
}

#[test]
fn networks_and_ports() {
    let with_network = |name: &str| {
        let mut task = task(container());
        task.networks = vec![NetworkAttachment {
            network: Some(Network {
                spec: Some(NetworkSpec {
                    annotations: Some(Annotations {
                        name: name.to_owned(),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }];
        plan(&task, &node(), Strictness::default())
    };
    assert!(with_network("host").is_ok());
    assert!(with_network("overlay").is_err());

    let with_mode = |publish_mode| {
        let mut task = task(container());
        task.endpoint = Some(Endpoint {
            ports: vec![PortConfig {
                target_port: 80,
                published_port: 8080,
                publish_mode,
                ..Default::default()
            }],
            ..Default::default()
        });
        plan(&task, &node(), Strictness::default())
    };
    let port = PortPlan {
        target: 80,
        published: 8080,
        protocol: 0,
    };
    assert_eq!(with_mode(1).unwrap().ports, [port]);
    let text = with_mode(0).unwrap_err().to_string();
    assert!(text.contains("ingress"), "{text}");
}

#[test]
fn signals_limits_and_grace() {
    for (text, number) in [
        ("", 15),
        ("SIGUSR1", 10),
        ("int", 2),
        ("9", 9),
        ("Term", 15),
    ] {
        assert_eq!(stop_signal(text), Ok(number), "{text}");
    }
    for text in ["SIGNOPE", "0", "99", "-1", "SEGV"] {
        assert!(stop_signal(text).is_err(), "{text}");
    }
    let mut spec = container();
    assert_eq!(plan_of(spec.clone()).unwrap().grace, GRACE);
    spec.stop_grace_period = Some(prost_types::Duration {
        seconds: 0,
        nanos: 0,
    });
    assert_eq!(plan_of(spec.clone()).unwrap().grace, Duration::ZERO);
    let ulimit = |name: &str| Ulimit {
        name: name.to_owned(),
        soft: 10,
        hard: -1,
    };
    spec.ulimits = vec![ulimit("nofile")];
    spec.pids_limit = -1;
    let plan = plan_of(spec.clone()).unwrap();
    assert_eq!(
        plan.resource_limits,
        [ResourceLimit {
            resource: "nofile".to_owned(),
            soft: Some(10),
            hard: None
        }]
    );
    assert_eq!(plan.limits, Limits::default());
    spec.ulimits = vec![ulimit("beer")];
    assert!(refusal(spec).contains("beer"));
}

#[test]
fn file_names_stay_below_their_directory() {
    for (target, path) in [
        ("a", Some("a")),
        ("a/b", Some("a/b")),
        ("/etc/x", Some("etc/x")),
        ("./a//b", Some("a/b")),
        ("../x", None),
        ("a/../../x", None),
        ("", None),
        ("/", None),
    ] {
        assert_eq!(
            relative_path(target).ok(),
            path.map(PathBuf::from),
            "{target}"
        );
    }
    let mut spec = container();
    spec.secrets = vec![SecretReference {
        secret_id: "s".to_owned(),
        target: Some(secret_reference::Target::File(FileTarget {
            name: "x".to_owned(),
            uid: "bob".to_owned(),
            ..Default::default()
        })),
        ..Default::default()
    }];
    assert!(refusal(spec).contains("bob"));
}
