//! Networks, extensions, resources and volumes: reading only. What creates and changes them is not
//! built yet and answers so (see `rpc`).

use std::sync::Arc;

use tonic::Response;

use super::filter::{NameFilters, Values, first_of, labels_match};
use super::{Answer, ControlService, fetch, required};
use crate::api::types::*;
use crate::storage::{By, ReadTx};

impl ControlService {
    pub(super) async fn get_network(
        &self,
        request: GetNetworkRequest,
    ) -> Answer<Response<GetNetworkResponse>> {
        let id = required(&request.network_id)?;
        let network = |tx: &ReadTx| fetch::<Network>(tx, "network", id);
        self.read(|tx| {
            Ok(GetNetworkResponse {
                network: Some(network(tx)?),
            })
        })
        .await
    }

    pub(super) async fn list_networks(
        &self,
        request: ListNetworksRequest,
    ) -> Answer<Response<ListNetworksResponse>> {
        let filters = request.filters.unwrap_or_default();
        let mut found = self.collector();
        self.list(move |tx| {
            let names =
                NameFilters::new(&filters.names, &filters.name_prefixes, &filters.id_prefixes)?;
            for network in tx.find::<Network>(first_of(names.selectors()))? {
                let annotations = network.spec.as_ref().and_then(|s| s.annotations.as_ref());
                let name = annotations.map_or("", |annotations| &annotations.name);
                if names.all_match(&network.id, name)
                    && labels_match(&filters.labels, annotations.map(|a| &a.labels))
                {
                    found.push(Arc::unwrap_or_clone(network))?;
                }
            }
            Ok(ListNetworksResponse {
                networks: found.objects,
            })
        })
        .await
    }

    pub(super) async fn get_extension(
        &self,
        request: GetExtensionRequest,
    ) -> Answer<Response<GetExtensionResponse>> {
        let id = required(&request.extension_id)?;
        let extension = |tx: &ReadTx| fetch::<Extension>(tx, "extension", id);
        self.read(|tx| {
            Ok(GetExtensionResponse {
                extension: Some(extension(tx)?),
            })
        })
        .await
    }

    pub(super) async fn get_resource(
        &self,
        request: GetResourceRequest,
    ) -> Answer<Response<GetResourceResponse>> {
        let id = required(&request.resource_id)?;
        let resource = |tx: &ReadTx| fetch::<Resource>(tx, "resource", id);
        self.read(|tx| {
            Ok(GetResourceResponse {
                resource: Some(resource(tx)?),
            })
        })
        .await
    }

    pub(super) async fn list_resources(
        &self,
        request: ListResourcesRequest,
    ) -> Answer<Response<ListResourcesResponse>> {
        let filters = request.filters.unwrap_or_default();
        let mut found = self.collector();
        self.list(move |tx| {
            let names =
                NameFilters::new(&filters.names, &filters.name_prefixes, &filters.id_prefixes)?;
            let by = match names.union() {
                By::All if !filters.kind.is_empty() => By::Kind(filters.kind.clone()),
                by => by,
            };
            for resource in tx.find::<Resource>(by)? {
                let labels = resource.annotations.as_ref().map(|a| &a.labels);
                let of_kind = filters.kind.is_empty() || filters.kind == resource.kind;
                if of_kind && labels_match(&filters.labels, labels) {
                    found.push(Arc::unwrap_or_clone(resource))?;
                }
            }
            Ok(ListResourcesResponse {
                resources: found.objects,
            })
        })
        .await
    }

    pub(super) async fn get_volume(
        &self,
        request: GetVolumeRequest,
    ) -> Answer<Response<GetVolumeResponse>> {
        let id = required(&request.volume_id)?;
        let volume = |tx: &ReadTx| fetch::<Volume>(tx, "volume", id);
        self.read(|tx| {
            Ok(GetVolumeResponse {
                volume: Some(volume(tx)?),
            })
        })
        .await
    }

    pub(super) async fn list_volumes(
        &self,
        request: ListVolumesRequest,
    ) -> Answer<Response<ListVolumesResponse>> {
        let has_filters = request.filters.is_some();
        let filters = request.filters.unwrap_or_default();
        let mut found = self.collector();
        self.list(move |tx| {
            let names =
                NameFilters::new(&filters.names, &filters.name_prefixes, &filters.id_prefixes)?;
            let (groups, drivers) = (
                Values::new(&filters.groups)?,
                Values::new(&filters.drivers)?,
            );
            let [by_name, by_name_prefix, by_id_prefix] = names.selectors();
            let by_group = groups.by(By::VolumeGroup);
            let by_driver = drivers.by(By::Driver);
            let by = first_of([by_name, by_id_prefix, by_group, by_driver, by_name_prefix]);
            for volume in tx.find::<Volume>(by)? {
                let spec = volume.spec.clone().unwrap_or_default();
                let annotations = spec.annotations.unwrap_or_default();
                let driver = spec.driver.as_ref();
                let matches = names.all_match(&volume.id, &annotations.name)
                    && groups.contain(&spec.group)
                    && driver.is_some_and(|driver| drivers.contain(&driver.name))
                    && labels_match(&filters.labels, Some(&annotations.labels));
                if !has_filters || matches {
                    found.push(Arc::unwrap_or_clone(volume))?;
                }
            }
            Ok(ListVolumesResponse {
                volumes: found.objects,
            })
        })
        .await
    }
}
