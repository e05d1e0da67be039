//! The flags that make up a service, and how they become a spec. Only flags that are given change it.

mod parse;

pub use parse::pairs;

use crate::{Context, resolve};
use clap::{Args, ValueEnum};
use parse::*;
use swarm_manager::api::types::restart_policy::RestartCondition;
use swarm_manager::api::types::service_spec::Mode;
use swarm_manager::api::types::task_spec::Runtime;
use swarm_manager::api::types::update_config::{FailureAction, UpdateOrder};
use swarm_manager::api::types::*;
use swarm_manager::cli::units::{parse_bytes, parse_cpus, parse_duration};

/// Pause before a replacement starts unless a flag says otherwise: the default of the API.
const RESTART_DELAY: prost_types::Duration = prost_types::Duration {
    seconds: 5,
    nanos: 0,
};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    Replicated,
    Global,
    ReplicatedJob,
    GlobalJob,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RestartName {
    Any,
    #[value(alias = "on-failure")]
    Failure,
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnFailure {
    Pause,
    Continue,
    Rollback,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    StopFirst,
    StartFirst,
}

#[derive(Args)]
pub struct SpecFlags {
    /// Name of the service
    #[arg(long)]
    pub name: Option<String>,
    /// Image of its tasks; `host` runs the command as a process of a swarmd node
    #[arg(long)]
    pub image: Option<String>,
    /// How many tasks, and where
    #[arg(long, value_enum)]
    mode: Option<ModeName>,
    /// Number of replicas (1 when a service is created)
    #[arg(long)]
    replicas: Option<u64>,
    /// Most replicas on one node, 0 for no limit
    #[arg(long)]
    replicas_max_per_node: Option<u64>,
    /// Label of the service, KEY=VALUE
    #[arg(long)]
    label: Vec<String>,

    /// Command, one word each time, or several words: --command sleep
    #[arg(long, num_args = 1.., allow_hyphen_values = false, help_heading = "Task")]
    command: Vec<String>,
    /// Arguments of the command: --args 1000 or --args=-v
    #[arg(long, num_args = 1.., help_heading = "Task")]
    args: Vec<String>,
    /// Environment variable, KEY=VALUE
    #[arg(long, help_heading = "Task")]
    env: Vec<String>,
    /// Host name inside the task
    #[arg(long, help_heading = "Task")]
    hostname: Option<String>,
    /// Working directory
    #[arg(long, help_heading = "Task")]
    dir: Option<String>,
    /// User to run as
    #[arg(long, help_heading = "Task")]
    user: Option<String>,
    /// Allocate a terminal
    #[arg(long, help_heading = "Task")]
    tty: bool,
    /// Keep standard input open
    #[arg(long, help_heading = "Task")]
    open_stdin: bool,
    /// Run an init process in the container
    #[arg(long, help_heading = "Task")]
    init: Option<bool>,
    /// Signal that asks a task to stop
    #[arg(long, help_heading = "Task")]
    stop_signal: Option<String>,
    /// Time between asking and killing
    #[arg(long, value_parser = parse_duration, help_heading = "Task")]
    stop_grace_period: Option<prost_types::Duration>,
    /// Secret, NAME[:FILE]
    #[arg(long, help_heading = "Task")]
    secret: Vec<String>,
    /// Config, NAME[:FILE]
    #[arg(long, help_heading = "Task")]
    config: Vec<String>,
    /// Limit of a resource of the process, NAME=SOFT[:HARD]
    #[arg(long, help_heading = "Task")]
    ulimit: Vec<String>,
    /// -1000 to 1000; higher is killed first when memory runs out
    #[arg(long, allow_negative_numbers = true, help_heading = "Task")]
    oom_score_adj: Option<i64>,
    /// Directory of the host, SOURCE:TARGET
    #[arg(long, help_heading = "Task")]
    bind: Vec<String>,
    /// Anonymous volume at TARGET
    #[arg(long, help_heading = "Task")]
    volume: Vec<String>,
    /// Memory file system, /PATH[:size=64m,mode=0700,ro]
    #[arg(long, help_heading = "Task")]
    tmpfs: Vec<String>,
    /// Log driver
    #[arg(long, help_heading = "Task")]
    log_driver: Option<String>,
    /// Option of the log driver, KEY=VALUE
    #[arg(long, help_heading = "Task")]
    log_opt: Vec<String>,

    /// CPUs a task reserves, such as 0.5
    #[arg(long, value_parser = parse_cpus, help_heading = "Resources and placement")]
    cpu_reservation: Option<i64>,
    /// CPUs a task may use
    #[arg(long, value_parser = parse_cpus, help_heading = "Resources and placement")]
    cpu_limit: Option<i64>,
    /// Memory a task reserves, such as 64m
    #[arg(long, value_parser = parse_bytes, help_heading = "Resources and placement")]
    memory_reservation: Option<i64>,
    /// Memory a task may use
    #[arg(long, value_parser = parse_bytes, help_heading = "Resources and placement")]
    memory_limit: Option<i64>,
    /// Where tasks may run, such as node.labels.zone==a
    #[arg(long, help_heading = "Resources and placement")]
    constraint: Vec<String>,
    /// Published port, [NAME:]TARGET[/PROTO]:PUBLISHED, on the node that runs the task
    #[arg(long, help_heading = "Resources and placement")]
    ports: Vec<String>,
    /// Network to attach to
    #[arg(long, help_heading = "Resources and placement")]
    network: Vec<String>,

    /// When an ended task is replaced
    #[arg(long, value_enum, help_heading = "Restarts and updates")]
    restart_condition: Option<RestartName>,
    /// Pause before a replacement starts (5s unless given)
    #[arg(long, value_parser = parse_duration, help_heading = "Restarts and updates")]
    restart_delay: Option<prost_types::Duration>,
    /// Replacements per window, 0 for no limit
    #[arg(long, help_heading = "Restarts and updates")]
    restart_max_attempts: Option<u64>,
    /// Window in which attempts count, 0 for ever
    #[arg(long, value_parser = parse_duration, help_heading = "Restarts and updates")]
    restart_window: Option<prost_types::Duration>,
    /// Tasks updated at the same time, 0 for all
    #[arg(long, help_heading = "Restarts and updates")]
    update_parallelism: Option<u64>,
    /// Pause between updates
    #[arg(long, value_parser = parse_duration, help_heading = "Restarts and updates")]
    update_delay: Option<prost_types::Duration>,
    /// What a failed update does
    #[arg(long, value_enum, help_heading = "Restarts and updates")]
    update_on_failure: Option<OnFailure>,
    /// Whether the old task stops first
    #[arg(long, value_enum, help_heading = "Restarts and updates")]
    update_order: Option<Order>,
    /// As --update-parallelism, for a rollback
    #[arg(long, help_heading = "Restarts and updates")]
    rollback_parallelism: Option<u64>,
    /// As --update-delay, for a rollback
    #[arg(long, value_parser = parse_duration, help_heading = "Restarts and updates")]
    rollback_delay: Option<prost_types::Duration>,
    /// As --update-on-failure, for a rollback
    #[arg(long, value_enum, help_heading = "Restarts and updates")]
    rollback_on_failure: Option<OnFailure>,
    /// As --update-order, for a rollback
    #[arg(long, value_enum, help_heading = "Restarts and updates")]
    rollback_order: Option<Order>,
}

impl SpecFlags {
    /// Writes the given flags into `spec`. Names of secrets and configs are looked up.
    pub async fn apply(&self, context: &mut Context, spec: &mut ServiceSpec) -> anyhow::Result<()> {
        self.apply_service(spec)?;
        let mut task = match spec.task.take() {
            Some(task) => task,
            // What the API takes an absent policy to mean, written out so that it can be read.
            None => TaskSpec {
                restart: Some(RestartPolicy {
                    condition: RestartCondition::Any as i32,
                    delay: Some(RESTART_DELAY),
                    ..Default::default()
                }),
                ..Default::default()
            },
        };
        self.apply_task(&mut task)?;
        if self.touches_container() || task.runtime.is_none() {
            let mut container = match task.runtime.take() {
                Some(Runtime::Container(container)) => container,
                None => ContainerSpec::default(),
                Some(_) => anyhow::bail!(
                    "the service does not run containers: container flags do not apply"
                ),
            };
            self.apply_container(&mut container)?;
            self.apply_data(context, &mut container).await?;
            task.runtime = Some(Runtime::Container(container));
        }
        spec.task = Some(task);
        Ok(())
    }

    fn apply_service(&self, spec: &mut ServiceSpec) -> anyhow::Result<()> {
        if let Some(name) = &self.name {
            spec.annotations.get_or_insert_default().name = name.clone();
        }
        if !self.label.is_empty() {
            spec.annotations.get_or_insert_default().labels = pairs(&self.label)?;
        }
        self.apply_mode(spec)?;
        if !self.ports.is_empty() {
            let ports = self
                .ports
                .iter()
                .map(|text| port(text))
                .collect::<Result<_, _>>()?;
            spec.endpoint.get_or_insert_default().ports = ports;
        }
        apply_update(
            &mut spec.update,
            (
                self.update_parallelism,
                self.update_delay,
                self.update_on_failure,
                self.update_order,
            ),
        );
        apply_update(
            &mut spec.rollback,
            (
                self.rollback_parallelism,
                self.rollback_delay,
                self.rollback_on_failure,
                self.rollback_order,
            ),
        );
        Ok(())
    }

    fn apply_mode(&self, spec: &mut ServiceSpec) -> anyhow::Result<()> {
        if let Some(mode) = self.mode {
            spec.mode = Some(match mode {
                ModeName::Replicated => Mode::Replicated(ReplicatedService { replicas: 1 }),
                ModeName::Global => Mode::Global(GlobalService {}),
                ModeName::ReplicatedJob => Mode::ReplicatedJob(ReplicatedJob {
                    max_concurrent: 1,
                    total_completions: 1,
                }),
                ModeName::GlobalJob => Mode::GlobalJob(GlobalJob {}),
            });
        }
        let mode = spec
            .mode
            .get_or_insert(Mode::Replicated(ReplicatedService { replicas: 1 }));
        if let Some(replicas) = self.replicas {
            match mode {
                Mode::Replicated(mode) => mode.replicas = replicas,
                Mode::ReplicatedJob(mode) => mode.total_completions = replicas,
                _ => anyhow::bail!("--replicas applies to replicated services only"),
            }
        }
        Ok(())
    }

    fn apply_task(&self, task: &mut TaskSpec) -> anyhow::Result<()> {
        let mut resources = task.resources.take().unwrap_or_default();
        let before = resources.clone();
        if let Some(cpus) = self.cpu_reservation {
            resources.reservations.get_or_insert_default().nano_cpus = cpus;
        }
        if let Some(bytes) = self.memory_reservation {
            resources.reservations.get_or_insert_default().memory_bytes = bytes;
        }
        if let Some(cpus) = self.cpu_limit {
            resources.limits.get_or_insert_default().nano_cpus = cpus;
        }
        if let Some(bytes) = self.memory_limit {
            resources.limits.get_or_insert_default().memory_bytes = bytes;
        }
        if resources != before || resources != ResourceRequirements::default() {
            task.resources = Some(resources);
        }
        if !self.constraint.is_empty() {
            task.placement.get_or_insert_default().constraints = self.constraint.clone();
        }
        if let Some(limit) = self.replicas_max_per_node {
            task.placement.get_or_insert_default().max_replicas = limit;
        }
        if !self.network.is_empty() {
            task.networks = self
                .network
                .iter()
                .map(|target| NetworkAttachmentConfig {
                    target: target.clone(),
                    ..Default::default()
                })
                .collect();
        }
        if self.log_driver.is_some() || !self.log_opt.is_empty() {
            let driver = task.log_driver.get_or_insert_default();
            if let Some(name) = &self.log_driver {
                driver.name = name.clone();
            }
            driver.options.extend(pairs(&self.log_opt)?);
        }
        self.apply_restart(task);
        Ok(())
    }

    fn apply_restart(&self, task: &mut TaskSpec) {
        let given = self.restart_condition.is_some()
            || self.restart_delay.is_some()
            || self.restart_max_attempts.is_some()
            || self.restart_window.is_some();
        if !given {
            return;
        }
        let policy = task.restart.get_or_insert_with(|| RestartPolicy {
            condition: RestartCondition::Any as i32,
            ..Default::default()
        });
        if let Some(condition) = self.restart_condition {
            policy.set_condition(match condition {
                RestartName::Any => RestartCondition::Any,
                RestartName::Failure => RestartCondition::OnFailure,
                RestartName::None => RestartCondition::None,
            });
        }
        if let Some(delay) = self.restart_delay {
            policy.delay = Some(delay);
        }
        if let Some(attempts) = self.restart_max_attempts {
            policy.max_attempts = attempts;
        }
        if let Some(window) = self.restart_window {
            policy.window = Some(window);
        }
    }

    fn touches_container(&self) -> bool {
        self.image.is_some()
            || self.hostname.is_some()
            || self.dir.is_some()
            || self.user.is_some()
            || self.tty
            || self.open_stdin
            || self.init.is_some()
            || self.stop_signal.is_some()
            || self.stop_grace_period.is_some()
            || self.oom_score_adj.is_some()
            || [
                &self.command,
                &self.args,
                &self.env,
                &self.secret,
                &self.config,
                &self.ulimit,
                &self.bind,
                &self.volume,
                &self.tmpfs,
            ]
            .iter()
            .any(|list| !list.is_empty())
    }

    fn apply_container(&self, container: &mut ContainerSpec) -> anyhow::Result<()> {
        replace(&mut container.image, &self.image);
        replace(&mut container.hostname, &self.hostname);
        replace(&mut container.dir, &self.dir);
        replace(&mut container.user, &self.user);
        replace(&mut container.stop_signal, &self.stop_signal);
        replace_list(&mut container.command, &self.command);
        replace_list(&mut container.args, &self.args);
        replace_list(&mut container.env, &self.env);
        container.tty |= self.tty;
        container.open_stdin |= self.open_stdin;
        if self.init.is_some() {
            container.init = self.init;
        }
        if let Some(period) = self.stop_grace_period {
            container.stop_grace_period = Some(period);
        }
        if let Some(score) = self.oom_score_adj {
            container.oom_score_adj = score;
        }
        if !self.ulimit.is_empty() {
            container.ulimits = self
                .ulimit
                .iter()
                .map(|text| ulimit(text))
                .collect::<Result<_, _>>()?;
        }
        let mut mounts = Vec::new();
        for text in &self.bind {
            mounts.push(bind(text)?);
        }
        for target in &self.volume {
            mounts.push(Mount {
                r#type: mount::Type::Volume as i32,
                target: target.clone(),
                ..Default::default()
            });
        }
        for text in &self.tmpfs {
            mounts.push(tmpfs(text)?);
        }
        if !mounts.is_empty() {
            container.mounts = mounts;
        }
        Ok(())
    }

    async fn apply_data(
        &self,
        context: &mut Context,
        container: &mut ContainerSpec,
    ) -> anyhow::Result<()> {
        if !self.secret.is_empty() {
            container.secrets.clear();
        }
        for text in &self.secret {
            let (name, file) = name_and_file(text);
            let secret = resolve::secret(context, name).await?;
            container.secrets.push(SecretReference {
                secret_id: secret.id,
                secret_name: secret
                    .spec
                    .unwrap_or_default()
                    .annotations
                    .unwrap_or_default()
                    .name,
                target: Some(secret_reference::Target::File(file_target(file))),
            });
        }
        if !self.config.is_empty() {
            container.configs.clear();
        }
        for text in &self.config {
            let (name, file) = name_and_file(text);
            let config = resolve::config(context, name).await?;
            container.configs.push(ConfigReference {
                config_id: config.id,
                config_name: config
                    .spec
                    .unwrap_or_default()
                    .annotations
                    .unwrap_or_default()
                    .name,
                target: Some(config_reference::Target::File(file_target(file))),
            });
        }
        Ok(())
    }
}

fn replace(field: &mut String, given: &Option<String>) {
    if let Some(value) = given {
        field.clone_from(value);
    }
}

fn replace_list(field: &mut Vec<String>, given: &[String]) {
    if !given.is_empty() {
        *field = given.to_vec();
    }
}

type UpdateFlags = (
    Option<u64>,
    Option<prost_types::Duration>,
    Option<OnFailure>,
    Option<Order>,
);

fn apply_update(
    config: &mut Option<UpdateConfig>,
    (parallelism, delay, on_failure, order): UpdateFlags,
) {
    if parallelism.is_none() && delay.is_none() && on_failure.is_none() && order.is_none() {
        return;
    }
    let config = config.get_or_insert_default();
    if let Some(parallelism) = parallelism {
        config.parallelism = parallelism;
    }
    if let Some(delay) = delay {
        config.delay = Some(delay);
    }
    if let Some(action) = on_failure {
        config.set_failure_action(match action {
            OnFailure::Pause => FailureAction::Pause,
            OnFailure::Continue => FailureAction::Continue,
            OnFailure::Rollback => FailureAction::Rollback,
        });
    }
    if let Some(order) = order {
        config.set_order(match order {
            Order::StopFirst => UpdateOrder::StopFirst,
            Order::StartFirst => UpdateOrder::StartFirst,
        });
    }
}
