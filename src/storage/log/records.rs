//! The small records that lie beside the entries in the raft log (spec 03 section 20.1).

use super::super::codec::Record;
use serde::{Deserialize, Serialize};

/// Keys of the records.
pub mod key {
    pub const HARD_STATE: &[u8] = b"hs";
    pub const TRUNCATED: &[u8] = b"ts";
    pub const IDENTITY: &[u8] = b"id";
    pub const FORMAT: &[u8] = b"fmt";
    /// Random public salt of this log, raw bytes.
    pub const SALT: &[u8] = b"salt";
    /// Prefix of one-shot markers.
    pub const MARKER: &[u8] = b"mark/";
}

/// Layout of the log that this program writes.
pub const FORMAT_VERSION: u32 = 1;

/// An entry's place: index and term. (0, 0) is the place in front of the first entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogPosition {
    pub index: u64,
    pub term: u64,
}

/// The truncated state: the log begins behind it.
impl Record for LogPosition {
    const KIND: &'static str = "truncated state";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 32;
}

/// What the raft library must find again after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HardStateRecord {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

impl Record for HardStateRecord {
    const KIND: &'static str = "hard state";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 48;
}

/// Which member of which group this log belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Never 0, never used again in this group once the member is removed.
    pub raft_id: u64,
    pub node_id: String,
    pub cluster_id: String,
    /// `host:port` under which the other members reach this one.
    pub address: String,
    /// Seconds since 1970.
    pub created_unix_s: u64,
}

impl Record for Identity {
    const KIND: &'static str = "identity";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 4096;
}

/// What wrote the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    pub version: u32,
    /// Release that created the log.
    pub created_by: String,
}

impl Record for Format {
    const KIND: &'static str = "log format";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 256;
}

/// Text of a one-shot marker, such as "forced at …".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker(pub String);

impl Record for Marker {
    const KIND: &'static str = "marker";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 1024;
}
