//! Secrets and configs of a task as files: payloads, with their templates expanded.
//!
//! A config into which a secret was inserted is as sensitive as the secret.

use super::plan::{FilePlan, Plan};
use crate::agent::dependencies::TaskDependencies;
use crate::agent::executor::TaskError;
use crate::api::template::{Context, Expander, Functions};
use crate::api::types::Driver;
use std::cell::{Cell, RefCell};

/// The one template language.
const GOLANG: &str = "golang";

/// Which kind of object a file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Secret,
    Config,
}

impl Kind {
    /// Name of the object, and of the directory its files are in (with an `s`).
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Secret => "secret",
            Kind::Config => "config",
        }
    }
}

/// A file to be written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Payload {
    pub(crate) kind: Kind,
    pub(crate) file: FilePlan,
    pub(crate) data: Vec<u8>,
    /// Must not get onto a disk.
    pub(crate) sensitive: bool,
}

/// All files of a task.
pub(crate) fn payloads(
    plan: &Plan,
    dependencies: &TaskDependencies,
) -> Result<Vec<Payload>, TaskError> {
    let secrets = plan.secrets.iter().map(|file| (Kind::Secret, file));
    let configs = plan.configs.iter().map(|file| (Kind::Config, file));
    secrets
        .chain(configs)
        .map(|(kind, file)| payload(kind, file, plan, dependencies))
        .collect()
}

fn payload(
    kind: Kind,
    file: &FilePlan,
    plan: &Plan,
    dependencies: &TaskDependencies,
) -> Result<Payload, TaskError> {
    let (data, templating) = raw(kind, &file.id, dependencies)?;
    let mut payload = Payload {
        kind,
        file: file.clone(),
        data,
        sensitive: kind == Kind::Secret,
    };
    let Some(templating) = templating else {
        return Ok(payload);
    };
    if templating.name != GOLANG {
        return Err(TaskError::fatal("unrecognized template type"));
    }
    let failed = |reason: String| {
        let kind = kind.name();
        TaskError::Fatal(format!(
            "failed to expand templated {kind} {}: {reason}",
            file.id
        ))
    };
    let text = std::str::from_utf8(&payload.data)
        .map_err(|_| failed("template: the payload is not text".to_owned()))?;
    let (expanded, with_secret) = expand(text, plan, dependencies).map_err(failed)?;
    payload.data = expanded.into_bytes();
    payload.sensitive |= with_secret;
    Ok(payload)
}

/// The payload as stored, and how it is to be expanded.
fn raw(
    kind: Kind,
    id: &str,
    dependencies: &TaskDependencies,
) -> Result<(Vec<u8>, Option<Driver>), TaskError> {
    Ok(match kind {
        Kind::Secret => {
            let secret = dependencies.secret(id)?;
            let spec = secret.spec.clone().unwrap_or_default();
            (spec.data, spec.templating)
        }
        Kind::Config => {
            let config = dependencies.config(id)?;
            let spec = config.spec.clone().unwrap_or_default();
            (spec.data, spec.templating)
        }
    })
}

/// The expanded text, and whether a secret is in it. An error is the reason as engines word it.
fn expand(
    text: &str,
    plan: &Plan,
    dependencies: &TaskDependencies,
) -> Result<(String, bool), String> {
    // Engines expand payloads without a description of the node.
    let context = Context {
        node_hostname: String::new(),
        node_os: String::new(),
        node_architecture: String::new(),
        ..plan.context.clone()
    };
    let functions = PayloadFunctions {
        plan,
        dependencies,
        used_secret: Cell::new(false),
        failure: RefCell::new(None),
    };
    let expanded = Expander::with_functions(&context, &functions).expand(text);
    match expanded {
        Ok(Some(expanded)) => Ok((expanded, functions.used_secret.get())),
        Ok(None) => {
            Err("template: it uses a part of the language that is not known here".to_owned())
        }
        Err(error) => Err(match functions.failure.into_inner() {
            Some(failure) => failure.describe(text),
            None => error.to_string(),
        }),
    }
}

/// A call that failed.
struct Failure {
    function: String,
    argument: String,
    reason: String,
}

impl Failure {
    /// The failure with its place in the template: line, and bytes before it in that line.
    fn describe(&self, template: &str) -> String {
        let call = format!("{} {:?}", self.function, self.argument);
        let at = template
            .find(&call)
            .or_else(|| template.find(&self.function))
            .unwrap_or(0);
        let before = &template[..at];
        let line = before.matches('\n').count() + 1;
        let column = at - before.rfind('\n').map_or(0, |end| end + 1);
        format!(
            "template: expansion:{line}:{column}: executing \"expansion\" at <{call}>: error calling {}: {}",
            self.function, self.reason
        )
    }
}

struct PayloadFunctions<'a> {
    plan: &'a Plan,
    dependencies: &'a TaskDependencies,
    used_secret: Cell<bool>,
    failure: RefCell<Option<Failure>>,
}

impl PayloadFunctions<'_> {
    /// Another payload of the task, by its target file name, as it is stored.
    fn insert(&self, kind: Kind, target: &str) -> Result<String, String> {
        let files = match kind {
            Kind::Secret => &self.plan.secrets,
            Kind::Config => &self.plan.configs,
        };
        let file = files
            .iter()
            .find(|file| file.target == target)
            .ok_or_else(|| format!("{} target {target} not found", kind.name()))?;
        let (data, _) =
            raw(kind, &file.id, self.dependencies).map_err(|error| error.to_string())?;
        if kind == Kind::Secret {
            self.used_secret.set(true);
        }
        String::from_utf8(data).map_err(|_| format!("{} target {target} is not text", kind.name()))
    }

    fn env(&self, name: &str) -> String {
        let entries = self.plan.spec_env.iter();
        entries
            .filter_map(|entry| entry.split_once('='))
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.to_owned())
            .unwrap_or_default()
    }
}

impl Functions for PayloadFunctions<'_> {
    fn names(&self) -> &[&'static str] {
        &["secret", "config", "env"]
    }

    fn call(&self, name: &str, arguments: &[&str]) -> Result<String, String> {
        let [argument] = arguments else {
            return Err(format!("wants one argument, got {}", arguments.len()));
        };
        let result = match name {
            "secret" => self.insert(Kind::Secret, argument),
            "config" => self.insert(Kind::Config, argument),
            _ => return Ok(self.env(argument)),
        };
        if let Err(reason) = &result {
            self.failure.replace(Some(Failure {
                function: name.to_owned(),
                argument: (*argument).to_owned(),
                reason: reason.clone(),
            }));
        }
        result
    }
}

#[cfg(test)]
mod tests;
