//! What counts when a service spec leaves something out.
//!
//! The constants are what the manager and the agent act on; [`service_spec`] writes them into a copy
//! of a spec for callers who want to see them. Stored specs keep exactly what the user sent, so that
//! a later default can differ (spec 05 section 18).

use prost_types::Duration;

use super::types::update_config::{FailureAction, UpdateOrder};
use super::types::{
    ContainerSpec, RestartPolicy, ServiceSpec, UpdateConfig, restart_policy, task_spec,
};

/// How long a container may take to stop before it is killed.
pub const STOP_GRACE_PERIOD: Duration = seconds(10);

/// Pause between the end of a task and the start of its replacement.
pub const RESTART_DELAY: Duration = seconds(5);

/// When a task is replaced.
pub const RESTART_CONDITION: restart_policy::RestartCondition =
    restart_policy::RestartCondition::Any;

/// How long a new task is watched for failure during an update.
pub const UPDATE_MONITOR: Duration = seconds(5);

/// Tasks replaced at a time during an update.
pub const UPDATE_PARALLELISM: u64 = 1;

const fn seconds(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}

/// The update and rollback configuration of a service that has none.
pub fn update_config() -> UpdateConfig {
    UpdateConfig {
        parallelism: UPDATE_PARALLELISM,
        failure_action: FailureAction::Pause as i32,
        monitor: Some(UPDATE_MONITOR),
        order: UpdateOrder::StopFirst as i32,
        ..Default::default()
    }
}

/// The restart policy of a service that has none.
pub fn restart_policy() -> RestartPolicy {
    RestartPolicy {
        condition: RESTART_CONDITION as i32,
        delay: Some(RESTART_DELAY),
        ..Default::default()
    }
}

/// Completes a spec with the defaults. Whatever is set stays as it is.
pub fn service_spec(spec: &mut ServiceSpec) {
    let task = spec.task.get_or_insert_default();
    if let Some(task_spec::Runtime::Container(container)) = &mut task.runtime {
        container_spec(container);
    }
    task.resources.get_or_insert_default();
    task.restart
        .get_or_insert_with(restart_policy)
        .delay
        .get_or_insert(RESTART_DELAY);
    task.placement.get_or_insert_default();
    for config in [&mut spec.update, &mut spec.rollback] {
        config
            .get_or_insert_with(update_config)
            .monitor
            .get_or_insert(UPDATE_MONITOR);
    }
}

fn container_spec(container: &mut ContainerSpec) {
    container.stop_grace_period.get_or_insert(STOP_GRACE_PERIOD);
    container.pull_options.get_or_insert_default();
    container.dns_config.get_or_insert_default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{GenericRuntimeSpec, TaskSpec};

    fn with_runtime(runtime: task_spec::Runtime) -> ServiceSpec {
        ServiceSpec {
            task: Some(TaskSpec {
                runtime: Some(runtime),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    // 05-A21
    #[test]
    fn an_empty_spec_is_completed() {
        let mut spec = with_runtime(task_spec::Runtime::Container(ContainerSpec::default()));
        service_spec(&mut spec);
        let task = spec.task.unwrap();
        let Some(task_spec::Runtime::Container(container)) = task.runtime else {
            panic!("the runtime has changed");
        };
        assert_eq!(container.stop_grace_period, Some(seconds(10)));
        assert_eq!(container.pull_options, Some(Default::default()));
        assert_eq!(container.dns_config, Some(Default::default()));
        assert_eq!(task.resources, Some(Default::default()));
        assert_eq!(task.placement, Some(Default::default()));
        let restart = task.restart.unwrap();
        assert_eq!(
            restart.condition,
            restart_policy::RestartCondition::Any as i32
        );
        assert_eq!(restart.delay, Some(seconds(5)));
        assert_eq!((restart.max_attempts, restart.window), (0, None));
        for config in [spec.update, spec.rollback] {
            let config = config.unwrap();
            assert_eq!(config.parallelism, 1);
            assert_eq!(config.failure_action, FailureAction::Pause as i32);
            assert_eq!(config.monitor, Some(seconds(5)));
            assert_eq!(config.order, UpdateOrder::StopFirst as i32);
            assert_eq!((config.delay, config.max_failure_ratio), (None, 0.0));
        }
    }

    // 05-A21
    #[test]
    fn what_is_set_stays() {
        let mut spec = with_runtime(task_spec::Runtime::Container(ContainerSpec {
            stop_grace_period: Some(seconds(0)),
            ..Default::default()
        }));
        spec.task.as_mut().unwrap().restart = Some(RestartPolicy {
            condition: restart_policy::RestartCondition::None as i32,
            max_attempts: 3,
            ..Default::default()
        });
        spec.update = Some(UpdateConfig {
            parallelism: 0,
            failure_action: FailureAction::Continue as i32,
            ..Default::default()
        });
        service_spec(&mut spec);
        let task = spec.task.unwrap();
        let Some(task_spec::Runtime::Container(container)) = task.runtime else {
            panic!("the runtime has changed");
        };
        assert_eq!(container.stop_grace_period, Some(seconds(0)));
        let restart = task.restart.unwrap();
        assert_eq!(
            restart.condition,
            restart_policy::RestartCondition::None as i32
        );
        assert_eq!((restart.delay, restart.max_attempts), (Some(seconds(5)), 3));
        let update = spec.update.unwrap();
        assert_eq!(update.parallelism, 0);
        assert_eq!(update.failure_action, FailureAction::Continue as i32);
        assert_eq!(update.monitor, Some(seconds(5)));
    }

    #[test]
    fn other_runtimes_get_no_container_defaults() {
        let generic = task_spec::Runtime::Generic(GenericRuntimeSpec::default());
        let mut spec = with_runtime(generic.clone());
        service_spec(&mut spec);
        assert_eq!(spec.task.unwrap().runtime, Some(generic));
        let mut empty = ServiceSpec::default();
        service_spec(&mut empty);
        assert_eq!(empty.task.unwrap().runtime, None);
    }
}
