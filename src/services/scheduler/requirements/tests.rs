//! Filters one by one, and the explanations.

use super::*;
use crate::api::types::{
    Driver, Endpoint, Mount, PlacementPreference, PluginDescription, PortConfig, SpreadOver, mount,
};
use crate::services::scheduler::nodes::Nodes;
use crate::services::testing::objects;
use std::sync::Arc;

fn with_container(container: ContainerSpec) -> Task {
    Task {
        spec: Some(TaskSpec {
            runtime: Some(Runtime::Container(container)),
            ..TaskSpec::default()
        }),
        ..Task::default()
    }
}

fn with_placement(placement: Placement) -> Task {
    Task {
        spec: Some(TaskSpec {
            placement: Some(placement),
            ..TaskSpec::default()
        }),
        ..Task::default()
    }
}

fn with_plugins(plugins: &[(&str, &str)]) -> Node {
    let mut node = objects::node("n");
    let engine = node
        .description
        .get_or_insert_default()
        .engine
        .get_or_insert_default();
    engine.plugins = plugins
        .iter()
        .map(|(kind, name)| PluginDescription {
            r#type: (*kind).to_owned(),
            name: (*name).to_owned(),
        })
        .collect();
    node
}

fn refused(task: &Task, node: &Node) -> Option<Filter> {
    Requirements::of(task).refused_by_node(node)
}

// 07-A8
#[test]
fn platforms() {
    let platform = |os: &str, architecture: &str| Platform {
        architecture: architecture.to_owned(),
        os: os.to_owned(),
    };
    let needs = |os, architecture| {
        with_placement(Placement {
            platforms: vec![platform(os, architecture)],
            ..Placement::default()
        })
    };
    let is = |os, architecture| {
        let mut node = objects::node("n");
        node.description.get_or_insert_default().platform = Some(platform(os, architecture));
        node
    };
    let cases = [
        (needs("linux", "amd64"), is("linux", "x86_64"), None),
        (needs("linux", "x86_64"), is("linux", "amd64"), None),
        (needs("linux", "aarch64"), is("linux", "arm64"), None),
        (needs("linux", ""), is("linux", "s390x"), None),
        (needs("", ""), is("linux", "s390x"), None),
        (
            needs("windows", "amd64"),
            is("linux", "amd64"),
            Some(Filter::Platform),
        ),
        (
            needs("linux", "arm"),
            is("linux", "arm64"),
            Some(Filter::Platform),
        ),
        (needs("", ""), objects::node("n"), Some(Filter::Platform)),
        (Task::default(), objects::node("n"), None),
    ];
    for (number, (task, node, expected)) in cases.iter().enumerate() {
        assert_eq!(refused(task, node), *expected, "case {number}");
    }
}

#[test]
fn executors() {
    let image = |image: &str| {
        with_container(ContainerSpec {
            image: image.to_owned(),
            ..ContainerSpec::default()
        })
    };
    let processes = with_plugins(&[("Executor", "process")]);
    let containers = with_plugins(&[("Volume", "local")]);
    assert_eq!(refused(&image("host"), &processes), None);
    assert_eq!(
        refused(&image("host:latest"), &processes),
        Some(Filter::Executor)
    );
    assert_eq!(refused(&image("nginx"), &processes), Some(Filter::Executor));
    assert_eq!(refused(&image("nginx"), &containers), None);
    assert_eq!(refused(&image("host"), &containers), Some(Filter::Executor));
    assert_eq!(
        refused(&Task::default(), &processes),
        Some(Filter::Executor)
    );
}

#[test]
fn plugins_of_every_kind() {
    let volume = |kind: mount::Type, driver: &str| {
        with_container(ContainerSpec {
            mounts: vec![Mount {
                r#type: kind as i32,
                volume_options: Some(mount::VolumeOptions {
                    driver_config: Some(Driver {
                        name: driver.to_owned(),
                        ..Driver::default()
                    }),
                    ..mount::VolumeOptions::default()
                }),
                ..Mount::default()
            }],
            ..ContainerSpec::default()
        })
    };
    let log = |name: &str| Task {
        spec: Some(TaskSpec {
            log_driver: Some(Driver {
                name: name.to_owned(),
                ..Driver::default()
            }),
            ..TaskSpec::default()
        }),
        ..Task::default()
    };
    let nodes = [
        with_plugins(&[("Volume", "vol:latest"), ("Log", "syslog")]),
        with_plugins(&[("Log", "vol")]),
        with_plugins(&[]),
    ];
    let missing = Some(Filter::Plugin);
    let cases = [
        (volume(mount::Type::Bind, "vol"), [None, None, None]),
        (volume(mount::Type::Volume, "local"), [None, None, None]),
        (volume(mount::Type::Volume, "vol"), [None, missing, missing]),
        (log("none"), [None, None, None]),
        (log(""), [None, None, None]),
        (log("syslog"), [None, missing, None]),
    ];
    for (number, (task, expected)) in cases.iter().enumerate() {
        let found = [0, 1, 2].map(|node| refused(task, &nodes[node]));
        assert_eq!(found, *expected, "case {number}");
    }
    let mut undescribed = objects::node("n");
    undescribed.description = None;
    assert_eq!(
        refused(&volume(mount::Type::Volume, "vol"), &undescribed),
        None
    );
}

#[test]
fn host_ports_and_replicas_per_node() {
    let port = |protocol: i32, mode: PublishMode, published_port: u32| PortConfig {
        protocol,
        published_port,
        publish_mode: mode as i32,
        ..PortConfig::default()
    };
    let task = |ports: Vec<PortConfig>| Task {
        endpoint: Some(Endpoint {
            ports,
            ..Endpoint::default()
        }),
        ..Task::default()
    };
    let holder = task(vec![port(0, PublishMode::Host, 58)]);
    let mut nodes = Nodes::default();
    let index = nodes.set_node(&Arc::new(objects::node("n")));
    let hold = crate::services::scheduler::nodes::Hold::of("web".into(), &holder);
    nodes.add(index, &"holder".into(), &hold, &[]);
    let asked = |task: &Task, of_service: u32| {
        let (node, account) = nodes.known(index).expect("the node");
        Requirements::of(task).refused_by(node, account, of_service)
    };
    assert_eq!(asked(&holder, 0), Some(Filter::HostPort));
    assert_eq!(asked(&task(vec![port(1, PublishMode::Host, 58)]), 0), None);
    assert_eq!(
        asked(&task(vec![port(0, PublishMode::Ingress, 58)]), 0),
        None
    );
    assert_eq!(asked(&task(vec![port(0, PublishMode::Host, 0)]), 0), None);

    let limited = with_placement(Placement {
        max_replicas: 2,
        ..Placement::default()
    });
    assert_eq!(asked(&limited, 1), None);
    assert_eq!(asked(&limited, 2), Some(Filter::MaxReplicas));
}

#[test]
fn constraints_that_do_not_parse_are_ignored_as_a_whole() {
    let with = |constraints: &[&str]| {
        with_placement(Placement {
            constraints: constraints.iter().map(|text| (*text).to_owned()).collect(),
            ..Placement::default()
        })
    };
    let node = objects::node("n");
    assert_eq!(refused(&with(&["node.id == n"]), &node), None);
    assert_eq!(
        refused(&with(&["node.id != n"]), &node),
        Some(Filter::Constraint)
    );
    assert_eq!(refused(&with(&["node.id != n", "nonsense"]), &node), None);
}

#[test]
fn spread_labels() {
    let preference = |descriptor: &str| PlacementPreference {
        preference: Some(Preference::Spread(SpreadOver {
            spread_descriptor: descriptor.to_owned(),
        })),
    };
    let descriptors = [
        "NODE.Labels.Zone",
        "engine.labels.rack",
        "node.labels.",
        "node.hostname",
        "node.labels.Zone",
    ];
    let mut placement = Placement {
        preferences: descriptors.map(preference).to_vec(),
        ..Placement::default()
    };
    placement.preferences.push(PlacementPreference::default());
    let expected = [
        SpreadLabel::Node("Zone".to_owned()),
        SpreadLabel::Engine("rack".to_owned()),
    ];
    assert_eq!(
        Requirements::of(&with_placement(placement)).spread,
        expected
    );
    let hostile: Vec<String> = (0..10_000).map(|n| format!("node.labels.{n}")).collect();
    let placement = Placement {
        preferences: hostile.iter().map(|text| preference(text)).collect(),
        ..Placement::default()
    };
    assert_eq!(
        Requirements::of(&with_placement(placement)).spread.len(),
        SPREAD_LEVELS_MAX
    );
}

#[test]
fn explanations() {
    let text = |filters: &[Filter]| {
        let mut blame = Blame::default();
        filters.iter().for_each(|filter| blame.add(*filter));
        blame.to_string()
    };
    use Filter::*;
    assert_eq!(text(&[]), "");
    assert_eq!(
        text(&[Resource, Ready, Ready]),
        "2 nodes not available for new tasks; insufficient resources on 1 node"
    );
    assert_eq!(
        text(&[Platform, Constraint, Plugin, Plugin, HostPort, HostPort]),
        "missing plugin on 2 nodes; host-mode port already in use on 2 nodes; \
         scheduling constraints not satisfied on 1 node; unsupported platform on 1 node"
    );
    assert_eq!(
        text(&[MaxReplicas, MaxReplicas, Executor, Ready]),
        "max replicas per node limit exceed; 1 node not available for new tasks; \
         needs another executor on 1 node"
    );
    assert_eq!(
        text(&[Executor, Executor]),
        "needs another executor on 2 nodes"
    );
    let mut blame = Blame::from(Ready);
    blame.remove(Ready);
    blame.remove(Ready);
    assert_eq!(blame, Blame::default());
}
