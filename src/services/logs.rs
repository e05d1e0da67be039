//! The log broker, which carries the output of tasks from the nodes to whoever asks for it.
//!
//! It is not built yet, and says so: every call that passes authorization answers `UNIMPLEMENTED`,
//! on every manager. That code is part of the contract. An engine whose `ListenSubscriptions` fails
//! with any other code, or ends, gives up its whole session and registers anew, for ever (spec 08
//! section 14.2); on `UNIMPLEMENTED` it works on without a log broker.

use std::pin::Pin;

use futures::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::api::types::log_broker_server::LogBroker;
use crate::api::types::logs_server::Logs;
use crate::api::types::{
    ListenSubscriptionsRequest, PublishLogsMessage, PublishLogsResponse, SubscribeLogsMessage,
    SubscribeLogsRequest, SubscriptionMessage,
};

/// What a caller is told. The agent's side only looks at the code.
const NOT_AVAILABLE: &str =
    "task logs are not available yet: read them on the node that runs the task";

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves `LogBroker` to nodes and `Logs` to people. Cheap to clone, without any state.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogServices;

#[tonic::async_trait]
impl LogBroker for LogServices {
    type ListenSubscriptionsStream = Messages<SubscriptionMessage>;

    async fn listen_subscriptions(
        &self,
        _request: Request<ListenSubscriptionsRequest>,
    ) -> Result<Response<Self::ListenSubscriptionsStream>, Status> {
        Err(Status::unimplemented(NOT_AVAILABLE))
    }

    async fn publish_logs(
        &self,
        _request: Request<Streaming<PublishLogsMessage>>,
    ) -> Result<Response<PublishLogsResponse>, Status> {
        Err(Status::unimplemented(NOT_AVAILABLE))
    }
}

#[tonic::async_trait]
impl Logs for LogServices {
    type SubscribeLogsStream = Messages<SubscribeLogsMessage>;

    async fn subscribe_logs(
        &self,
        _request: Request<SubscribeLogsRequest>,
    ) -> Result<Response<Self::SubscribeLogsStream>, Status> {
        Err(Status::unimplemented(NOT_AVAILABLE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[tokio::test]
    async fn listeners_and_readers_are_told_unimplemented() {
        let listen = LogServices
            .listen_subscriptions(Request::new(ListenSubscriptionsRequest {}))
            .await;
        assert_eq!(listen.err().unwrap().code(), Code::Unimplemented);
        let subscribe = LogServices
            .subscribe_logs(Request::new(SubscribeLogsRequest::default()))
            .await;
        assert_eq!(subscribe.err().unwrap().code(), Code::Unimplemented);
    }
}
