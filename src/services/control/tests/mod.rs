//! Control calls over a store of their own, through the gRPC trait, so that what is compared is what a
//! client sees: `OK`, or the code and the text.

mod clusters;
mod lists;
mod nodes;
mod ports;
mod reads;
mod references;
mod secrets;
mod service_specs;
mod service_updates;
mod services;
mod statuses;

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tonic::{Request, Response, Status};

pub(super) use crate::api::types::control_server::Control;
pub(super) use crate::api::types::*;
use crate::storage::testing::TestStore;
use crate::storage::{By, ProposeError, StoreError, StoreObject, Tx};

use super::*;

/// A manager's Control service, its store, and a raft group to taste.
pub(super) struct Bed {
    pub store: TestStore,
    pub control: ControlService,
    pub group: Arc<Group>,
}

/// Stands in for the raft group.
pub(super) struct Group {
    pub members: Mutex<Option<Vec<Member>>>,
    pub authority: Mutex<Result<ReadFrom, ProposeError>>,
}

impl MembershipView for Group {
    fn members(&self) -> Option<Vec<Member>> {
        self.members.lock().clone()
    }

    fn read_authority(&self) -> BoxFuture<'_, Result<ReadFrom, ProposeError>> {
        let authority = self.authority.lock().clone();
        Box::pin(async move { authority })
    }
}

impl Bed {
    pub fn new() -> Bed {
        Bed::with_options(ControlOptions::default())
    }

    pub fn with_options(options: ControlOptions) -> Bed {
        let store = TestStore::new();
        let group = Arc::new(Group {
            members: Mutex::new(Some(Vec::new())),
            authority: Mutex::new(Ok(ReadFrom::Leader)),
        });
        let control = ControlService::new(store.store(), group.clone(), options);
        Bed {
            store,
            control,
            group,
        }
    }

    /// Stores objects as they are, past all checks of this API.
    pub async fn put<T: StoreObject>(&self, objects: impl IntoIterator<Item = T>) {
        for object in objects {
            let stored: Result<_, StoreError> =
                self.store.update(|tx: &mut Tx| tx.create(object)).await;
            stored.expect("object can be stored");
        }
    }

    pub fn get<T: StoreObject>(&self, id: &str) -> Option<Arc<T>> {
        self.store.view(|tx| tx.get::<T>(id)).expect("readable")
    }

    pub fn all<T: StoreObject>(&self) -> Vec<Arc<T>> {
        self.store
            .view(|tx| tx.find::<T>(By::All))
            .expect("readable")
    }

    /// Creates a service and returns it.
    pub async fn create(&self, spec: ServiceSpec) -> Service {
        let request = Request::new(CreateServiceRequest { spec: Some(spec) });
        let response = Control::create_service(&self.control, request).await;
        response
            .expect("service can be created")
            .into_inner()
            .service
            .expect("service in the response")
    }

    /// What a client sees of an attempt to create a service.
    pub async fn try_create(&self, spec: ServiceSpec) -> String {
        let request = Request::new(CreateServiceRequest { spec: Some(spec) });
        seen(&Control::create_service(&self.control, request).await)
    }
}

/// What a client sees of a call: `OK`, or code and text.
pub(super) fn seen<T>(result: &Result<Response<T>, Status>) -> String {
    match result {
        Ok(_) => "OK".to_owned(),
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    }
}

/// The response of a call that must succeed.
pub(super) fn ok<T>(result: Result<Response<T>, Status>) -> T {
    result.expect("the call succeeds").into_inner()
}

pub(super) fn named(name: &str) -> Option<Annotations> {
    Some(Annotations {
        name: name.into(),
        ..Default::default()
    })
}

pub(super) fn labelled(name: &str, labels: &[(&str, &str)]) -> Option<Annotations> {
    Some(Annotations {
        name: name.into(),
        labels: map(labels),
        ..Default::default()
    })
}

pub(super) fn map(entries: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    entries.iter().map(owned).collect()
}

pub(super) fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A replicated service with one task of image `busybox`.
pub(super) fn web(name: &str) -> ServiceSpec {
    ServiceSpec {
        annotations: named(name),
        task: Some(TaskSpec {
            runtime: Some(task_spec::Runtime::Container(ContainerSpec {
                image: "busybox".into(),
                ..Default::default()
            })),
            ..Default::default()
        }),
        mode: Some(service_spec::Mode::Replicated(ReplicatedService {
            replicas: 1,
        })),
        ..Default::default()
    }
}

/// The task template of a spec.
pub(super) fn task_of(spec: &mut ServiceSpec) -> &mut TaskSpec {
    spec.task.get_or_insert_default()
}

/// The container of a spec that has one.
pub(super) fn container_of(spec: &mut ServiceSpec) -> &mut ContainerSpec {
    match &mut task_of(spec).runtime {
        Some(task_spec::Runtime::Container(container)) => container,
        other => panic!("not a container: {other:?}"),
    }
}

pub(super) fn job(name: &str) -> ServiceSpec {
    ServiceSpec {
        mode: Some(service_spec::Mode::ReplicatedJob(ReplicatedJob {
            max_concurrent: 2,
            total_completions: 8,
        })),
        ..web(name)
    }
}

pub(super) fn port(number: u32, mode: port_config::PublishMode) -> PortConfig {
    PortConfig {
        target_port: 80,
        published_port: number,
        publish_mode: mode as i32,
        ..Default::default()
    }
}

/// A service that publishes ports.
pub(super) fn publishing(name: &str, ports: &[PortConfig]) -> ServiceSpec {
    ServiceSpec {
        endpoint: Some(EndpointSpec {
            ports: ports.to_vec(),
            ..Default::default()
        }),
        ..web(name)
    }
}

pub(super) fn ingress_network() -> Network {
    Network {
        id: "ingressid".into(),
        spec: Some(NetworkSpec {
            annotations: named("ingress"),
            ingress: true,
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(super) fn node(id: &str, role: NodeRole, state: node_status::State) -> Node {
    Node {
        id: id.into(),
        role: role as i32,
        spec: Some(NodeSpec {
            desired_role: role as i32,
            membership: node_spec::Membership::Accepted as i32,
            ..Default::default()
        }),
        status: Some(NodeStatus {
            state: state as i32,
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(super) fn task(id: &str, service: &str, node: &str, state: TaskState) -> Task {
    Task {
        id: id.into(),
        service_id: service.into(),
        node_id: node.into(),
        desired_state: TaskState::Running as i32,
        status: Some(TaskStatus {
            state: state as i32,
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(super) fn member(raft_id: u64, node_id: &str, reachable: bool) -> Member {
    Member {
        raft_id,
        node_id: node_id.into(),
        addr: format!("10.0.0.{raft_id}:2377"),
        leader: raft_id == 1,
        reachable,
    }
}

/// The version of a stored object.
pub(super) fn version_of(meta: &Option<Meta>) -> Option<Version> {
    meta.as_ref().and_then(|meta| meta.version)
}
