//! What one node has been told to run, and the changes that bring it up to date.
//!
//! An [`AssignmentSet`] belongs to one stream. It is fed the tasks of the node as they change and
//! collects the changes the agent must hear of, keyed by object, so that of several changes to one
//! object only the last is sent. Secrets and configs travel with the tasks that use them: they are
//! sent with the first user and taken back with the last.
//!
//! It keeps a fingerprint of each task and not the task, so it stays small for a node that has run
//! thousands, and it can be fed the whole set again at any time to find out what it missed.
//!
//! Values of secrets that a driver provides are not available yet; such secrets are not sent, and
//! their tasks are, as when a secret is missing. Volumes are not sent either.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use prost::Message as _;
use ring::digest::{SHA256, digest};
use tracing::warn;

use super::writes::observed;
use crate::api::types::assignment::Item;
use crate::api::types::assignment_change::AssignmentAction;
use crate::api::types::assignments_message::Type as MessageType;
use crate::api::types::task_spec::Runtime;
use crate::api::types::{
    Assignment, AssignmentChange, AssignmentsMessage, Config, ResourceType, Secret, Task, TaskState,
};
use crate::storage::StoreError;

/// Where secrets and configs come from.
pub trait Payloads {
    /// The secret, or `None` if there is none of that ID.
    fn secret(&self, id: &str) -> Result<Option<Arc<Secret>>, StoreError>;
    /// The config, or `None` if there is none of that ID.
    fn config(&self, id: &str) -> Result<Option<Arc<Config>>, StoreError>;
}

/// Kinds of objects in a message, in the order in which agents apply them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Secret,
    Config,
    Task,
}

/// An object that a message can speak of.
type Key = (Kind, Arc<str>);

enum Pending {
    Task(Arc<Task>),
    Secret(Arc<Secret>),
    Config(Arc<Config>),
    Remove,
}

/// Identifies a task's content apart from `meta` and `status`.
pub type Fingerprint = [u8; 16];

/// A task the agent knows of.
struct Known {
    fingerprint: Fingerprint,
    dependencies: BTreeSet<Key>,
}

/// See the module's comment.
#[derive(Default)]
pub struct AssignmentSet {
    tasks: HashMap<Arc<str>, Known>,
    /// The tasks that use a secret or config.
    users: HashMap<Key, HashSet<Arc<str>>>,
    pending: BTreeMap<Key, Pending>,
    /// Number of the last message.
    sequence: u64,
}

impl AssignmentSet {
    /// Takes note of a task of this node as it is now. Says whether the agent must hear of it.
    pub fn update(
        &mut self,
        task: &Arc<Task>,
        payloads: &impl Payloads,
    ) -> Result<bool, StoreError> {
        let state = observed(task);
        if state < TaskState::Assigned as i32 {
            return Ok(false);
        }
        let fingerprint = fingerprint(task);
        let live = state <= TaskState::Running as i32;
        let Some((id, mut known)) = self.tasks.remove_entry(task.id.as_str()) else {
            return self.add(task, fingerprint, live, payloads).map(|()| true);
        };
        let same = known.fingerprint == fingerprint;
        let resend = !same || state == TaskState::Assigned as i32;
        if resend {
            let pending = Pending::Task(Arc::clone(task));
            self.pending.insert((Kind::Task, Arc::clone(&id)), pending);
        }
        let mut unused = BTreeSet::new();
        if !same {
            let dependencies = dependencies(task);
            unused = known
                .dependencies
                .difference(&dependencies)
                .cloned()
                .collect();
            known = Known {
                fingerprint,
                dependencies,
            };
        }
        if live && !same {
            self.acquire(&id, &known.dependencies, payloads)?;
        }
        let mut released = self.release(&id, &unused);
        if !live {
            released |= self.release(&id, &known.dependencies);
        }
        self.tasks.insert(id, known);
        Ok(resend || released)
    }

    /// Takes note that a task is gone. Says whether the agent must hear of it.
    pub fn remove(&mut self, task_id: &str) -> bool {
        let Some((id, known)) = self.tasks.remove_entry(task_id) else {
            return false;
        };
        self.release(&id, &known.dependencies);
        self.pending.insert((Kind::Task, id), Pending::Remove);
        true
    }

    /// Brings the set up to date with all tasks of the node, after changes were missed. Says
    /// whether the agent must hear of anything.
    pub fn resynchronise(
        &mut self,
        tasks: &[Arc<Task>],
        payloads: &impl Payloads,
    ) -> Result<bool, StoreError> {
        let present: HashSet<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
        let known = self.tasks.keys();
        let gone: Vec<Arc<str>> = known
            .filter(|id| !present.contains(&***id))
            .cloned()
            .collect();
        let mut relevant = false;
        for id in gone {
            relevant |= self.remove(&id);
        }
        for task in tasks {
            relevant |= self.update(task, payloads)?;
        }
        Ok(relevant)
    }

    /// The message with everything collected since the last one. The first message of a set is
    /// complete, every other one continues the one before.
    pub fn take_message(&mut self) -> AssignmentsMessage {
        let (kind, applies_to) = match self.sequence {
            0 => (MessageType::Complete, String::new()),
            previous => (MessageType::Incremental, previous.to_string()),
        };
        self.sequence += 1;
        AssignmentsMessage {
            r#type: kind as i32,
            applies_to,
            results_in: self.sequence.to_string(),
            changes: std::mem::take(&mut self.pending)
                .into_iter()
                .map(|(key, pending)| change(key, pending))
                .collect(),
        }
    }

    fn add(
        &mut self,
        task: &Arc<Task>,
        fingerprint: Fingerprint,
        live: bool,
        payloads: &impl Payloads,
    ) -> Result<(), StoreError> {
        let id: Arc<str> = Arc::from(task.id.as_str());
        let dependencies = dependencies(task);
        if live {
            self.acquire(&id, &dependencies, payloads)?;
        }
        let pending = Pending::Task(Arc::clone(task));
        self.pending.insert((Kind::Task, Arc::clone(&id)), pending);
        let known = Known {
            fingerprint,
            dependencies,
        };
        self.tasks.insert(id, known);
        Ok(())
    }

    /// Makes a task a user of its dependencies, and sends those that nobody used before.
    fn acquire(
        &mut self,
        task_id: &Arc<str>,
        dependencies: &BTreeSet<Key>,
        payloads: &impl Payloads,
    ) -> Result<(), StoreError> {
        for key in dependencies {
            let first = !self.users.contains_key(key);
            if first && let Some(pending) = fetch(key, payloads)? {
                self.pending.insert(key.clone(), pending);
            }
            let users = self.users.entry(key.clone()).or_default();
            users.insert(Arc::clone(task_id));
        }
        Ok(())
    }

    /// Ends the use of a task's dependencies, and takes back those that nobody uses any more, also
    /// those that were never sent. Says whether there were any.
    ///
    /// A task that is found dead when the stream begins never used anything; its dependencies are
    /// still taken back at its next change, because an agent may hold them from before.
    fn release(&mut self, task_id: &Arc<str>, dependencies: &BTreeSet<Key>) -> bool {
        let mut released = false;
        for key in dependencies {
            if let Some(users) = self.users.get_mut(key) {
                users.remove(task_id);
                if !users.is_empty() {
                    continue;
                }
                self.users.remove(key);
            }
            self.pending.insert(key.clone(), Pending::Remove);
            released = true;
        }
        released
    }
}

fn fetch(key: &Key, payloads: &impl Payloads) -> Result<Option<Pending>, StoreError> {
    let (kind, id) = key;
    Ok(match kind {
        Kind::Secret => {
            let secret = payloads.secret(id)?;
            let by_driver = |secret: &Arc<Secret>| {
                secret
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.driver.is_some())
            };
            if secret.as_ref().is_some_and(by_driver) {
                warn!(secret = %id, "secret drivers are not available yet; the secret is not sent");
                return Ok(None);
            }
            secret.map(Pending::Secret)
        }
        Kind::Config => payloads.config(id)?.map(Pending::Config),
        Kind::Task => None,
    })
}

/// Secrets and configs that a task uses.
fn dependencies(task: &Task) -> BTreeSet<Key> {
    let mut found = BTreeSet::new();
    let Some(spec) = &task.spec else {
        return found;
    };
    for reference in &spec.resource_references {
        let kind = match reference.resource_type() {
            ResourceType::Secret => Kind::Secret,
            ResourceType::Config => Kind::Config,
            ResourceType::Task | ResourceType::Volume => continue,
        };
        found.insert((kind, Arc::from(reference.resource_id.as_str())));
    }
    if let Some(Runtime::Container(container)) = &spec.runtime {
        let secrets = container
            .secrets
            .iter()
            .map(|secret| (Kind::Secret, &secret.secret_id));
        let configs = container
            .configs
            .iter()
            .map(|config| (Kind::Config, &config.config_id));
        found.extend(
            secrets
                .chain(configs)
                .map(|(kind, id)| (kind, Arc::from(id.as_str()))),
        );
    }
    found
}

/// A task's content apart from what changes without concern to the agent.
pub fn fingerprint(task: &Task) -> Fingerprint {
    let content = Task {
        meta: None,
        status: None,
        ..task.clone()
    };
    let mut fingerprint = Fingerprint::default();
    let digest = digest(&SHA256, &content.encode_to_vec());
    let (head, _) = digest.as_ref().split_at(fingerprint.len());
    fingerprint.copy_from_slice(head);
    fingerprint
}

fn change(key: Key, pending: Pending) -> AssignmentChange {
    let (kind, id) = key;
    let id = id.to_string();
    let (item, action) = match pending {
        Pending::Task(task) => (
            Item::Task(Arc::unwrap_or_clone(task)),
            AssignmentAction::Update,
        ),
        Pending::Secret(secret) => (
            Item::Secret(Arc::unwrap_or_clone(secret)),
            AssignmentAction::Update,
        ),
        Pending::Config(config) => (
            Item::Config(Arc::unwrap_or_clone(config)),
            AssignmentAction::Update,
        ),
        Pending::Remove => (bare(kind, id), AssignmentAction::Remove),
    };
    AssignmentChange {
        assignment: Some(Assignment { item: Some(item) }),
        action: action as i32,
    }
}

/// An object of which only the ID is told.
fn bare(kind: Kind, id: String) -> Item {
    match kind {
        Kind::Secret => Item::Secret(Secret {
            id,
            ..Default::default()
        }),
        Kind::Config => Item::Config(Config {
            id,
            ..Default::default()
        }),
        Kind::Task => Item::Task(Task {
            id,
            ..Default::default()
        }),
    }
}

#[cfg(test)]
#[path = "assignment_set_tests.rs"]
mod tests;
