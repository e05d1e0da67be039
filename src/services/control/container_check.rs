//! Checks of a container spec that need nothing but the spec: references to secrets and configs,
//! templates, image, mounts, health check (spec 05 section 6.1, steps 6, 7 and 9).

use std::collections::HashSet;

use super::error::{Answer, ControlError};
use crate::api::image_ref::ImageRef;
use crate::api::template::{self, Context, Expander, TemplateError};
use crate::api::types::*;
use crate::api::validate;

/// Shortest interval or timeout of a health check that is not left to the default, in nanoseconds.
const HEALTH_SPAN_NANOS_MIN: i128 = 1_000_000;

/// Checks a container spec of a service with these annotations.
pub(super) fn check(container: &ContainerSpec, service: &Annotations) -> Answer<()> {
    check_secrets(&container.secrets)?;
    check_configs(container)?;
    let expanded = expand(container, service)?;
    check_image(&container.image)?;
    check_mounts(&expanded.mounts)?;
    check_health(container.healthcheck.as_ref())
}

fn check_secrets(references: &[SecretReference]) -> Answer<()> {
    let mut files = HashSet::new();
    for reference in references {
        if reference.secret_id.is_empty() || reference.secret_name.is_empty() {
            return Err(ControlError::invalid("malformed secret reference"));
        }
        match &reference.target {
            Some(secret_reference::Target::File(file)) => {
                check_file("secret", &reference.secret_name, file, &mut files)?;
            }
            None => {
                return Err(ControlError::invalid(
                    "malformed secret reference, no target provided",
                ));
            }
        }
    }
    Ok(())
}

fn check_configs(container: &ContainerSpec) -> Answer<()> {
    let mut files = HashSet::new();
    let mut for_runtime = HashSet::new();
    for reference in &container.configs {
        if reference.config_id.is_empty() || reference.config_name.is_empty() {
            return Err(ControlError::invalid("malformed config reference"));
        }
        match &reference.target {
            Some(config_reference::Target::File(file)) => {
                check_file("config", &reference.config_name, file, &mut files)?;
            }
            Some(config_reference::Target::Runtime(_)) => {
                for_runtime.insert(reference.config_id.as_str());
            }
            None => {
                return Err(ControlError::invalid(
                    "malformed config reference, no target provided",
                ));
            }
        }
    }
    let credentials = container
        .privileges
        .as_ref()
        .and_then(|p| p.credential_spec.as_ref());
    if let Some(privileges::credential_spec::Source::Config(id)) =
        credentials.and_then(|credentials| credentials.source.as_ref())
        && !for_runtime.contains(id.as_str())
    {
        return Err(ControlError::InvalidArgument(format!(
            "CredentialSpec: config {id} is not among the config references with a runtime target"
        )));
    }
    Ok(())
}

fn check_file<'a>(
    kind: &str,
    name: &str,
    file: &'a FileTarget,
    files: &mut HashSet<&'a str>,
) -> Answer<()> {
    if file.name.is_empty() {
        return Err(ControlError::InvalidArgument(format!(
            "malformed {kind} reference, invalid target file name provided for {name}"
        )));
    }
    if !files.insert(&file.name) {
        return Err(ControlError::InvalidArgument(format!(
            "{kind} references '{name}' and another one have a conflicting target: '{}'",
            file.name
        )));
    }
    Ok(())
}

/// The spec as one of its tasks would get it, with placeholders for what only a task knows. Templates
/// that only a worker can expand stay as they are.
fn expand(container: &ContainerSpec, service: &Annotations) -> Answer<ContainerSpec> {
    let context = Context::placeholder(&service.name, service.labels.clone());
    let mut expander = Expander::new(&context);
    let mut expanded = container.clone();
    let result = template::visit(&mut expanded, |text| {
        let expanded = expander.expand(text)?;
        Ok(expanded.unwrap_or_else(|| text.to_owned()))
    });
    match result {
        Ok(()) => Ok(expanded),
        Err(TemplateError(reason)) => Err(ControlError::InvalidArgument(format!(
            "ContainerSpec: invalid template: {reason}"
        ))),
    }
}

fn check_image(image: &str) -> Answer<()> {
    if image.is_empty() {
        return Err(ControlError::invalid(
            "ContainerSpec: image reference must be provided",
        ));
    }
    match ImageRef::parse(image) {
        Ok(_) => Ok(()),
        Err(_) => Err(ControlError::InvalidArgument(format!(
            "ContainerSpec: {image:?} is not a valid repository/tag"
        ))),
    }
}

fn check_mounts(mounts: &[Mount]) -> Answer<()> {
    let mut targets = HashSet::new();
    for mount in mounts {
        if !targets.insert(mount.target.as_str()) {
            return Err(ControlError::InvalidArgument(format!(
                "ContainerSpec: duplicate mount point: {}",
                mount.target
            )));
        }
    }
    Ok(())
}

fn check_health(health: Option<&HealthConfig>) -> Answer<()> {
    let Some(health) = health else {
        return Ok(());
    };
    for (field, span) in [
        ("Interval", &health.interval),
        ("Timeout", &health.timeout),
        ("StartPeriod", &health.start_period),
        ("StartInterval", &health.start_interval),
    ] {
        let field = format!("ContainerSpec: {field} in HealthConfig");
        let nanos = span
            .as_ref()
            .map_or(Ok(0), |span| validate::span_nanos(&field, span))?;
        if nanos != 0 && nanos < HEALTH_SPAN_NANOS_MIN {
            return Err(ControlError::InvalidArgument(format!(
                "{field} cannot be less than one millisecond"
            )));
        }
    }
    if health.retries < 0 {
        return Err(ControlError::invalid(
            "ContainerSpec: Retries in HealthConfig cannot be negative",
        ));
    }
    Ok(())
}
