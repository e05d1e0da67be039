//! The wire interface: every message and service that crosses a process boundary, as Rust types.
//!
//! The types are generated from `proto/` when the crate is built; nothing here is written by hand
//! except the few rules that several rooms share:
//!
//! * [`types`] – package `docker.swarmkit.v1`, the swarm API that Docker Engines speak;
//! * [`raftpb`], [`walpb`], [`snappb`] – messages of the raft peers and of the files in a Docker
//!   Engine's swarm directory;
//! * [`admin`] – package `swarmmanager.v1`, what we offer beyond the swarm API;
//! * [`roles`] – who may call which method;
//! * [`ids`], [`naming`], [`time`] – object IDs, names, timestamps;
//! * [`constraint`], [`generic`], [`image_ref`], [`template`] – the small languages inside specs: placement
//!   constraints, generic resources, image references, templates;
//! * [`validate`], [`defaults`] – what names and durations must look like, and what counts when a spec
//!   leaves something out.
//!
//! Guarantees: field numbers, types and presence are exactly the peer's (`tests/wire.rs` compares
//! each with the recorded facts), and equal messages encode to equal bytes, because map fields are
//! ordered maps. Unknown enum numbers survive decoding, since enum fields are plain `i32`; unknown
//! fields do not.
//!
//! This room never touches the disk or the network.

pub mod constraint;
pub mod defaults;
pub mod generic;
pub mod ids;
pub mod image_ref;
pub mod naming;
pub mod roles;
pub mod template;
pub mod time;
pub mod validate;

/// Package `docker.swarmkit.v1`: objects, specs and services of the swarm API.
///
/// Sub-messages are `Option`s. Many of them are never absent in the peer's own types; an absent one
/// then means the same as an empty one.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::nursery)]
pub mod types {
    tonic::include_proto!("docker.swarmkit.v1");
}

/// Package `raftpb`: what raft members say to each other, and the entries they keep.
///
/// These are proto2 messages: `None` and an explicit zero mean the same to a reader but encode
/// differently. The peer always writes scalar fields, even zero ones, so code that builds a message
/// for the wire or the log sets them all (`Some(0)`) to be identical byte for byte. Byte strings
/// and sub-messages are left out when they are not there.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::nursery)]
pub mod raftpb {
    tonic::include_proto!("raftpb");
}

/// Package `walpb`: framing of the write-ahead log in a Docker Engine's swarm directory.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::nursery)]
pub mod walpb {
    tonic::include_proto!("walpb");
}

/// Package `snappb`: framing of the snapshot files in a Docker Engine's swarm directory.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::nursery)]
pub mod snappb {
    tonic::include_proto!("snappb");
}

/// Package `swarmmanager.v1`: our own services, unknown to other implementations.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::nursery)]
pub mod admin {
    tonic::include_proto!("swarmmanager.v1");
}

/// Descriptors of all packages above and of the well-known types they import: an encoded
/// `google.protobuf.FileDescriptorSet` without source positions.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("descriptors");
