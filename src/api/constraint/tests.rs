use super::*;
use crate::api::types::{Annotations, NodeSpec, NodeStatus, Platform};

/// A described worker: labels `region=EU`, engine label `disk=ssd`, address 186.17.9.41.
fn node() -> Node {
    Node {
        id: "NodeOne".into(),
        role: NodeRole::Worker as i32,
        spec: Some(NodeSpec {
            annotations: Some(Annotations {
                labels: [("region".to_owned(), "EU".to_owned())].into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        description: Some(NodeDescription {
            hostname: "Node-1".into(),
            platform: Some(Platform {
                architecture: "x86_64".into(),
                os: "linux".into(),
            }),
            engine: Some(EngineDescription {
                labels: [("disk".to_owned(), "ssd".to_owned())].into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        status: Some(NodeStatus {
            addr: "186.17.9.41".into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn matches(expression: &str, node: &Node) -> bool {
    Constraint::parse(expression).unwrap().matches(node)
}

// 05-A37
#[test]
fn what_does_not_parse() {
    use ConstraintError::{Key, Operator, Value};
    let key = |k: &str| Key(k.to_owned());
    let value = |v: &str| Value(v.to_owned());
    for (expression, error) in [
        ("", Operator),
        (" ", Operator),
        ("node.id", Operator),
        ("node.id~1", Operator),
        ("node.id=1", Operator),
        ("1node==a", key("1node")),
        ("n==a", key("n")),
        ("no de==a", key("no de")),
        ("no*de==a", key("no*de")),
        ("no$de==a", key("no$de")),
        ("==a", key("")),
        (" ==a", key("")),
        ("nöde==a", key("nöde")),
        ("node==", value("")),
        ("node==  ", value("")),
        ("node==ä", value("ä")),
        ("node==a=b", value("a=b")),
        ("node==a!", value("a!")),
        // `==` is looked for first, wherever it stands.
        ("node!=a==b", key("node!=a")),
    ] {
        assert_eq!(Constraint::parse(expression), Err(error), "{expression:?}");
    }
    assert_eq!(
        Operator.to_string(),
        "constraint expected one operator from ==, !="
    );
    assert_eq!(key("k*").to_string(), "key 'k*' is invalid");
    assert_eq!(value("").to_string(), "value '' is invalid");
}

// 05-A37
#[test]
fn what_parses() {
    for expression in [
        " node==a",
        "Node.Labels.Region == EU",
        "_node==a",
        "node.labels.a-b_c.d!=1",
        "node==[a-b]+c*(n|b)/",
        "node==two words",
        "no==a",
        "node.ip!=10.0.0.0/8",
        "node==a\\b^c$d?e:f",
    ] {
        assert!(Constraint::parse(expression).is_ok(), "{expression:?}");
    }
    assert_eq!(
        parse_all(&["node==a", "node!=b"]).map(|all| all.len()),
        Ok(2)
    );
    assert_eq!(
        parse_all(&["node==a", "bad"]),
        Err(ConstraintError::Operator)
    );
}

#[test]
fn matching() {
    let node = node();
    for (expression, expected) in [
        ("node.id==nodeone", true),
        ("node.id!=nodeone", false),
        ("NODE.ID==NodeOne", true),
        ("node.id==nodeon", false),
        ("node.hostname==node-1", true),
        ("node.hostname==node-*", false),
        ("node.role==Worker", true),
        ("node.role!=manager", true),
        ("node.role==manager", false),
        ("node.platform.os==Linux", true),
        ("node.platform.arch==x86_64", true),
        ("node.platform.arch==amd64", false),
        ("node.labels.region==eu", true),
        ("node.labels.Region==eu", false),
        ("node.labels.Region!=eu", true),
        ("Node.Labels.region==eu", true),
        ("engine.labels.disk==SSD", true),
        ("engine.labels.region==eu", false),
        ("node.labels.disk==ssd", false),
        ("node.labels.==x", false),
        ("node.labels.!=x", false),
        ("engine.labels.!=x", false),
        ("node.name==x", false),
        ("node.name!=x", false),
        ("unknown!=x", false),
    ] {
        assert_eq!(matches(expression, &node), expected, "{expression}");
    }
    let both = parse_all(&["node.labels.region==eu", "node.role==manager"]).unwrap();
    assert!(!matches_all(&both, &node));
    assert!(matches_all(&both[..1], &node));
    assert!(matches_all(&[], &node));
}

#[test]
fn what_is_unknown_of_a_node_is_the_empty_string() {
    let blank = Node::default();
    for key in [
        "node.hostname",
        "node.platform.os",
        "node.platform.arch",
        "node.labels.region",
        "engine.labels.disk",
        "node.ip",
    ] {
        let value = if key == "node.ip" { "1.2.3.4" } else { "x" };
        assert!(!matches(&format!("{key}=={value}"), &blank), "{key}");
        assert!(matches(&format!("{key}!={value}"), &blank), "{key}");
    }
}

// 05-A37
#[test]
fn addresses() {
    let at = |addr: &str| {
        let mut node = node();
        node.status.as_mut().unwrap().addr = addr.to_owned();
        node
    };
    for (addr, value, equal, different) in [
        ("186.17.9.41", "186.17.9.41", true, false),
        ("186.17.9.41", "186.17.9.42", false, true),
        ("186.17.9.41", "186.17.9.4/24", true, false),
        ("10.250.3.1", "10.0.0.0/8", true, false),
        ("11.0.0.1", "10.0.0.0/8", false, true),
        ("186.17.9.41", "::ffff:186.17.9.41", true, false),
        ("::ffff:10.1.1.1", "10.0.0.0/8", true, false),
        ("10.1.1.1", "::ffff:10.0.0.0/104", true, false),
        ("2001:db8::2", "2001:db8:0::2", true, false),
        ("2001:db8::2", "2001:db8::/32", true, false),
        ("2001:db8::2", "10.0.0.0/8", false, true),
        // No address of the node: equal to nothing.
        ("", "186.17.9.41", false, true),
        ("localhost", "186.17.9.0/24", false, true),
        // Neither an address nor a network: never satisfied.
        ("186.17.9.41", "186.17.9.41/34", false, false),
        ("186.17.9.41", "266.17.9.41", false, false),
        ("186.17.9.41", "my_network", false, false),
    ] {
        let node = at(addr);
        assert_eq!(
            matches(&format!("node.ip=={value}"), &node),
            equal,
            "{addr} == {value}"
        );
        assert_eq!(
            matches(&format!("node.ip!={value}"), &node),
            different,
            "{addr} != {value}"
        );
    }
}

#[test]
fn case_folding_is_unicode() {
    assert!(equals_ignoring_case("masse", "Ma\u{17f}\u{17f}e"));
    assert!(equals_ignoring_case("kelvin", "\u{212a}elvin"));
    assert!(equals_ignoring_case("ΣΑΣ", "σας"));
    assert!(!equals_ignoring_case("strasse", "straße"));
    assert!(!equals_ignoring_case("a", "ab"));
}
