//! Compares the compiled descriptors with the facts, in both directions.
//!
//! Both sides are first brought into one form: an ordered map from a name, such as
//! `docker.swarmkit.v1.Node.spec`, to a line of text that describes the thing. Two such maps are
//! equal or the test lists the names that differ.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet,
};
use serde_json::Value;
use swarm_manager::api::{FILE_DESCRIPTOR_SET, roles};

type Lines = BTreeMap<String, String>;

fn facts() -> Value {
    serde_json::from_str(include_str!("../data/swarmkit-wire.json")).unwrap()
}

fn descriptors() -> Vec<FileDescriptorProto> {
    FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap().file
}

/// Our files of the packages that the facts speak of.
fn described_files(facts: &Value) -> Vec<FileDescriptorProto> {
    let packages = facts["packages"].as_object().unwrap();
    let mut files = descriptors();
    files.retain(|file| packages.contains_key(file.package()));
    files
}

fn assert_same(what: &str, ours: &Lines, facts: &Lines) {
    assert!(!facts.is_empty(), "no facts about {what}");
    let mut differences = Vec::new();
    for (name, fact) in facts {
        match ours.get(name) {
            None => differences.push(format!("missing: {name}: {fact}")),
            Some(line) if line != fact => {
                differences.push(format!("differs: {name}: {line} instead of {fact}"));
            }
            Some(_) => {}
        }
    }
    for (name, line) in ours {
        if !facts.contains_key(name) {
            differences.push(format!("in addition: {name}: {line}"));
        }
    }
    assert!(
        differences.is_empty(),
        "{what}:\n{}",
        differences.join("\n")
    );
}

// ---- descriptors as lines ----

/// Calls `visit` with the full name of each message, except for those that stand for map entries.
fn each_message(
    scope: &str,
    list: &[DescriptorProto],
    visit: &mut dyn FnMut(&str, &DescriptorProto),
) {
    for message in list.iter().filter(|message| !is_map_entry(message)) {
        let name = format!("{scope}.{}", message.name());
        visit(&name, message);
        each_message(&name, &message.nested_type, visit);
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|o| o.map_entry())
}

fn scalar_or_reference(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => field.type_name().to_owned(),
        scalar => scalar
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
    }
}

fn field_line(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let entry = message.nested_type.iter().find(|nested| {
        is_map_entry(nested) && field.type_name().ends_with(&format!(".{}", nested.name()))
    });
    let mut line = format!("{} ", field.number());
    if let Some(entry) = entry {
        let key = scalar_or_reference(&entry.field[0]);
        let value = scalar_or_reference(&entry.field[1]);
        line += &format!("map<{key},{value}>");
    } else {
        if field.label() == Label::Repeated {
            line += "repeated ";
        }
        line += &scalar_or_reference(field);
    }
    if let Some(index) = field.oneof_index {
        line += &format!(" oneof {}", message.oneof_decl[index as usize].name());
    }
    if field.options.as_ref().is_some_and(|o| o.deprecated()) {
        line += " deprecated";
    }
    line
}

fn fact_field_line(field: &Value) -> String {
    let mut line = format!("{} ", field["number"]);
    if field["repeated"].as_bool().unwrap_or(false) {
        line += "repeated ";
    }
    line += field["type"].as_str().unwrap();
    if let Some(oneof) = field["oneof"].as_str() {
        line += &format!(" oneof {oneof}");
    }
    if field["deprecated"].as_bool().unwrap_or(false) {
        line += " deprecated";
    }
    line
}

fn each_enum(file: &FileDescriptorProto, visit: &mut dyn FnMut(&str, &EnumDescriptorProto)) {
    let scope = file.package();
    for item in &file.enum_type {
        visit(&format!("{scope}.{}", item.name()), item);
    }
    each_message(scope, &file.message_type, &mut |name, message| {
        for item in &message.enum_type {
            visit(&format!("{name}.{}", item.name()), item);
        }
    });
}

// ---- the comparisons ----

#[test]
fn packages_have_their_syntax_and_number_of_files() {
    let facts = facts();
    for (package, content) in facts["packages"].as_object().unwrap() {
        let files: Vec<_> = descriptors()
            .into_iter()
            .filter(|f| f.package() == package)
            .collect();
        let mut names: Vec<_> = files
            .iter()
            .map(|file| file.name().rsplit('/').next().unwrap().to_owned())
            .collect();
        names.sort();
        let mut expected: Vec<String> = serde_json::from_value(content["files"].clone()).unwrap();
        expected.sort();
        assert_eq!(names, expected, "{package}");
        for file in &files {
            // The compiler leaves the syntax out if it is proto2.
            let syntax = if file.syntax().is_empty() {
                "proto2"
            } else {
                file.syntax()
            };
            assert_eq!(
                syntax,
                content["syntax"].as_str().unwrap(),
                "{}",
                file.name()
            );
        }
    }
}

#[test]
fn messages_and_fields_are_the_recorded_ones() {
    let facts = facts();
    let (mut ours, mut theirs) = (Lines::new(), Lines::new());
    for file in described_files(&facts) {
        each_message(file.package(), &file.message_type, &mut |name, message| {
            ours.insert(name.to_owned(), "message".to_owned());
            for field in &message.field {
                let line = field_line(message, field);
                ours.insert(format!("{name}.{}", field.name()), line);
            }
        });
    }
    for (package, content) in facts["packages"].as_object().unwrap() {
        for (message, fact) in content["messages"].as_object().unwrap() {
            let name = format!("{package}.{message}");
            for field in fact["fields"].as_array().unwrap() {
                let field_name = field["name"].as_str().unwrap();
                theirs.insert(format!("{name}.{field_name}"), fact_field_line(field));
            }
            theirs.insert(name, "message".to_owned());
        }
    }
    assert_same("messages and fields", &ours, &theirs);
}

#[test]
fn enums_and_values_are_the_recorded_ones() {
    let facts = facts();
    let (mut ours, mut theirs) = (Lines::new(), Lines::new());
    for file in described_files(&facts) {
        each_enum(&file, &mut |name, item| {
            for value in &item.value {
                ours.insert(
                    format!("{name}.{}", value.name()),
                    value.number().to_string(),
                );
            }
        });
    }
    for (package, content) in facts["packages"].as_object().unwrap() {
        for (item, values) in content["enums"].as_object().unwrap() {
            for (value, number) in values.as_object().unwrap() {
                theirs.insert(format!("{package}.{item}.{value}"), number.to_string());
            }
        }
    }
    assert_same("enums", &ours, &theirs);
}

fn method_line(
    request: &str,
    response: &str,
    client_stream: bool,
    server_stream: bool,
    deprecated: bool,
) -> String {
    format!(
        "{request} {response} client_stream={client_stream} server_stream={server_stream} deprecated={deprecated}"
    )
}

// 01-A7
#[test]
fn services_and_methods_are_the_recorded_ones() {
    let facts = facts();
    let (mut ours, mut theirs) = (Lines::new(), Lines::new());
    for file in described_files(&facts) {
        for service in &file.service {
            for method in &service.method {
                let line = method_line(
                    method.input_type(),
                    method.output_type(),
                    method.client_streaming(),
                    method.server_streaming(),
                    method.options.as_ref().is_some_and(|o| o.deprecated()),
                );
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                ours.insert(path, line);
            }
        }
    }
    each_fact_method(&facts, |path, fact| {
        let line = method_line(
            fact["request"].as_str().unwrap(),
            fact["response"].as_str().unwrap(),
            fact["client_stream"].as_bool().unwrap(),
            fact["server_stream"].as_bool().unwrap(),
            fact["deprecated"].as_bool().unwrap(),
        );
        theirs.insert(path, line);
    });
    assert_same("methods", &ours, &theirs);
}

fn each_fact_method(facts: &Value, mut visit: impl FnMut(String, &Value)) {
    for (package, content) in facts["packages"].as_object().unwrap() {
        for (service, methods) in content["services"].as_object().unwrap() {
            for (method, fact) in methods.as_object().unwrap() {
                visit(format!("/{package}.{service}/{method}"), fact);
            }
        }
    }
}

/// The facts do not record packing; these are the lists that the specification calls unpacked.
#[test]
fn only_known_lists_are_unpacked() {
    let mut unpacked = Vec::new();
    for file in descriptors() {
        each_message(file.package(), &file.message_type, &mut |name, message| {
            for field in &message.field {
                if field.options.as_ref().and_then(|o| o.packed) == Some(false) {
                    unpacked.push(format!("{name}.{}", field.name()));
                }
            }
        });
    }
    unpacked.sort();
    let expected = [
        "docker.swarmkit.v1.ClusterSnapshot.removed",
        "docker.swarmkit.v1.ListNodesRequest.Filters.memberships",
        "docker.swarmkit.v1.ListNodesRequest.Filters.roles",
        "docker.swarmkit.v1.ListTasksRequest.Filters.desired_states",
    ];
    assert_eq!(unpacked, expected);
}

// ---- the authorization table ----

#[test]
fn the_role_table_is_the_recorded_one() {
    let ours: Lines = roles::all()
        .iter()
        .filter(|method| !method.path.starts_with("/swarmmanager."))
        .map(|method| {
            let mut units: Vec<_> = method.roles.iter().map(|role| role.unit()).collect();
            units.sort_unstable();
            (
                method.path.to_owned(),
                format!("{units:?} insecure={}", method.insecure),
            )
        })
        .collect();
    let mut theirs = Lines::new();
    each_fact_method(&facts(), |path, fact| {
        let mut units: Vec<_> = fact["roles"]
            .as_array()
            .unwrap()
            .iter()
            .map(|role| role.as_str().unwrap())
            .collect();
        units.sort_unstable();
        theirs.insert(path, format!("{units:?} insecure={}", fact["insecure"]));
    });
    assert_same("roles", &ours, &theirs);
}

#[test]
fn every_method_we_compile_has_a_rule() {
    let mut methods = 0;
    for file in descriptors() {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                let rule = roles::lookup(&path).unwrap_or_else(|| panic!("no rule for {path}"));
                assert_eq!(rule.path, path);
                if file.package() == "swarmmanager.v1" {
                    assert_eq!(rule.roles, [roles::Role::Manager]);
                    assert!(!rule.insecure);
                }
                methods += 1;
            }
        }
    }
    assert_eq!(methods, roles::all().len());
}
