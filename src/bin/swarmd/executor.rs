//! Which executor runs this node's tasks, from the flags.

use crate::args::{ExecutorName, NodeFlags};
use anyhow::bail;
use std::path::PathBuf;
use std::sync::Arc;
use swarm_manager::agent::none::NoneExecutor;
use swarm_manager::agent::process::{ProcessConfig, ProcessExecutor};
use swarm_manager::node::{ExecutorMaker, ExecutorParts};

/// How to make the executor that the flags ask for.
pub fn maker(flags: &NodeFlags) -> anyhow::Result<ExecutorMaker> {
    match flags.executor {
        ExecutorName::Process => Ok(process(flags.task_tmpfs.clone())),
        ExecutorName::None => Ok(none()),
        ExecutorName::Docker => bail!("--executor docker is not available yet"),
        ExecutorName::Sim => bail!("--executor sim is not available yet"),
    }
}

fn none() -> ExecutorMaker {
    Box::new(|_| Ok(Arc::new(NoneExecutor)))
}

fn process(task_tmpfs: Option<PathBuf>) -> ExecutorMaker {
    Box::new(|parts: ExecutorParts| {
        let config = ProcessConfig {
            task_tmpfs,
            ..ProcessConfig::new(parts.node_id, parts.worker_dir)
        };
        let executor = ProcessExecutor::new(config, parts.worker_key, parts.dependencies)?;
        Ok(Arc::new(executor))
    })
}
