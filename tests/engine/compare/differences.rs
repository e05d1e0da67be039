//! Where the two sides are meant to differ, and why. Nothing else may differ, and each of these must.

use Reason::{Better, NotBuilt, OlderPeer};
use std::fmt;
use tonic::Code;

/// A row on which the two sides answer with different codes.
pub struct Difference {
    pub row: &'static str,
    pub engine: Code,
    pub ours: Code,
    pub reason: Reason,
}

/// Why a difference is meant.
#[derive(Clone, Copy)]
pub enum Reason {
    /// A row of spec 05 section 21: what the peer gets wrong.
    Better(&'static str),
    /// A part that does not exist yet says so instead of accepting what nothing would carry out.
    NotBuilt(&'static str),
    /// The Engine that tests run against is older than this part of the interface.
    OlderPeer(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Better(flaw) => write!(f, "a flaw of the peer: {flaw}"),
            NotBuilt(part) => write!(f, "not built yet: {part}"),
            OlderPeer(part) => write!(f, "the Engine is older: {part}"),
        }
    }
}

const fn differs(row: &'static str, engine: Code, ours: Code, reason: Reason) -> Difference {
    Difference {
        row,
        engine,
        ours,
        reason,
    }
}

const GENERIC: Reason = Better("errors of generic resources are swallowed");
const CONSTRAINT: Reason = Better("a malformed constraint is Unknown");
const DURATION: Reason = Better("a malformed duration is Unknown");
const RATIO: Reason = Better("the rollback config is not checked, and NaN passes as a ratio");
const LABEL: Reason = Better("a template may not use the labels of its own spec");
const ENUM: Reason = Better("unknown values of enumerations are stored");
const PORT: Reason = Better("ports above 65535 are stored");
const TICKS: Reason = Better("raft ticks that allow no election are accepted");

const UPDATER: Reason = NotBuilt("rolling updates");
const CA: Reason = NotBuilt("changing the certificate authority");
const EXTENSIONS: Reason = NotBuilt("extensions and resources");
const NETWORKS: Reason = NotBuilt("networks");

const NO_VOLUMES: Reason = OlderPeer("Docker Engine 20.10 has no cluster volumes");

use Code::{AlreadyExists, InvalidArgument, NotFound, Ok, Unimplemented, Unknown};

#[rustfmt::skip] // One difference per line.
pub const DIFFERENCES: &[Difference] = &[
    differs("named generic resource reserved", Ok, InvalidArgument, GENERIC),
    differs("malformed restart delay", Unknown, InvalidArgument, DURATION),
    differs("malformed health check interval", Unknown, InvalidArgument, DURATION),
    differs("malformed update monitor", Unknown, InvalidArgument, DURATION),
    differs("unknown restart condition", Ok, InvalidArgument, ENUM),
    differs("unknown update order", Ok, InvalidArgument, ENUM),
    differs("unknown publish mode", Ok, InvalidArgument, ENUM),
    differs("unknown protocol", Ok, InvalidArgument, ENUM),
    differs("unknown availability", Ok, InvalidArgument, ENUM),
    differs("constraint without operator", Unknown, InvalidArgument, CONSTRAINT),
    differs("constraint with blank key", Unknown, InvalidArgument, CONSTRAINT),
    differs("template with a label of the spec", InvalidArgument, Ok, LABEL),
    differs("failure ratio NaN", Ok, InvalidArgument, RATIO),
    differs("negative rollback delay", Ok, InvalidArgument, RATIO),
    differs("published port 70000", Ok, InvalidArgument, PORT),
    differs("target port 70000", Ok, InvalidArgument, PORT),
    differs("election tick 1, heartbeat tick 10", Ok, InvalidArgument, TICKS),

    differs("change the task template", Ok, Unimplemented, UPDATER),
    differs("change the endpoint", Ok, Unimplemented, UPDATER),
    differs("an invalid signing certificate", InvalidArgument, Unimplemented, CA),
    differs("create extension without name", InvalidArgument, Unimplemented, EXTENSIONS),
    differs("create extension", Ok, Unimplemented, EXTENSIONS),
    differs("create resource of an unknown kind", InvalidArgument, Unimplemented, EXTENSIONS),
    differs("create resource", Ok, Unimplemented, EXTENSIONS),
    differs("remove extension without ID", InvalidArgument, Unimplemented, EXTENSIONS),
    differs("create network without spec", InvalidArgument, Unimplemented, NETWORKS),
    differs("create network without name", InvalidArgument, Unimplemented, NETWORKS),
    differs("create network", Ok, Unimplemented, NETWORKS),
    differs("create network again", Unknown, Unimplemented, NETWORKS),
    differs("create a second ingress network", AlreadyExists, Unimplemented, NETWORKS),
    differs("remove network without ID", InvalidArgument, Unimplemented, NETWORKS),
    differs("remove network that is missing", NotFound, Unimplemented, NETWORKS),
    differs("remove network", Ok, Unimplemented, NETWORKS),

    differs("list volumes", Unimplemented, Ok, NO_VOLUMES),
];
