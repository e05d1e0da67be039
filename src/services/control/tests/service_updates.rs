//! Changing services and going back.

use super::*;
use crate::api::time;
use update_service_request::Rollback;

/// An update of a stored service: its current version and spec, changed.
fn request(bed: &Bed, id: &str, change: impl FnOnce(&mut ServiceSpec)) -> UpdateServiceRequest {
    let service = bed.get::<Service>(id).unwrap();
    let mut spec = service.spec.clone().unwrap();
    change(&mut spec);
    UpdateServiceRequest {
        service_id: id.into(),
        service_version: version_of(&service.meta),
        spec: Some(spec),
        rollback: Rollback::None as i32,
    }
}

async fn update(bed: &Bed, request: UpdateServiceRequest) -> String {
    seen(&Control::update_service(&bed.control, Request::new(request)).await)
}

fn scale(replicas: u64) -> impl FnOnce(&mut ServiceSpec) {
    move |spec| {
        spec.mode = Some(service_spec::Mode::Replicated(ReplicatedService {
            replicas,
        }))
    }
}

fn rename(spec: &mut ServiceSpec) {
    spec.annotations = named("other");
}

const STALE: Option<Version> = Some(Version { index: 98_765 });

// 05-A17
#[tokio::test]
async fn scaling_keeps_the_previous_spec() {
    let bed = Bed::new();
    let created = bed.create(web("web")).await;
    let request = request(&bed, &created.id, scale(5));
    let answer = Control::update_service(&bed.control, Request::new(request.clone())).await;
    let updated = ok(answer).service.unwrap();
    assert_eq!(updated.spec, request.spec);
    assert_eq!(updated.previous_spec, created.spec);
    assert_eq!(updated.spec_version, version_of(&created.meta));
    assert_eq!(updated.previous_spec_version, Some(Version { index: 0 }));
    assert_eq!(updated.update_status, None);
    assert_eq!(*bed.get::<Service>(&created.id).unwrap(), updated);

    let conflict = Control::update_service(&bed.control, Request::new(request.clone())).await;
    let status = conflict.unwrap_err();
    assert_eq!(status.message(), "update out of sequence");
    assert_eq!(status.code(), tonic::Code::Unknown);
    let versions = [
        error::METADATA_VERSION_GIVEN,
        error::METADATA_VERSION_STORED,
    ]
    .map(|key| {
        status
            .metadata()
            .get(key)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    });
    let stored = version_of(&updated.meta).unwrap().index;
    assert_eq!(
        versions,
        [request.service_version.unwrap().index, stored].map(|v| v.to_string())
    );
}

// 05-A17
#[tokio::test]
async fn what_cannot_be_updated() {
    let bed = Bed::new();
    let id = bed.create(web("web")).await.id;
    let with = |change: fn(&mut ServiceSpec)| request(&bed, &id, change);
    let stale = |request| UpdateServiceRequest {
        service_version: STALE,
        ..request
    };
    let unchanged = || with(|_| {});
    for (request, expected) in [
        (
            UpdateServiceRequest {
                service_id: String::new(),
                ..unchanged()
            },
            "InvalidArgument: invalid argument",
        ),
        (
            UpdateServiceRequest {
                service_version: None,
                ..unchanged()
            },
            "InvalidArgument: invalid argument",
        ),
        (
            UpdateServiceRequest {
                spec: None,
                ..unchanged()
            },
            "InvalidArgument: invalid argument",
        ),
        (
            UpdateServiceRequest {
                service_id: "nope".into(),
                ..unchanged()
            },
            "NotFound: service nope not found",
        ),
        (
            UpdateServiceRequest {
                rollback: 7,
                ..unchanged()
            },
            "InvalidArgument: rollback: unknown value 7",
        ),
        (
            with(|s| s.mode = None),
            "InvalidArgument: service mode must be set",
        ),
        (stale(with(|_| {})), "Unknown: update out of sequence"),
        (
            with(rename),
            "Unimplemented: renaming services is not supported",
        ),
        (
            stale(with(rename)),
            "Unimplemented: renaming services is not supported",
        ),
        (
            with(|s| s.mode = Some(service_spec::Mode::Global(GlobalService {}))),
            "Unimplemented: service mode change is not allowed",
        ),
        (
            with(|s| container_of(s).image = "busybox:2".into()),
            "Unimplemented: changing the task template of a service: not available yet",
        ),
        (
            with(|s| task_of(s).force_update += 1),
            "Unimplemented: changing the task template of a service: not available yet",
        ),
        (
            with(|s| *s = publishing("web", &[port(80, port_config::PublishMode::Host)])),
            "Unimplemented: changing the endpoint of a service: not available yet",
        ),
    ] {
        assert_eq!(update(&bed, request).await, expected);
    }
    let service = bed.get::<Service>(&id).unwrap();
    assert_eq!(service.spec, Some(web("web")));
    assert_eq!(service.previous_spec, None);
}

// 05-A17
#[tokio::test]
async fn what_can_be_updated() {
    let bed = Bed::new();
    let id = bed.create(web("web")).await.id;
    let changes: [fn(&mut ServiceSpec); 5] = [
        |_| {},
        |s| s.annotations = labelled("web", &[("tier", "front")]),
        |s| {
            s.update = Some(UpdateConfig {
                parallelism: 3,
                ..Default::default()
            })
        },
        |s| {
            s.rollback = Some(UpdateConfig {
                parallelism: 4,
                ..Default::default()
            })
        },
        // An empty endpoint is no endpoint.
        |s| s.endpoint = Some(EndpointSpec::default()),
    ];
    for change in changes {
        let request = request(&bed, &id, change);
        let wanted = request.spec.clone();
        assert_eq!(update(&bed, request).await, "OK");
        assert_eq!(bed.get::<Service>(&id).unwrap().spec, wanted);
    }
}

// 05-A17
#[tokio::test]
#[allow(deprecated)]
async fn the_deprecated_list_of_networks() {
    let bed = Bed::new();
    let networks = || {
        vec![NetworkAttachmentConfig {
            target: "n1".into(),
            ..Default::default()
        }]
    };
    let mut spec = web("web");
    spec.networks = networks();
    let id = bed.create(spec).await.id;
    let refused = "Unimplemented: networks must be migrated to TaskSpec before being changed";
    let cleared = request(&bed, &id, |spec| spec.networks.clear());
    assert_eq!(update(&bed, cleared).await, refused);
    let changed = request(&bed, &id, |spec| spec.networks[0].target = "n2".into());
    assert_eq!(update(&bed, changed).await, refused);
    // Moving the list is a change of the task template, which is not available yet.
    let moved = request(&bed, &id, |spec| {
        task_of(spec).networks = std::mem::take(&mut spec.networks);
    });
    assert_eq!(
        update(&bed, moved).await,
        "Unimplemented: changing the task template of a service: not available yet"
    );
    assert_eq!(update(&bed, request(&bed, &id, scale(2))).await, "OK");
}

// 05-A18
#[tokio::test]
async fn rollback() {
    let bed = Bed::new();
    let id = bed.create(web("web")).await.id;
    let back = || UpdateServiceRequest {
        rollback: Rollback::Previous as i32,
        ..request(&bed, &id, |_| {})
    };
    assert_eq!(
        update(&bed, back()).await,
        format!("FailedPrecondition: service {id} does not have a previous spec")
    );
    assert_eq!(update(&bed, request(&bed, &id, scale(5))).await, "OK");
    let before = bed.get::<Service>(&id).unwrap();

    let started = time::now().seconds;
    assert_eq!(update(&bed, back()).await, "OK");
    let after = bed.get::<Service>(&id).unwrap();
    assert_eq!(after.spec, before.previous_spec);
    assert_eq!(after.previous_spec, before.spec);
    assert_eq!(after.spec_version, before.previous_spec_version);
    assert_eq!(after.previous_spec_version, before.spec_version);
    let status = after.update_status.clone().unwrap();
    assert_eq!(
        status.state,
        update_status::UpdateState::RollbackStarted as i32
    );
    assert_eq!(status.message, "manually requested rollback");
    assert!(status.started_at.unwrap().seconds >= started);
    assert_eq!(status.completed_at, None);

    // The next ordinary update clears the status.
    assert_eq!(update(&bed, request(&bed, &id, scale(2))).await, "OK");
    assert_eq!(bed.get::<Service>(&id).unwrap().update_status, None);
}

// 05-A19
#[tokio::test]
async fn every_update_of_a_job_is_a_new_iteration() {
    let bed = Bed::new();
    let id = bed.create(job("job")).await.id;
    for iteration in [1, 2] {
        let before = time::now().seconds;
        assert_eq!(update(&bed, request(&bed, &id, |_| {})).await, "OK");
        let status = bed.get::<Service>(&id).unwrap().job_status.unwrap();
        assert_eq!(status.job_iteration, Some(Version { index: iteration }));
        assert!(status.last_execution.unwrap().seconds >= before);
    }
    let with_config = request(&bed, &id, |spec| {
        spec.update = Some(UpdateConfig::default())
    });
    assert_eq!(
        update(&bed, with_config).await,
        "InvalidArgument: job-mode services may not have an update config"
    );
}
