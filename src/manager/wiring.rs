//! Which services a manager consists of, in which order they start, and on which listener each answers.

use super::ManagerConfig;
use crate::api::types::WeightedPeer;
use crate::api::types::dispatcher_server::DispatcherServer;
use crate::api::types::log_broker_server::LogBrokerServer;
use crate::api::types::logs_server::LogsServer;
use crate::api::types::resource_allocator_server::ResourceAllocatorServer;
use crate::raft::rpc::{RaftRpc, SecureDialBack};
use crate::raft::{Handle, RaftError};
use crate::services::admin::{AdminParts, AdminService};
use crate::services::allocator::Allocator;
use crate::services::ca::CaService;
use crate::services::control::{
    self, ControlOptions, ControlService, MembershipView, OrphanSweep, ReadFrom,
};
use crate::services::dispatcher::{Dispatcher, Settings};
use crate::services::health::HealthService;
use crate::services::leader::LeaderService;
use crate::services::logs::LogServices;
use crate::services::orchestrator::reaper::TaskReaper;
use crate::services::orchestrator::replicated::ReplicatedOrchestrator;
use crate::services::proxy::Group;
use crate::services::rekey::Rekey;
use crate::services::resource::ResourceService;
use crate::services::roles::{GroupControl, RoleManager};
use crate::services::scheduler::Scheduler;
use crate::services::server::MESSAGE_BYTES_MAX;
use crate::storage::snapshot::Incoming;
use crate::storage::{ProposeError, Store};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use tonic::service::Routes;

/// The services of one manager.
pub struct Parts {
    admin: AdminService,
    ca: CaService,
    control: ControlService,
    dispatcher: Dispatcher,
    raft: RaftRpc,
    roles: Arc<RoleManager>,
}

impl Parts {
    pub fn new(
        config: &ManagerConfig,
        member: &Handle,
        store: &Store,
        rekey: &Rekey,
        started: Instant,
        managers: watch::Receiver<Vec<WeightedPeer>>,
        incoming: Arc<Incoming>,
    ) -> Parts {
        let credentials = config.security.current();
        let members = Arc::new(RaftMembers(member.clone()));
        Parts {
            admin: AdminService::new(AdminParts {
                node_id: credentials.node_id().to_owned(),
                cluster_id: credentials.cluster_id().to_owned(),
                started,
                state_dir: config.state_dir.path().to_owned(),
                member: member.clone(),
                store: store.clone(),
                rekey: rekey.clone(),
            }),
            ca: CaService::new(store.clone(), config.security.clone()),
            control: ControlService::new(store.clone(), members, ControlOptions::default()),
            dispatcher: Dispatcher::new(Settings::default(), managers),
            raft: RaftRpc::new(
                member.clone(),
                Arc::new(SecureDialBack(config.security.clone())),
                Some(incoming),
            ),
            roles: Arc::new(RoleManager::new(Arc::new(RaftMembers(member.clone())))),
        }
    }

    /// The leader-gated services in the order in which they start; they end in reverse. The dispatcher
    /// comes last: it must not answer before everything else has restored its state.
    pub fn leader_services(&self) -> Vec<Arc<dyn LeaderService>> {
        vec![
            Arc::new(self.ca.clone()),
            Arc::new(Allocator::default()),
            Arc::new(Scheduler::default()),
            Arc::new(OrphanSweep),
            Arc::new(TaskReaper::default()),
            Arc::new(ReplicatedOrchestrator::default()),
            self.roles.clone(),
            Arc::new(self.dispatcher.clone()),
        ]
    }

    /// What nodes of the cluster may call over TLS.
    pub fn remote_routes(&self, health: &HealthService) -> Routes {
        self.shared_routes(health)
            .add_service(self.raft.raft_server())
            .add_service(self.raft.membership_server())
    }

    /// What people and the local agent may call.
    pub fn control_routes(&self, health: &HealthService) -> Routes {
        self.shared_routes(health).add_service(self.admin.server())
    }

    fn shared_routes(&self, health: &HealthService) -> Routes {
        Routes::new(self.control.clone().into_server())
            .add_service(health.server())
            .add_service(self.ca.ca_server())
            .add_service(self.ca.node_ca_server())
            .add_service(
                DispatcherServer::new(self.dispatcher.clone())
                    .max_decoding_message_size(MESSAGE_BYTES_MAX)
                    .max_encoding_message_size(usize::MAX),
            )
            .add_service(
                LogBrokerServer::new(LogServices).max_decoding_message_size(MESSAGE_BYTES_MAX),
            )
            .add_service(LogsServer::new(LogServices).max_decoding_message_size(MESSAGE_BYTES_MAX))
            .add_service(
                ResourceAllocatorServer::new(ResourceService)
                    .max_decoding_message_size(MESSAGE_BYTES_MAX),
            )
    }
}

/// The raft group as the Control API sees it.
struct RaftMembers(Handle);

impl MembershipView for RaftMembers {
    fn members(&self) -> Option<Vec<control::Member>> {
        Group::members(&self.0)
    }

    fn read_authority(&self) -> BoxFuture<'_, Result<ReadFrom, ProposeError>> {
        Box::pin(async {
            match self.0.confirm_leader().await {
                Ok(_) => Ok(ReadFrom::Leader),
                Err(ProposeError::LostLeadership) => Ok(ReadFrom::Local),
                Err(error) => Err(error),
            }
        })
    }
}

impl GroupControl for RaftMembers {
    fn raft_id(&self) -> u64 {
        self.0.raft_id()
    }

    fn members(&self) -> Option<Vec<control::Member>> {
        Group::members(&self.0)
    }

    fn remove(&self, raft_id: u64) -> BoxFuture<'static, Result<(), RaftError>> {
        let member = self.0.clone();
        Box::pin(async move { member.remove_member(raft_id).await })
    }

    fn transfer(&self) -> BoxFuture<'static, Result<(), RaftError>> {
        let member = self.0.clone();
        Box::pin(async move { member.transfer_leadership().await })
    }
}
