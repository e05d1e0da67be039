//! Stories as text files: commands, and under them what became of the tasks.
//!
//! Every line of a story is `time mark task states`; `+` begins an entry of the log, `|` goes on with it. States
//! are observed/desired. A task is called `service.slot` with a letter, `a` for the first in its slot.
//!
//! | command | does |
//! |---|---|
//! | `start [SERVICE...]` | begins a term with these services, or all |
//! | `stop` | ends the term at once |
//! | `agents obedient, stubborn, silent` | how agents behave |
//! | `cluster history=N` | creates or changes the cluster object |
//! | `node ID [STATE] [AVAILABILITY] [KEY=VALUE...]` | creates or changes a node |
//! | `service ID [KEY=VALUE...]` | creates or changes a service |
//! | `task NAME OBSERVED/DESIRED [age=SPAN] [node=ID] [version=N]` | puts a task into the store |
//! | `remove-node`, `remove-service`, `remove-task` | deletes an object |
//! | `report TASK STATE` | an agent reports |
//! | `advance SPAN` | time passes |
//! | `show` | lists all tasks |

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use goldenscript::{Command, Runner};

use super::objects::{describe_node, describe_service, node, service, span, state};
use super::{Agents, World, next_id, states};
use crate::api::time;
use crate::api::types::{
    Annotations, Cluster, ClusterSpec, Node, OrchestrationConfig, Service, Task, TaskStatus,
    Version,
};
use crate::services::orchestrator::task::{DEFAULT_CLUSTER, IdSource, TaskMaker};
use crate::storage::StoreObject;

type Outcome<T> = Result<T, Box<dyn Error>>;

const ALL_SERVICES: [&str; 4] = ["allocator", "scheduler", "reaper", "replicated"];

impl Runner for World {
    fn run(&mut self, command: &Command) -> Outcome<String> {
        let mut args = command.consume_args();
        let mut id =
            || -> Outcome<String> { Ok(args.next_pos().ok_or("name missing")?.value.clone()) };
        match command.name.as_str() {
            "start" => {
                let names: Vec<&str> = args
                    .rest_pos()
                    .iter()
                    .map(|arg| arg.value.as_str())
                    .collect();
                self.start(if names.is_empty() {
                    &ALL_SERVICES
                } else {
                    &names
                });
            }
            "stop" => self.stop(),
            "agents" => {
                self.agents = match id()?.as_str() {
                    "obedient" => Agents::Obedient,
                    "stubborn" => Agents::Stubborn,
                    "silent" => Agents::Silent,
                    other => return Err(format!("no such agents: {other}").into()),
                }
            }
            "cluster" => self.put_cluster(args.lookup_parse("history")?.unwrap_or(5)),
            "node" => {
                let id = id()?;
                let mut object = self.get::<Node>(&id).unwrap_or_else(|| node(&id));
                describe_node(&mut object, &mut args)?;
                self.put(object);
            }
            "service" => {
                let id = id()?;
                let mut object = self.get::<Service>(&id).unwrap_or_else(|| service(&id));
                describe_service(&mut object, &mut args)?;
                self.put(object);
            }
            "task" => self.put_task(command)?,
            "remove-node" => self.remove::<Node>(&id()?),
            "remove-service" => self.remove::<Service>(&id()?),
            "remove-task" => {
                let id = self.task_id(&id()?).ok_or("no such task")?;
                self.remove::<Task>(&id);
            }
            "report" => {
                let id_of_task = self.task_id(&id()?).ok_or("no such task")?;
                self.report(&id_of_task, state(&id()?)?, "");
            }
            "advance" => self.advance(span(&id()?)?),
            "show" => {
                self.settle();
                return Ok(self.story() + &self.show());
            }
            other => return Err(format!("no command: {other}").into()),
        }
        self.settle();
        Ok(self.story())
    }
}

impl World {
    fn get<T: StoreObject>(&self, id: &str) -> Option<T> {
        let found = self.store.view(|view| view.get::<T>(id)).expect("read");
        found.map(|object| T::clone(&object))
    }

    fn put<T: StoreObject>(&self, object: T) {
        self.update(|tx| {
            if tx.get::<T>(object.id())?.is_some() {
                tx.update(object).map(|_| ())
            } else {
                tx.create(object).map(|_| ())
            }
        });
    }

    fn remove<T: StoreObject>(&self, id: &str) {
        self.update(|tx| tx.delete::<T>(id));
    }

    fn put_cluster(&self, history: i64) {
        let id = "cluster";
        let mut cluster = self.get::<Cluster>(id).unwrap_or_default();
        cluster.id = id.to_owned();
        cluster.spec = Some(ClusterSpec {
            annotations: Some(Annotations {
                name: DEFAULT_CLUSTER.to_owned(),
                ..Annotations::default()
            }),
            orchestration: Some(OrchestrationConfig {
                task_history_retention_limit: history,
            }),
            ..ClusterSpec::default()
        });
        self.put(cluster);
    }

    /// `task web.1 running/running age=5s node=n1 version=3`
    fn put_task(&mut self, command: &Command) -> Outcome<()> {
        let mut args = command.consume_args();
        let name = &args.next_pos().ok_or("SERVICE.SLOT missing")?.value;
        let (service_id, slot) = name.rsplit_once('.').ok_or("SERVICE.SLOT")?;
        let states = &args.next_pos().ok_or("OBSERVED/DESIRED missing")?.value;
        let (observed, desired) = states.split_once('/').ok_or("OBSERVED/DESIRED")?;
        let age = args.lookup("age").map(|age| span(&age.value)).transpose()?;
        let node_id = args.lookup("node").map_or("", |node| node.value.as_str());
        let version: Option<u64> = args.lookup_parse("version")?;
        args.reject_rest()?;

        let since = time::from_std(age.unwrap_or(Duration::ZERO));
        let since = time::add(
            &self.now().wall,
            &prost_types::Duration {
                seconds: -since.seconds,
                nanos: -since.nanos,
            },
        );
        let owner = self
            .get::<Service>(service_id)
            .unwrap_or_else(|| service(service_id));
        let maker = TaskMaker {
            cluster: None,
            ids: IdSource(next_id),
            now: since,
        };
        let mut task = maker.make(&owner, slot.parse()?, node_id);
        task.spec_version = version
            .map(|index| Version { index })
            .or(owner.spec_version);
        task.desired_state = state(desired)?;
        task.status = Some(TaskStatus {
            state: state(observed)?,
            timestamp: Some(since),
            ..TaskStatus::default()
        });
        self.put(task);
        Ok(())
    }

    fn show(&mut self) -> String {
        let mut lines = Vec::new();
        for task in self.tasks() {
            let mut line = format!("{} {}", self.name(&task), states(&task));
            if !task.node_id.is_empty() {
                let _ = write!(line, " on {}", task.node_id);
            }
            let status = task.status.as_ref();
            if let Some(err) = status
                .map(|status| &status.err)
                .filter(|err| !err.is_empty())
            {
                let _ = write!(line, " {err:?}");
            }
            lines.push(line);
        }
        if lines.is_empty() {
            lines.push("no tasks".to_owned());
        }
        lines.sort();
        lines.join("\n") + "\n"
    }
}

/// Every file under `scripts` is a story. `UPDATE_GOLDENFILES=1` writes down what happens instead of
/// comparing.
#[test]
fn stories() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/services/testing/scripts");
    let entries = std::fs::read_dir(directory).expect("scripts");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let mut world = World::new();
        goldenscript::run(&mut world, &path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    }
}
