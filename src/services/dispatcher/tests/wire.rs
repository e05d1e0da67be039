//! The dispatcher behind a real HTTP/2 connection: codes, the end of streams, and large messages.

use super::*;
use crate::api::types::Annotations;
use crate::api::types::dispatcher_client::DispatcherClient;
use crate::api::types::dispatcher_server::DispatcherServer;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Server};

/// A client of the dispatcher over an in-memory connection, known as node `n1`.
async fn connect(dispatcher: Dispatcher) -> DispatcherClient<Channel> {
    let (client, server) = tokio::io::duplex(1 << 16);
    let identify = |mut request: Request<()>| {
        let identified = from("n1", ());
        *request.extensions_mut() = identified.extensions().clone();
        Ok(request)
    };
    let service = DispatcherServer::with_interceptor(dispatcher, identify);
    let connections = futures::stream::iter([Ok::<_, std::io::Error>(server)]);
    tokio::spawn(
        Server::builder()
            .add_service(service)
            .serve_with_incoming(connections.chain(futures::stream::pending())),
    );
    let mut client = Some(client);
    let connector = tower::service_fn(move |_| {
        let client = client
            .take()
            .ok_or_else(|| std::io::Error::other("one connection only"));
        async move { client.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://swarm-manager");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    DispatcherClient::new(channel).max_decoding_message_size(usize::MAX)
}

#[tokio::test]
async fn a_session_over_the_wire_ends_with_its_reason() {
    let mut world = World::leading(Settings::default(), &[("n1", NodeState::Unknown)]).await;
    let mut client = connect(world.dispatcher.clone()).await;
    let request = SessionRequest::default();
    let mut session = client.session(request).await.unwrap().into_inner();
    let first = session.message().await.unwrap().unwrap();
    assert_eq!(first.managers.len(), 1);

    let wrong = HeartbeatRequest::default();
    refused(
        client.heartbeat(wrong).await,
        Code::InvalidArgument,
        "session invalid",
    );
    let right = HeartbeatRequest {
        session_id: first.session_id,
    };
    client.heartbeat(right.clone()).await.unwrap();

    world.step_down().await;
    session.message().await.unwrap().unwrap();
    refused(
        session.message().await,
        Code::Aborted,
        "node must disconnect",
    );
    refused(
        client.heartbeat(right).await,
        Code::Aborted,
        "dispatcher is stopped",
    );
}

#[tokio::test]
async fn a_complete_set_may_be_larger_than_the_usual_limit() {
    let world = World::leading(Settings::default(), &[("n1", NodeState::Unknown)]).await;
    for number in 0..6 {
        let mut large = task(&format!("t{number}"), "n1", TaskState::Running);
        large.annotations = Some(Annotations {
            name: "x".repeat(1 << 20),
            ..Default::default()
        });
        world.create(large).await;
    }
    let mut client = connect(world.dispatcher.clone()).await;
    let request = SessionRequest::default();
    let mut session = client.session(request).await.unwrap().into_inner();
    let session_id = session.message().await.unwrap().unwrap().session_id;
    let request = AssignmentsRequest { session_id };
    let mut assignments = client.assignments(request).await.unwrap().into_inner();
    let complete = assignments.message().await.unwrap().unwrap();
    assert_eq!(complete.changes.len(), 6);
}
