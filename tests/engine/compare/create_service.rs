//! Creating services: every rule for a spec, in the order in which they are checked (spec 05 section 6.1).

use super::calls::{Known, MISSING, Row, row};
use super::specs::*;
use swarm_manager::api::types::port_config::Protocol::{Tcp, Udp};
use swarm_manager::api::types::port_config::PublishMode::{Host, Ingress};
use swarm_manager::api::types::service_spec::Mode;
use swarm_manager::api::types::task_spec::Runtime;
use swarm_manager::api::types::*;

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(names());
    rows.extend(task_templates());
    rows.extend(references());
    rows.extend(runtimes());
    rows.extend(containers());
    rows.extend(modes_and_updates());
    rows.extend(endpoints());
    rows
}

fn create(name: &'static str, make: impl Fn(&Known) -> ServiceSpec + 'static) -> Row {
    row(name, move |known| CreateServiceRequest {
        spec: Some(make(known)),
    })
}

fn names() -> Vec<Row> {
    vec![
        row("service without spec", |_| CreateServiceRequest::default()).says("invalid argument"),
        create("service without name", |_| service("")),
        create("service with underscore first", |_| service("_name")),
        create("service with hyphen last", |_| service("name-")),
        create("service with slash", |_| service("n/me")),
        create("service with 64 characters", |_| service(&"a".repeat(64))),
        create("service with 63 characters", |_| service(&"a".repeat(63))),
        create("service web", |_| service("web")),
        create("service web again", |_| service("web"))
            .says("name conflicts with an existing object: service web already exists"),
        create("service WEB after web", |_| service("WEB"))
            .says("name conflicts with an existing object"),
    ]
}

fn task_templates() -> Vec<Row> {
    let named = || GenericResource {
        resource: Some(generic_resource::Resource::NamedResourceSpec(
            NamedGenericResource {
                kind: "gpu".to_owned(),
                value: "one".to_owned(),
            },
        )),
    };
    vec![
        create("0.0005 CPU", |_| {
            with_limits(
                "cpu",
                Resources {
                    nano_cpus: 500_000,
                    ..Default::default()
                },
            )
        }),
        create("1 byte of memory", |_| {
            with_limits(
                "memory",
                Resources {
                    memory_bytes: 1,
                    ..Default::default()
                },
            )
        }),
        create("negative memory reservation", |_| {
            with_reservations(
                "memory",
                Resources {
                    memory_bytes: -1,
                    ..Default::default()
                },
            )
        }),
        create("named generic resource reserved", move |_| {
            with_reservations(
                "named-generic",
                Resources {
                    generic: vec![named()],
                    ..Default::default()
                },
            )
        }),
        create("negative restart delay", |_| {
            restarting("delay", 0, seconds(-1), None)
        }),
        create("negative restart window", |_| {
            restarting("window", 0, None, seconds(-1))
        }),
        create("malformed restart delay", |_| {
            restarting("malformed", 0, malformed_duration(), None)
        }),
        create("unknown restart condition", |_| {
            restarting("condition", 99, None, None)
        }),
        create("constraint without operator", |_| {
            with_constraint("operator", "node.id")
        }),
        create("constraint with blank key", |_| {
            with_constraint("key", " == worker")
        }),
        create("constraint with a pattern as value", |_| {
            with_constraint("pattern", "node.labels.a != [a-b]+c*(n|b)/")
        }),
    ]
}

fn restarting(
    name: &str,
    condition: i32,
    delay: Option<prost_types::Duration>,
    window: Option<prost_types::Duration>,
) -> ServiceSpec {
    with_task(name, |task| {
        task.restart = Some(RestartPolicy {
            condition,
            delay,
            window,
            ..Default::default()
        });
    })
}

fn references() -> Vec<Row> {
    let secret =
        |known: &Known, file: Option<&str>| secret_reference(&known.secret("key").id, "key", file);
    let config = |known: &Known, file: Option<&str>| {
        config_reference(&known.config("conf").id, "conf", file)
    };
    vec![
        create("secret without ID", |_| {
            with_secrets("s1", vec![secret_reference("", "key", Some("f"))])
        })
        .says("malformed secret reference"),
        create("secret without target", move |known| {
            with_secrets("s2", vec![secret(known, None)])
        })
        .says("malformed secret reference, no target provided"),
        create("secret without file name", move |known| {
            with_secrets("s3", vec![secret(known, Some(""))])
        }),
        create("secret twice under one file name", move |known| {
            let reference = secret(known, Some("f"));
            with_secrets("s4", vec![reference.clone(), reference])
        }),
        create("secret that is missing", |_| {
            with_secrets("s5", vec![secret_reference(MISSING, "ghost", Some("f"))])
        })
        .says("secret not found: ghost"),
        create("two secrets that are missing", |_| {
            let ghosts = ["ghost", "other"];
            let ghosts = ghosts.map(|name| secret_reference(MISSING, name, Some(name)));
            with_secrets("s6", ghosts.to_vec())
        })
        .says("secrets not found: ghost, other"),
        create("secret under a wrong name", |known| {
            let id = known.secret("key").id;
            with_secrets("s7", vec![secret_reference(&id, "wrong", Some("f"))])
        }),
        create("secret under two file names", move |known| {
            let references = [Some("one"), Some("two")].map(|file| secret(known, file));
            with_secrets("s8", references.to_vec())
        }),
        create("secret in a parent directory", move |known| {
            with_secrets("s9", vec![secret(known, Some("../x"))])
        }),
        create("config without name", |_| {
            with_configs("c1", vec![config_reference("id", "", Some("f"))])
        })
        .says("malformed config reference"),
        create("config without target", move |known| {
            with_configs("c2", vec![config(known, None)])
        })
        .says("malformed config reference, no target provided"),
        create("config twice under one file name", move |known| {
            let reference = config(known, Some("f"));
            with_configs("c3", vec![reference.clone(), reference])
        }),
        create("config that is missing", |_| {
            with_configs("c4", vec![config_reference(MISSING, "ghost", Some("f"))])
        })
        .says("config not found: ghost"),
        create("config in use", move |known| {
            with_configs("c5", vec![config(known, Some("f"))])
        }),
        create("credential spec without runtime target", move |known| {
            let references = vec![config(known, Some("f"))];
            credentials("c6", &known.config("conf").id, references)
        }),
        create("credential spec with runtime target", move |known| {
            let mut reference = config(known, None);
            reference.target = Some(config_reference::Target::Runtime(RuntimeTarget {}));
            credentials("c7", &known.config("conf").id, vec![reference])
        }),
    ]
}

fn credentials(name: &str, config_id: &str, configs: Vec<ConfigReference>) -> ServiceSpec {
    with_container(name, |container| {
        container.configs = configs;
        container.privileges = Some(Privileges {
            credential_spec: Some(privileges::CredentialSpec {
                source: Some(privileges::credential_spec::Source::Config(
                    config_id.to_owned(),
                )),
            }),
            ..Default::default()
        });
    })
}

fn runtimes() -> Vec<Row> {
    let payload = Some(("com.example/type", &b"payload"[..]));
    vec![
        create("no runtime", |_| with_runtime("r1", None)),
        create("attachment as runtime", |_| {
            let attachment = NetworkAttachmentSpec::default();
            with_runtime("r2", Some(Runtime::Attachment(attachment)))
        }),
        create("generic runtime without kind", move |_| {
            with_runtime("r3", generic("", payload))
        }),
        create("generic runtime of one letter", move |_| {
            with_runtime("r4", generic("c", payload))
        }),
        create("generic runtime Container", move |_| {
            with_runtime("r5", generic("Container", payload))
        }),
        create("generic runtime without payload", |_| {
            with_runtime("r6", generic("custom", None))
        }),
        create("generic runtime without payload type", |_| {
            with_runtime("r7", generic("custom", Some(("", b"payload"))))
        }),
        create("generic runtime with empty payload", |_| {
            with_runtime("r8", generic("custom", Some(("type", b""))))
        }),
        create("generic runtime", move |_| {
            with_runtime("r9", generic("custom", payload))
        }),
    ]
}

fn containers() -> Vec<Row> {
    let env = |name: &str, text: &str| {
        let mut spec = with_container(name, |container| container.env = vec![text.to_owned()]);
        let annotations = spec.annotations.get_or_insert_default();
        annotations.labels.insert("color".into(), "blue".into());
        spec
    };
    let health = |name: &str, health: HealthConfig| {
        with_container(name, |container| container.healthcheck = Some(health))
    };
    vec![
        create("no image", |_| {
            with_container("i1", |container| container.image.clear())
        }),
        create("image busybox###", |_| {
            with_container("i2", |container| container.image = "busybox###".into())
        }),
        create("image with upper case", |_| {
            with_container("i3", |container| container.image = "library/Busybox".into())
        }),
        create("image with registry, tag and digest", |_| {
            with_container("i4", |container| {
                let digest = "a".repeat(64);
                container.image = format!("localhost:5000/a/b:tag@sha256:{digest}");
            })
        }),
        create("image that is 64 hex digits", |_| {
            with_container("i5", |container| container.image = "a".repeat(64))
        }),
        create("valid template", move |_| {
            env("t1", "A={{.Service.Name}}-{{.Task.Slot}}")
        }),
        create("template with unknown field", move |_| {
            env("t2", "A={{.Nothing.here}}")
        }),
        create("template that does not parse", move |_| env("t3", "A={{")),
        create("template with a label of the spec", move |_| {
            env("t4", "A={{.Service.Labels.color}}")
        }),
        create("template as an environment key", move |_| {
            env("t5", "{{.Nothing}}=a")
        }),
        create("two mounts at one target", |_| {
            with_container("m1", |container| {
                container.mounts = vec![mount("/data"), mount("/data")];
            })
        }),
        create("health check interval of 1 ns", move |_| {
            let interval = prost_types::Duration {
                seconds: 0,
                nanos: 1,
            };
            let config = HealthConfig {
                interval: Some(interval),
                ..Default::default()
            };
            health("h1", config)
        }),
        create("negative health check timeout", move |_| {
            let config = HealthConfig {
                timeout: seconds(-1),
                ..Default::default()
            };
            health("h2", config)
        }),
        create("negative health check retries", move |_| {
            let config = HealthConfig {
                retries: -1,
                ..Default::default()
            };
            health("h3", config)
        }),
        create("malformed health check interval", move |_| {
            let config = HealthConfig {
                interval: malformed_duration(),
                ..Default::default()
            };
            health("h4", config)
        }),
    ]
}

fn modes_and_updates() -> Vec<Row> {
    let negative = -4_i64 as u64;
    let job = |max_concurrent, total_completions| {
        Some(Mode::ReplicatedJob(ReplicatedJob {
            max_concurrent,
            total_completions,
        }))
    };
    let with_ratio = |name, max_failure_ratio| {
        let update = UpdateConfig {
            max_failure_ratio,
            ..Default::default()
        };
        with_update(name, update)
    };
    vec![
        create("no mode", |_| with_mode("n1", None)),
        create("replicas -4", move |_| {
            with_mode("n2", replicated(negative))
        }),
        create("max concurrent -4", move |_| {
            with_mode("n3", job(negative, 1))
        }),
        create("total completions -4", move |_| {
            with_mode("n4", job(1, negative))
        }),
        create("job", move |_| with_mode("job", job(0, 0))),
        create("job with update config", move |_| ServiceSpec {
            mode: job(0, 0),
            ..with_update("n5", UpdateConfig::default())
        }),
        create("negative update delay", |_| {
            let update = UpdateConfig {
                delay: seconds(-1),
                ..Default::default()
            };
            with_update("u1", update)
        }),
        create("negative update monitor", |_| {
            let update = UpdateConfig {
                monitor: seconds(-1),
                ..Default::default()
            };
            with_update("u2", update)
        }),
        create("malformed update monitor", |_| {
            let update = UpdateConfig {
                monitor: malformed_duration(),
                ..Default::default()
            };
            with_update("u3", update)
        }),
        create("failure ratio 1.1", move |_| with_ratio("u4", 1.1)),
        create("failure ratio -0.1", move |_| with_ratio("u5", -0.1)),
        create("failure ratio 1", move |_| with_ratio("u6", 1.0)),
        create("failure ratio NaN", move |_| with_ratio("u7", f32::NAN)),
        create("unknown update order", |_| {
            let update = UpdateConfig {
                order: 99,
                ..Default::default()
            };
            with_update("u8", update)
        }),
        create("negative rollback delay", |_| ServiceSpec {
            rollback: Some(UpdateConfig {
                delay: seconds(-1),
                ..Default::default()
            }),
            ..service("u9")
        }),
    ]
}

fn endpoints() -> Vec<Row> {
    let dnsrr = |name: &str, mode| {
        let mut spec = with_ports(name, vec![port(8080, mode, Tcp)]);
        let endpoint = spec.endpoint.get_or_insert_default();
        endpoint.mode = endpoint_spec::ResolutionMode::Dnsrr as i32;
        spec
    };
    let changed = |change: fn(&mut PortConfig)| {
        let mut port = port(8089, Host, Tcp);
        change(&mut port);
        vec![port]
    };
    vec![
        create("DNSRR with an ingress port", move |_| dnsrr("e1", Ingress)),
        create("DNSRR with a host port", move |_| dnsrr("e2", Host)),
        create("one published port twice", |_| {
            with_ports("e3", vec![port(8081, Ingress, Tcp); 2])
        }),
        create("one published port, twice in host mode", |_| {
            with_ports("e4", vec![port(8081, Host, Tcp); 2])
        }),
        create("one published port, TCP and UDP", |_| {
            let ports = [Tcp, Udp].map(|protocol| port(8082, Ingress, protocol));
            with_ports("e5", ports.to_vec())
        }),
        create("unpublished ports twice", |_| {
            with_ports("e6", vec![port(0, Host, Tcp); 2])
        }),
        create("ingress port that is taken", |_| {
            with_ports("e7", vec![port(8082, Ingress, Tcp)])
        })
        .says("port '8082' is already in use by service 'e5'"),
        create("host port that ingress has", |_| {
            with_ports("e8", vec![port(8082, Host, Tcp)])
        })
        .says("port '8082' is already in use by service 'e5'"),
        create("ingress port that a host has", |_| {
            with_ports("e9", vec![port(8080, Ingress, Tcp)])
        })
        .says("port '8080' is already in use by service 'e2'"),
        create("host port that a host has", |_| {
            with_ports("e10", vec![port(8080, Host, Tcp)])
        }),
        create("the same port with another protocol", |_| {
            with_ports("e11", vec![port(8080, Ingress, Udp)])
        }),
        create("published port 70000", move |_| {
            with_ports("e12", changed(|port| port.published_port = 70_000))
        }),
        create("target port 70000", move |_| {
            with_ports("e13", changed(|port| port.target_port = 70_000))
        }),
        create("unknown publish mode", move |_| {
            with_ports("e14", changed(|port| port.publish_mode = 99))
        }),
        create("unknown protocol", move |_| {
            with_ports("e17", changed(|port| port.protocol = 99))
        }),
        create("attached to the ingress network", |known| {
            let target = known.network("ingress").id;
            with_task("e15", |task| {
                task.networks = vec![NetworkAttachmentConfig {
                    target,
                    ..Default::default()
                }];
            })
        })
        .says("Service cannot be explicitly attached to the ingress network"),
        create("attached to an unknown network", |_| {
            with_task("e16", |task| {
                task.networks = vec![NetworkAttachmentConfig {
                    target: MISSING.to_owned(),
                    ..Default::default()
                }];
            })
        }),
    ]
}
