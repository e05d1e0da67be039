//! Secrets, configs and volumes that the managers sent along with tasks. In memory only.
//!
//! Tasks see them through [`TaskDependencies`], which hands out only what the task's own spec refers to
//! (spec 08 section 16.3).

use super::executor::TaskError;
use crate::api::types::assignment::Item;
use crate::api::types::{Assignment, AssignmentChange, Config, Secret, Task, VolumeAssignment};
use crate::api::types::{assignment_change::AssignmentAction, task_spec::Runtime};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
struct Stores {
    secrets: BTreeMap<String, Arc<Secret>>,
    configs: BTreeMap<String, Arc<Config>>,
    volumes: BTreeMap<String, Arc<VolumeAssignment>>,
    /// A complete list was taken since this process started.
    complete: bool,
}

/// All dependencies on this node.
#[derive(Default)]
pub struct Dependencies(RwLock<Stores>);

impl Dependencies {
    pub fn new() -> Arc<Dependencies> {
        Arc::default()
    }

    /// Takes the secrets and configs of a complete list: whatever is not in it goes. Volumes only come
    /// and go as listed.
    pub(crate) fn replace(&self, changes: &[AssignmentChange]) {
        let mut stores = self.0.write();
        stores.secrets.clear();
        stores.configs.clear();
        changes.iter().for_each(|change| stores.take(change));
        stores.complete = true;
    }

    /// Takes differences.
    pub(crate) fn update(&self, changes: &[AssignmentChange]) {
        let mut stores = self.0.write();
        changes.iter().for_each(|change| stores.take(change));
    }

    /// IDs of all secrets, configs and volumes, for inspection.
    pub fn ids(&self) -> (Vec<String>, Vec<String>, Vec<String>) {
        let stores = self.0.read();
        (
            stores.secrets.keys().cloned().collect(),
            stores.configs.keys().cloned().collect(),
            stores.volumes.keys().cloned().collect(),
        )
    }

    /// What one task may see.
    pub fn restricted(self: &Arc<Self>, task: Arc<Task>) -> TaskDependencies {
        TaskDependencies {
            all: self.clone(),
            task,
        }
    }
}

impl Stores {
    fn take(&mut self, change: &AssignmentChange) {
        let Some(Assignment { item: Some(item) }) = &change.assignment else {
            return;
        };
        let update = change.action == AssignmentAction::Update as i32;
        match item {
            Item::Task(_) => {}
            Item::Secret(secret) => set(&mut self.secrets, &secret.id, secret, update),
            Item::Config(config) => set(&mut self.configs, &config.id, config, update),
            Item::Volume(volume) => set(&mut self.volumes, &volume.id, volume, update),
        }
    }
}

fn set<T: Clone>(map: &mut BTreeMap<String, Arc<T>>, id: &str, value: &T, update: bool) {
    if update {
        map.insert(id.to_owned(), Arc::new(value.clone()));
    } else {
        map.remove(id);
    }
}

/// The dependencies that one task may see.
#[derive(Clone)]
pub struct TaskDependencies {
    all: Arc<Dependencies>,
    task: Arc<Task>,
}

impl TaskDependencies {
    /// A secret that the task refers to, under its plain ID. A secret made for this very task comes first.
    pub fn secret(&self, id: &str) -> Result<Arc<Secret>, TaskError> {
        let references = self.container().map_or(&[][..], |spec| &spec.secrets);
        if !references.iter().any(|reference| reference.secret_id == id) {
            return Err(unauthorized("secret", id));
        }
        let stores = self.all.0.read();
        let own_id = format!("{id}.{}", self.task.id);
        if let Some(own) = stores.secrets.get(&own_id) {
            let mut secret = Secret::clone(own);
            secret.id = id.to_owned();
            return Ok(Arc::new(secret));
        }
        found(stores.secrets.get(id), "secret", id, stores.complete)
    }

    /// A config that the task refers to.
    pub fn config(&self, id: &str) -> Result<Arc<Config>, TaskError> {
        let references = self.container().map_or(&[][..], |spec| &spec.configs);
        if !references.iter().any(|reference| reference.config_id == id) {
            return Err(unauthorized("config", id));
        }
        let stores = self.all.0.read();
        found(stores.configs.get(id), "config", id, stores.complete)
    }

    /// A cluster volume that the scheduler chose for the task.
    pub fn volume(&self, id: &str) -> Result<Arc<VolumeAssignment>, TaskError> {
        if !self.task.volumes.iter().any(|volume| volume.id == id) {
            return Err(unauthorized("volume", id));
        }
        let stores = self.all.0.read();
        found(stores.volumes.get(id), "volume", id, stores.complete)
    }

    fn container(&self) -> Option<&crate::api::types::ContainerSpec> {
        match self.task.spec.as_ref()?.runtime.as_ref()? {
            Runtime::Container(spec) => Some(spec),
            _ => None,
        }
    }
}

fn unauthorized(kind: &str, id: &str) -> TaskError {
    TaskError::Fatal(format!("task not authorized to access {kind} {id}"))
}

/// A restarted agent has its tasks before it has their dependencies: until a complete list has come, a
/// missing object is merely late.
fn found<T>(
    object: Option<&Arc<T>>,
    kind: &str,
    id: &str,
    complete: bool,
) -> Result<Arc<T>, TaskError> {
    let missing = || {
        let reason = format!("{kind} {id} not found");
        if complete {
            TaskError::Fatal(reason)
        } else {
            TaskError::Temporary(format!("{reason}: no assignments from a manager yet"))
        }
    };
    object.cloned().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{
        ConfigReference, ContainerSpec, SecretReference, TaskSpec, VolumeAttachment,
    };

    fn change(item: Item, action: AssignmentAction) -> AssignmentChange {
        AssignmentChange {
            assignment: Some(Assignment { item: Some(item) }),
            action: action as i32,
        }
    }

    fn secret(id: &str) -> Item {
        Item::Secret(Secret {
            id: id.to_owned(),
            ..Default::default()
        })
    }

    fn config(id: &str) -> Item {
        Item::Config(Config {
            id: id.to_owned(),
            ..Default::default()
        })
    }

    fn task() -> Arc<Task> {
        let spec = ContainerSpec {
            secrets: ["s1", "s2", "s3"]
                .map(|id| SecretReference {
                    secret_id: id.to_owned(),
                    ..Default::default()
                })
                .to_vec(),
            configs: vec![ConfigReference {
                config_id: "c1".to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        };
        Arc::new(Task {
            id: "t".to_owned(),
            spec: Some(TaskSpec {
                runtime: Some(Runtime::Container(spec)),
                ..Default::default()
            }),
            volumes: vec![VolumeAttachment {
                id: "v1".to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        })
    }

    #[test]
    fn a_task_sees_only_what_it_refers_to() {
        use AssignmentAction::Update;
        let all = Dependencies::new();
        let view = all.restricted(task());
        assert!(
            matches!(view.secret("s1"), Err(TaskError::Temporary(_))),
            "nothing has come yet"
        );
        all.replace(&[
            change(secret("s1"), Update),
            change(secret("s2.t"), Update),
            change(secret("other"), Update),
            change(config("c1"), Update),
            AssignmentChange::default(),
        ]);
        assert_eq!(view.secret("s1").unwrap().id, "s1");
        assert_eq!(view.secret("s2").unwrap().id, "s2");
        assert_eq!(view.config("c1").unwrap().id, "c1");
        for (id, text) in [
            ("s3", "secret s3 not found"),
            ("other", "task not authorized to access secret other"),
            ("s2.t", "task not authorized to access secret s2.t"),
        ] {
            assert_eq!(view.secret(id).unwrap_err(), TaskError::fatal(text));
        }
        assert_eq!(
            view.config("x").unwrap_err().to_string(),
            "task not authorized to access config x"
        );
        assert_eq!(
            view.volume("v1").unwrap_err().to_string(),
            "volume v1 not found"
        );
    }

    // 08-A32
    #[test]
    fn complete_lists_replace_and_differences_change() {
        use AssignmentAction::{Remove, Update};
        let all = Dependencies::new();
        let volume = Item::Volume(VolumeAssignment {
            id: "v1".to_owned(),
            ..Default::default()
        });
        all.replace(&[
            change(secret("s1"), Update),
            change(config("c1"), Update),
            change(volume.clone(), Update),
        ]);
        all.update(&[
            change(secret("s1"), Remove),
            change(secret("unknown"), Remove),
            change(secret("s2"), Update),
            change(config("c2"), Update),
        ]);
        let ids = |all: &Dependencies| {
            let (secrets, configs, volumes) = all.ids();
            format!(
                "{} {} {}",
                secrets.join(","),
                configs.join(","),
                volumes.join(",")
            )
        };
        assert_eq!(ids(&all), "s2 c1,c2 v1");
        all.replace(&[change(secret("s3"), Update)]);
        assert_eq!(ids(&all), "s3  v1", "volumes stay until removed");
        all.replace(&[change(volume, Remove)]);
        assert_eq!(ids(&all), "  ");
    }
}
