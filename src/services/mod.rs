//! What runs on top of the store. Leader-gated services live for one leadership term.

pub mod admin;
pub mod health;
pub mod leader;
pub mod orchestrator;
pub mod reconcile;
