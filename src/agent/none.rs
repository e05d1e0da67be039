//! The driver `none`: a node that takes no tasks, such as a manager that only manages.
//!
//! It announces itself as an executor, so that the scheduler never places anything here; a task that
//! arrives all the same is rejected with the reason.

use super::executor::{Controller, Executor, ExecutorError, TaskError};
use crate::api::types::{
    EncryptionKey, EngineDescription, Node, NodeDescription, Platform, PluginDescription,
    Resources, Task,
};
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;

/// See the module's comment.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoneExecutor;

impl Executor for NoneExecutor {
    fn describe(&self) -> BoxFuture<'_, Result<NodeDescription, ExecutorError>> {
        let system = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let description = NodeDescription {
            hostname: text(system.nodename()),
            platform: Some(Platform {
                architecture: text(system.machine()),
                os: text(system.sysname()).to_lowercase(),
            }),
            resources: Some(Resources::default()),
            engine: Some(EngineDescription {
                engine_version: format!("swarmd/{}", env!("CARGO_PKG_VERSION")),
                plugins: vec![PluginDescription {
                    r#type: "Executor".to_owned(),
                    name: "none".to_owned(),
                }],
                ..Default::default()
            }),
            ..Default::default()
        };
        Box::pin(std::future::ready(Ok(description)))
    }

    fn configure(&self, _node: Arc<Node>) -> BoxFuture<'_, Result<(), ExecutorError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn set_network_keys(
        &self,
        _keys: Arc<Vec<EncryptionKey>>,
    ) -> BoxFuture<'_, Result<(), ExecutorError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn controller(
        &self,
        _task: Arc<Task>,
    ) -> BoxFuture<'_, Result<Arc<dyn Controller>, TaskError>> {
        let refusal = TaskError::fatal("this node runs no tasks (--executor none)");
        Box::pin(std::future::ready(Err(refusal)))
    }

    fn retain(&self, _task_ids: BTreeSet<String>) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
