//! What a task asks of a node, and why a node cannot take it.
//!
//! A task's requirements are compiled once for all tasks that ask the same; then node after node is asked by
//! the filters, in a fixed order, and the first one that says no is blamed (spec 07 section 7). The order
//! is part of the texts that people read. Filters never change anything.

use std::fmt;

use super::nodes::Account;
use crate::api::constraint::{Constraint, matches_all, parse_all};
use crate::api::generic;
use crate::api::types::generic_resource::Resource;
use crate::api::types::mount::Type as MountType;
use crate::api::types::node_spec::Availability;
use crate::api::types::placement_preference::Preference;
use crate::api::types::port_config::PublishMode;
use crate::api::types::task_spec::Runtime;
use crate::api::types::{
    ContainerSpec, GenericResource, Node, Placement, Platform, Resources, Task, TaskSpec,
    node_status,
};

/// Kind of plugin by which a node tells which executor it has.
const EXECUTOR_PLUGIN: &str = "Executor";

/// The executor that runs tasks as plain processes, and the only image it takes (settled P9).
const PROCESS_EXECUTOR: &str = "process";
const PROCESS_IMAGE: &str = "host";

/// Levels of the preference tree. Nobody has so many levels of failure domains; a spec may have any number
/// of preferences, and every level costs memory for every node.
const SPREAD_LEVELS_MAX: usize = 16;

/// The filters in the order in which they are asked. Volumes would come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Filter {
    Ready,
    Executor,
    Resource,
    Plugin,
    Constraint,
    Platform,
    HostPort,
    MaxReplicas,
}

impl Filter {
    pub const ALL: [Filter; 8] = [
        Filter::Ready,
        Filter::Executor,
        Filter::Resource,
        Filter::Plugin,
        Filter::Constraint,
        Filter::Platform,
        Filter::HostPort,
        Filter::MaxReplicas,
    ];

    /// What is told of `count` nodes that fail here. The texts are part of the interface.
    fn explain(self, count: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = match self {
            Filter::Ready if count == 1 => {
                return f.write_str("1 node not available for new tasks");
            }
            Filter::Ready => return write!(f, "{count} nodes not available for new tasks"),
            Filter::MaxReplicas => return f.write_str("max replicas per node limit exceed"),
            Filter::Executor => "needs another executor",
            Filter::Resource => "insufficient resources",
            Filter::Plugin => "missing plugin",
            Filter::Constraint => "scheduling constraints not satisfied",
            Filter::Platform => "unsupported platform",
            Filter::HostPort => "host-mode port already in use",
        };
        let nodes = if count == 1 { "node" } else { "nodes" };
        write!(f, "{before} on {count} {nodes}")
    }
}

/// How many nodes fail at which filter. `Display` gives the explanation: most frequent reason first, equal
/// ones in the order of the filters; empty if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blame([u32; Filter::ALL.len()]);

impl Blame {
    pub fn add(&mut self, filter: Filter) {
        self.0[filter as usize] += 1;
    }

    pub fn remove(&mut self, filter: Filter) {
        self.0[filter as usize] = self.0[filter as usize].saturating_sub(1);
    }
}

impl From<Filter> for Blame {
    fn from(filter: Filter) -> Blame {
        let mut blame = Blame::default();
        blame.add(filter);
        blame
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons: Vec<(Filter, u32)> = Filter::ALL.into_iter().zip(self.0).collect();
        reasons.retain(|(_, count)| *count > 0);
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (number, (filter, count)) in reasons.into_iter().enumerate() {
            if number > 0 {
                f.write_str("; ")?;
            }
            filter.explain(count, f)?;
        }
        Ok(())
    }
}

/// A host port: protocol number and published port.
pub type HostPort = (i32, u32);

/// A plugin that a task needs: type and name.
type Plugin = (&'static str, String);

/// Everything that filters and ranking read of a task. Tasks of one service and version that have equal
/// requirements are interchangeable.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Requirements {
    pub nano_cpus: i64,
    pub memory_bytes: i64,
    pub generic: Vec<GenericResource>,
    pub host_ports: Vec<HostPort>,
    /// Labels to spread over, outermost first.
    pub spread: Vec<SpreadLabel>,
    /// The task's image is the one that process executors take.
    is_process: bool,
    plugins: Vec<Plugin>,
    constraints: Vec<Constraint>,
    /// In normalised form.
    platforms: Vec<Platform>,
    /// 0: any number.
    max_replicas: u64,
}

/// A label whose values are the branches of the preference tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpreadLabel {
    Node(String),
    Engine(String),
}

impl Requirements {
    /// What a task asks for. Constraints that do not parse were refused when the service was created;
    /// should some come through, they are ignored as a whole.
    pub fn of(task: &Task) -> Requirements {
        let default = TaskSpec::default();
        let spec = task.spec.as_ref().unwrap_or(&default);
        let no_placement = Placement::default();
        let placement = spec.placement.as_ref().unwrap_or(&no_placement);
        let container = match &spec.runtime {
            Some(Runtime::Container(container)) => Some(container),
            _ => None,
        };
        let reserved = reservations(task);
        Requirements {
            nano_cpus: reserved.map_or(0, |reserved| reserved.nano_cpus),
            memory_bytes: reserved.map_or(0, |reserved| reserved.memory_bytes),
            generic: reserved.map_or_else(Vec::new, |reserved| summed(&reserved.generic)),
            host_ports: host_ports(task),
            spread: spread(placement),
            is_process: container.is_some_and(|container| container.image == PROCESS_IMAGE),
            plugins: plugins(task, spec, container),
            constraints: parse_all(&placement.constraints).unwrap_or_default(),
            platforms: placement.platforms.iter().map(normalised).collect(),
            max_replicas: placement.max_replicas,
        }
    }

    /// The first filter that keeps the task off a node on which `of_service` tasks of its service are
    /// active; `None` if the node can take it.
    pub fn refused_by(&self, node: &Node, account: &Account, of_service: u32) -> Option<Filter> {
        Filter::ALL.into_iter().find(|filter| !match filter {
            Filter::Resource => self.has_resources(account),
            Filter::HostPort => self.has_host_ports(account),
            Filter::MaxReplicas => {
                self.max_replicas == 0 || u64::from(of_service) < self.max_replicas
            }
            fixed => self.passes_fixed(*fixed, node),
        })
    }

    /// The first of those filters that look at the node alone, not at what it has left.
    pub fn refused_by_node(&self, node: &Node) -> Option<Filter> {
        Filter::ALL
            .into_iter()
            .find(|filter| !self.passes_fixed(*filter, node))
    }

    fn passes_fixed(&self, filter: Filter, node: &Node) -> bool {
        match filter {
            Filter::Ready => is_ready(node),
            Filter::Executor => has_executor(node, self.is_process),
            Filter::Plugin => self.plugins.iter().all(|plugin| has_plugin(node, plugin)),
            Filter::Constraint => matches_all(&self.constraints, node),
            Filter::Platform => self.platforms.is_empty() || self.has_platform(node),
            Filter::Resource | Filter::HostPort | Filter::MaxReplicas => true,
        }
    }

    fn has_resources(&self, account: &Account) -> bool {
        if self.nano_cpus == 0 && self.memory_bytes == 0 && self.generic.is_empty() {
            return true;
        }
        i128::from(self.nano_cpus) <= account.nano_cpus_left()
            && i128::from(self.memory_bytes) <= account.memory_bytes_left()
            && self.generic.iter().all(|reservation| {
                generic::has_enough(account.generic_left(), reservation).unwrap_or(false)
            })
    }

    fn has_host_ports(&self, account: &Account) -> bool {
        !self.host_ports.iter().any(|port| account.uses_port(*port))
    }

    fn has_platform(&self, node: &Node) -> bool {
        let description = node.description.as_ref();
        let Some(actual) = description.and_then(|node| node.platform.as_ref()) else {
            return false;
        };
        let actual = normalised(actual);
        let fits = |wanted: &str, actual: &str| wanted.is_empty() || wanted == actual;
        self.platforms.iter().any(|wanted| {
            fits(&wanted.architecture, &actual.architecture) && fits(&wanted.os, &actual.os)
        })
    }
}

impl SpreadLabel {
    /// The label's value on a node; a missing one is as good as an empty one.
    pub fn value<'a>(&self, node: &'a Node) -> &'a str {
        match self {
            SpreadLabel::Node(key) => {
                let annotations = node
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.annotations.as_ref());
                annotations.and_then(|annotations| annotations.labels.get(key))
            }
            SpreadLabel::Engine(key) => {
                let engine = node
                    .description
                    .as_ref()
                    .and_then(|node| node.engine.as_ref());
                engine.and_then(|engine| engine.labels.get(key))
            }
        }
        .map_or("", String::as_str)
    }
}

fn is_ready(node: &Node) -> bool {
    let state = node.status.as_ref().map(|status| status.state);
    let availability = node
        .spec
        .as_ref()
        .map_or(Availability::Active as i32, |spec| spec.availability);
    state == Some(node_status::State::Ready as i32) && availability == Availability::Active as i32
}

/// Whether the node's executor takes such tasks: a node that announces an executor takes only what is that
/// executor's (a node with `none` takes nothing), every other node takes container images.
fn has_executor(node: &Node, is_process: bool) -> bool {
    let engine = node
        .description
        .as_ref()
        .and_then(|node| node.engine.as_ref());
    let announced = engine.and_then(|engine| {
        let mut plugins = engine.plugins.iter();
        plugins.find(|plugin| plugin.r#type == EXECUTOR_PLUGIN)
    });
    match announced {
        Some(plugin) => is_process && plugin.name == PROCESS_EXECUTOR,
        None => !is_process,
    }
}

/// What a task wants kept for it.
pub fn reservations(task: &Task) -> Option<&Resources> {
    task.spec
        .as_ref()?
        .resources
        .as_ref()?
        .reservations
        .as_ref()
}

/// Reservations with one entry per kind, so that each can be checked on its own.
fn summed(reservations: &[GenericResource]) -> Vec<GenericResource> {
    let mut sums: Vec<GenericResource> = Vec::new();
    for entry in reservations {
        let same = sums
            .iter_mut()
            .find(|sum| generic::kind(sum) == generic::kind(entry));
        match (same.and_then(|sum| sum.resource.as_mut()), &entry.resource) {
            (
                Some(Resource::DiscreteResourceSpec(sum)),
                Some(Resource::DiscreteResourceSpec(more)),
            ) => sum.value = sum.value.saturating_add(more.value),
            _ => sums.push(entry.clone()),
        }
    }
    sums
}

/// Ports that the task wants on the node itself. Those that the node chooses are left out.
pub fn host_ports(task: &Task) -> Vec<HostPort> {
    let ports = task.endpoint.iter().flat_map(|endpoint| &endpoint.ports);
    ports
        .filter(|port| port.publish_mode == PublishMode::Host as i32 && port.published_port != 0)
        .map(|port| (port.protocol, port.published_port))
        .collect()
}

/// The labels of all preferences that can be understood; others are ignored, and so are repetitions, which
/// split nothing further.
fn spread(placement: &Placement) -> Vec<SpreadLabel> {
    let mut labels = Vec::new();
    for preference in &placement.preferences {
        let Some(Preference::Spread(over)) = &preference.preference else {
            continue;
        };
        let text = over.spread_descriptor.as_str();
        let label = after_prefix(text, "node.labels.")
            .map(SpreadLabel::Node)
            .or_else(|| after_prefix(text, "engine.labels.").map(SpreadLabel::Engine));
        if let Some(label) = label
            && labels.len() < SPREAD_LEVELS_MAX
            && !labels.contains(&label)
        {
            labels.push(label);
        }
    }
    labels
}

/// What follows a prefix that is compared without regard to case; `None` if nothing follows.
fn after_prefix(text: &str, prefix: &str) -> Option<String> {
    let (head, tail) = text.split_at_checked(prefix.len())?;
    (head.eq_ignore_ascii_case(prefix) && !tail.is_empty()).then(|| tail.to_owned())
}

/// Plugins that have to be on the node: for volumes with a driver, for networks, for the log driver.
fn plugins(task: &Task, spec: &TaskSpec, container: Option<&ContainerSpec>) -> Vec<Plugin> {
    let mut needed: Vec<Plugin> = Vec::new();
    for mount in container.iter().flat_map(|container| &container.mounts) {
        let options = mount.volume_options.as_ref();
        let driver = options.and_then(|options| options.driver_config.as_ref());
        if let Some(driver) = driver
            && mount.r#type == MountType::Volume as i32
            && !matches!(driver.name.as_str(), "" | "local")
        {
            needed.push(("Volume", driver.name.clone()));
        }
    }
    for attachment in &task.networks {
        let network = attachment.network.as_ref();
        if let Some(driver) = network.and_then(|network| network.driver_state.as_ref())
            && !driver.name.is_empty()
        {
            needed.push(("Network", driver.name.clone()));
        }
    }
    if let Some(driver) = &spec.log_driver
        && !matches!(driver.name.as_str(), "" | "none")
    {
        needed.push(("Log", driver.name.clone()));
    }
    needed
}

/// Whether a node has a plugin. Nodes that describe no engine, and for log drivers nodes that list none at
/// all, are given the benefit of the doubt.
fn has_plugin(node: &Node, (kind, name): &Plugin) -> bool {
    let Some(engine) = node
        .description
        .as_ref()
        .and_then(|node| node.engine.as_ref())
    else {
        return true;
    };
    let mut of_kind = engine
        .plugins
        .iter()
        .filter(|plugin| plugin.r#type == *kind)
        .peekable();
    if *kind == "Log" && of_kind.peek().is_none() {
        return true;
    }
    of_kind.any(|plugin| {
        plugin.name == *name || plugin.name.strip_suffix(":latest") == Some(name.as_str())
    })
}

/// A platform with one spelling per architecture.
fn normalised(platform: &Platform) -> Platform {
    let architecture = match platform.architecture.as_str() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Platform {
        architecture: architecture.to_owned(),
        os: platform.os.clone(),
    }
}

#[cfg(test)]
mod tests;
