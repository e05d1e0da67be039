//! `swarmctl task`: list, inspect, remove.

use crate::Context;
use crate::resolve::{self, Names};
use clap::Subcommand;
use swarm_manager::api::naming::task_name;
use swarm_manager::api::time;
use swarm_manager::api::types::*;
use swarm_manager::cli::output::{Row, message_json, print_json, print_rows, print_text};
use swarm_manager::cli::units::age;

#[derive(Subcommand)]
pub enum Command {
    /// List tasks that should run
    Ls {
        /// Also tasks that should no longer run
        #[arg(short, long)]
        all: bool,
        /// Only IDs
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show one task
    Inspect { task: String },
    /// Remove a task from the store
    #[command(visible_alias = "remove")]
    Rm {
        #[arg(required = true)]
        tasks: Vec<String>,
    },
}

#[derive(serde::Serialize)]
struct TaskRow {
    id: String,
    name: String,
    service: String,
    slot: u64,
    desired_state: String,
    state: String,
    since: String,
    node: String,
    message: String,
    error: String,
    #[serde(skip)]
    age: String,
}

impl Row for TaskRow {
    const COLUMNS: &'static [&'static str] =
        &["ID", "NAME", "DESIRED", "STATE", "SINCE", "NODE", "ERROR"];
    fn cells(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.name.clone(),
            self.desired_state.clone(),
            self.state.clone(),
            self.age.clone(),
            self.node.clone(),
            self.error.clone(),
        ]
    }
}

pub async fn run(context: &mut Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls { all, quiet } => {
            let tasks = context
                .control
                .list_tasks(ListTasksRequest::default())
                .await?
                .into_inner()
                .tasks;
            let names = Names::load(context).await?;
            print(context, &names, tasks, all, quiet)
        }
        Command::Inspect { task } => {
            let task = resolve::task(context, &task).await?;
            print_json(&message_json("docker.swarmkit.v1.Task", &task)?)?;
            Ok(())
        }
        Command::Rm { tasks } => {
            for wanted in tasks {
                let task = resolve::task(context, &wanted).await?;
                let request = RemoveTaskRequest {
                    task_id: task.id.clone(),
                };
                context.control.remove_task(request).await?;
                print_text(&format!("{}\n", task.id))?;
            }
            Ok(())
        }
    }
}

/// Prints tasks by service and slot, the newest of a slot first.
pub fn print(
    context: &Context,
    names: &Names,
    mut tasks: Vec<Task>,
    all: bool,
    quiet: bool,
) -> anyhow::Result<()> {
    if !all {
        tasks.retain(|task| task.desired_state <= TaskState::Running as i32);
    }
    let created = |task: &Task| {
        let stamp = task.meta.as_ref().and_then(|meta| meta.created_at);
        stamp.map_or((0, 0), |stamp| (-stamp.seconds, -stamp.nanos))
    };
    tasks.sort_by(|a, b| {
        (&a.service_id, a.slot, &a.node_id, created(a)).cmp(&(
            &b.service_id,
            b.slot,
            &b.node_id,
            created(b),
        ))
    });
    if quiet {
        let ids: String = tasks.iter().map(|task| format!("{}\n", task.id)).collect();
        print_text(&ids)?;
        return Ok(());
    }
    let now = time::now();
    let rows: Vec<TaskRow> = tasks.iter().map(|task| row(names, task, &now)).collect();
    print_rows(context.format, &rows)?;
    Ok(())
}

fn row(names: &Names, task: &Task, now: &prost_types::Timestamp) -> TaskRow {
    let status = task.status.clone().unwrap_or_default();
    TaskRow {
        id: task.id.clone(),
        name: short_name(task),
        service: names.service(&task.service_id),
        slot: task.slot,
        desired_state: task.desired_state().as_str_name().to_string(),
        state: status.state().as_str_name().to_string(),
        since: status
            .timestamp
            .as_ref()
            .map(time::rfc3339_nano)
            .unwrap_or_default(),
        node: names.node(&task.node_id),
        message: status.message.clone(),
        error: status.err.clone(),
        age: age(status.timestamp.as_ref(), now),
    }
}

/// The task's name without its ID, which has a column of its own.
fn short_name(task: &Task) -> String {
    let full = task_name(task);
    full.strip_suffix(&format!(".{}", task.id))
        .map(str::to_string)
        .unwrap_or(full)
}
