//! Waits until a service runs as asked, showing progress: a bar on a terminal, plain lines elsewhere.

use crate::Context;
use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use swarm_manager::api::types::*;
use tokio::time::Instant;

/// How often the manager is asked. A listing of one service's tasks costs it well under a millisecond.
const POLL: Duration = Duration::from_millis(200);

/// Shows the count of running tasks of one service as it changes.
struct Progress {
    bar: Option<ProgressBar>,
    shown: Option<(u64, u64)>,
}

impl Progress {
    fn new() -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} running {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, shown: None }
    }

    fn show(&mut self, running: u64, desired: u64, trouble: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(desired);
            bar.set_position(running);
            bar.set_message(trouble.to_string());
        } else if self.shown != Some((running, desired)) {
            let trouble = if trouble.is_empty() {
                String::new()
            } else {
                format!(" ({trouble})")
            };
            eprintln!("{running}/{desired} running{trouble}");
        }
        self.shown = Some((running, desired));
    }

    fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}

/// Returns when exactly the desired number of tasks runs; an error names what stands in the way.
pub async fn until_running(
    context: &mut Context,
    service_id: &str,
    limit: Duration,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + limit;
    let mut progress = Progress::new();
    loop {
        let request = ListServiceStatusesRequest {
            services: vec![service_id.to_string()],
        };
        let statuses = context
            .control
            .list_service_statuses(request)
            .await?
            .into_inner()
            .statuses;
        let status = statuses.into_iter().next().unwrap_or_default();
        let trouble = trouble(context, service_id).await?;
        progress.show(status.running_tasks, status.desired_tasks, &trouble.text);
        if status.running_tasks == status.desired_tasks && trouble.live == status.desired_tasks {
            progress.done();
            return Ok(());
        }
        if Instant::now() >= deadline {
            let reason = if trouble.text.is_empty() {
                "no task reports a reason".to_string()
            } else {
                trouble.text
            };
            bail!(
                "{} of {} tasks run after {} s: {reason}",
                status.running_tasks,
                status.desired_tasks,
                limit.as_secs()
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Returns when no task of the service is left.
pub async fn until_gone(
    context: &mut Context,
    service_id: &str,
    limit: Duration,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let left = tasks(context, service_id).await?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "{} tasks are still there after {} s",
                left.len(),
                limit.as_secs()
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

struct Trouble {
    /// Tasks of the service that are wanted and have not ended.
    live: u64,
    /// The newest reason that a wanted task gives for not running.
    text: String,
}

async fn trouble(context: &mut Context, service_id: &str) -> anyhow::Result<Trouble> {
    let tasks = tasks(context, service_id).await?;
    let live = tasks
        .iter()
        .filter(|task| {
            let state = task
                .status
                .as_ref()
                .map_or(TaskState::New, |status| status.state());
            task.desired_state <= TaskState::Running as i32 || state == TaskState::Running
        })
        .count() as u64;
    let text = tasks
        .iter()
        .filter_map(|task| task.status.as_ref())
        .filter(|status| !status.err.is_empty() && status.state() != TaskState::Running)
        .max_by_key(|status| {
            status
                .timestamp
                .map_or((0, 0), |stamp| (stamp.seconds, stamp.nanos))
        })
        .map(|status| status.err.clone())
        .unwrap_or_default();
    Ok(Trouble { live, text })
}

async fn tasks(context: &mut Context, service_id: &str) -> anyhow::Result<Vec<Task>> {
    let request = ListTasksRequest {
        filters: Some(list_tasks_request::Filters {
            service_ids: vec![service_id.to_string()],
            ..Default::default()
        }),
    };
    Ok(context
        .control
        .list_tasks(request)
        .await?
        .into_inner()
        .tasks)
}
