//! `swarmctl secret` and `swarmctl config`: named data for tasks.

use crate::Context;
use crate::resolve;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use std::io::Read;
use std::path::PathBuf;
use swarm_manager::api::time;
use swarm_manager::api::types::*;
use swarm_manager::cli::output::{Row, message_json, print_json, print_rows, print_text};
use swarm_manager::cli::units::age;

/// More than any secret or config may hold; reading stops there instead of filling memory.
const READ_BYTES_MAX: u64 = 2 << 20;

#[derive(Args)]
pub struct Create {
    name: String,
    /// Read the data from this file instead of standard input
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// KEY=VALUE
    #[arg(short, long)]
    label: Vec<String>,
}

#[derive(Subcommand)]
pub enum SecretCommand {
    /// Create a secret from standard input or a file
    #[command(after_help = "Example:\n  printf s3cret | swarmctl secret create db-password")]
    Create(Create),
    /// List secrets, newest first
    Ls {
        /// Only IDs
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show a secret without its data
    Inspect { secret: String },
    /// Remove secrets that no service uses
    #[command(visible_alias = "remove")]
    Rm {
        #[arg(required = true)]
        secrets: Vec<String>,
    },
}

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Create a config from standard input or a file
    #[command(after_help = "Example:\n  swarmctl config create nginx.conf -f ./nginx.conf")]
    Create(Create),
    /// List configs, newest first
    Ls {
        /// Only IDs
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show a config
    Inspect { config: String },
    /// Remove configs that no service uses
    #[command(visible_alias = "remove")]
    Rm {
        #[arg(required = true)]
        configs: Vec<String>,
    },
}

#[derive(serde::Serialize)]
struct DataRow {
    id: String,
    name: String,
    created: String,
    #[serde(skip)]
    age: String,
}

impl Row for DataRow {
    const COLUMNS: &'static [&'static str] = &["ID", "NAME", "CREATED"];
    fn cells(&self) -> Vec<String> {
        vec![self.id.clone(), self.name.clone(), self.age.clone()]
    }
}

pub async fn run_secret(context: &mut Context, command: SecretCommand) -> anyhow::Result<()> {
    match command {
        SecretCommand::Create(create) => {
            let spec = SecretSpec {
                annotations: Some(annotations(&create)?),
                data: read(&create)?,
                ..Default::default()
            };
            let request = CreateSecretRequest { spec: Some(spec) };
            let created = context
                .control
                .create_secret(request)
                .await?
                .into_inner()
                .secret;
            print_text(&format!("{}\n", created.unwrap_or_default().id))?;
        }
        SecretCommand::Ls { quiet } => {
            let secrets = context
                .control
                .list_secrets(ListSecretsRequest::default())
                .await?
                .into_inner()
                .secrets;
            let rows = secrets
                .iter()
                .map(|secret| {
                    row(
                        &secret.id,
                        secret.spec.as_ref().and_then(|s| s.annotations.as_ref()),
                        secret.meta.as_ref(),
                    )
                })
                .collect();
            print(context, rows, quiet)?;
        }
        SecretCommand::Inspect { secret } => {
            let secret = resolve::secret(context, &secret).await?;
            print_json(&message_json("docker.swarmkit.v1.Secret", &secret)?)?;
        }
        SecretCommand::Rm { secrets } => {
            for wanted in secrets {
                let secret = resolve::secret(context, &wanted).await?;
                let request = RemoveSecretRequest {
                    secret_id: secret.id.clone(),
                };
                context.control.remove_secret(request).await?;
                print_text(&format!("{}\n", secret.id))?;
            }
        }
    }
    Ok(())
}

pub async fn run_config(context: &mut Context, command: ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Create(create) => {
            let spec = ConfigSpec {
                annotations: Some(annotations(&create)?),
                data: read(&create)?,
                ..Default::default()
            };
            let request = CreateConfigRequest { spec: Some(spec) };
            let created = context
                .control
                .create_config(request)
                .await?
                .into_inner()
                .config;
            print_text(&format!("{}\n", created.unwrap_or_default().id))?;
        }
        ConfigCommand::Ls { quiet } => {
            let configs = context
                .control
                .list_configs(ListConfigsRequest::default())
                .await?
                .into_inner()
                .configs;
            let rows = configs
                .iter()
                .map(|config| {
                    row(
                        &config.id,
                        config.spec.as_ref().and_then(|s| s.annotations.as_ref()),
                        config.meta.as_ref(),
                    )
                })
                .collect();
            print(context, rows, quiet)?;
        }
        ConfigCommand::Inspect { config } => {
            let config = resolve::config(context, &config).await?;
            print_json(&message_json("docker.swarmkit.v1.Config", &config)?)?;
        }
        ConfigCommand::Rm { configs } => {
            for wanted in configs {
                let config = resolve::config(context, &wanted).await?;
                let request = RemoveConfigRequest {
                    config_id: config.id.clone(),
                };
                context.control.remove_config(request).await?;
                print_text(&format!("{}\n", config.id))?;
            }
        }
    }
    Ok(())
}

fn annotations(create: &Create) -> anyhow::Result<Annotations> {
    Ok(Annotations {
        name: create.name.clone(),
        labels: crate::flags::pairs(&create.label)?,
        ..Default::default()
    })
}

fn read(create: &Create) -> anyhow::Result<Vec<u8>> {
    let mut data = Vec::new();
    match &create.file {
        Some(path) => std::fs::File::open(path)
            .and_then(|file| file.take(READ_BYTES_MAX).read_to_end(&mut data))
            .with_context(|| format!("cannot read {}", path.display()))?,
        None => std::io::stdin()
            .lock()
            .take(READ_BYTES_MAX)
            .read_to_end(&mut data)
            .context("cannot read standard input")?,
    };
    Ok(data)
}

fn row(id: &str, annotations: Option<&Annotations>, meta: Option<&Meta>) -> DataRow {
    let created = meta.and_then(|meta| meta.created_at);
    DataRow {
        id: id.to_string(),
        name: annotations.map(|a| a.name.clone()).unwrap_or_default(),
        created: created.as_ref().map(time::rfc3339_nano).unwrap_or_default(),
        age: age(created.as_ref(), &time::now()),
    }
}

fn print(context: &Context, mut rows: Vec<DataRow>, quiet: bool) -> anyhow::Result<()> {
    rows.sort_by(|a, b| (&b.created, &a.id).cmp(&(&a.created, &b.id)));
    if quiet {
        let ids: String = rows.iter().map(|row| format!("{}\n", row.id)).collect();
        print_text(&ids)?;
    } else {
        print_rows(context.format, &rows)?;
    }
    Ok(())
}
