//! Whole processes: `swarmd` with its tools, killed, restarted, refused, measured.

mod harness;

#[path = "cluster/agent.rs"]
mod agent;
#[path = "cluster/cli.rs"]
mod cli;
#[path = "cluster/crash.rs"]
mod crash;
#[path = "cluster/disk_full.rs"]
mod disk_full;
#[path = "cluster/failover.rs"]
mod failover;
#[path = "cluster/leave.rs"]
mod leave;
#[path = "cluster/process.rs"]
mod process;
#[path = "cluster/refusals.rs"]
mod refusals;
#[path = "cluster/rekey.rs"]
mod rekey;
#[path = "cluster/roles.rs"]
mod roles;
#[path = "cluster/secrecy.rs"]
mod secrecy;
#[path = "cluster/stack.rs"]
mod stack;
#[path = "cluster/strangers.rs"]
mod strangers;
