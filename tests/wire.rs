//! Tests of the wire interface: that the compiled protobuf sources are exactly the recorded facts,
//! and that messages encode to the bytes that peers expect.
//!
//! `tests/data/swarmkit-wire.json` holds the facts: every message, field, enum value and method of
//! the interface, and who may call each method. Nothing may be missing from our sources and nothing
//! may be there in addition.

#[path = "wire/bytes.rs"]
mod bytes;
#[path = "wire/facts.rs"]
mod facts;
