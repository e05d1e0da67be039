//! One node: its certificate, its addresses, and the supervision of its agent and its manager.

pub mod addresses;
