//! The resource allocator, through which an engine attaches a plain container to a swarm network.
//!
//! Swarm networks are not built yet, and a made-up success would leave the engine waiting for an
//! address that never comes. Both calls answer `UNIMPLEMENTED`, and nothing is written.

use tonic::{Request, Response, Status};

use crate::api::types::resource_allocator_server::ResourceAllocator;
use crate::api::types::{
    AttachNetworkRequest, AttachNetworkResponse, DetachNetworkRequest, DetachNetworkResponse,
};

const NOT_AVAILABLE: &str =
    "attaching containers to swarm networks is not available yet: use a network of the engine";

/// Serves `ResourceAllocator`. Cheap to clone, without any state.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResourceService;

#[tonic::async_trait]
impl ResourceAllocator for ResourceService {
    async fn attach_network(
        &self,
        _request: Request<AttachNetworkRequest>,
    ) -> Result<Response<AttachNetworkResponse>, Status> {
        Err(Status::unimplemented(NOT_AVAILABLE))
    }

    async fn detach_network(
        &self,
        _request: Request<DetachNetworkRequest>,
    ) -> Result<Response<DetachNetworkResponse>, Status> {
        Err(Status::unimplemented(NOT_AVAILABLE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[tokio::test]
    async fn attachments_are_refused_as_unimplemented() {
        let attach = ResourceService
            .attach_network(Request::new(AttachNetworkRequest::default()))
            .await;
        assert_eq!(attach.unwrap_err().code(), Code::Unimplemented);
        let detach = ResourceService
            .detach_network(Request::new(DetachNetworkRequest::default()))
            .await;
        assert_eq!(detach.unwrap_err().code(), Code::Unimplemented);
    }
}
