//! Published ports that clash.

use super::*;
use crate::storage::testing::TestStore;
use port_config::PublishMode::{Host, Ingress};
use port_config::{Protocol, PublishMode};

async fn bed() -> Bed {
    let bed = Bed::new();
    bed.put([ingress_network()]).await;
    bed
}

// 05-A14
#[tokio::test]
async fn the_matrix_on_create() {
    for (existing, new, clash) in [
        (Ingress, Ingress, Some("an ingress")),
        (Ingress, Host, Some("an ingress")),
        (Host, Ingress, Some("a host-published")),
        (Host, Host, None),
    ] {
        let bed = bed().await;
        let first = bed
            .create(publishing("first", &[port(8080, existing)]))
            .await;
        let expected = match clash {
            None => "OK".to_owned(),
            Some(mode) => format!(
                "InvalidArgument: port '8080' is already in use by service 'first' ({}) as {mode} port",
                first.id
            ),
        };
        let second = publishing("second", &[port(8080, new)]);
        assert_eq!(
            bed.try_create(second).await,
            expected,
            "{existing:?} {new:?}"
        );
    }
}

// 05-A14
#[tokio::test]
async fn what_never_clashes() {
    let bed = bed().await;
    bed.create(publishing(
        "first",
        &[port(8080, Ingress), port(0, Ingress)],
    ))
    .await;
    let udp = PortConfig {
        protocol: Protocol::Udp as i32,
        ..port(8080, Ingress)
    };
    for (name, ports) in [
        ("other-protocol", vec![udp]),
        ("unpublished", vec![port(0, Ingress)]),
        ("unpublished-host", vec![port(0, Host)]),
        ("other-port", vec![port(8081, Ingress)]),
        ("none", vec![]),
    ] {
        assert_eq!(
            bed.try_create(publishing(name, &ports)).await,
            "OK",
            "{name}"
        );
    }
}

// 05-A14
#[tokio::test]
async fn on_update() {
    let bed = bed().await;
    let first = bed
        .create(publishing("first", &[port(8080, Ingress)]))
        .await;
    let second = bed.create(publishing("second", &[port(8081, Host)])).await;
    let update = async |service: &Service, ports: &[PortConfig], replicas| {
        let mut spec = service.spec.clone().unwrap();
        spec.endpoint = Some(EndpointSpec {
            ports: ports.to_vec(),
            ..Default::default()
        });
        spec.mode = Some(service_spec::Mode::Replicated(ReplicatedService {
            replicas,
        }));
        let request = UpdateServiceRequest {
            service_id: service.id.clone(),
            service_version: version_of(&bed.get::<Service>(&service.id).unwrap().meta),
            spec: Some(spec),
            ..Default::default()
        };
        seen(&Control::update_service(&bed.control, Request::new(request)).await)
    };
    // Keeping one's own port is fine, whatever else changes.
    assert_eq!(update(&first, &[port(8080, Ingress)], 3).await, "OK");
    for mode in [Host, Ingress] {
        let taken = update(&second, &[port(8080, mode)], 1).await;
        assert!(
            taken.starts_with("InvalidArgument: port '8080' is already in use"),
            "{taken}"
        );
    }
    // A free port is not refused for that, but endpoints cannot be changed yet.
    let free = update(&second, &[port(9000, Ingress)], 1).await;
    assert_eq!(
        free,
        "Unimplemented: changing the endpoint of a service: not available yet"
    );
}

#[tokio::test]
async fn removed_and_allocated_ports() {
    let bed = bed().await;
    let first = bed
        .create(publishing("first", &[port(8080, Ingress)]))
        .await;
    let request = Request::new(RemoveServiceRequest {
        service_id: first.id,
    });
    ok(Control::remove_service(&bed.control, request).await);
    assert_eq!(
        bed.try_create(publishing("second", &[port(8080, Ingress)]))
            .await,
        "OK"
    );

    // Ports that were allocated count like wanted ones.
    let mut allocated = bed.create(publishing("third", &[port(0, Ingress)])).await;
    allocated.endpoint = Some(Endpoint {
        ports: vec![port(30_000, Ingress)],
        ..Default::default()
    });
    let store: Result<_, StoreError> = bed.store.update(|tx: &mut Tx| tx.update(allocated)).await;
    store.unwrap();
    let clash = bed
        .try_create(publishing("fourth", &[port(30_000, PublishMode::Ingress)]))
        .await;
    assert!(
        clash.starts_with("InvalidArgument: port '30000' is already in use"),
        "{clash}"
    );
}

/// Transactions run before those in front of them are committed; ports must be seen all the same.
#[tokio::test]
async fn two_creates_at_once() {
    let bed = bed().await;
    bed.try_create(publishing("warm-up", &[port(1, Ingress)]))
        .await;
    bed.store.hold();
    let creates: Vec<_> = (0..4)
        .map(|n| {
            let control = bed.control.clone();
            let spec = publishing(&format!("rival{n}"), &[port(8080, Ingress)]);
            tokio::spawn(async move {
                let request = Request::new(CreateServiceRequest { spec: Some(spec) });
                seen(&Control::create_service(&control, request).await)
            })
        })
        .collect();
    wait_for_a_winner(&bed.store, &creates).await;
    bed.store.release();
    let mut outcomes = Vec::new();
    for create in creates {
        outcomes.push(create.await.unwrap());
    }
    assert_eq!(
        outcomes.iter().filter(|outcome| *outcome == "OK").count(),
        1,
        "{outcomes:?}"
    );
    assert_eq!(bed.all::<Service>().len(), 2);
}

/// Until one create waits for its commit and all others have lost.
async fn wait_for_a_winner(store: &TestStore, creates: &[tokio::task::JoinHandle<String>]) {
    let finished = || creates.iter().filter(|create| create.is_finished()).count();
    while store.proposer().waiting() + finished() < creates.len() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_index_recovers_from_falling_behind() {
    let bed = bed().await;
    bed.create(publishing("first", &[port(8080, Ingress)]))
        .await;
    let kept = bed
        .create(publishing("second", &[port(8081, Ingress)]))
        .await;
    // More changes than any subscriber can have waiting, unseen by the index.
    let mut service = (*bed.get::<Service>(&kept.id).unwrap()).clone();
    for _ in 0..10_100 {
        let written: Result<_, StoreError> = bed
            .store
            .update(|tx: &mut Tx| tx.update(service.clone()))
            .await;
        service = (*written.unwrap()).clone();
    }
    for number in [8080, 8081] {
        let clash = bed
            .try_create(publishing("late", &[port(number, Host)]))
            .await;
        assert!(clash.starts_with("InvalidArgument: port"), "{clash}");
    }
    assert_eq!(
        bed.try_create(publishing("late", &[port(8082, Host)]))
            .await,
        "OK"
    );
}
