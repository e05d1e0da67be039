//! Specs that the calls begin with, each valid on both sides.

use swarm_manager::api::types::service_spec::Mode;
use swarm_manager::api::types::task_spec::Runtime;
use swarm_manager::api::types::*;

pub fn annotations(name: &str) -> Option<Annotations> {
    Some(Annotations {
        name: name.to_owned(),
        ..Default::default()
    })
}

pub fn labelled(name: &str, key: &str, value: &str) -> Option<Annotations> {
    Some(Annotations {
        name: name.to_owned(),
        labels: [(key.to_owned(), value.to_owned())].into(),
        ..Default::default()
    })
}

pub fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// Not a duration: its nanoseconds are more than a second.
pub fn malformed_duration() -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: 1,
        nanos: 2_000_000_000,
    })
}

pub fn replicated(replicas: u64) -> Option<Mode> {
    Some(Mode::Replicated(ReplicatedService { replicas }))
}

/// A service without replicas, so that neither side starts anything.
pub fn service(name: &str) -> ServiceSpec {
    ServiceSpec {
        annotations: annotations(name),
        task: Some(TaskSpec {
            runtime: Some(Runtime::Container(ContainerSpec {
                image: "busybox".to_owned(),
                ..Default::default()
            })),
            ..Default::default()
        }),
        mode: replicated(0),
        ..Default::default()
    }
}

/// Changes the task template.
pub fn with_task(name: &str, change: impl FnOnce(&mut TaskSpec)) -> ServiceSpec {
    let mut spec = service(name);
    change(spec.task.get_or_insert_default());
    spec
}

/// Changes the container.
pub fn with_container(name: &str, change: impl FnOnce(&mut ContainerSpec)) -> ServiceSpec {
    with_task(name, |task| {
        if let Some(Runtime::Container(container)) = &mut task.runtime {
            change(container);
        }
    })
}

pub fn with_runtime(name: &str, runtime: Option<Runtime>) -> ServiceSpec {
    with_task(name, |task| task.runtime = runtime)
}

pub fn with_mode(name: &str, mode: Option<Mode>) -> ServiceSpec {
    ServiceSpec {
        mode,
        ..service(name)
    }
}

pub fn with_constraint(name: &str, constraint: &str) -> ServiceSpec {
    with_task(name, |task| {
        task.placement = Some(Placement {
            constraints: vec![constraint.to_owned()],
            ..Default::default()
        });
    })
}

pub fn with_update(name: &str, update: UpdateConfig) -> ServiceSpec {
    ServiceSpec {
        update: Some(update),
        ..service(name)
    }
}

pub fn with_limits(name: &str, limits: Resources) -> ServiceSpec {
    with_task(name, |task| {
        task.resources = Some(ResourceRequirements {
            limits: Some(limits),
            ..Default::default()
        });
    })
}

pub fn with_reservations(name: &str, reservations: Resources) -> ServiceSpec {
    with_task(name, |task| {
        task.resources = Some(ResourceRequirements {
            reservations: Some(reservations),
            ..Default::default()
        });
    })
}

/// A published port; the mode is `Ingress` or `Host`, the protocol TCP or UDP.
pub fn port(
    published: u32,
    mode: port_config::PublishMode,
    protocol: port_config::Protocol,
) -> PortConfig {
    PortConfig {
        target_port: 80,
        published_port: published,
        publish_mode: mode as i32,
        protocol: protocol as i32,
        ..Default::default()
    }
}

pub fn with_ports(name: &str, ports: Vec<PortConfig>) -> ServiceSpec {
    ServiceSpec {
        endpoint: Some(EndpointSpec {
            ports,
            ..Default::default()
        }),
        ..service(name)
    }
}

pub fn generic(kind: &str, payload: Option<(&str, &[u8])>) -> Option<Runtime> {
    Some(Runtime::Generic(GenericRuntimeSpec {
        kind: kind.to_owned(),
        payload: payload.map(|(type_url, value)| prost_types::Any {
            type_url: type_url.to_owned(),
            value: value.to_vec(),
        }),
    }))
}

pub fn mount(target: &str) -> Mount {
    Mount {
        source: "volume".to_owned(),
        target: target.to_owned(),
        r#type: mount::Type::Volume as i32,
        ..Default::default()
    }
}

fn file(name: &str) -> FileTarget {
    FileTarget {
        name: name.to_owned(),
        uid: "0".to_owned(),
        gid: "0".to_owned(),
        mode: 0o444,
    }
}

/// A reference to a secret; without a file name it has no target.
pub fn secret_reference(id: &str, name: &str, file_name: Option<&str>) -> SecretReference {
    SecretReference {
        secret_id: id.to_owned(),
        secret_name: name.to_owned(),
        target: file_name.map(|name| secret_reference::Target::File(file(name))),
    }
}

pub fn with_secrets(name: &str, secrets: Vec<SecretReference>) -> ServiceSpec {
    with_container(name, |container| container.secrets = secrets)
}

pub fn config_reference(id: &str, name: &str, file_name: Option<&str>) -> ConfigReference {
    ConfigReference {
        config_id: id.to_owned(),
        config_name: name.to_owned(),
        target: file_name.map(|name| config_reference::Target::File(file(name))),
    }
}

pub fn with_configs(name: &str, configs: Vec<ConfigReference>) -> ServiceSpec {
    with_container(name, |container| container.configs = configs)
}

pub fn secret(name: &str, data: &[u8]) -> Option<SecretSpec> {
    Some(SecretSpec {
        annotations: annotations(name),
        data: data.to_vec(),
        ..Default::default()
    })
}

pub fn config(name: &str, data: &[u8]) -> Option<ConfigSpec> {
    Some(ConfigSpec {
        annotations: annotations(name),
        data: data.to_vec(),
        ..Default::default()
    })
}
