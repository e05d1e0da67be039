//! Consensus: one member of the raft group that replicates the store's transactions.
//!
//! ```text
//!   Store ── propose ──▶ inbox ──▶ raft thread ──▶ log (one batch, one fsync per turn)
//!                          ▲            │  │
//!   other members ─ step ──┘            │  └──▶ outbox ──▶ other members
//!                          ▲            ▼
//!                          └─ report ─ apply thread ──▶ Store (one batch per run of entries)
//! ```
//!
//! Two plain threads, because their I/O blocks. The *raft thread* (`node.rs`) alone calls the consensus
//! library and the log. The *apply thread* (`applier.rs`) alone writes the tables. They share no locks
//! but the inbox, and neither ever waits for the other: when the applier is behind, committed entries
//! stay in the log.
//!
//! Guarantees:
//!
//! * nothing is acknowledged, to a caller or to another member, before it is durable in the log;
//! * entries are applied in log order, each exactly once per state;
//! * leadership is announced only when everything before it is applied, and its end is announced
//!   before the transactions that it fails;
//! * a thread that ends unexpectedly takes the process with it.
//!
//! This room knows nothing of services: it offers a [`Handle`] and hands entries to a state machine.

pub mod convert;
pub mod membership;
pub mod rpc;

mod admission;
mod applier;
mod assembly;
mod bootstrap;
mod changes;
mod disk;
mod error;
mod force;
mod handle;
mod health;
mod inbox;
mod log_store;
mod logging;
mod member;
mod node;
mod outbox;
mod phase;
mod reads;
mod ready;
mod retention;
mod space;
mod transport;
mod upkeep;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use bootstrap::new_raft_id;
pub use disk::bootstrap;
pub use error::RaftError;
pub use force::{ForceError, Forced, force_new_cluster};
pub use handle::{End, Handle, Leadership, MemberView, Status};
pub use health::HEALTH_SERVICE;
pub use member::{Config, OnDeath};
pub use outbox::{NoPeers, Outbox};
pub use transport::Transport;
