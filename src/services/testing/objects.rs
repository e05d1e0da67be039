//! Objects as stories name them: `node n1 drain cpus=4 label.zone=a`.

use std::error::Error;
use std::time::Duration;

use goldenscript::{Argument, ArgumentConsumer};

use crate::api::generic;
use crate::api::time;
use crate::api::types::node_spec::Availability;
use crate::api::types::port_config::PublishMode;
use crate::api::types::restart_policy::RestartCondition;
use crate::api::types::service_spec::Mode;
use crate::api::types::task_spec::Runtime;
use crate::api::types::{
    Annotations, ContainerSpec, EndpointSpec, EngineDescription, NetworkAttachmentConfig, Node,
    NodeDescription, NodeRole, NodeSpec, NodeStatus, Placement, PlacementPreference, Platform,
    PluginDescription, PortConfig, ReplicatedService, ResourceRequirements, Resources,
    RestartPolicy, Service, ServiceSpec, SpreadOver, TaskSpec, TaskState, Version, node_status,
    placement_preference,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A span such as `1m`, `5s`, `250ms`.
pub fn span(text: &str) -> Outcome<Duration> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse()?;
    Ok(match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number * 60),
        "h" => Duration::from_secs(number * 3600),
        _ => return Err(format!("no span: {text}").into()),
    })
}

/// A state by name.
pub fn state(text: &str) -> Outcome<i32> {
    let state = TaskState::from_str_name(&text.to_uppercase());
    Ok(state.ok_or_else(|| format!("no state: {text}"))? as i32)
}

/// Applies what a story says of a node.
pub fn describe_node(node: &mut Node, args: &mut ArgumentConsumer<'_>) -> Outcome<()> {
    for word in args.rest_pos() {
        let availability = match word.value.as_str() {
            "active" => Availability::Active,
            "pause" => Availability::Pause,
            "drain" => Availability::Drain,
            other => {
                let status = node.status.get_or_insert_default();
                status.state = match other {
                    "ready" => node_status::State::Ready,
                    "down" => node_status::State::Down,
                    "unknown" => node_status::State::Unknown,
                    _ => return Err(format!("no state of a node: {other}").into()),
                } as i32;
                continue;
            }
        };
        node.spec.get_or_insert_default().availability = availability as i32;
    }
    for argument in args.rest_key() {
        describe_node_key(node, argument)?;
    }
    Ok(())
}

fn describe_node_key(node: &mut Node, argument: &Argument) -> Outcome<()> {
    let value = argument.value.as_str();
    let description = node.description.get_or_insert_default();
    let resources = description.resources.get_or_insert_default();
    let engine = description.engine.get_or_insert_default();
    match argument.key.as_deref().unwrap_or_default() {
        "cpus" => resources.nano_cpus = value.parse::<i64>()? * 1_000_000_000,
        "memory" => resources.memory_bytes = value.parse()?,
        "generic" => resources.generic = generic::parse(value)?,
        "platform" => description.platform = Some(platform(value)?),
        "plugin" => {
            let (kind, name) = value.split_once('/').ok_or("plugin=TYPE/NAME")?;
            engine.plugins.push(PluginDescription {
                r#type: kind.to_owned(),
                name: name.to_owned(),
            });
        }
        key => {
            let label = key
                .strip_prefix("label.")
                .ok_or_else(|| format!("no key: {key}"))?;
            let annotations = node.spec.get_or_insert_default();
            let annotations = annotations.annotations.get_or_insert_default();
            annotations
                .labels
                .insert(label.to_owned(), value.to_owned());
        }
    }
    Ok(())
}

/// A node that is ready.
pub fn node(id: &str) -> Node {
    Node {
        id: id.to_owned(),
        role: NodeRole::Worker as i32,
        spec: Some(NodeSpec::default()),
        description: Some(NodeDescription {
            hostname: id.to_owned(),
            resources: Some(Resources::default()),
            engine: Some(EngineDescription::default()),
            ..NodeDescription::default()
        }),
        status: Some(NodeStatus {
            state: node_status::State::Ready as i32,
            ..NodeStatus::default()
        }),
        ..Node::default()
    }
}

/// A replicated service with one container.
pub fn service(id: &str) -> Service {
    Service {
        id: id.to_owned(),
        spec: Some(ServiceSpec {
            annotations: Some(Annotations {
                name: id.to_owned(),
                ..Annotations::default()
            }),
            task: Some(TaskSpec {
                runtime: Some(Runtime::Container(ContainerSpec {
                    image: "image".to_owned(),
                    ..ContainerSpec::default()
                })),
                ..TaskSpec::default()
            }),
            mode: Some(Mode::Replicated(ReplicatedService { replicas: 1 })),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Applies what a story says of a service.
pub fn describe_service(service: &mut Service, args: &mut ArgumentConsumer<'_>) -> Outcome<()> {
    for argument in args.rest_key() {
        describe_service_key(service, argument)?;
    }
    Ok(())
}

fn describe_service_key(service: &mut Service, argument: &Argument) -> Outcome<()> {
    let value = argument.value.as_str();
    if argument.key.as_deref() == Some("version") {
        service.spec_version = Some(Version {
            index: value.parse()?,
        });
        return Ok(());
    }
    let spec = service.spec.get_or_insert_default();
    let task = spec.task.get_or_insert_default();
    match argument.key.as_deref().unwrap_or_default() {
        "replicas" => {
            spec.mode = Some(Mode::Replicated(ReplicatedService {
                replicas: value.parse()?,
            }));
        }
        "image" => {
            task.runtime = Some(Runtime::Container(ContainerSpec {
                image: value.to_owned(),
                ..ContainerSpec::default()
            }));
        }
        "condition" => {
            restart(task).condition = match value {
                "none" => RestartCondition::None,
                "on-failure" => RestartCondition::OnFailure,
                _ => RestartCondition::Any,
            } as i32;
        }
        "delay" => restart(task).delay = Some(time::from_std(span(value)?)),
        "attempts" => restart(task).max_attempts = value.parse()?,
        "window" => restart(task).window = Some(time::from_std(span(value)?)),
        "port" if value == "none" => spec.endpoint = None,
        "port" => {
            let (mode, port) = value.split_once(':').ok_or("port=MODE:NUMBER")?;
            spec.endpoint
                .get_or_insert_with(EndpointSpec::default)
                .ports
                .push(PortConfig {
                    target_port: port.parse()?,
                    published_port: port.parse()?,
                    publish_mode: match mode {
                        "host" => PublishMode::Host,
                        _ => PublishMode::Ingress,
                    } as i32,
                    ..PortConfig::default()
                });
        }
        "network" => task.networks.push(NetworkAttachmentConfig {
            target: value.to_owned(),
            ..NetworkAttachmentConfig::default()
        }),
        key => describe_demand(task, key, value)?,
    }
    Ok(())
}

fn restart(task: &mut TaskSpec) -> &mut RestartPolicy {
    task.restart.get_or_insert_with(|| RestartPolicy {
        condition: RestartCondition::Any as i32,
        ..RestartPolicy::default()
    })
}

/// What a service asks of nodes.
fn describe_demand(task: &mut TaskSpec, key: &str, value: &str) -> Outcome<()> {
    let placement = task.placement.get_or_insert_with(Placement::default);
    let resources = task
        .resources
        .get_or_insert_with(ResourceRequirements::default);
    let reserved = resources.reservations.get_or_insert_default();
    match key {
        "cpus" => reserved.nano_cpus = value.parse::<i64>()? * 1_000_000_000,
        "memory" => reserved.memory_bytes = value.parse()?,
        "generic" => reserved.generic = generic::parse(value)?,
        "constraint" => placement.constraints.push(value.to_owned()),
        "platform" => placement.platforms.push(platform(value)?),
        "max-replicas" => placement.max_replicas = value.parse()?,
        "spread" => {
            let spread_descriptor = value.to_owned();
            placement.preferences.push(PlacementPreference {
                preference: Some(placement_preference::Preference::Spread(SpreadOver {
                    spread_descriptor,
                })),
            });
        }
        _ => return Err(format!("no key: {key}").into()),
    }
    Ok(())
}

/// A platform such as `linux/amd64`.
fn platform(text: &str) -> Outcome<Platform> {
    let (os, architecture) = text.split_once('/').ok_or("platform=OS/ARCHITECTURE")?;
    Ok(Platform {
        architecture: architecture.to_owned(),
        os: os.to_owned(),
    })
}
