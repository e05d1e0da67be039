//! Configs: like secrets, but what they hold is no secret and is given out (spec 05 section 10).

use std::sync::Arc;

use tonic::Response;

use super::error::{Answer, ControlError};
use super::filter::{NameFilters, labels_match};
use super::secret::refuse_in_use;
use super::{ControlService, detached, fetch, fetch_mut, present, required, set_version};
use crate::api::types::*;
use crate::api::{ids, validate};
use crate::storage::{By, ReadTx, StoreError, Tx};

/// Largest content of a config plus one, in bytes.
const CONFIG_BYTES_LIMIT: usize = 1000 * 1024;

impl ControlService {
    pub(super) async fn create_config(
        &self,
        request: CreateConfigRequest,
    ) -> Answer<Response<CreateConfigResponse>> {
        let spec = present(request.spec)?;
        check_spec(&spec)?;
        let store = self.store.clone();
        let config = Config {
            id: ids::new_id(),
            spec: Some(spec),
            ..Default::default()
        };
        let config = detached(async move {
            let name = name_of(config.spec.as_ref()).to_owned();
            match store.update(|tx: &mut Tx| tx.create(config)).await {
                Err(StoreError::NameConflict) => Err(ControlError::AlreadyExists(format!(
                    "config {name} already exists"
                ))),
                result => Ok(result?),
            }
        })
        .await?;
        let config = Some(Arc::unwrap_or_clone(config));
        Ok(Response::new(CreateConfigResponse { config }))
    }

    pub(super) async fn get_config(
        &self,
        request: GetConfigRequest,
    ) -> Answer<Response<GetConfigResponse>> {
        let id = required(&request.config_id)?;
        let config = |tx: &ReadTx| fetch::<Config>(tx, "config", id);
        self.read(|tx| {
            Ok(GetConfigResponse {
                config: Some(config(tx)?),
            })
        })
        .await
    }

    pub(super) async fn update_config(
        &self,
        request: UpdateConfigRequest,
    ) -> Answer<Response<UpdateConfigResponse>> {
        required(&request.config_id)?;
        let version = present(request.config_version)?;
        let spec = present(request.spec)?;
        let store = self.store.clone();
        let config = detached(async move {
            let update = |tx: &mut Tx| -> Answer<Arc<Config>> {
                let mut config = fetch_mut::<Config>(tx, "config", &request.config_id)?;
                let stored = config.spec.get_or_insert_default();
                let has_changed = name_of(Some(stored)) != name_of(Some(&spec))
                    || !(spec.data.is_empty() || stored.data == spec.data);
                if has_changed {
                    return Err(ControlError::invalid("only updates to Labels are allowed"));
                }
                stored.annotations.get_or_insert_default().labels =
                    spec.annotations.unwrap_or_default().labels;
                set_version(&mut config, version);
                Ok(tx.update(config)?)
            };
            store.update(update).await
        })
        .await?;
        let config = Some(Arc::unwrap_or_clone(config));
        Ok(Response::new(UpdateConfigResponse { config }))
    }

    pub(super) async fn list_configs(
        &self,
        request: ListConfigsRequest,
    ) -> Answer<Response<ListConfigsResponse>> {
        let filters = request.filters.unwrap_or_default();
        let mut found = self.collector();
        self.list(move |tx: &ReadTx| {
            let names =
                NameFilters::new(&filters.names, &filters.name_prefixes, &filters.id_prefixes)?;
            for config in tx.find::<Config>(names.union())? {
                let annotations = config.spec.as_ref().and_then(|s| s.annotations.as_ref());
                if labels_match(&filters.labels, annotations.map(|a| &a.labels)) {
                    found.push(Arc::unwrap_or_clone(config))?;
                }
            }
            Ok(ListConfigsResponse {
                configs: found.objects,
            })
        })
        .await
    }

    pub(super) async fn remove_config(
        &self,
        request: RemoveConfigRequest,
    ) -> Answer<Response<RemoveConfigResponse>> {
        required(&request.config_id)?;
        let store = self.store.clone();
        let remove = move |tx: &mut Tx| -> Answer<()> {
            let id = request.config_id.as_str();
            let config = fetch_mut::<Config>(tx, "config", id)?;
            let services = tx.find::<Service>(By::ReferencedConfig(id.to_owned()))?;
            refuse_in_use("config", name_of(config.spec.as_ref()), &services)?;
            Ok(tx.delete::<Config>(id)?)
        };
        detached(async move { store.update(remove).await }).await?;
        Ok(Response::new(RemoveConfigResponse {}))
    }
}

fn check_spec(spec: &ConfigSpec) -> Answer<()> {
    validate::secret_name(name_of(Some(spec)))?;
    if spec.data.is_empty() || spec.data.len() >= CONFIG_BYTES_LIMIT {
        return Err(ControlError::InvalidArgument(format!(
            "config data must be larger than 0 and less than {CONFIG_BYTES_LIMIT} bytes"
        )));
    }
    Ok(())
}

fn name_of(spec: Option<&ConfigSpec>) -> &str {
    spec.and_then(|spec| spec.annotations.as_ref())
        .map_or("", |annotations| &annotations.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    // 05-A30
    #[test]
    fn specs() {
        for (bytes, valid) in [(0, false), (1, true), (1_023_999, true), (1_024_000, false)] {
            let spec = ConfigSpec {
                annotations: Some(Annotations {
                    name: "name".into(),
                    ..Default::default()
                }),
                data: vec![0; bytes],
                ..Default::default()
            };
            assert_eq!(check_spec(&spec).is_ok(), valid, "{bytes}");
        }
    }
}
