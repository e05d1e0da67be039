//! Templates in container specs: `{{.Service.Name}}-{{.Task.Slot}}` and the like.
//!
//! The language is that of Go's `text/template`, with one more function (`join`) and the rule that a
//! missing map key is an error. The manager checks with it that a spec can be expanded at all, against
//! placeholder values; a worker expands with the values of one task (spec 05 section 16).
//!
//! * [`Expander`] expands texts;
//! * [`visit`] walks through exactly those fields of a container spec that are templates.
//!
//! Only a part of the language is evaluated here. What a text may say is divided into three: it
//! expands, it is wrong ([`TemplateError`]), or it uses a construct that is not evaluated here
//! (`Ok(None)`). The manager accepts the third, because the worker that will run the task may know
//! more; a worker must refuse it.
//!
//! Templates come from users, so the work is bounded: depth of nesting, size of each result and the
//! work for all texts of one expander have limits, and reaching one is an error.

mod eval;
mod lex;
mod parse;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::types::ContainerSpec;

/// Deepest nesting of blocks and parentheses.
const NESTING_MAX: usize = 64;

/// Largest work for all texts of one expander, counted in bytes produced on the way, and
/// [`STEP_WORK`] for each step: far above any real spec, and well below a second.
const WORK_MAX: usize = 32 * 1_048_576;

/// What a node or argument costs besides the bytes of its value.
const STEP_WORK: usize = 64;

/// Largest expanded text: no field of a spec can be larger in a log entry.
const EXPANDED_BYTES_MAX: usize = 1_048_576;

/// What is wrong with a template, as a sentence for the person who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template: {0}")]
pub struct TemplateError(pub(crate) String);

/// The values that a template can ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    pub service_id: String,
    pub service_name: String,
    pub service_labels: BTreeMap<String, String>,
    pub node_id: String,
    pub node_hostname: String,
    pub node_os: String,
    pub node_architecture: String,
    pub task_id: String,
    /// Name of the task (see [`super::naming::task_name`]).
    pub task_name: String,
    /// Slot as a decimal number, or the node's ID for a task without a slot.
    pub task_slot: String,
}

impl Context {
    /// Placeholder values for checking a spec, with the service's own name and labels.
    pub fn placeholder(
        service_name: impl Into<String>,
        service_labels: BTreeMap<String, String>,
    ) -> Context {
        Context {
            service_id: "serviceid".into(),
            service_name: service_name.into(),
            service_labels,
            node_id: "nodeid".into(),
            node_hostname: "nodeHostname".into(),
            node_os: "os".into(),
            node_architecture: "architecture".into(),
            task_id: String::new(),
            task_name: "taskname".into(),
            task_slot: "1".into(),
        }
    }
}

/// Functions that a text may call besides those of the language, all from strings to a string.
pub trait Functions {
    fn names(&self) -> &[&'static str];

    /// The result, or a sentence why there is none. Called with one of the names.
    fn call(&self, name: &str, arguments: &[&str]) -> Result<String, String>;
}

/// Expands texts with the values of one context.
pub struct Expander<'a> {
    context: &'a Context,
    functions: Option<&'a dyn Functions>,
    labels: Arc<BTreeMap<String, String>>,
    work_left: usize,
}

impl<'a> Expander<'a> {
    pub fn new(context: &'a Context) -> Expander<'a> {
        Expander {
            context,
            functions: None,
            labels: Arc::new(context.service_labels.clone()),
            work_left: WORK_MAX,
        }
    }

    /// An expander whose texts may call more functions.
    pub fn with_functions(context: &'a Context, functions: &'a dyn Functions) -> Expander<'a> {
        Expander {
            functions: Some(functions),
            ..Expander::new(context)
        }
    }

    /// Expands a text. `None` if it is well-formed but uses a construct that is not evaluated here.
    pub fn expand(&mut self, text: &str) -> Result<Option<String>, TemplateError> {
        if !text.contains(lex::LEFT) {
            return Ok(Some(text.to_owned()));
        }
        let more = self.functions.map_or(&[][..], Functions::names);
        let nodes = parse::parse(text, more)?;
        eval::run(&nodes, self)
    }
}

/// Calls `f` on each template of a container spec and puts its result in place: values of environment
/// variables, hostname, source and target of mounts, label values and driver options of volumes. Map
/// keys, names of environment variables and all other fields are plain text.
pub fn visit<E>(
    spec: &mut ContainerSpec,
    mut f: impl FnMut(&str) -> Result<String, E>,
) -> Result<(), E> {
    for entry in &mut spec.env {
        if let Some((name, value)) = entry.split_once('=') {
            *entry = format!("{name}={}", f(value)?);
        }
    }
    for mount in &mut spec.mounts {
        mount.source = f(&mount.source)?;
        mount.target = f(&mount.target)?;
        if let Some(options) = &mut mount.volume_options {
            for value in options.labels.values_mut() {
                *value = f(value)?;
            }
            let driver_options = options
                .driver_config
                .iter_mut()
                .flat_map(|d| &mut d.options);
            for (_, value) in driver_options {
                *value = f(value)?;
            }
        }
    }
    spec.hostname = f(&spec.hostname)?;
    Ok(())
}

#[cfg(test)]
mod tests;
