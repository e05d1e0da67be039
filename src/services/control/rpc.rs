//! The gRPC face of the Control API: every method of the interface and the function that answers it.

use tonic::{Request, Response, Status};

use super::{Answer, ControlError, ControlService};
use crate::api::types::*;

/// Implements the service: each method calls the function of the same name.
macro_rules! control_service {
    ($($method:ident($request:ty) -> $response:ty;)+) => {
        #[tonic::async_trait]
        impl control_server::Control for ControlService {
            $(async fn $method(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                let answer: Answer<Response<$response>> =
                    ControlService::$method(self, request.into_inner()).await;
                answer.map_err(Status::from)
            })+
        }
    };
}

/// Methods whose part of the product is not built: they say so, whatever is asked.
macro_rules! not_available {
    ($($method:ident($request:ty) -> $response:ty: $what:literal;)+) => {
        impl ControlService {
            $(async fn $method(&self, _request: $request) -> Answer<Response<$response>> {
                Err(ControlError::not_available($what))
            })+
        }
    };
}

control_service! {
    get_node(GetNodeRequest) -> GetNodeResponse;
    list_nodes(ListNodesRequest) -> ListNodesResponse;
    update_node(UpdateNodeRequest) -> UpdateNodeResponse;
    remove_node(RemoveNodeRequest) -> RemoveNodeResponse;
    get_task(GetTaskRequest) -> GetTaskResponse;
    list_tasks(ListTasksRequest) -> ListTasksResponse;
    remove_task(RemoveTaskRequest) -> RemoveTaskResponse;
    get_service(GetServiceRequest) -> GetServiceResponse;
    list_services(ListServicesRequest) -> ListServicesResponse;
    create_service(CreateServiceRequest) -> CreateServiceResponse;
    update_service(UpdateServiceRequest) -> UpdateServiceResponse;
    remove_service(RemoveServiceRequest) -> RemoveServiceResponse;
    list_service_statuses(ListServiceStatusesRequest) -> ListServiceStatusesResponse;
    get_network(GetNetworkRequest) -> GetNetworkResponse;
    list_networks(ListNetworksRequest) -> ListNetworksResponse;
    create_network(CreateNetworkRequest) -> CreateNetworkResponse;
    remove_network(RemoveNetworkRequest) -> RemoveNetworkResponse;
    get_cluster(GetClusterRequest) -> GetClusterResponse;
    list_clusters(ListClustersRequest) -> ListClustersResponse;
    update_cluster(UpdateClusterRequest) -> UpdateClusterResponse;
    get_secret(GetSecretRequest) -> GetSecretResponse;
    update_secret(UpdateSecretRequest) -> UpdateSecretResponse;
    list_secrets(ListSecretsRequest) -> ListSecretsResponse;
    create_secret(CreateSecretRequest) -> CreateSecretResponse;
    remove_secret(RemoveSecretRequest) -> RemoveSecretResponse;
    get_config(GetConfigRequest) -> GetConfigResponse;
    update_config(UpdateConfigRequest) -> UpdateConfigResponse;
    list_configs(ListConfigsRequest) -> ListConfigsResponse;
    create_config(CreateConfigRequest) -> CreateConfigResponse;
    remove_config(RemoveConfigRequest) -> RemoveConfigResponse;
    get_extension(GetExtensionRequest) -> GetExtensionResponse;
    create_extension(CreateExtensionRequest) -> CreateExtensionResponse;
    remove_extension(RemoveExtensionRequest) -> RemoveExtensionResponse;
    get_resource(GetResourceRequest) -> GetResourceResponse;
    update_resource(UpdateResourceRequest) -> UpdateResourceResponse;
    list_resources(ListResourcesRequest) -> ListResourcesResponse;
    create_resource(CreateResourceRequest) -> CreateResourceResponse;
    remove_resource(RemoveResourceRequest) -> RemoveResourceResponse;
    create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
    get_volume(GetVolumeRequest) -> GetVolumeResponse;
    update_volume(UpdateVolumeRequest) -> UpdateVolumeResponse;
    list_volumes(ListVolumesRequest) -> ListVolumesResponse;
    remove_volume(RemoveVolumeRequest) -> RemoveVolumeResponse;
}

not_available! {
    create_network(CreateNetworkRequest) -> CreateNetworkResponse: "creating networks";
    remove_network(RemoveNetworkRequest) -> RemoveNetworkResponse: "removing networks";
    create_extension(CreateExtensionRequest) -> CreateExtensionResponse: "creating extensions";
    remove_extension(RemoveExtensionRequest) -> RemoveExtensionResponse: "removing extensions";
    create_resource(CreateResourceRequest) -> CreateResourceResponse: "creating resources";
    update_resource(UpdateResourceRequest) -> UpdateResourceResponse: "updating resources";
    remove_resource(RemoveResourceRequest) -> RemoveResourceResponse: "removing resources";
    create_volume(CreateVolumeRequest) -> CreateVolumeResponse: "creating volumes";
    update_volume(UpdateVolumeRequest) -> UpdateVolumeResponse: "updating volumes";
    remove_volume(RemoveVolumeRequest) -> RemoveVolumeResponse: "removing volumes";
}
