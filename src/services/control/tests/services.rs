//! Creating, reading and removing services.

use super::*;
use crate::api::time;
use port_config::PublishMode::Ingress;

// 05-A9
#[tokio::test]
async fn a_name_can_be_taken_once() {
    let bed = Bed::new();
    bed.create(web("web")).await;
    for name in ["web", "WEB"] {
        assert_eq!(
            bed.try_create(web(name)).await,
            format!(
                "AlreadyExists: name conflicts with an existing object: service {name} already exists"
            )
        );
    }
    assert_eq!(bed.try_create(web("web2")).await, "OK");
}

#[tokio::test]
async fn a_new_service() {
    let bed = Bed::new();
    let service = bed.create(web("web")).await;
    assert!(crate::api::ids::is_valid_id(&service.id));
    assert_eq!(service.spec, Some(web("web")));
    assert_eq!(service.spec_version, Some(Version { index: 0 }));
    assert_eq!(service.job_status, None);
    assert!(service.meta.unwrap().created_at.is_some());
    assert_eq!(*bed.get::<Service>(&service.id).unwrap(), service);
}

// 05-A19
#[tokio::test]
async fn a_new_job() {
    let bed = Bed::new();
    let before = time::now().seconds;
    let status = bed.create(job("job")).await.job_status.unwrap();
    assert_eq!(status.job_iteration, Some(Version { index: 0 }));
    let executed = status.last_execution.unwrap().seconds;
    assert!((before..=time::now().seconds).contains(&executed));
}

// 05-A16
#[tokio::test]
async fn the_ingress_network_is_not_for_attaching() {
    let bed = Bed::new();
    bed.put([ingress_network()]).await;
    let attached = |target: &str| {
        let mut spec = web("web");
        let network = NetworkAttachmentConfig {
            target: target.into(),
            ..Default::default()
        };
        task_of(&mut spec).networks = vec![network];
        spec
    };
    let refused = "InvalidArgument: Service cannot be explicitly attached to the ingress network";
    assert_eq!(bed.try_create(attached("ingressid")).await, refused);

    let service = bed.create(attached("unknown")).await;
    let request = UpdateServiceRequest {
        service_id: service.id.clone(),
        service_version: version_of(&service.meta),
        spec: Some(attached("ingressid")),
        ..Default::default()
    };
    let update = Control::update_service(&bed.control, Request::new(request)).await;
    assert_eq!(seen(&update), refused);
}

// 05-A16
#[tokio::test]
async fn ingress_ports_need_the_network() {
    let bed = Bed::new();
    let spec = publishing("web", &[port(8080, Ingress)]);
    assert_eq!(
        bed.try_create(spec.clone()).await,
        "FailedPrecondition: service needs ingress network, but no ingress network is present"
    );
    let older_kind = Network {
        id: "n1".into(),
        spec: Some(NetworkSpec {
            annotations: labelled("ingress", &[("com.docker.swarm.internal", "true")]),
            ..Default::default()
        }),
        ..Default::default()
    };
    bed.put([older_kind]).await;
    assert_eq!(bed.try_create(spec).await, "OK");
}

#[tokio::test]
async fn an_ingress_network_of_another_name() {
    let bed = Bed::new();
    let mut network = ingress_network();
    network.spec.as_mut().unwrap().annotations = named("my-ingress");
    bed.put([network]).await;
    assert_eq!(
        bed.try_create(publishing("web", &[port(8080, Ingress)]))
            .await,
        "OK"
    );
}

// 05-A21
#[tokio::test]
async fn defaults_are_shown_on_request_only() {
    let bed = Bed::new();
    let id = bed.create(web("web")).await.id;
    let get = async |insert_defaults| {
        let request = GetServiceRequest {
            service_id: id.clone(),
            insert_defaults,
        };
        let answer = ok(Control::get_service(&bed.control, Request::new(request)).await);
        answer.service.unwrap().spec.unwrap()
    };
    let mut completed = web("web");
    crate::api::defaults::service_spec(&mut completed);
    assert_ne!(completed, web("web"));
    assert_eq!(get(true).await, completed);
    assert_eq!(get(false).await, web("web"), "the stored spec is untouched");
}

#[tokio::test]
async fn removal() {
    let bed = Bed::new();
    let id = bed.create(web("web")).await.id;
    bed.put([task("t1", &id, "", TaskState::Running)]).await;
    let remove = async |service_id: &str| {
        let request = Request::new(RemoveServiceRequest {
            service_id: service_id.into(),
        });
        seen(&Control::remove_service(&bed.control, request).await)
    };
    assert_eq!(remove("").await, "InvalidArgument: invalid argument");
    assert_eq!(remove(&id).await, "OK");
    assert_eq!(
        remove(&id).await,
        format!("NotFound: service {id} not found")
    );
    assert!(
        bed.get::<Task>("t1").is_some(),
        "tasks are the orchestrators' business"
    );
}

#[tokio::test]
async fn task_removal() {
    let bed = Bed::new();
    let id = bed.create(web("web")).await.id;
    bed.put([
        task("t1", &id, "", TaskState::Running),
        task("t2", "", "", TaskState::New),
    ])
    .await;
    let remove = async |task_id: &str| {
        let request = Request::new(RemoveTaskRequest {
            task_id: task_id.into(),
        });
        seen(&Control::remove_task(&bed.control, request).await)
    };
    assert_eq!(remove("").await, "InvalidArgument: invalid argument");
    assert_eq!(remove("t1").await, "OK");
    assert_eq!(remove("t2").await, "OK");
    assert_eq!(remove("t2").await, "NotFound: task t2 not found");
    assert!(bed.all::<Task>().is_empty());
}

/// A client that gives up does not withdraw its write.
#[tokio::test]
async fn a_write_outlives_its_caller() {
    let bed = Bed::new();
    bed.store.hold();
    let control = bed.control.clone();
    let create = tokio::spawn(async move {
        let request = Request::new(CreateServiceRequest {
            spec: Some(web("web")),
        });
        Control::create_service(&control, request).await
    });
    while bed.store.proposer().waiting() == 0 {
        tokio::task::yield_now().await;
    }
    create.abort();
    assert!(create.await.unwrap_err().is_cancelled());
    bed.store.release();
    assert_eq!(bed.all::<Service>().len(), 1);
}
