//! Get calls, and what every read says about itself.

use super::*;

/// What clients see when they ask for an ID of each kind.
#[allow(clippy::field_reassign_with_default)] // Some of the requests have more fields.
async fn get_everything(bed: &Bed, id: &str) -> Vec<(&'static str, String)> {
    let c = &bed.control;
    macro_rules! get {
        ($method:ident, $request:ident, $field:ident) => {{
            let mut request = $request::default();
            request.$field = id.into();
            let result = Control::$method(c, Request::new(request)).await;
            (stringify!($method), seen(&result))
        }};
    }
    vec![
        get!(get_node, GetNodeRequest, node_id),
        get!(get_task, GetTaskRequest, task_id),
        get!(get_service, GetServiceRequest, service_id),
        get!(get_network, GetNetworkRequest, network_id),
        get!(get_cluster, GetClusterRequest, cluster_id),
        get!(get_secret, GetSecretRequest, secret_id),
        get!(get_config, GetConfigRequest, config_id),
        get!(get_extension, GetExtensionRequest, extension_id),
        get!(get_resource, GetResourceRequest, resource_id),
        get!(get_volume, GetVolumeRequest, volume_id),
    ]
}

// 05-A2
#[tokio::test]
async fn empty_and_unknown_ids() {
    let bed = Bed::new();
    for (method, seen) in get_everything(&bed, "").await {
        assert_eq!(seen, "InvalidArgument: invalid argument", "{method}");
    }
    for (method, seen) in get_everything(&bed, "nope").await {
        let kind = method.trim_start_matches("get_");
        assert_eq!(seen, format!("NotFound: {kind} nope not found"), "{method}");
    }
}

// 05-A2
#[tokio::test]
async fn known_ids() {
    let bed = Bed::new();
    let id = || "known".to_owned();
    bed.put([Node {
        id: id(),
        ..Default::default()
    }])
    .await;
    bed.put([Task {
        id: id(),
        ..Default::default()
    }])
    .await;
    bed.put([Service {
        id: id(),
        ..Default::default()
    }])
    .await;
    bed.put([Network {
        id: id(),
        ..Default::default()
    }])
    .await;
    bed.put([Cluster {
        id: id(),
        ..Default::default()
    }])
    .await;
    bed.put([Secret {
        id: id(),
        ..Default::default()
    }])
    .await;
    bed.put([Config {
        id: id(),
        ..Default::default()
    }])
    .await;
    bed.put([Extension {
        id: id(),
        annotations: named("kind"),
        ..Default::default()
    }])
    .await;
    bed.put([Resource {
        id: id(),
        kind: "kind".into(),
        ..Default::default()
    }])
    .await;
    let driver = Some(Driver::default());
    let spec = Some(VolumeSpec {
        driver,
        ..Default::default()
    });
    bed.put([Volume {
        id: id(),
        spec,
        ..Default::default()
    }])
    .await;
    for (method, seen) in get_everything(&bed, "known").await {
        assert_eq!(seen, "OK", "{method}");
    }
}

#[tokio::test]
async fn reads_say_what_they_show_and_on_whose_authority() {
    let bed = Bed::new();
    bed.put([Task {
        id: "t1".into(),
        ..Default::default()
    }])
    .await;
    for (authority, shown) in [(ReadFrom::Leader, "leader"), (ReadFrom::Local, "local")] {
        *bed.group.authority.lock() = Ok(authority);
        let get = Request::new(GetTaskRequest {
            task_id: "t1".into(),
        });
        let get = Control::get_task(&bed.control, get).await.unwrap();
        let list = Request::new(ListTasksRequest::default());
        let list = Control::list_tasks(&bed.control, list).await.unwrap();
        for metadata in [get.metadata(), list.metadata()] {
            let value = |key| metadata.get(key).and_then(|value| value.to_str().ok());
            let applied = bed.store.applied().to_string();
            assert_eq!(value(METADATA_APPLIED_INDEX), Some(applied.as_str()));
            assert_eq!(value(METADATA_READ), Some(shown));
        }
    }
}

#[tokio::test]
async fn a_deposed_leader_does_not_answer() {
    let bed = Bed::new();
    bed.put([Task {
        id: "t1".into(),
        ..Default::default()
    }])
    .await;
    *bed.group.authority.lock() = Err(ProposeError::LostLeadership);
    let get = Request::new(GetTaskRequest {
        task_id: "t1".into(),
    });
    let list = Request::new(ListTasksRequest::default());
    let lost = "Unknown: raft: failed to process the request: node lost leader status";
    assert_eq!(seen(&Control::get_task(&bed.control, get).await), lost);
    assert_eq!(seen(&Control::list_tasks(&bed.control, list).await), lost);
}

#[tokio::test]
async fn writes_without_leadership_change_nothing() {
    let bed = Bed::new();
    bed.store.lose_leadership();
    assert_eq!(
        bed.try_create(web("web")).await,
        "Unknown: raft: failed to process the request: node lost leader status"
    );
    assert!(bed.all::<Service>().is_empty());
}

#[tokio::test]
async fn what_is_not_built_says_so() {
    let bed = Bed::new();
    let c = &bed.control;
    let create_network = Request::new(CreateNetworkRequest::default());
    assert_eq!(
        seen(&Control::create_network(c, create_network).await),
        "Unimplemented: creating networks: not available yet"
    );
    let create_volume = Request::new(CreateVolumeRequest::default());
    assert_eq!(
        seen(&Control::create_volume(c, create_volume).await),
        "Unimplemented: creating volumes: not available yet"
    );
}
