//! Filters of all List calls.

use super::*;

fn described(id: &str, hostname: &str, engine: &[(&str, &str)], own: &[(&str, &str)]) -> Node {
    Node {
        description: Some(NodeDescription {
            hostname: hostname.into(),
            engine: Some(EngineDescription {
                labels: map(engine),
                ..Default::default()
            }),
            ..Default::default()
        }),
        spec: Some(NodeSpec {
            annotations: labelled("", own),
            ..Default::default()
        }),
        ..node(id, NodeRole::Worker, node_status::State::Ready)
    }
}

/// IDs of the nodes that a filter finds, joined by blanks.
async fn nodes(bed: &Bed, f: impl FnOnce(&mut list_nodes_request::Filters)) -> String {
    let mut filters = list_nodes_request::Filters::default();
    f(&mut filters);
    let request = Request::new(ListNodesRequest {
        filters: Some(filters),
    });
    let found = ok(Control::list_nodes(&bed.control, request).await).nodes;
    found
        .iter()
        .map(|node| node.id.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

// 05-A4
#[tokio::test]
async fn node_filters() {
    let bed = Bed::new();
    let mut manager = described(
        "b2",
        "Beta",
        &[("disk", "ssd")],
        &[("zone", "1"), ("x", "")],
    );
    manager.role = NodeRole::Manager as i32;
    let mut pending = described("c3", "beta2", &[], &[("disk", "hdd")]);
    pending.spec.as_mut().unwrap().membership = node_spec::Membership::Pending as i32;
    let blank = Node {
        id: "d4".into(),
        ..Default::default()
    };
    let first = described(
        "a1",
        "alpha",
        &[("disk", "hdd"), ("cpu", "old")],
        &[("zone", "2")],
    );
    let mut first = first;
    first.spec.as_mut().unwrap().membership = node_spec::Membership::Accepted as i32;
    manager.spec.as_mut().unwrap().membership = node_spec::Membership::Accepted as i32;
    bed.put([first, manager, pending, blank]).await;

    assert_eq!(nodes(&bed, |_| {}).await, "a1 b2 c3 d4");
    let none = Request::new(ListNodesRequest { filters: None });
    assert_eq!(
        ok(Control::list_nodes(&bed.control, none).await)
            .nodes
            .len(),
        4
    );

    // Names: found without regard to case, but compared with it.
    assert_eq!(nodes(&bed, |f| f.names = strings(&["Beta"])).await, "b2");
    assert_eq!(nodes(&bed, |f| f.names = strings(&["beta"])).await, "");
    assert_eq!(
        nodes(&bed, |f| f.names = strings(&["beta2", "alpha"])).await,
        "c3 a1"
    );
    assert_eq!(
        nodes(&bed, |f| f.name_prefixes = strings(&["b", "B"])).await,
        "b2 c3"
    );
    assert_eq!(
        nodes(&bed, |f| f.name_prefixes = strings(&[""])).await,
        "a1 b2 c3"
    );
    assert_eq!(
        nodes(&bed, |f| f.id_prefixes = strings(&["a", "d", "x"])).await,
        "a1 d4"
    );

    // Labels of engine and node are different things.
    assert_eq!(
        nodes(&bed, |f| f.labels = map(&[("disk", "hdd")])).await,
        "a1"
    );
    assert_eq!(
        nodes(&bed, |f| f.labels = map(&[("disk", "")])).await,
        "a1 b2"
    );
    assert_eq!(nodes(&bed, |f| f.labels = map(&[("zone", "")])).await, "");
    assert_eq!(
        nodes(&bed, |f| f.node_labels = map(&[("disk", "")])).await,
        "c3"
    );
    assert_eq!(
        nodes(&bed, |f| f.labels = map(&[("disk", "hdd"), ("cpu", "new")])).await,
        ""
    );
    let both = |f: &mut list_nodes_request::Filters| {
        f.labels = map(&[("disk", "")]);
        f.node_labels = map(&[("zone", "1")]);
    };
    assert_eq!(nodes(&bed, both).await, "b2");

    // Roles and memberships intersect.
    let (worker, manager) = (NodeRole::Worker as i32, NodeRole::Manager as i32);
    assert_eq!(nodes(&bed, |f| f.roles = vec![manager]).await, "b2");
    assert_eq!(
        nodes(&bed, |f| f.roles = vec![manager, worker]).await,
        "b2 a1 c3 d4"
    );
    assert_eq!(nodes(&bed, |f| f.roles = vec![7]).await, "");
    let accepted = node_spec::Membership::Accepted as i32;
    assert_eq!(
        nodes(&bed, |f| f.memberships = vec![accepted]).await,
        "a1 b2"
    );
    let accepted_workers = |f: &mut list_nodes_request::Filters| {
        f.roles = vec![worker];
        f.memberships = vec![accepted];
    };
    assert_eq!(nodes(&bed, accepted_workers).await, "a1");
}

/// IDs of the tasks that a filter finds, joined by blanks.
async fn tasks(bed: &Bed, f: impl FnOnce(&mut list_tasks_request::Filters)) -> String {
    let mut filters = list_tasks_request::Filters::default();
    f(&mut filters);
    let request = Request::new(ListTasksRequest {
        filters: Some(filters),
    });
    let found = ok(Control::list_tasks(&bed.control, request).await).tasks;
    found
        .iter()
        .map(|task| task.id.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

#[tokio::test]
async fn task_filters() {
    let bed = Bed::new();
    let service = bed.create(web("web")).await;
    let of_web = |id: &str, node: &str, slot| Task {
        slot,
        spec: service.spec.as_ref().unwrap().task.clone(),
        service_annotations: labelled("Web", &[("tier", "front")]),
        ..task(id, &service.id, node, TaskState::Running)
    };
    let generic = |kind: &str| TaskSpec {
        runtime: Some(task_spec::Runtime::Generic(GenericRuntimeSpec {
            kind: kind.into(),
            ..Default::default()
        })),
        ..Default::default()
    };
    let mut outdated = of_web("t3", "n2", 2);
    outdated.spec = Some(generic("Custom"));
    outdated.desired_state = TaskState::Shutdown as i32;
    bed.put([
        of_web("t1", "n1", 1),
        of_web("t2", "n2", 0),
        outdated,
        Task {
            annotations: named("own"),
            ..task("u1", "gone", "n1", TaskState::Running)
        },
    ])
    .await;
    let id = service.id.as_str();

    assert_eq!(tasks(&bed, |_| {}).await, "t1 t2 t3 u1");
    assert_eq!(tasks(&bed, |f| f.names = strings(&["own"])).await, "u1");
    assert_eq!(
        tasks(&bed, |f| f.names = strings(&["Web.1.t1", "Web.n2.t2"])).await,
        "t1 t2"
    );
    assert_eq!(tasks(&bed, |f| f.names = strings(&["web.1.t1"])).await, "");
    assert_eq!(
        tasks(&bed, |f| f.name_prefixes = strings(&["Web."])).await,
        "t1 t3 t2"
    );
    assert_eq!(
        tasks(&bed, |f| f.id_prefixes = strings(&["t", "u"])).await,
        "t1 t2 t3 u1"
    );
    assert_eq!(
        tasks(&bed, |f| f.labels = map(&[("tier", "front")])).await,
        "t1 t2 t3"
    );
    assert_eq!(
        tasks(&bed, |f| f.service_ids = strings(&[id])).await,
        "t1 t2 t3"
    );
    assert_eq!(
        tasks(&bed, |f| f.service_ids = strings(&[id, "gone"])).await,
        "t1 t2 t3 u1"
    );
    assert_eq!(
        tasks(&bed, |f| f.node_ids = strings(&["n1"])).await,
        "t1 u1"
    );
    assert_eq!(
        tasks(&bed, |f| f.runtimes = strings(&["container"])).await,
        "t1 t2"
    );
    assert_eq!(
        tasks(&bed, |f| f.runtimes = strings(&["custom"])).await,
        "t3"
    );
    let shutdown = TaskState::Shutdown as i32;
    assert_eq!(
        tasks(&bed, |f| f.desired_states = vec![shutdown]).await,
        "t3"
    );
    let on_n2 = |f: &mut list_tasks_request::Filters| {
        f.service_ids = strings(&[id]);
        f.node_ids = strings(&["n2"]);
        f.desired_states = vec![TaskState::Running as i32];
    };
    assert_eq!(tasks(&bed, on_n2).await, "t2");
    assert_eq!(tasks(&bed, |f| f.up_to_date = true).await, "t1 t2");
}

// 05-A33
#[tokio::test]
async fn secrets_are_found_by_a_union() {
    let bed = Bed::new();
    let secret = |id: &str, name: &str, labels: &[(&str, &str)], internal| Secret {
        id: id.into(),
        spec: Some(SecretSpec {
            annotations: labelled(name, labels),
            data: b"x".to_vec(),
            ..Default::default()
        }),
        internal,
        ..Default::default()
    };
    bed.put([
        secret("i1", "A", &[("k", "1")], false),
        secret("i2", "b-one", &[], false),
        secret("x3", "third", &[("k", "2")], false),
        secret("i4", "other", &[("k", "1")], false),
        secret("x5", "hidden", &[("k", "1")], true),
    ])
    .await;
    let list = async |f: fn(&mut list_secrets_request::Filters)| {
        let mut filters = list_secrets_request::Filters::default();
        f(&mut filters);
        let request = Request::new(ListSecretsRequest {
            filters: Some(filters),
        });
        let found = ok(Control::list_secrets(&bed.control, request).await).secrets;
        assert!(
            found
                .iter()
                .all(|secret| secret.spec.as_ref().unwrap().data.is_empty())
        );
        let mut ids: Vec<String> = found.into_iter().map(|secret| secret.id).collect();
        ids.sort_unstable();
        ids.join(" ")
    };
    let union = |f: &mut list_secrets_request::Filters| {
        f.names = strings(&["a"]);
        f.name_prefixes = strings(&["B"]);
        f.id_prefixes = strings(&["x"]);
    };
    assert_eq!(list(|_| {}).await, "i1 i2 i4 x3");
    assert_eq!(list(union).await, "i1 i2 x3");
    assert_eq!(list(|f| f.labels = map(&[("k", "1")])).await, "i1 i4");
    let restricted = |f: &mut list_secrets_request::Filters| {
        f.names = strings(&["a"]);
        f.id_prefixes = strings(&["x"]);
        f.labels = map(&[("k", "")]);
    };
    assert_eq!(list(restricted).await, "i1 x3");
}

// 05-A33
#[tokio::test]
async fn configs_are_found_by_a_union() {
    let bed = Bed::new();
    let config = |id: &str, name: &str, labels: &[(&str, &str)]| Config {
        id: id.into(),
        spec: Some(ConfigSpec {
            annotations: labelled(name, labels),
            data: b"x".to_vec(),
            ..Default::default()
        }),
        ..Default::default()
    };
    bed.put([
        config("i1", "a", &[("k", "1")]),
        config("i2", "b", &[]),
        config("x3", "c", &[]),
    ])
    .await;
    let filters = list_configs_request::Filters {
        names: strings(&["A"]),
        id_prefixes: strings(&["x"]),
        ..Default::default()
    };
    let request = Request::new(ListConfigsRequest {
        filters: Some(filters),
    });
    let found = ok(Control::list_configs(&bed.control, request).await).configs;
    let shown: Vec<_> = found
        .iter()
        .map(|config| {
            (
                config.id.as_str(),
                config.spec.as_ref().unwrap().data.as_slice(),
            )
        })
        .collect();
    assert_eq!(shown, [("i1", &b"x"[..]), ("x3", b"x")]);
}

#[tokio::test]
async fn service_filters() {
    let bed = Bed::new();
    let mut labelled_service = web("web");
    labelled_service.annotations = labelled("web", &[("tier", "front")]);
    let mut generic = web("gen");
    task_of(&mut generic).runtime = Some(task_spec::Runtime::Generic(GenericRuntimeSpec {
        kind: "Custom".into(),
        payload: Some(prost_types::Any {
            type_url: "t".into(),
            value: vec![1],
        }),
    }));
    bed.create(labelled_service).await;
    bed.create(generic).await;
    bed.create(web("web2")).await;
    let list = async |f: fn(&mut list_services_request::Filters)| {
        let mut filters = list_services_request::Filters::default();
        f(&mut filters);
        let request = Request::new(ListServicesRequest {
            filters: Some(filters),
        });
        let found = ok(Control::list_services(&bed.control, request).await).services;
        let mut names: Vec<String> = found
            .into_iter()
            .map(|service| service.spec.unwrap().annotations.unwrap().name)
            .collect();
        names.sort_unstable();
        names.join(" ")
    };
    assert_eq!(list(|_| {}).await, "gen web web2");
    assert_eq!(list(|f| f.names = strings(&["web"])).await, "web");
    assert_eq!(
        list(|f| f.name_prefixes = strings(&["we"])).await,
        "web web2"
    );
    assert_eq!(list(|f| f.id_prefixes = strings(&["no such"])).await, "");
    assert_eq!(list(|f| f.labels = map(&[("tier", "")])).await, "web");
    assert_eq!(
        list(|f| f.runtimes = strings(&["container"])).await,
        "web web2"
    );
    assert_eq!(list(|f| f.runtimes = strings(&["custom"])).await, "gen");
}

#[tokio::test]
async fn too_much_is_refused_with_a_hint() {
    let bed = Bed::with_options(ControlOptions {
        list_bytes_max: 1_000,
        ..Default::default()
    });
    bed.put((0..100).map(|n| task(&format!("t{n:02}"), "s1", "n1", TaskState::Running)))
        .await;
    let all = Request::new(ListTasksRequest::default());
    assert_eq!(
        seen(&Control::list_tasks(&bed.control, all).await),
        "ResourceExhausted: the list is larger than 1000 bytes; use a filter to ask for fewer objects"
    );
    assert_eq!(
        tasks(&bed, |f| f.id_prefixes = strings(&["t07"])).await,
        "t07"
    );

    let values = vec![String::new(); filter::FILTER_VALUES_MAX + 1];
    let filters = list_tasks_request::Filters {
        names: values,
        ..Default::default()
    };
    let request = Request::new(ListTasksRequest {
        filters: Some(filters),
    });
    assert_eq!(
        seen(&Control::list_tasks(&bed.control, request).await),
        "InvalidArgument: a filter has 10001 values; at most 10000 are allowed"
    );
}
