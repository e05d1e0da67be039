//! Services after their creation: reading, listing, updating, rolling back, removing; their tasks.

use super::calls::{Known, MISSING, Row, row};
use super::specs::*;
use swarm_manager::api::types::port_config::Protocol::Tcp;
use swarm_manager::api::types::port_config::PublishMode::Host;
use swarm_manager::api::types::service_spec::Mode;
use swarm_manager::api::types::update_service_request::Rollback;
use swarm_manager::api::types::*;

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(reading());
    rows.extend(updating());
    rows.extend(rolling_back());
    rows.extend(tasks());
    rows.extend(removing());
    rows
}

fn get(name: &'static str, id: impl Fn(&Known) -> String + 'static) -> Row {
    row(name, move |known| GetServiceRequest {
        service_id: id(known),
        insert_defaults: false,
    })
}

fn list(
    name: &'static str,
    filters: impl Fn(&Known) -> list_services_request::Filters + 'static,
) -> Row {
    row(name, move |known| ListServicesRequest {
        filters: Some(filters(known)),
    })
}

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| value.to_string()).collect()
}

fn reading() -> Vec<Row> {
    vec![
        get("get service without ID", |_| String::new()).says("invalid argument"),
        get("get service that is missing", |_| MISSING.to_owned()).says("not found"),
        get("get service by name", |_| "web".to_owned()).says("not found"),
        get("get service", |known| known.service("web").id),
        row("get service with defaults", |known| GetServiceRequest {
            service_id: known.service("web").id,
            insert_defaults: true,
        }),
        list("list services by name", |_| {
            list_services_request::Filters {
                names: strings(&["web", "s8", "ghost"]),
                ..Default::default()
            }
        }),
        list("list services by name in another case", |_| {
            list_services_request::Filters {
                names: strings(&["WEB"]),
                ..Default::default()
            }
        }),
        list("list services by name prefix", |_| {
            list_services_request::Filters {
                name_prefixes: strings(&["we", "jo"]),
                ..Default::default()
            }
        }),
        list("list services by ID prefix", |known| {
            list_services_request::Filters {
                id_prefixes: vec![known.service("web").id[..12].to_owned()],
                ..Default::default()
            }
        }),
        list("list services by runtime", |_| {
            list_services_request::Filters {
                runtimes: strings(&["custom"]),
                ..Default::default()
            }
        }),
        list("list services by label", |_| {
            list_services_request::Filters {
                labels: [("color".to_owned(), "blue".to_owned())].into(),
                names: strings(&["web", "t1", "t5"]),
                ..Default::default()
            }
        }),
        list("list services by a label that none has", |_| {
            list_services_request::Filters {
                labels: [("color".to_owned(), "red".to_owned())].into(),
                ..Default::default()
            }
        }),
        row("statuses", |known| ListServiceStatusesRequest {
            services: vec![
                known.service("web").id,
                known.service("job").id,
                MISSING.to_owned(),
                known.service("web").id,
            ],
        }),
        row("statuses of nothing", |_| {
            ListServiceStatusesRequest::default()
        }),
    ]
}

/// An update of the service of that name, as last seen.
fn update(
    name: &'static str,
    service: &'static str,
    change: impl Fn(&mut ServiceSpec) + 'static,
) -> Row {
    row(name, move |known| {
        let service = known.service(service);
        let mut spec = service.spec.unwrap_or_default();
        change(&mut spec);
        UpdateServiceRequest {
            service_id: service.id,
            service_version: service.meta.unwrap_or_default().version,
            spec: Some(spec),
            rollback: 0,
        }
    })
    .fresh()
}

fn stale(
    name: &'static str,
    service: &'static str,
    change: impl Fn(&mut ServiceSpec) + 'static,
) -> Row {
    row(name, move |known| {
        let service = known.service(service);
        let mut spec = service.spec.unwrap_or_default();
        change(&mut spec);
        UpdateServiceRequest {
            service_id: service.id,
            service_version: Some(Version { index: 1 }),
            spec: Some(spec),
            rollback: 0,
        }
    })
}

fn rename(spec: &mut ServiceSpec) {
    spec.annotations = annotations("renamed");
}

fn updating() -> Vec<Row> {
    vec![
        row("update service without ID", |known| UpdateServiceRequest {
            spec: known.service("web").spec,
            service_version: Some(Version::default()),
            ..Default::default()
        })
        .says("invalid argument"),
        row("update service without version", |known| {
            UpdateServiceRequest {
                service_id: known.service("web").id,
                spec: known.service("web").spec,
                ..Default::default()
            }
        })
        .says("invalid argument"),
        row("update service without spec", |known| {
            UpdateServiceRequest {
                service_id: known.service("web").id,
                service_version: Some(Version { index: 1 }),
                ..Default::default()
            }
        })
        .says("invalid argument"),
        row("update service that is missing", |known| {
            UpdateServiceRequest {
                service_id: MISSING.to_owned(),
                service_version: Some(Version { index: 1 }),
                spec: known.service("web").spec,
                rollback: 0,
            }
        })
        .says("not found"),
        stale("update service with a stale version", "web", |_| {}).says("update out of sequence"),
        stale("rename service with a stale version", "web", rename)
            .says("renaming services is not supported"),
        update("rename service", "web", rename).says("renaming services is not supported"),
        update("change the mode of a service", "web", |spec| {
            spec.mode = Some(Mode::Global(GlobalService {}));
        })
        .says("service mode change is not allowed"),
        update("update service to an invalid spec", "web", |spec| {
            spec.mode = None
        }),
        update("change only the old list of networks", "web", |spec| {
            spec.networks = vec![NetworkAttachmentConfig {
                target: MISSING.to_owned(),
                ..Default::default()
            }];
        })
        .says("networks must be migrated to TaskSpec before being changed"),
        update("update service to use a missing secret", "web", |spec| {
            let references = vec![secret_reference(MISSING, "ghost", Some("f"))];
            spec.task = with_secrets("web", references).task;
        })
        .says("secret not found: ghost"),
        update("change the endpoint to a taken port", "web", |spec| {
            spec.endpoint = with_ports("web", vec![port(8082, Host, Tcp)]).endpoint;
        })
        .says("port '8082' is already in use by service 'e5'"),
        update("update service e5, which keeps its port", "e5", |spec| {
            spec.annotations = labelled("e5", "kept", "yes");
        }),
        update("update job", "job", |spec| {
            spec.annotations = labelled("job", "round", "2");
        }),
        update("change the task template", "c5", |spec| {
            let task = spec.task.get_or_insert_default();
            task.force_update += 1;
        }),
        update("change the endpoint", "e10", |spec| {
            spec.endpoint = with_ports("e10", vec![port(8090, Host, Tcp)]).endpoint;
        }),
    ]
}

fn roll_back(name: &'static str, service: &'static str) -> Row {
    row(name, move |known| {
        let service = known.service(service);
        UpdateServiceRequest {
            service_id: service.id,
            service_version: service.meta.unwrap_or_default().version,
            spec: service.spec,
            rollback: Rollback::Previous as i32,
        }
    })
    .fresh()
}

fn rolling_back() -> Vec<Row> {
    vec![
        roll_back("roll back without a previous spec", "web").says("does not have a previous spec"),
        update("add a label", "web", |spec| {
            spec.annotations = labelled("web", "version", "2");
        }),
        roll_back("roll back", "web"),
        row("roll back without spec", |known| UpdateServiceRequest {
            service_id: known.service("web").id,
            service_version: Some(Version { index: 1 }),
            spec: None,
            rollback: Rollback::Previous as i32,
        })
        .says("invalid argument"),
    ]
}

/// A service whose tasks fit on no node, so that they are the same on both sides.
fn tasks() -> Vec<Row> {
    let of_nowhere = |known: &Known| list_tasks_request::Filters {
        service_ids: vec![known.service("nowhere").id],
        ..Default::default()
    };
    let listed = move |name, change: fn(&mut list_tasks_request::Filters)| {
        row(name, move |known| {
            let mut filters = of_nowhere(known);
            change(&mut filters);
            ListTasksRequest {
                filters: Some(filters),
            }
        })
    };
    vec![
        row("service that fits nowhere", |_| CreateServiceRequest {
            spec: Some(ServiceSpec {
                mode: replicated(2),
                ..with_constraint("nowhere", "node.labels.nowhere == yes")
            }),
        }),
        listed("tasks of a service", |_| {})
            .until("nowhere.1 Pending Running; nowhere.2 Pending Running"),
        listed("tasks by desired state", |filters| {
            filters.desired_states = vec![TaskState::Running as i32];
        }),
        listed("tasks by another desired state", |filters| {
            filters.desired_states = vec![TaskState::Shutdown as i32];
        }),
        listed("tasks that are up to date", |filters| {
            filters.up_to_date = true;
        }),
        listed("tasks by runtime", |filters| {
            filters.runtimes = vec!["container".to_owned()];
        }),
        listed("tasks by another runtime", |filters| {
            filters.runtimes = vec!["attachment".to_owned()];
        }),
        listed("tasks of a node", |filters| {
            filters.node_ids = vec![MISSING.to_owned()];
        }),
        listed("tasks by name prefix", |filters| {
            filters.name_prefixes = vec!["nowhere.1".to_owned()];
        }),
        row("statuses of a pending service", |known| {
            ListServiceStatusesRequest {
                services: vec![known.service("nowhere").id],
            }
        }),
        row("get task without ID", |_| GetTaskRequest::default()).says("invalid argument"),
        row("get task that is missing", |_| GetTaskRequest {
            task_id: MISSING.to_owned(),
        })
        .says("not found"),
        row("get task", |known| GetTaskRequest {
            task_id: known.tasks.first().cloned().unwrap_or_default().id,
        }),
        row("remove task without ID", |_| RemoveTaskRequest::default()).says("invalid argument"),
        row("remove task that is missing", |_| RemoveTaskRequest {
            task_id: MISSING.to_owned(),
        })
        .says("not found"),
        row("remove task", |known| RemoveTaskRequest {
            task_id: known.tasks.first().cloned().unwrap_or_default().id,
        }),
        listed("the removed task is replaced", |_| {})
            .until("nowhere.1 Pending Running; nowhere.2 Pending Running"),
        update("scale up", "nowhere", |spec| spec.mode = replicated(3)),
        listed("tasks after scaling up", |_| {}).until(
            "nowhere.1 Pending Running; nowhere.2 Pending Running; nowhere.3 Pending Running",
        ),
    ]
}

fn remove(name: &'static str, id: impl Fn(&Known) -> String + 'static) -> Row {
    row(name, move |known| RemoveServiceRequest {
        service_id: id(known),
    })
}

fn removing() -> Vec<Row> {
    vec![
        remove("remove service without ID", |_| String::new()).says("invalid argument"),
        remove("remove service that is missing", |_| MISSING.to_owned()).says("not found"),
        remove("remove service", |known| known.service("nowhere").id),
        remove("remove service again", |known| known.service("nowhere").id).says("not found"),
        row("tasks of a removed service", |known| ListTasksRequest {
            filters: Some(list_tasks_request::Filters {
                service_ids: vec![known.service("nowhere").id],
                ..Default::default()
            }),
        })
        .until(""),
        row("service under a freed name", |_| CreateServiceRequest {
            spec: Some(service("nowhere")),
        }),
        remove("remove e5", |known| known.service("e5").id),
        row("service with a freed port", |_| CreateServiceRequest {
            spec: Some(with_ports("freed", vec![port(8082, Host, Tcp)])),
        }),
    ]
}
