//! One task on this node: its state machine ([`machine`]) and the loop that drives it ([`driver`]).

pub mod driver;
pub mod machine;
