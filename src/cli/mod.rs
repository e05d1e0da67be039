//! What the command-line tools share: the control socket, aligned tables, JSON of stored objects,
//! sizes and durations as people write them.
//!
//! Nothing here decides anything about the cluster; it turns words into requests and answers into text.

pub mod calibrate;
pub mod connect;
pub mod output;
pub mod units;
