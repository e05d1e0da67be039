//! A durable, highly available Swarm cluster manager.
//!
//! The rooms, each depending only on rooms above it:
//!
//! - [`api`] – generated wire types; IDs, names, times that several rooms share
//! - [`storage`] – everything that touches the disk, and the typed tables
//! - [`identity`] – CA, certificates, join tokens, TLS, key file, caller authorization
//! - [`raft`] – consensus
//! - [`services`] – what runs on top of the store
//! - [`agent`] – the worker side of a node
//! - [`manager`] – builds one manager and runs it
//! - [`node`] – one node, supervising its agent and its manager
//! - [`cli`] – what the command-line tools share: the control socket, tables, JSON, units

pub mod agent;
pub mod api;
pub mod cli;
pub mod identity;
pub mod manager;
pub mod node;
pub mod raft;
pub mod services;
pub mod storage;

/// Writers, the raft thread and the applier free what another of them allocated, which the C library's
/// allocator answers with waits for its locks.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
