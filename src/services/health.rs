//! `Health.Check`: is a part of this manager serving?
//!
//! Each listener has its own instance and registers what callers of that listener ask for: `Raft` on the
//! remote port, `ControlAPI` on the control socket (spec 03 section 8.6). A joining member and a voter ask
//! before they rely on a manager, so the answer never waits for anything.

use crate::api::types::health_check_response::ServingStatus;
use crate::api::types::health_server::{Health, HealthServer};
use crate::api::types::{HealthCheckRequest, HealthCheckResponse};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The name that other managers ask for.
pub const RAFT: &str = crate::raft::HEALTH_SERVICE;
/// The name that users of the control socket ask for.
pub const CONTROL_API: &str = "ControlAPI";

/// The health of the services of one listener. Clones share it.
#[derive(Clone, Default)]
pub struct HealthService {
    services: Arc<RwLock<BTreeMap<&'static str, ServingStatus>>>,
}

impl HealthService {
    /// Registers a service, or changes whether it serves.
    pub fn set_serving(&self, service: &'static str, serving: bool) {
        let status = match serving {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        self.services.write().insert(service, status);
    }

    pub fn server(&self) -> HealthServer<HealthService> {
        HealthServer::new(self.clone())
    }

    /// No name asks for the process as a whole, which serves if it answers.
    fn status(&self, service: &str) -> Option<ServingStatus> {
        match service {
            "" => Some(ServingStatus::Serving),
            name => self.services.read().get(name).copied(),
        }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let status = self.status(&request.into_inner().service);
        let status = status.ok_or_else(|| Status::not_found("unknown service"))?;
        Ok(Response::new(HealthCheckResponse {
            status: status as i32,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(health: &HealthService, service: &str) -> Result<i32, Status> {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let answer = health.check(Request::new(request)).await?;
        Ok(answer.into_inner().status)
    }

    #[tokio::test]
    async fn answers() {
        // 03-A25
        let health = HealthService::default();
        health.set_serving(RAFT, false);
        assert_eq!(check(&health, "").await.unwrap(), 1);
        assert_eq!(check(&health, RAFT).await.unwrap(), 2);
        health.clone().set_serving(RAFT, true);
        assert_eq!(check(&health, RAFT).await.unwrap(), 1);
        let unknown = check(&health, CONTROL_API).await.unwrap_err();
        assert_eq!(unknown.code(), tonic::Code::NotFound);
        assert_eq!(unknown.message(), "unknown service");
    }
}
