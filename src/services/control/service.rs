//! Services: creating, reading, removing. Changing one is in `service_update`.

use std::sync::Arc;

use tonic::Response;

use super::error::{Answer, ControlError};
use super::filter::{NameFilters, Values, first_of, labels_match};
use super::ports::{PortClaim, PortIndex};
use super::task::runtime_name;
use super::{
    ControlService, detached, fetch, fetch_mut, ingress, present, required, service_check,
};
use crate::api::types::*;
use crate::api::{defaults, ids, time};
use crate::storage::{ReadTx, StoreError, Tx};

impl ControlService {
    pub(super) async fn create_service(
        &self,
        request: CreateServiceRequest,
    ) -> Answer<Response<CreateServiceResponse>> {
        let spec = present(request.spec)?;
        service_check::check(&spec)?;
        let service = Service {
            id: ids::new_id(),
            spec_version: Some(Version::default()),
            job_status: service_check::is_job(&spec).then(first_iteration),
            spec: Some(spec),
            ..Default::default()
        };
        let store = self.store.clone();
        let ports = self.ports.clone();
        let service = detached(async move {
            let endpoint = service
                .spec
                .as_ref()
                .and_then(|spec| spec.endpoint.as_ref());
            let claim = claim_ports(ports, &service.id, endpoint).await?;
            store
                .update(|tx: &mut Tx| create(tx, service, &claim))
                .await
        })
        .await?;
        let service = Some(Arc::unwrap_or_clone(service));
        Ok(Response::new(CreateServiceResponse { service }))
    }

    pub(super) async fn get_service(
        &self,
        request: GetServiceRequest,
    ) -> Answer<Response<GetServiceResponse>> {
        let id = required(&request.service_id)?;
        self.read(|tx| {
            let mut service = fetch::<Service>(tx, "service", id)?;
            if request.insert_defaults {
                defaults::service_spec(service.spec.get_or_insert_default());
            }
            Ok(GetServiceResponse {
                service: Some(service),
            })
        })
        .await
    }

    pub(super) async fn remove_service(
        &self,
        request: RemoveServiceRequest,
    ) -> Answer<Response<RemoveServiceResponse>> {
        required(&request.service_id)?;
        let store = self.store.clone();
        let remove = move |tx: &mut Tx| -> Answer<()> {
            let id = request.service_id.as_str();
            fetch_mut::<Service>(tx, "service", id)?;
            Ok(tx.delete::<Service>(id)?)
        };
        detached(async move { store.update(remove).await }).await?;
        self.ports.catch_up();
        Ok(Response::new(RemoveServiceResponse {}))
    }

    pub(super) async fn list_services(
        &self,
        request: ListServicesRequest,
    ) -> Answer<Response<ListServicesResponse>> {
        let filters = request.filters.unwrap_or_default();
        let mut found = self.collector();
        self.list(move |tx| {
            for service in matching(tx, &filters)? {
                found.push(Arc::unwrap_or_clone(service))?;
            }
            Ok(ListServicesResponse {
                services: found.objects,
            })
        })
        .await
    }
}

fn matching(tx: &ReadTx, filters: &list_services_request::Filters) -> Answer<Vec<Arc<Service>>> {
    let names = NameFilters::new(&filters.names, &filters.name_prefixes, &filters.id_prefixes)?;
    let runtimes = Values::new(&filters.runtimes)?;
    let [by_name, by_name_prefix, by_id_prefix] = names.selectors();
    let by_runtime = runtimes.by(crate::storage::By::Runtime);
    let by = first_of([by_name, by_name_prefix, by_id_prefix, by_runtime]);
    let mut services = tx.find::<Service>(by)?;
    services.retain(|service| {
        let spec = service.spec.as_ref();
        let annotations = spec.and_then(|spec| spec.annotations.as_ref());
        let runtime = || runtime_name(spec.and_then(|spec| spec.task.as_ref()));
        let name = annotations.map_or("", |annotations| &annotations.name);
        names.all_match(&service.id, name)
            && labels_match(&filters.labels, annotations.map(|a| &a.labels))
            && (runtimes.is_empty() || runtime().is_some_and(|name| runtimes.contain(&name)))
    });
    Ok(services)
}

/// The job status of a new job.
fn first_iteration() -> JobStatus {
    JobStatus {
        job_iteration: Some(Version::default()),
        last_execution: Some(time::now()),
    }
}

/// Enters the ports of an endpoint into the index, which may have to read all services for that.
pub(super) async fn claim_ports(
    ports: PortIndex,
    service_id: &str,
    endpoint: Option<&EndpointSpec>,
) -> Answer<PortClaim> {
    let Some(endpoint) = endpoint.filter(|e| e.ports.iter().any(|p| p.published_port != 0)) else {
        ports.catch_up();
        return ports.claim(service_id, &[]);
    };
    let (service_id, endpoint) = (service_id.to_owned(), endpoint.clone());
    let task = tokio::task::spawn_blocking(move || ports.claim(&service_id, &endpoint.ports));
    let interrupted =
        |_| ControlError::Internal("the check of published ports was interrupted".into());
    task.await.map_err(interrupted)?
}

fn create(tx: &mut Tx, service: Service, ports: &PortClaim) -> Answer<Arc<Service>> {
    let spec = service.spec.clone().unwrap_or_default();
    check_networks(tx, &spec)?;
    ports.check(tx)?;
    check_ingress(tx, &spec)?;
    check_references(tx, &spec)?;
    let name = spec.annotations.unwrap_or_default().name;
    match tx.create(service) {
        Err(StoreError::NameConflict) => Err(ControlError::AlreadyExists(format!(
            "{}: service {name} already exists",
            StoreError::NameConflict
        ))),
        result => Ok(result?),
    }
}

/// Tasks may not be attached to the ingress network by hand.
pub(super) fn check_networks(tx: &Tx, spec: &ServiceSpec) -> Answer<()> {
    let attachments = spec.task.iter().flat_map(|task| &task.networks);
    for attachment in attachments {
        if let Some(network) = tx.get::<Network>(&attachment.target)?
            && ingress::is_ingress(&network)
        {
            return Err(ControlError::invalid(
                "Service cannot be explicitly attached to the ingress network",
            ));
        }
    }
    Ok(())
}

/// Ports in ingress mode need the ingress network.
pub(super) fn check_ingress(tx: &Tx, spec: &ServiceSpec) -> Answer<()> {
    if ingress::is_needed(spec.endpoint.as_ref()) && !ingress::exists(tx)? {
        return Err(ControlError::precondition(
            "service needs ingress network, but no ingress network is present",
        ));
    }
    Ok(())
}

/// All secrets and configs that a spec refers to must exist under the given names.
pub(super) fn check_references(tx: &Tx, spec: &ServiceSpec) -> Answer<()> {
    let runtime = spec.task.as_ref().and_then(|task| task.runtime.as_ref());
    let Some(task_spec::Runtime::Container(container)) = runtime else {
        return Ok(());
    };
    let mut missing = Vec::new();
    for reference in &container.secrets {
        let secret = tx.get::<Secret>(&reference.secret_id)?;
        let name = secret
            .as_ref()
            .and_then(|s| s.spec.as_ref()?.annotations.as_ref());
        if name.map(|annotations| &annotations.name) != Some(&reference.secret_name) {
            missing.push(reference.secret_name.as_str());
        }
    }
    refuse_missing("secret", &missing)?;
    for reference in &container.configs {
        let config = tx.get::<Config>(&reference.config_id)?;
        let name = config
            .as_ref()
            .and_then(|c| c.spec.as_ref()?.annotations.as_ref());
        if name.map(|annotations| &annotations.name) != Some(&reference.config_name) {
            missing.push(reference.config_name.as_str());
        }
    }
    refuse_missing("config", &missing)
}

fn refuse_missing(kind: &str, missing: &[&str]) -> Answer<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let plural = if missing.len() == 1 { "" } else { "s" };
    Err(ControlError::InvalidArgument(format!(
        "{kind}{plural} not found: {}",
        missing.join(", ")
    )))
}
