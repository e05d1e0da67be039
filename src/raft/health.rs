//! Asking another manager whether its raft member serves: before a newcomer is admitted, before a candidate
//! gets a vote, and when nothing else has been said for a while.

use crate::api::types::HealthCheckRequest;
use crate::api::types::health_check_response::ServingStatus;
use crate::api::types::health_client::HealthClient;
use tonic::Status;
use tonic::transport::Channel;

/// Name of the raft member in the health service.
pub const HEALTH_SERVICE: &str = "Raft";
/// What is wrong when it does not serve.
pub const NOT_SERVING: &str = "its raft member does not serve";

/// Whether the raft member of the manager at the other end serves.
pub async fn serves(channel: Channel) -> Result<bool, Status> {
    let request = HealthCheckRequest {
        service: HEALTH_SERVICE.to_owned(),
    };
    let answer = HealthClient::new(channel).check(request).await?;
    Ok(answer.into_inner().status() == ServingStatus::Serving)
}
