//! What runs on top of the store. Leader-gated services live for one leadership term.

pub mod admin;
pub mod allocator;
pub mod ca;
pub mod control;
pub mod dispatcher;
pub mod founding;
pub mod health;
pub mod keys;
pub mod leader;
pub mod logs;
pub mod metrics;
pub mod orchestrator;
pub mod proxy;
pub mod reconcile;
pub mod rekey;
pub mod resource;
pub mod roles;
pub mod scheduler;
pub mod server;
pub mod task_diff;

#[cfg(test)]
mod testing;
