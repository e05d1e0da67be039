//! Checks of a service spec that need nothing but the spec (spec 05 section 6.1).
//!
//! The order of the checks is part of the interface: the first thing that is wrong is reported.

use std::collections::HashSet;

use super::container_check;
use super::error::{Answer, ControlError};
use super::ingress::is_ingress_port;
use super::known_enum;
use crate::api::types::*;
use crate::api::{constraint, generic, validate};

/// Smallest CPU share, in billionths of a CPU.
const NANO_CPUS_MIN: i64 = 1_000_000;

/// Smallest memory, in bytes: a container does not start with less.
const MEMORY_BYTES_MIN: i64 = 4 * 1_048_576;

/// Shortest kind of a generic runtime, in characters.
const GENERIC_KIND_CHARS_MIN: usize = 3;

/// Kinds of runtimes that have messages of their own.
const BUILT_IN_KINDS: [&str; 2] = ["container", "attachment"];

/// Highest port number.
const PORT_MAX: u32 = u16::MAX as u32;

pub(super) fn check(spec: &ServiceSpec) -> Answer<()> {
    let annotations = spec.annotations.clone().unwrap_or_default();
    let task = spec.task.as_ref();
    validate::dns_name(&annotations.name)?;
    check_resources(task.and_then(|task| task.resources.as_ref()))?;
    check_restart(task.and_then(|task| task.restart.as_ref()))?;
    check_placement(task.and_then(|task| task.placement.as_ref()))?;
    check_runtime(task.and_then(|task| task.runtime.as_ref()), &annotations)?;
    check_mode(spec)?;
    check_updates(spec)?;
    check_endpoint(spec.endpoint.as_ref())
}

fn check_resources(resources: Option<&ResourceRequirements>) -> Answer<()> {
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let reservations = resources.and_then(|resources| resources.reservations.as_ref());
    for (what, amount) in [("limits", limits), ("reservations", reservations)] {
        let Some(amount) = amount else { continue };
        if amount.nano_cpus != 0 && amount.nano_cpus < NANO_CPUS_MIN {
            return Err(ControlError::InvalidArgument(format!(
                "invalid cpu value {} in the {what}: must be at least 0.001",
                amount.nano_cpus as f64 / 1e9
            )));
        }
        if amount.memory_bytes != 0 && amount.memory_bytes < MEMORY_BYTES_MIN {
            return Err(ControlError::InvalidArgument(format!(
                "invalid memory value {} in the {what}: must be at least 4 MiB",
                amount.memory_bytes
            )));
        }
        generic::validate_task(&amount.generic)?;
    }
    Ok(())
}

fn check_restart(restart: Option<&RestartPolicy>) -> Answer<()> {
    let Some(restart) = restart else {
        return Ok(());
    };
    known_enum::<restart_policy::RestartCondition>("restart condition", restart.condition)?;
    validate::span_not_negative("TaskSpec: restart-delay", restart.delay.as_ref())?;
    validate::span_not_negative("TaskSpec: restart-window", restart.window.as_ref())?;
    Ok(())
}

fn check_placement(placement: Option<&Placement>) -> Answer<()> {
    let constraints = placement.map_or(&[][..], |placement| &placement.constraints);
    match constraint::parse_all(constraints) {
        Ok(_) => Ok(()),
        Err(error) => Err(ControlError::InvalidArgument(error.to_string())),
    }
}

fn check_runtime(runtime: Option<&task_spec::Runtime>, service: &Annotations) -> Answer<()> {
    match runtime {
        None => Err(ControlError::invalid("TaskSpec: missing runtime")),
        Some(task_spec::Runtime::Container(container)) => {
            container_check::check(container, service)
        }
        Some(task_spec::Runtime::Generic(generic)) => check_generic(generic),
        Some(task_spec::Runtime::Attachment(_)) => Err(ControlError::Unimplemented(
            "RuntimeSpec: a service cannot have network attachments as its tasks".into(),
        )),
    }
}

fn check_generic(runtime: &GenericRuntimeSpec) -> Answer<()> {
    if runtime.kind.chars().count() < GENERIC_KIND_CHARS_MIN {
        return Err(ControlError::InvalidArgument(format!(
            "Generic runtime: invalid name {:?}: must be at least 3 characters long",
            runtime.kind
        )));
    }
    if BUILT_IN_KINDS
        .iter()
        .any(|kind| runtime.kind.eq_ignore_ascii_case(kind))
    {
        return Err(ControlError::InvalidArgument(format!(
            "Generic runtime: {} is a reserved name",
            runtime.kind
        )));
    }
    let Some(payload) = &runtime.payload else {
        return Err(ControlError::invalid("Generic runtime is missing payload"));
    };
    if payload.type_url.is_empty() {
        return Err(ControlError::invalid(
            "Generic runtime is missing payload type",
        ));
    }
    if payload.value.is_empty() {
        return Err(ControlError::invalid(
            "Generic runtime has an empty payload",
        ));
    }
    Ok(())
}

fn check_mode(spec: &ServiceSpec) -> Answer<()> {
    // Counts are unsigned on the wire, but clients have always been held to the signed range.
    let check_count = |field: &str, count: u64| match i64::try_from(count) {
        Ok(_) => Ok(()),
        Err(_) => Err(ControlError::InvalidArgument(format!(
            "{field} must be non-negative and below 2^63"
        ))),
    };
    match &spec.mode {
        Some(service_spec::Mode::Replicated(mode)) => {
            check_count("Number of replicas", mode.replicas)
        }
        Some(service_spec::Mode::ReplicatedJob(mode)) => {
            check_count("Maximum concurrent jobs", mode.max_concurrent)?;
            check_count("Total completed jobs", mode.total_completions)
        }
        Some(service_spec::Mode::Global(_) | service_spec::Mode::GlobalJob(_)) => Ok(()),
        None => Err(ControlError::invalid("service mode must be set")),
    }
}

/// Whether a service runs to completion instead of for ever.
pub(super) fn is_job(spec: &ServiceSpec) -> bool {
    matches!(
        spec.mode,
        Some(service_spec::Mode::ReplicatedJob(_) | service_spec::Mode::GlobalJob(_))
    )
}

fn check_updates(spec: &ServiceSpec) -> Answer<()> {
    if is_job(spec) {
        if spec.update.is_some() {
            return Err(ControlError::invalid(
                "job-mode services may not have an update config",
            ));
        }
        return Ok(());
    }
    for (what, config) in [("update", &spec.update), ("rollback", &spec.rollback)] {
        let Some(config) = config else { continue };
        validate::span_not_negative(&format!("TaskSpec: {what}-delay"), config.delay.as_ref())?;
        validate::span_not_negative(
            &format!("TaskSpec: {what}-monitor"),
            config.monitor.as_ref(),
        )?;
        if !(0.0..=1.0).contains(&config.max_failure_ratio) {
            return Err(ControlError::InvalidArgument(format!(
                "TaskSpec: {what}-maxfailureratio cannot be less than 0 or bigger than 1"
            )));
        }
        known_enum::<update_config::FailureAction>("failure action", config.failure_action)?;
        known_enum::<update_config::UpdateOrder>("update order", config.order)?;
    }
    Ok(())
}

fn check_endpoint(endpoint: Option<&EndpointSpec>) -> Answer<()> {
    let Some(endpoint) = endpoint else {
        return Ok(());
    };
    let mode = known_enum::<endpoint_spec::ResolutionMode>("endpoint mode", endpoint.mode)?;
    let mut published = HashSet::new();
    for port in &endpoint.ports {
        known_enum::<port_config::PublishMode>("publish mode", port.publish_mode)?;
        known_enum::<port_config::Protocol>("port protocol", port.protocol)?;
        if mode == endpoint_spec::ResolutionMode::Dnsrr && is_ingress_port(port) {
            return Err(ControlError::invalid(
                "EndpointSpec: port published with ingress mode can't be used with dnsrr mode",
            ));
        }
        for (what, number) in [
            ("target", port.target_port),
            ("published", port.published_port),
        ] {
            if number > PORT_MAX {
                return Err(ControlError::InvalidArgument(format!(
                    "EndpointSpec: {what} port {number} is above {PORT_MAX}"
                )));
            }
        }
        let is_new = published.insert((port.protocol, port.published_port));
        if port.published_port != 0 && !is_new {
            return Err(ControlError::invalid(
                "EndpointSpec: duplicate published ports provided",
            ));
        }
    }
    Ok(())
}
