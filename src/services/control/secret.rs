//! Secrets. What a secret holds goes in and is never given out again by this API; tasks get it through
//! their assignments (spec 05 section 9).

use std::sync::Arc;

use subtle::ConstantTimeEq;
use tonic::Response;
use zeroize::Zeroize;

use super::error::{Answer, ControlError};
use super::filter::{NameFilters, labels_match};
use super::{ControlService, detached, fetch_mut, present, required, set_version};
use crate::api::types::*;
use crate::api::{ids, validate};
use crate::storage::{By, ReadTx, StoreError, Tx};

/// Largest content of a secret plus one, in bytes.
const SECRET_BYTES_LIMIT: usize = 500 * 1024;

impl ControlService {
    pub(super) async fn create_secret(
        &self,
        request: CreateSecretRequest,
    ) -> Answer<Response<CreateSecretResponse>> {
        let spec = present(request.spec)?;
        check_spec(&spec)?;
        if spec.driver.is_some() {
            return Err(ControlError::not_available("secret drivers"));
        }
        let store = self.store.clone();
        let secret = Secret {
            id: ids::new_id(),
            spec: Some(spec),
            ..Default::default()
        };
        let secret = detached(async move {
            let name = name_of(secret.spec.as_ref()).to_owned();
            match store.update(|tx: &mut Tx| tx.create(secret)).await {
                Err(StoreError::NameConflict) => Err(ControlError::AlreadyExists(format!(
                    "secret {name} already exists"
                ))),
                result => Ok(result?),
            }
        })
        .await?;
        Ok(Response::new(CreateSecretResponse {
            secret: Some(redacted(&secret)),
        }))
    }

    pub(super) async fn get_secret(
        &self,
        request: GetSecretRequest,
    ) -> Answer<Response<GetSecretResponse>> {
        let id = required(&request.secret_id)?;
        self.read(|tx| {
            let secret = tx.get::<Secret>(id)?;
            let secret = secret.ok_or_else(|| ControlError::not_found("secret", id))?;
            Ok(GetSecretResponse {
                secret: Some(redacted(&secret)),
            })
        })
        .await
    }

    pub(super) async fn update_secret(
        &self,
        request: UpdateSecretRequest,
    ) -> Answer<Response<UpdateSecretResponse>> {
        required(&request.secret_id)?;
        let version = present(request.secret_version)?;
        let mut spec = present(request.spec)?;
        let store = self.store.clone();
        let secret = detached(async move {
            let update = |tx: &mut Tx| -> Answer<Arc<Secret>> {
                let mut secret = fetch_mut::<Secret>(tx, "secret", &request.secret_id)?;
                let stored = secret.spec.get_or_insert_default();
                let has_changed = name_of(Some(stored)) != name_of(Some(&spec))
                    || !(spec.data.is_empty() || bool::from(stored.data.ct_eq(&spec.data)));
                spec.data.zeroize();
                if has_changed {
                    return Err(ControlError::invalid("only updates to Labels are allowed"));
                }
                stored.annotations.get_or_insert_default().labels =
                    spec.annotations.unwrap_or_default().labels;
                set_version(&mut secret, version);
                Ok(tx.update(secret)?)
            };
            store.update(update).await
        })
        .await?;
        Ok(Response::new(UpdateSecretResponse {
            secret: Some(redacted(&secret)),
        }))
    }

    pub(super) async fn list_secrets(
        &self,
        request: ListSecretsRequest,
    ) -> Answer<Response<ListSecretsResponse>> {
        let filters = request.filters.unwrap_or_default();
        let mut found = self.collector();
        self.list(move |tx: &ReadTx| {
            let names =
                NameFilters::new(&filters.names, &filters.name_prefixes, &filters.id_prefixes)?;
            for secret in tx.find::<Secret>(names.union())? {
                let annotations = secret.spec.as_ref().and_then(|s| s.annotations.as_ref());
                let matches = labels_match(&filters.labels, annotations.map(|a| &a.labels));
                if matches && !secret.internal {
                    found.push(redacted(&secret))?;
                }
            }
            Ok(ListSecretsResponse {
                secrets: found.objects,
            })
        })
        .await
    }

    pub(super) async fn remove_secret(
        &self,
        request: RemoveSecretRequest,
    ) -> Answer<Response<RemoveSecretResponse>> {
        required(&request.secret_id)?;
        let store = self.store.clone();
        let remove = move |tx: &mut Tx| -> Answer<()> {
            let id = request.secret_id.as_str();
            let secret = fetch_mut::<Secret>(tx, "secret", id)?;
            let name = name_of(secret.spec.as_ref());
            let services = tx.find::<Service>(By::ReferencedSecret(id.to_owned()))?;
            refuse_in_use("secret", name, &services)?;
            refuse_used_by_volume(tx, id, name)?;
            Ok(tx.delete::<Secret>(id)?)
        };
        detached(async move { store.update(remove).await }).await?;
        Ok(Response::new(RemoveSecretResponse {}))
    }
}

/// Fails if services use a secret or config, and names them.
pub(super) fn refuse_in_use(kind: &str, name: &str, services: &[Arc<Service>]) -> Answer<()> {
    if services.is_empty() {
        return Ok(());
    }
    let service_name = |service: &Arc<Service>| {
        let spec = service.spec.as_ref();
        let annotations = spec.and_then(|spec| spec.annotations.as_ref());
        annotations.map_or(String::new(), |annotations| annotations.name.clone())
    };
    let names: Vec<String> = services.iter().map(service_name).collect();
    let plural = if names.len() == 1 { "" } else { "s" };
    Err(ControlError::InvalidArgument(format!(
        "{kind} '{name}' is in use by the following service{plural}: {}",
        names.join(", ")
    )))
}

fn refuse_used_by_volume(tx: &Tx, id: &str, name: &str) -> Answer<()> {
    for volume in tx.find::<Volume>(By::All)? {
        if let Some(spec) = &volume.spec
            && spec.secrets.iter().any(|secret| secret.secret == id)
        {
            let annotations = spec.annotations.clone().unwrap_or_default();
            return Err(ControlError::InvalidArgument(format!(
                "secret '{name}' is in use by the following volume: {}",
                annotations.name
            )));
        }
    }
    Ok(())
}

fn check_spec(spec: &SecretSpec) -> Answer<()> {
    validate::secret_name(name_of(Some(spec)))?;
    if let Some(driver) = &spec.driver {
        if driver.name.is_empty() {
            return Err(ControlError::invalid("secret driver must have a name"));
        }
        return Ok(());
    }
    if spec.data.is_empty() || spec.data.len() >= SECRET_BYTES_LIMIT {
        return Err(ControlError::InvalidArgument(format!(
            "secret data must be larger than 0 and less than {SECRET_BYTES_LIMIT} bytes"
        )));
    }
    Ok(())
}

fn name_of(spec: Option<&SecretSpec>) -> &str {
    spec.and_then(|spec| spec.annotations.as_ref())
        .map_or("", |annotations| &annotations.name)
}

/// A copy of a secret without what it holds.
fn redacted(secret: &Secret) -> Secret {
    let spec = secret.spec.as_ref().map(|spec| SecretSpec {
        annotations: spec.annotations.clone(),
        data: Vec::new(),
        templating: spec.templating.clone(),
        driver: spec.driver.clone(),
    });
    Secret {
        id: secret.id.clone(),
        meta: secret.meta,
        spec,
        internal: secret.internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 05-A30
    #[test]
    fn specs() {
        let spec = |bytes: usize, driver: Option<&str>| SecretSpec {
            annotations: Some(Annotations {
                name: "name".into(),
                ..Default::default()
            }),
            data: vec![0; bytes],
            driver: driver.map(|name| Driver {
                name: name.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        for (spec, valid) in [
            (spec(0, None), false),
            (spec(1, None), true),
            (spec(511_999, None), true),
            (spec(512_000, None), false),
            (spec(0, Some("")), false),
            (spec(7, Some("")), false),
            (spec(0, Some("vault")), true),
        ] {
            assert_eq!(check_spec(&spec).is_ok(), valid);
        }
    }
}
