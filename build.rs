//! Build script: turns `proto/` into Rust.
//!
//! Three things land in `OUT_DIR`:
//!
//! * one Rust file per protobuf package, with clients and servers for every service;
//! * `descriptors.bin`, the compiled descriptors of everything under `proto/`, which the wire
//!   tests compare with the recorded facts of the interface;
//! * `method_auth.rs`, the table of who may call which method, written from
//!   `tests/data/swarmkit-wire.json`.
//!
//! No `protoc` is involved: protox is a protobuf compiler written in Rust. Any failure here stops
//! the build, so this is the one non-test file in which `unwrap` and `expect` are welcome.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message as _;
use protox::prost_reflect::prost_types::FileDescriptorSet;

const PROTO_DIR: &str = "proto";
const FACTS: &str = "tests/data/swarmkit-wire.json";

/// Where the generated modules live; references between packages are written with these paths.
const RAFTPB_PATH: &str = "crate::api::raftpb";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={PROTO_DIR}");
    println!("cargo:rerun-if-changed={FACTS}");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    let files = proto_files(Path::new(PROTO_DIR));
    let mut compiler = protox::Compiler::new([PROTO_DIR]).expect("proto directory");
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(&files)
        .unwrap_or_else(|error| panic!("protobuf sources do not compile: {error:?}"));
    let mut descriptors = compiler.file_descriptor_set();

    write_descriptors(&out_dir, &descriptors);
    write_method_auth(&out_dir, &descriptors);

    descriptors.file.iter_mut().for_each(accept_deprecated);
    // Two runs, because types declared "extern" are named but not generated. The first makes the
    // swarm messages, which name the raft ones by their final path; it leaves the raft modules
    // empty, and the second fills them.
    let swarm = builder().extern_path(".raftpb", RAFTPB_PATH);
    generate(swarm, descriptors.clone());
    descriptors
        .file
        .retain(|file| matches!(file.package(), "raftpb" | "walpb" | "snappb"));
    generate(builder(), descriptors);
}

/// Every `.proto` file below `dir`, in a stable order so that builds are reproducible.
fn proto_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("readable proto directory") {
        let path = entry.expect("directory entry").path();
        if path.is_dir() {
            found.extend(proto_files(&path));
        } else if path.extension().is_some_and(|ext| ext == "proto") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Maps are ordered, so that equal messages always encode to equal bytes.
fn builder() -> tonic_prost_build::Builder {
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .btree_map(".")
}

fn generate(builder: tonic_prost_build::Builder, descriptors: FileDescriptorSet) {
    builder
        .compile_fds(descriptors)
        .expect("generated code can be written");
}

/// Writes the descriptors without comments and positions, which nobody needs at run time.
fn write_descriptors(out_dir: &Path, descriptors: &FileDescriptorSet) {
    let mut bare = descriptors.clone();
    for file in &mut bare.file {
        file.source_code_info = None;
    }
    fs::write(out_dir.join("descriptors.bin"), bare.encode_to_vec()).expect("writable OUT_DIR");
}

/// Drops the "deprecated" marks before Rust is generated. A manager has to read and write the old
/// fields for as long as an old peer may send them, so a warning at each use would teach nothing.
/// The descriptors written above keep the marks.
fn accept_deprecated(file: &mut protox::prost_reflect::prost_types::FileDescriptorProto) {
    for message in &mut file.message_type {
        for field in &mut message.field {
            if let Some(options) = &mut field.options {
                options.deprecated = None;
            }
        }
    }
    for method in file
        .service
        .iter_mut()
        .flat_map(|service| &mut service.method)
    {
        if let Some(options) = &mut method.options {
            options.deprecated = None;
        }
    }
}

/// Our own package. All its methods are for managers: callers on the local control socket count as
/// such, and a peer proves it with its certificate.
const OWN_PACKAGE: &str = "swarmmanager.v1";

/// Services that only the leader answers on the remote port; other managers pass the calls on
/// (spec 02 section 10.2).
const LEADER_SERVICES_REMOTE: [&str; 6] = [
    "CA",
    "NodeCA",
    "Dispatcher",
    "RaftMembership",
    "ResourceAllocator",
    "LogBroker",
];

/// The same on the control socket.
const LEADER_SERVICES_LOCAL: [&str; 7] = [
    "CA",
    "NodeCA",
    "Dispatcher",
    "Control",
    "Logs",
    "ResourceAllocator",
    "LogBroker",
];

/// What the table says of one method.
#[derive(Default)]
struct Method {
    roles: Vec<&'static str>,
    insecure: bool,
    leader_remote: bool,
    leader_local: bool,
    client_stream: bool,
    server_stream: bool,
}

/// Writes the authorization table, sorted by path for binary search.
fn write_method_auth(out_dir: &Path, descriptors: &FileDescriptorSet) {
    let facts = fs::read_to_string(FACTS).expect("wire facts");
    let facts: serde_json::Value = serde_json::from_str(&facts).expect("wire facts are JSON");
    let mut methods: BTreeMap<String, Method> = BTreeMap::new();
    for (package, content) in facts["packages"].as_object().expect("packages") {
        for (service, rpcs) in content["services"].as_object().expect("services") {
            for (rpc, fact) in rpcs.as_object().expect("rpcs") {
                let roles = fact["roles"].as_array().expect("roles").iter();
                let roles = roles.map(|role| role_variant(role.as_str().expect("role")));
                let flag = |name: &str| fact[name].as_bool().expect("a truth value");
                let method = Method {
                    roles: roles.collect(),
                    insecure: flag("insecure"),
                    leader_remote: LEADER_SERVICES_REMOTE.contains(&service.as_str()),
                    leader_local: LEADER_SERVICES_LOCAL.contains(&service.as_str()),
                    client_stream: flag("client_stream"),
                    server_stream: flag("server_stream"),
                };
                methods.insert(format!("/{package}.{service}/{rpc}"), method);
            }
        }
    }
    let own = descriptors
        .file
        .iter()
        .filter(|file| file.package() == OWN_PACKAGE);
    for service in own.flat_map(|file| &file.service) {
        for rpc in &service.method {
            let path = format!("/{OWN_PACKAGE}.{}/{}", service.name(), rpc.name());
            let method = Method {
                roles: vec!["Role::Manager"],
                client_stream: rpc.client_streaming(),
                server_stream: rpc.server_streaming(),
                ..Method::default()
            };
            methods.insert(path, method);
        }
    }

    let mut code = format!("static METHODS: [MethodAuth; {}] = [\n", methods.len());
    for (path, method) in &methods {
        let roles = method.roles.join(", ");
        writeln!(
            code,
            "    MethodAuth {{ path: {path:?}, roles: &[{roles}], insecure: {}, leader_remote: {}, \
             leader_local: {}, client_stream: {}, server_stream: {} }},",
            method.insecure,
            method.leader_remote,
            method.leader_local,
            method.client_stream,
            method.server_stream,
        )
        .expect("writing to a string");
    }
    code.push_str("];\n");
    fs::write(out_dir.join("method_auth.rs"), code).expect("writable OUT_DIR");
}

/// The variant of `api::roles::Role` for a certificate's organizational unit.
fn role_variant(unit: &str) -> &'static str {
    match unit {
        "swarm-worker" => "Role::Worker",
        "swarm-manager" => "Role::Manager",
        other => panic!("unknown role {other} in {FACTS}"),
    }
}
