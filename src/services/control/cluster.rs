//! The cluster object: reading it without its secrets, changing it, rotating join tokens.
//!
//! Changing the certificate authority and locking managers are not built yet; requests for them are
//! refused by name instead of being stored and ignored (spec 05 sections 8.1 to 8.3).

use std::sync::Arc;
use std::time::SystemTime;

use tonic::Response;

use super::cluster_check::{check_available, check_spec};
use super::error::{Answer, ControlError};
use super::filter::{NameFilters, first_of, labels_match};
use super::node::purge_expired_revocations;
use super::{ControlService, detached, fetch_mut, present, required, set_version};
use crate::api::types::*;
use crate::identity::root_ca::RootCa as LoadedRootCa;
use crate::identity::token::JoinToken;
use crate::storage::Tx;

/// Name of the one cluster object.
pub(super) const DEFAULT_NAME: &str = "default";

/// What is shown when a cluster has no address pool or VXLAN port of its own.
const DEFAULT_ADDRESS_POOL: &str = "10.0.0.0/8";
const DEFAULT_SUBNET_SIZE: u32 = 24;
const DEFAULT_VXLAN_PORT: u32 = 4789;

impl ControlService {
    pub(super) async fn get_cluster(
        &self,
        request: GetClusterRequest,
    ) -> Answer<Response<GetClusterResponse>> {
        let id = required(&request.cluster_id)?;
        self.read(|tx| {
            let cluster = tx.get::<Cluster>(id)?;
            let cluster = cluster.ok_or_else(|| ControlError::not_found("cluster", id))?;
            Ok(GetClusterResponse {
                cluster: Some(redacted(&cluster)),
            })
        })
        .await
    }

    pub(super) async fn list_clusters(
        &self,
        request: ListClustersRequest,
    ) -> Answer<Response<ListClustersResponse>> {
        let filters = request.filters.unwrap_or_default();
        let mut found = self.collector();
        self.list(move |tx| {
            let names =
                NameFilters::new(&filters.names, &filters.name_prefixes, &filters.id_prefixes)?;
            for cluster in tx.find::<Cluster>(first_of(names.selectors()))? {
                let annotations = cluster.spec.as_ref().and_then(|s| s.annotations.as_ref());
                let name = annotations.map_or("", |annotations| &annotations.name);
                if names.all_match(&cluster.id, name)
                    && labels_match(&filters.labels, annotations.map(|a| &a.labels))
                {
                    found.push(redacted(&cluster))?;
                }
            }
            Ok(ListClustersResponse {
                clusters: found.objects,
            })
        })
        .await
    }

    pub(super) async fn update_cluster(
        &self,
        request: UpdateClusterRequest,
    ) -> Answer<Response<UpdateClusterResponse>> {
        required(&request.cluster_id)?;
        let version = present(request.cluster_version)?;
        let spec = present(request.spec)?;
        check_spec(&spec)?;
        let rotation = request.rotation.unwrap_or_default();
        let store = self.store.clone();
        let cluster = detached(async move {
            let update = |tx: &mut Tx| -> Answer<Arc<Cluster>> {
                let mut cluster = fetch_mut::<Cluster>(tx, "cluster", &request.cluster_id)?;
                let root_ca = load_root_ca(&cluster)?;
                check_available(&cluster, &spec)?;
                set_version(&mut cluster, version);
                cluster.spec = Some(spec);
                purge_expired_revocations(&mut cluster);
                rotate_tokens(&mut cluster, &root_ca, &rotation)?;
                Ok(tx.update(cluster)?)
            };
            store.update(update).await
        })
        .await?;
        Ok(Response::new(UpdateClusterResponse {
            cluster: Some(redacted(&cluster)),
        }))
    }
}

fn load_root_ca(cluster: &Cluster) -> Answer<LoadedRootCa> {
    let stored = cluster
        .root_ca
        .as_ref()
        .map_or(&[][..], |root_ca| &root_ca.ca_cert);
    LoadedRootCa::trusting(stored, SystemTime::now()).map_err(|error| {
        ControlError::Internal(format!(
            "the cluster's root certificate cannot be loaded: {error}"
        ))
    })
}

fn rotate_tokens(
    cluster: &mut Cluster,
    root_ca: &LoadedRootCa,
    rotation: &KeyRotation,
) -> Answer<()> {
    let new_token = |is_fips| match JoinToken::generate(root_ca.digest(), is_fips) {
        Ok(token) => Ok(token.as_str().to_owned()),
        Err(error) => Err(ControlError::Internal(error.to_string())),
    };
    let is_fips = cluster.fips;
    let stored = cluster.root_ca.get_or_insert_default();
    let tokens = stored.join_tokens.get_or_insert_default();
    if rotation.worker_join_token {
        tokens.worker = new_token(is_fips)?;
    }
    if rotation.manager_join_token {
        tokens.manager = new_token(is_fips)?;
    }
    Ok(())
}

/// A copy of a cluster with nothing secret in it except the join tokens, and with the defaults that are
/// in force for networks. The signing certificate is left out too, so that a spec that is read, changed
/// and sent back does not touch the CA.
fn redacted(cluster: &Cluster) -> Cluster {
    let spec = cluster.spec.clone().map(|mut spec| {
        if let Some(ca_config) = &mut spec.ca_config {
            ca_config.signing_ca_cert.clear();
            ca_config.signing_ca_key.clear();
        }
        spec
    });
    let root_ca = cluster.root_ca.clone().map(|mut root_ca| {
        root_ca.ca_key.clear();
        if let Some(rotation) = &mut root_ca.root_rotation {
            rotation.ca_key.clear();
        }
        root_ca
    });
    let has_pool = !cluster.default_address_pool.is_empty();
    let has_port = cluster.vxlanudp_port != 0;
    Cluster {
        id: cluster.id.clone(),
        meta: cluster.meta,
        spec,
        root_ca,
        blacklisted_certificates: cluster.blacklisted_certificates.clone(),
        default_address_pool: if has_pool {
            cluster.default_address_pool.clone()
        } else {
            vec![DEFAULT_ADDRESS_POOL.to_owned()]
        },
        subnet_size: if has_pool {
            cluster.subnet_size
        } else {
            DEFAULT_SUBNET_SIZE
        },
        vxlanudp_port: if has_port {
            cluster.vxlanudp_port
        } else {
            DEFAULT_VXLAN_PORT
        },
        ..Default::default()
    }
}
