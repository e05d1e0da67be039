//! Which executor runs this node's tasks, from the flags.

use crate::args::{ExecutorName, NodeFlags};
use anyhow::bail;
use swarm_manager::node::ExecutorMaker;

/// How to make the executor that the flags ask for.
pub fn maker(flags: &NodeFlags) -> anyhow::Result<ExecutorMaker> {
    match flags.executor {
        ExecutorName::Process => Ok(process(flags.task_tmpfs.clone())),
        ExecutorName::None => Ok(none()),
        ExecutorName::Docker => bail!("--executor docker is not available yet"),
        ExecutorName::Sim => bail!("--executor sim is not available yet"),
    }
}
