//! `swarm-db ls` and `swarm-db get`: the objects of one table, listed or in full.
//!
//! What is secret stays hidden unless `--show-secrets` is given: the content of secrets and configs, keys,
//! join tokens, registry credentials, the values of environment variables.

use crate::inspect::{PAGE_LINES, page_text};
use crate::keys;
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use swarm_manager::cli::output::{Format, message_json, print_json};
use swarm_manager::storage::inspect::{Inspection, ObjectLine, line};
use swarm_manager::storage::{AnyObject, StoreError, Table};

/// In the place of what is hidden.
const HIDDEN: &str = "<hidden>";
/// Fields that are hidden wherever they stand, by their JSON names.
const SECRET_FIELDS: [&str; 7] = [
    "caKey",
    "signingCaKey",
    "joinTokens",
    "unlockKeys",
    "networkBootstrapKeys",
    "registryAuth",
    "keys",
];

#[derive(clap::Args)]
pub struct Common {
    /// State directory of a stopped node
    dir: PathBuf,
    /// cluster, config, extension, network, node, resource, secret, service, task or volume
    #[arg(value_parser = parse_table)]
    table: Table,
    /// Unlock key of a locked node
    #[arg(long, env = "SWARM_UNLOCK_KEY", hide_env_values = true)]
    unlock_key: Option<String>,
}

#[derive(clap::Args)]
pub struct List {
    #[command(flatten)]
    common: Common,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Only the object with this ID
    #[arg(long, conflicts_with_all = ["name", "prefix"])]
    id: Option<String>,
    /// Only objects with this name
    #[arg(long, conflicts_with = "prefix")]
    name: Option<String>,
    /// Only objects whose ID or name begins like this
    #[arg(long)]
    prefix: Option<String>,
}

#[derive(clap::Args)]
pub struct Get {
    #[command(flatten)]
    common: Common,
    /// ID or name of the object
    object: String,
    /// Print secrets, keys and tokens too
    #[arg(long)]
    show_secrets: bool,
}

fn parse_table(name: &str) -> Result<Table, String> {
    Table::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Table::ALL.iter().map(|table| table.name()).collect();
        format!(
            "there is no table {name}; the tables are {}",
            names.join(", ")
        )
    })
}

impl Common {
    fn open(&self) -> anyhow::Result<Inspection> {
        let inspection = keys::open(&self.dir, self.unlock_key.as_deref())?;
        inspection
            .database()
            .context("the database cannot be read")?;
        Ok(inspection)
    }
}

impl List {
    fn wants(&self, line: &ObjectLine) -> bool {
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        let begins = self.prefix.as_ref().is_none_or(|prefix| {
            line.id.starts_with(prefix.as_str()) || line.name.starts_with(prefix.as_str())
        });
        is(&self.id, &line.id) && is(&self.name, &line.name) && begins
    }
}

/// Prints the list; true if every row could be read.
pub fn list(arguments: &List) -> anyhow::Result<bool> {
    let inspection = arguments.common.open()?;
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut page, mut first) = (Vec::new(), true);
    let (mut printed, mut unreadable) = (Ok(()), 0u64);
    if arguments.format == Format::Json {
        write!(out, "[")?;
    }
    let walked = inspection.each_object(arguments.common.table, |object| {
        match object.map(|object| line(&object)) {
            Ok(line) if arguments.wants(&line) => page.push(line),
            Ok(_) => {}
            Err(error) => {
                unreadable += 1;
                eprintln!("unreadable: {error}");
            }
        }
        if page.len() == PAGE_LINES {
            printed = print_page(&mut out, arguments.format, &page, &mut first);
            page.clear();
        }
        match printed {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    let printed = printed.and_then(|()| {
        print_page(&mut out, arguments.format, &page, &mut first)?;
        if arguments.format == Format::Json {
            writeln!(out, "]")?;
        }
        out.flush()
    });
    match printed {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other.context("cannot print")?,
    }
    walked?;
    Ok(unreadable == 0)
}

fn print_page(
    out: &mut impl Write,
    format: Format,
    lines: &[ObjectLine],
    first: &mut bool,
) -> io::Result<()> {
    match format {
        Format::Json => {
            for line in lines {
                if !std::mem::replace(first, false) {
                    write!(out, ",")?;
                }
                serde_json::to_writer(&mut *out, line)?;
            }
            Ok(())
        }
        Format::Table if lines.is_empty() && !*first => Ok(()),
        Format::Table => {
            *first = false;
            out.write_all(page_text(lines).as_bytes())
        }
    }
}

/// Prints one object as JSON. An ID goes before a name; a name that several objects have is an error.
pub fn get(arguments: &Get) -> anyhow::Result<bool> {
    let inspection = arguments.common.open()?;
    let kind = arguments.common.table;
    let (mut by_id, mut by_name, mut names) = (None, None, 0u64);
    let mut broken: Option<StoreError> = None;
    inspection.each_object(kind, |object| {
        match object {
            Ok(object) if object.id() == arguments.object => by_id = Some(object),
            Ok(object) if line(&object).name == arguments.object => {
                names += 1;
                by_name = Some(object);
            }
            Ok(_) => {}
            Err(error) => broken = Some(error),
        }
        match by_id {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    })?;
    if by_id.is_none() && names > 1 {
        bail!(
            "{names} objects of table {} are called {}; give an ID: swarm-db ls",
            kind.name(),
            arguments.object
        );
    }
    let Some(object) = by_id.or(by_name) else {
        let wanted = format!("table {} holds no {}", kind.name(), arguments.object);
        match broken {
            Some(error) => bail!("{wanted} that can be read; a row is damaged: {error}"),
            None => bail!("{wanted}; swarm-db ls shows what it holds"),
        }
    };
    let mut json = object_json(&object)?;
    if !arguments.show_secrets {
        hide(&mut json, matches!(kind, Table::Secret | Table::Config));
    }
    print_json(&json)?;
    Ok(true)
}

fn object_json(object: &AnyObject) -> anyhow::Result<Value> {
    macro_rules! json {
        ($($kind:ident),*) => {
            match object {
                $(AnyObject::$kind(object) => {
                    message_json(concat!("docker.swarmkit.v1.", stringify!($kind)), object.as_ref())
                })*
            }
        };
    }
    json!(
        Node, Service, Task, Network, Cluster, Secret, Config, Resource, Extension, Volume
    )
}

/// Hides what is secret in an object, however deep it stands.
fn hide(value: &mut Value, has_content: bool) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    secret if SECRET_FIELDS.contains(&secret) => *value = HIDDEN.into(),
                    "data" if has_content => *value = HIDDEN.into(),
                    "env" => hide_values(value),
                    _ => hide(value, has_content),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| hide(value, has_content)),
        _ => {}
    }
}

/// Environment variables keep their names.
fn hide_values(value: &mut Value) {
    let Value::Array(variables) = value else {
        return;
    };
    for variable in variables {
        let name = variable.as_str().and_then(|text| text.split_once('='));
        if let Some((name, _)) = name {
            *variable = format!("{name}={HIDDEN}").into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_hidden_and_the_rest_stays() {
        let mut service = json!({
            "spec": {"task": {"container": {"env": ["A=needle", "B"], "pullOptions": {"registryAuth": "needle"}}}},
            "data": "kept",
        });
        hide(&mut service, false);
        assert!(!service.to_string().contains("needle"));
        assert_eq!(service["data"], "kept");
        assert_eq!(
            service["spec"]["task"]["container"]["env"],
            json!(["A=<hidden>", "B"])
        );
        let mut cluster = json!({"rootCa": {"caKey": "needle", "caCert": "c", "joinTokens": {"worker": "needle"}}});
        hide(&mut cluster, false);
        assert_eq!(
            cluster,
            json!({"rootCa": {"caKey": HIDDEN, "caCert": "c", "joinTokens": HIDDEN}})
        );
        let mut secret = json!({"spec": {"data": "needle"}});
        hide(&mut secret, true);
        assert_eq!(secret["spec"]["data"], HIDDEN);
    }
}
