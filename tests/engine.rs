//! A real Docker Engine as worker, and as the reference for behaviour.

mod harness;

#[path = "engine/compare.rs"]
mod compare;
#[path = "engine/worker.rs"]
mod worker;
