//! One scheduling pass: from what is known to decisions.
//!
//! Pure: it reads and changes the [`State`] and nothing else. Preassigned tasks are confirmed first, then the
//! queue is served group by group; whatever is decided counts for everything decided after it. A pass takes
//! a bounded number of decisions, and says when the next one is due if there is more (spec 07 sections 9
//! to 11).

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::commit::{Decision, Placement, Verdict};
use super::nodes::{Hold, NodeIndex};
use super::placement::{Candidates, Ranking};
use super::queue::{Blocked, Group};
use super::requirements::{Blame, Filter};
use super::state::State;
use crate::services::orchestrator::task::RUNNING;

/// Tasks placed or confirmed in one pass, and tasks told why they wait. A pass of this size takes a fraction
/// of a second, commit included; meanwhile changes are heard but not acted upon.
const PLACEMENTS_MAX: usize = 10_000;
const EXPLANATIONS_MAX: usize = 2_000;

/// What a pass may still do.
struct Budget {
    placements: usize,
    explanations: usize,
    /// When there is more to do.
    more_at: Option<Instant>,
}

impl Budget {
    fn more_at(&mut self, at: Instant) {
        self.more_at = Some(self.more_at.map_or(at, |earlier| earlier.min(at)));
    }
}

impl State {
    /// Decides whatever can be decided now. The second value tells when to come back at the latest.
    pub fn pass(&mut self, now: Instant) -> (Vec<Decision>, Option<Instant>) {
        let touched = self.nodes.take_touched();
        let mut decisions = Vec::new();
        let mut budget = Budget {
            placements: PLACEMENTS_MAX,
            explanations: EXPLANATIONS_MAX,
            more_at: None,
        };
        self.shut_down_outdated(&mut decisions);
        self.confirm(now, &mut budget, &mut decisions);
        for id in self.queue.in_order() {
            if let Some(mut group) = self.queue.take(id) {
                self.serve(&mut group, &touched, now, &mut budget, &mut decisions);
                self.queue.put_back(id, group);
            }
        }
        (decisions, budget.more_at)
    }

    /// Tasks of an old revision that nobody wants and that never got a node would wait for ever.
    fn shut_down_outdated(&mut self, decisions: &mut Vec<Decision>) {
        let mut outdated: Vec<Arc<str>> = Vec::new();
        for (service, tasks) in &self.withdrawn {
            let tasks = tasks.iter();
            let tasks = tasks.filter(|(_, version)| self.is_outdated(service, **version));
            outdated.extend(tasks.map(|(task_id, _)| Arc::clone(task_id)));
        }
        for task_id in outdated {
            self.forget(&task_id);
            decisions.push(Decision {
                task_id,
                verdict: Verdict::ShutDown,
            });
        }
    }

    /// Checks tasks that came with a node.
    fn confirm(&mut self, now: Instant, budget: &mut Budget, decisions: &mut Vec<Decision>) {
        while let Some(task_id) = self.unconfirmed.due.pop_first() {
            if budget.placements == 0 {
                self.unconfirmed.due.insert(task_id);
                budget.more_at(now);
                return;
            }
            budget.placements -= 1;
            decisions.extend(self.confirm_one(task_id));
        }
    }

    fn confirm_one(&mut self, task_id: Arc<str>) -> Option<Decision> {
        let waiting = self.unconfirmed.get_mut(&task_id)?;
        let index = self.nodes.find(&waiting.node_id)?;
        let (node, account) = self.nodes.known(index)?;
        let of_service = self.nodes.of_service(&waiting.service, index);
        let requirements = &waiting.requirements;
        let refused = requirements.refused_by(node, account, of_service);
        if let Some(filter) = refused {
            if waiting.told.replace(filter) == Some(filter) {
                return None;
            }
            let node_id = waiting.node_id.clone();
            let reason = Blame::from(filter).to_string();
            return Some(Decision {
                task_id,
                verdict: Verdict::Explain { node_id, reason },
            });
        }
        let hold = Hold::new(
            Arc::clone(&waiting.service),
            requirements,
            waiting.desired_state,
        );
        let placement = Placement {
            node_id: Arc::clone(&account.id),
            requirements: Arc::clone(requirements),
            generic: self.nodes.claim(index, &requirements.generic)?,
        };
        self.decide(&task_id, index, hold, &placement.generic);
        Some(Decision {
            task_id,
            verdict: Verdict::Confirm(placement),
        })
    }

    /// Places what can be placed of a group and tells the rest why it waits.
    fn serve(
        &mut self,
        group: &mut Group,
        touched: &BTreeSet<NodeIndex>,
        now: Instant,
        budget: &mut Budget,
        decisions: &mut Vec<Decision>,
    ) {
        let still_blocked = group.blocked.as_mut().is_some_and(|blocked| {
            blocked.still_blocked(&self.nodes, touched, &group.key, &group.requirements)
        });
        if !still_blocked {
            group.blocked = None;
            self.place_group(group, now, budget, decisions);
        }
        if group.blocked.is_none() {
            return;
        }
        let service = &group.key.0;
        if !service.is_empty() && !self.services.contains_key(service) {
            for task_id in std::mem::take(&mut group.tasks).into_values() {
                self.drop_queued(&task_id);
            }
            return;
        }
        let explanations = group.explain(now, budget.explanations);
        budget.explanations -= explanations.tasks.len();
        if let Some(more_at) = explanations.more_at {
            budget.more_at(more_at);
        }
        decisions.extend(
            explanations
                .tasks
                .into_iter()
                .map(|(task_id, reason)| Decision {
                    task_id,
                    verdict: Verdict::Explain {
                        node_id: String::new(),
                        reason,
                    },
                }),
        );
    }

    fn place_group(
        &mut self,
        group: &mut Group,
        now: Instant,
        budget: &mut Budget,
        decisions: &mut Vec<Decision>,
    ) {
        let mut candidates = self.candidates(group, now);
        let mut reasons: Vec<Option<Filter>> = vec![None; self.nodes.slots()];
        while !group.tasks.is_empty() {
            if budget.placements == 0 {
                budget.more_at(now);
                return;
            }
            let found = self.best_node(&mut candidates, group, &mut reasons);
            let Some((index, placement)) = found else {
                group.blocked = Some(Blocked::new(reasons));
                return;
            };
            let Some((_, task_id)) = group.tasks.pop_first() else {
                return;
            };
            budget.placements -= 1;
            let hold = Hold::new(Arc::clone(&group.key.0), &group.requirements, RUNNING);
            self.decide(&task_id, index, hold, &placement.generic);
            candidates.placed(&self.nodes, index);
            decisions.push(Decision {
                task_id,
                verdict: Verdict::Assign(placement),
            });
        }
    }

    fn candidates(&self, group: &Group, now: Instant) -> Candidates {
        let (service, version) = &group.key;
        let version = (Arc::clone(service), version.unwrap_or(0));
        let faulty = self.failures.faulty(&version, now).into_iter();
        let faulty = faulty.filter_map(|(node_id, count)| {
            let index = self.nodes.find(&node_id)?;
            self.nodes.known(index).map(|_| (index, count))
        });
        let ranking = Ranking {
            service: Arc::clone(service),
            faulty: faulty.collect(),
        };
        Candidates::new(ranking, &group.requirements.spread, &self.nodes)
    }

    /// The best node that takes a task of the group, and what the task gets there. Notes why others do not.
    fn best_node(
        &self,
        candidates: &mut Candidates,
        group: &Group,
        reasons: &mut [Option<Filter>],
    ) -> Option<(NodeIndex, Placement)> {
        let requirements = &group.requirements;
        while let Some(index) = candidates.next(&self.nodes) {
            let Some((node, account)) = self.nodes.known(index) else {
                continue;
            };
            let of_service = self.nodes.of_service(&group.key.0, index);
            let refused = requirements.refused_by(node, account, of_service);
            if refused.is_some() {
                reasons[index.position()] = refused;
                continue;
            }
            let Some(generic) = self.nodes.claim(index, &requirements.generic) else {
                reasons[index.position()] = Some(Filter::Resource);
                continue;
            };
            let placement = Placement {
                node_id: Arc::clone(&account.id),
                requirements: Arc::clone(requirements),
                generic,
            };
            return Some((index, placement));
        }
        None
    }
}
