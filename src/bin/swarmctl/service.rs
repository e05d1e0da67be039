//! `swarmctl service`: create, update, scale, list, inspect, remove.

use crate::flags::SpecFlags;
use crate::resolve::{self, Names, service_name, version};
use crate::{Context, task, wait};
use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use std::collections::HashMap;
use std::time::Duration;
use swarm_manager::api::types::service_spec::Mode;
use swarm_manager::api::types::task_spec::Runtime;
use swarm_manager::api::types::*;
use swarm_manager::cli::output::{Format, Row, message_json, print_json, print_rows, print_text};

#[derive(Args)]
pub struct Waiting {
    /// Wait until all tasks run as asked
    #[arg(short, long)]
    wait: bool,
    /// Give up waiting after this time
    #[arg(long, default_value = "120s", value_parser = humantime::parse_duration)]
    wait_timeout: Duration,
}

#[derive(Subcommand)]
pub enum Command {
    /// Create a service
    #[command(
        after_help = "Examples:\n  swarmctl service create --name web --image host --replicas 3 --command sleep --args 1000 --wait\n  swarmctl service create --name api --image registry/api:1.2 --env MODE=prod --constraint 'node.labels.zone==a'"
    )]
    Create {
        #[command(flatten)]
        spec: Box<SpecFlags>,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Change a service; only the flags given change anything
    #[command(
        after_help = "Example:\n  swarmctl service update web --label tier=front --replicas 5"
    )]
    Update {
        service: String,
        #[command(flatten)]
        spec: Box<SpecFlags>,
        /// Restart the tasks even if nothing changed
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Set the number of replicas: NAME=N ...
    #[command(after_help = "Example:\n  swarmctl service scale web=5 api=2 --wait")]
    Scale {
        #[arg(required = true, value_name = "SERVICE=REPLICAS")]
        targets: Vec<String>,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// List services
    Ls {
        /// Only IDs
        #[arg(short, long)]
        quiet: bool,
    },
    /// List the tasks of services
    Ps {
        #[arg(required = true)]
        services: Vec<String>,
        /// Also tasks that should no longer run
        #[arg(short, long)]
        all: bool,
        /// Only IDs
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show one service and its tasks
    Inspect {
        service: String,
        /// Also tasks that should no longer run
        #[arg(short, long)]
        all: bool,
    },
    /// Remove services and their tasks
    #[command(visible_alias = "remove")]
    Rm {
        #[arg(required = true)]
        services: Vec<String>,
        #[command(flatten)]
        waiting: Waiting,
    },
}

#[derive(serde::Serialize)]
struct ServiceRow {
    id: String,
    name: String,
    mode: String,
    running: u64,
    desired: u64,
    image: String,
    command: String,
}

impl Row for ServiceRow {
    const COLUMNS: &'static [&'static str] =
        &["ID", "NAME", "MODE", "REPLICAS", "IMAGE", "COMMAND"];
    fn cells(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.name.clone(),
            self.mode.clone(),
            format!("{}/{}", self.running, self.desired),
            self.image.clone(),
            self.command.clone(),
        ]
    }
}

pub async fn run(context: &mut Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create { spec, waiting } => create(context, &spec, &waiting).await,
        Command::Update {
            service,
            spec,
            force,
            waiting,
        } => update(context, &service, &spec, force, &waiting).await,
        Command::Scale { targets, waiting } => scale(context, &targets, &waiting).await,
        Command::Ls { quiet } => list(context, quiet).await,
        Command::Ps {
            services,
            all,
            quiet,
        } => ps(context, &services, all, quiet).await,
        Command::Inspect { service, all } => inspect(context, &service, all).await,
        Command::Rm { services, waiting } => remove(context, &services, &waiting).await,
    }
}

async fn create(context: &mut Context, flags: &SpecFlags, waiting: &Waiting) -> anyhow::Result<()> {
    if flags.name.is_none() || flags.image.is_none() {
        bail!(
            "--name and --image are needed, such as: --name web --image host --command sleep --args 1000"
        );
    }
    let mut spec = ServiceSpec::default();
    flags.apply(context, &mut spec).await?;
    let request = CreateServiceRequest { spec: Some(spec) };
    let created = context
        .control
        .create_service(request)
        .await?
        .into_inner()
        .service;
    finish(context, &created.unwrap_or_default().id, waiting).await
}

async fn update(
    context: &mut Context,
    wanted: &str,
    flags: &SpecFlags,
    force: bool,
    waiting: &Waiting,
) -> anyhow::Result<()> {
    let service = resolve::service(context, wanted).await?;
    let mut spec = service.spec.clone().unwrap_or_default();
    flags.apply(context, &mut spec).await?;
    if force {
        spec.task.get_or_insert_default().force_update += 1;
    }
    if Some(&spec) == service.spec.as_ref() {
        bail!("no changes detected");
    }
    send(context, &service, spec).await?;
    finish(context, &service.id, waiting).await
}

async fn send(context: &mut Context, service: &Service, spec: ServiceSpec) -> anyhow::Result<()> {
    let request = UpdateServiceRequest {
        service_id: service.id.clone(),
        service_version: version(&service.meta),
        spec: Some(spec),
        ..Default::default()
    };
    context.control.update_service(request).await?;
    Ok(())
}

async fn finish(context: &mut Context, id: &str, waiting: &Waiting) -> anyhow::Result<()> {
    print_text(&format!("{id}\n"))?;
    if waiting.wait {
        wait::until_running(context, id, waiting.wait_timeout).await?;
    }
    Ok(())
}

async fn scale(context: &mut Context, targets: &[String], waiting: &Waiting) -> anyhow::Result<()> {
    let mut changes = Vec::with_capacity(targets.len());
    for target in targets {
        let (name, count) = target
            .rsplit_once('=')
            .with_context(|| format!("{target:?} is not SERVICE=REPLICAS"))?;
        let replicas: u64 = count.parse().map_err(|_| {
            anyhow::anyhow!("{count:?} is not a number of replicas (in {target:?})")
        })?;
        let service = resolve::service(context, name).await?;
        let mut spec = service.spec.clone().unwrap_or_default();
        match &mut spec.mode {
            Some(Mode::Replicated(mode)) => mode.replicas = replicas,
            _ => bail!("service {name} is not replicated: only replicated services can be scaled"),
        }
        changes.push((service, spec));
    }
    for (service, spec) in &changes {
        if Some(spec) != service.spec.as_ref() {
            send(context, service, spec.clone()).await?;
        }
        print_text(&format!("{}\n", service.id))?;
    }
    if waiting.wait {
        for (service, _) in &changes {
            wait::until_running(context, &service.id, waiting.wait_timeout).await?;
        }
    }
    Ok(())
}

async fn list(context: &mut Context, quiet: bool) -> anyhow::Result<()> {
    let services = context
        .control
        .list_services(ListServicesRequest::default())
        .await?
        .into_inner()
        .services;
    if quiet {
        let ids: String = services
            .iter()
            .map(|service| format!("{}\n", service.id))
            .collect();
        print_text(&ids)?;
        return Ok(());
    }
    let request = ListServiceStatusesRequest {
        services: services.iter().map(|service| service.id.clone()).collect(),
    };
    let statuses: HashMap<String, _> = context
        .control
        .list_service_statuses(request)
        .await?
        .into_inner()
        .statuses
        .into_iter()
        .map(|status| (status.service_id.clone(), status))
        .collect();
    let rows: Vec<ServiceRow> = services
        .iter()
        .map(|service| {
            let (running, desired) = statuses.get(&service.id).map_or((0, 0), |status| {
                (status.running_tasks, status.desired_tasks)
            });
            row(service, running, desired)
        })
        .collect();
    print_rows(context.format, &rows)?;
    Ok(())
}

fn row(service: &Service, running: u64, desired: u64) -> ServiceRow {
    let spec = service.spec.as_ref();
    let container = spec
        .and_then(|spec| spec.task.as_ref())
        .and_then(|task| match &task.runtime {
            Some(Runtime::Container(container)) => Some(container),
            _ => None,
        });
    let mode = match spec.and_then(|spec| spec.mode.as_ref()) {
        Some(Mode::Replicated(_)) | None => "replicated",
        Some(Mode::Global(_)) => "global",
        Some(Mode::ReplicatedJob(_)) => "replicated job",
        Some(Mode::GlobalJob(_)) => "global job",
    };
    ServiceRow {
        id: service.id.clone(),
        name: service_name(service).to_string(),
        mode: mode.to_string(),
        running,
        desired,
        image: container.map(|c| c.image.clone()).unwrap_or_default(),
        command: container
            .map(|c| [c.command.as_slice(), c.args.as_slice()].concat().join(" "))
            .unwrap_or_default(),
    }
}

async fn ps(
    context: &mut Context,
    wanted: &[String],
    all: bool,
    quiet: bool,
) -> anyhow::Result<()> {
    let mut service_ids = Vec::with_capacity(wanted.len());
    for name in wanted {
        service_ids.push(resolve::service(context, name).await?.id);
    }
    let request = ListTasksRequest {
        filters: Some(list_tasks_request::Filters {
            service_ids,
            ..Default::default()
        }),
    };
    let tasks = context
        .control
        .list_tasks(request)
        .await?
        .into_inner()
        .tasks;
    let names = Names::load(context).await?;
    task::print(context, &names, tasks, all, quiet)
}

async fn inspect(context: &mut Context, wanted: &str, all: bool) -> anyhow::Result<()> {
    let service = resolve::service(context, wanted).await?;
    print_json(&message_json("docker.swarmkit.v1.Service", &service)?)?;
    if context.format == Format::Table {
        print_text("\n")?;
        ps(context, std::slice::from_ref(&service.id), all, false).await?;
    }
    Ok(())
}

async fn remove(context: &mut Context, wanted: &[String], waiting: &Waiting) -> anyhow::Result<()> {
    for name in wanted {
        let service = resolve::service(context, name).await?;
        let request = RemoveServiceRequest {
            service_id: service.id.clone(),
        };
        context.control.remove_service(request).await?;
        print_text(&format!("{}\n", service.id))?;
        if waiting.wait {
            wait::until_gone(context, &service.id, waiting.wait_timeout).await?;
        }
    }
    Ok(())
}
