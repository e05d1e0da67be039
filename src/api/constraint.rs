//! Placement constraints: `key==value` and `key!=value` expressions over what is known of a node.
//!
//! The Control API refuses what does not parse; scheduler and constraint enforcer match parsed
//! constraints against nodes. A value is literal text, compared as a whole and without regard to
//! case: there are no patterns. What is not known of a node counts as the empty string, so `==` fails
//! and `!=` holds. A key that nobody knows never matches, whatever the operator (spec 07 section 8).
//!
//! Matching allocates nothing and never fails.

use std::net::IpAddr;

use ipnet::IpNet;

use super::types::{EngineDescription, Node, NodeDescription, NodeRole};

/// Why an expression is not a constraint. The texts are part of the interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// Neither `==` nor `!=` occurs.
    #[error("constraint expected one operator from ==, !=")]
    Operator,
    /// Something else than a letter or `_`, then one or more letters, digits, `-`, `_`, `.`.
    #[error("key '{0}' is invalid")]
    Key(String),
    /// Empty, or with a character outside of the allowed set.
    #[error("value '{0}' is invalid")]
    Value(String),
}

/// One parsed constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    key: Key,
    /// True for `!=`.
    negated: bool,
    value: String,
}

/// What of a node a constraint looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    Id,
    Hostname,
    Address(Addresses),
    Role,
    Os,
    Architecture,
    NodeLabel(String),
    EngineLabel(String),
    /// Never satisfied.
    Unknown,
}

/// The value of a `node.ip` constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addresses {
    One(IpAddr),
    Network(IpNet),
    /// Neither an address nor a network: never satisfied.
    Neither,
}

const NODE_LABEL_PREFIX: &str = "node.labels.";
const ENGINE_LABEL_PREFIX: &str = "engine.labels.";

/// Operators in the order in which they are looked for, and whether they negate.
const OPERATORS: [(&str, bool); 2] = [("==", false), ("!=", true)];

/// Parses a list of expressions; the first bad one is reported.
pub fn parse_all<S: AsRef<str>>(expressions: &[S]) -> Result<Vec<Constraint>, ConstraintError> {
    expressions
        .iter()
        .map(|expression| Constraint::parse(expression.as_ref()))
        .collect()
}

/// Whether a node satisfies every one of the constraints.
pub fn matches_all(constraints: &[Constraint], node: &Node) -> bool {
    constraints
        .iter()
        .all(|constraint| constraint.matches(node))
}

impl Constraint {
    /// Parses one expression. The first operator of `==`, `!=` that occurs anywhere splits it, at its
    /// first occurrence; blanks around key and value do not count.
    pub fn parse(expression: &str) -> Result<Constraint, ConstraintError> {
        let (key, value, negated) = OPERATORS
            .iter()
            .find_map(|(operator, negated)| {
                let (key, value) = expression.split_once(operator)?;
                Some((key.trim(), value.trim(), *negated))
            })
            .ok_or(ConstraintError::Operator)?;
        if !is_key(key) {
            return Err(ConstraintError::Key(key.to_owned()));
        }
        if value.is_empty() || !value.bytes().all(is_value_byte) {
            return Err(ConstraintError::Value(value.to_owned()));
        }
        Ok(Constraint {
            key: Key::of(key, value),
            negated,
            value: value.to_owned(),
        })
    }

    /// Whether a node satisfies this constraint.
    pub fn matches(&self, node: &Node) -> bool {
        let equal = match &self.key {
            Key::Unknown | Key::Address(Addresses::Neither) => return false,
            Key::Id => self.equals(&node.id),
            Key::Hostname => self.equals(describe(node, |node| Some(&node.hostname))),
            Key::Role => self.equals(role_name(node.role)),
            Key::Os => self.equals(describe(node, |node| Some(&node.platform.as_ref()?.os))),
            Key::Architecture => self.equals(describe(node, |node| {
                Some(&node.platform.as_ref()?.architecture)
            })),
            Key::NodeLabel(label) => self.equals(node_label(node, label)),
            Key::EngineLabel(label) => self.equals(describe(node, |node| {
                engine_label(node.engine.as_ref()?, label)
            })),
            Key::Address(addresses) => addresses.contain(node),
        };
        equal != self.negated
    }

    fn equals(&self, actual: &str) -> bool {
        equals_ignoring_case(&self.value, actual)
    }
}

impl Key {
    /// The part of a node that a valid key names.
    fn of(key: &str, value: &str) -> Key {
        let plain = [
            ("node.id", Key::Id),
            ("node.hostname", Key::Hostname),
            ("node.role", Key::Role),
            ("node.platform.os", Key::Os),
            ("node.platform.arch", Key::Architecture),
        ];
        if let Some((_, known)) = plain
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(key))
        {
            return known;
        }
        if key.eq_ignore_ascii_case("node.ip") {
            return Key::Address(Addresses::parse(value));
        }
        if let Some(label) = after_prefix(key, NODE_LABEL_PREFIX) {
            return Key::NodeLabel(label.to_owned());
        }
        if let Some(label) = after_prefix(key, ENGINE_LABEL_PREFIX) {
            return Key::EngineLabel(label.to_owned());
        }
        Key::Unknown
    }
}

impl Addresses {
    fn parse(value: &str) -> Addresses {
        if let Ok(address) = value.parse::<IpAddr>() {
            Addresses::One(address.to_canonical())
        } else if let Ok(network) = value.parse::<IpNet>() {
            Addresses::Network(canonical_network(network))
        } else {
            Addresses::Neither
        }
    }

    /// Whether the node's observed address is among these. An unknown address is not.
    fn contain(self, node: &Node) -> bool {
        let Some(actual) = node
            .status
            .as_ref()
            .and_then(|status| status.addr.parse::<IpAddr>().ok())
        else {
            return false;
        };
        match self {
            Addresses::One(address) => address == actual.to_canonical(),
            Addresses::Network(network) => network.contains(&actual.to_canonical()),
            Addresses::Neither => false,
        }
    }
}

/// Networks of IPv4 addresses written as IPv6 ones (`::ffff:10.0.0.0/104`) become IPv4 networks.
fn canonical_network(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else {
        return network;
    };
    let (Some(address), Some(prefix_len)) = (
        v6.addr().to_ipv4_mapped(),
        v6.prefix_len().checked_sub(128 - 32),
    ) else {
        return network;
    };
    IpNet::new(address.into(), prefix_len).unwrap_or(network)
}

fn describe<'a>(
    node: &'a Node,
    part: impl FnOnce(&'a NodeDescription) -> Option<&'a String>,
) -> &'a str {
    node.description.as_ref().and_then(part).map_or("", |s| s)
}

fn engine_label<'a>(engine: &'a EngineDescription, label: &str) -> Option<&'a String> {
    engine.labels.get(label)
}

fn node_label<'a>(node: &'a Node, label: &str) -> &'a str {
    node.spec
        .as_ref()
        .and_then(|spec| spec.annotations.as_ref()?.labels.get(label))
        .map_or("", |value| value)
}

fn role_name(role: i32) -> &'static str {
    match NodeRole::try_from(role) {
        Ok(NodeRole::Worker) => "worker",
        Ok(NodeRole::Manager) => "manager",
        Err(_) => "",
    }
}

/// What follows a prefix that is compared without regard to case; `None` if nothing follows.
fn after_prefix<'a>(key: &'a str, prefix: &str) -> Option<&'a str> {
    let (head, tail) = key.split_at_checked(prefix.len())?;
    (head.eq_ignore_ascii_case(prefix) && !tail.is_empty()).then_some(tail)
}

fn is_key(key: &str) -> bool {
    let mut bytes = key.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && key.len() >= 2
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn is_value_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b' ' | b'\t' | b'\n' | b'\x0c' | b'\r')
        || b":-_.*()?+[]\\^$|/".contains(&byte)
}

/// Compares two texts with Unicode's simple case folding, character by character.
fn equals_ignoring_case(left: &str, right: &str) -> bool {
    left.chars().map(fold).eq(right.chars().map(fold))
}

/// One representative of all characters that differ only in case. Going through upper case catches
/// the letters with two lower-case forms, such as the long s.
fn fold(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_lowercase();
    }
    let upper = single(c, c.to_uppercase());
    single(upper, upper.to_lowercase())
}

fn single(original: char, mut mapped: impl Iterator<Item = char>) -> char {
    match (mapped.next(), mapped.next()) {
        (Some(only), None) => only,
        _ => original,
    }
}

#[cfg(test)]
mod tests;
