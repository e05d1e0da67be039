//! What a new leader puts right before anything else (spec 06 section 3).
//!
//! The previous leader may have died between any two of its transactions: replacements may wait for a
//! start that nobody remembers, tasks may have ended unseen, services may have gone without their tasks.
//! This file reads one view and says what is to be done; it writes nothing.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::delays::DelayedStart;
use super::history::{RestartHistory, Trace};
use super::task::{self, COMPLETE, READY, SlotKey};
use crate::api::time::{between, to_std};
use crate::api::types::{Service, Task};
use crate::services::reconcile::Now;
use crate::storage::{By, ReadTx, StoreError};

/// What is wrong with the tasks of one family of services.
#[derive(Debug, Default)]
pub struct Findings {
    /// Services of the family, all of them to be reconciled.
    pub services: BTreeSet<String>,
    /// Tasks whose service does not exist.
    pub ownerless: BTreeSet<String>,
    /// Tasks that the family's rule wants looked at.
    pub to_fix: BTreeSet<String>,
    /// Replacements that wait for their start.
    pub waiting: Vec<DelayedStart>,
    pub history: RestartHistory,
}

/// Looks at every task. `is_related` says which services belong to the family, `needs_fix` is its rule.
pub fn check_tasks(
    view: &ReadTx,
    now: Now,
    is_related: impl Fn(&Service) -> bool,
    needs_fix: impl Fn(&Task) -> bool,
) -> Result<Findings, StoreError> {
    let services: HashMap<String, _> = view
        .find::<Service>(By::All)?
        .into_iter()
        .map(|service| (service.id.clone(), service))
        .collect();
    let related = services.values().filter(|service| is_related(service));
    let mut findings = Findings {
        services: related.map(|service| service.id.clone()).collect(),
        ..Findings::default()
    };

    let mut traces: HashMap<SlotKey, Vec<Trace>> = HashMap::new();
    view.each::<Task>(By::All, |task| {
        if task.service_id.is_empty() {
            return;
        }
        let Some(service) = services.get(&task.service_id) else {
            findings.ownerless.insert(task.id.clone());
            return;
        };
        if !is_related(service) {
            return;
        }
        if let Some(trace) = Trace::of(task) {
            traces
                .entry(SlotKey::of(task, service))
                .or_default()
                .push(trace);
        }
        if needs_fix(task) {
            findings.to_fix.insert(task.id.clone());
        }
        if task.desired_state == READY && task::observed(task) <= COMPLETE {
            findings.waiting.push(resumed(task, now));
        }
    })?;
    for (key, traces) in traces {
        findings.history.rebuild(&key, traces);
    }
    Ok(findings)
}

/// The rest of a wait that another leader began: what is left of the delay, without a predecessor.
fn resumed(task: &Task, now: Now) -> DelayedStart {
    let delay = task::restart_delay(task);
    let left = task::status_time(task).map_or(Duration::ZERO, |since| {
        // A negative span (the clocks of two managers differ) counts as nothing passed: nobody waits
        // longer than from the beginning.
        let passed = to_std(&between(&since, &now.wall)).unwrap_or_default();
        delay.saturating_sub(passed)
    });
    DelayedStart {
        task_id: task.id.clone(),
        delay: left,
        old: None,
    }
}
