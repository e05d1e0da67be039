//! Secrets, configs, and the kinds that are only read so far.

use super::calls::{Known, MISSING, Row, row};
use super::specs::*;
use swarm_manager::api::types::*;

/// Largest contents that are allowed, in bytes.
const SECRET_BYTES_MAX: usize = 511_999;
const CONFIG_BYTES_MAX: usize = 1_023_999;
/// Larger than any message that is read.
const TOO_LARGE_BYTES: usize = 5 << 20;

/// What the services of the other rows refer to.
pub fn first_rows() -> Vec<Row> {
    let mut rows = vec![
        row("list networks", |_| ListNetworksRequest {
            filters: Some(list_networks_request::Filters {
                names: vec!["ingress".to_owned()],
                ..Default::default()
            }),
            ..Default::default()
        }),
        row("list clusters", |_| ListClustersRequest::default()),
        row("list nodes", |_| ListNodesRequest::default())
            .until("Manager wanted Manager Accepted 0 {} manager Some((true, Reachable))"),
    ];
    rows.extend(creating_secrets());
    rows.extend(creating_configs());
    rows
}

pub fn last_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(secrets());
    rows.extend(configs());
    rows.extend(other_kinds());
    rows.extend(networks());
    rows.extend(health());
    rows
}

fn create_secret(name: &'static str, spec: impl Fn() -> Option<SecretSpec> + 'static) -> Row {
    row(name, move |_| CreateSecretRequest { spec: spec() })
}

fn creating_secrets() -> Vec<Row> {
    vec![
        create_secret("secret without spec", || None).says("invalid argument"),
        create_secret("secret without name", || secret("", b"x")),
        create_secret("secret with a slash", || secret("a/b", b"x")),
        create_secret("secret with a dot last", || secret("a.", b"x")),
        create_secret("secret with 65 characters", || {
            secret(&"a".repeat(65), b"x")
        }),
        create_secret("secret with all signs", || {
            secret("name.with-all_special", b"x")
        }),
        create_secret("secret without data", || secret("empty", b"")),
        create_secret("secret with 512000 bytes", || {
            secret("big", &vec![7; SECRET_BYTES_MAX + 1])
        }),
        create_secret("secret with 511999 bytes", || {
            secret("big", &vec![7; SECRET_BYTES_MAX])
        }),
        create_secret("secret key", || secret("key", b"data")),
        create_secret("secret key again", || secret("key", b"other"))
            .says("secret key already exists"),
        create_secret("secret KEY after key", || secret("KEY", b"other")),
        create_secret("secret with a nameless driver", || {
            let driver = Some(Driver::default());
            secret("driven", b"").map(|spec| SecretSpec { driver, ..spec })
        }),
    ]
}

fn create_config(name: &'static str, spec: impl Fn() -> Option<ConfigSpec> + 'static) -> Row {
    row(name, move |_| CreateConfigRequest { spec: spec() })
}

fn creating_configs() -> Vec<Row> {
    vec![
        create_config("config without spec", || None).says("invalid argument"),
        create_config("config with a blank", || config("a b", b"x")),
        create_config("config without data", || config("empty", b"")),
        create_config("config with 1024000 bytes", || {
            config("big", &vec![7; CONFIG_BYTES_MAX + 1])
        }),
        create_config("config with 1023999 bytes", || {
            config("big", &vec![7; CONFIG_BYTES_MAX])
        }),
        create_config("config larger than a message", || {
            config("huge", &vec![7; TOO_LARGE_BYTES])
        }),
        create_config("config conf", || config("conf", b"data")),
        create_config("config conf again", || config("conf", b"other"))
            .says("config conf already exists"),
    ]
}

fn update_secret(name: &'static str, change: fn(&mut SecretSpec)) -> Row {
    row(name, move |known| {
        let secret = known.secret("key");
        let mut spec = secret.spec.unwrap_or_default();
        change(&mut spec);
        UpdateSecretRequest {
            secret_id: secret.id,
            secret_version: secret.meta.unwrap_or_default().version,
            spec: Some(spec),
        }
    })
    .fresh()
}

fn remove_secret(name: &'static str, id: impl Fn(&Known) -> String + 'static) -> Row {
    row(name, move |known| RemoveSecretRequest {
        secret_id: id(known),
    })
}

fn secrets() -> Vec<Row> {
    let get = |name, id: fn(&Known) -> String| {
        row(name, move |known| GetSecretRequest {
            secret_id: id(known),
        })
    };
    vec![
        get("get secret without ID", |_| String::new()),
        get("get secret that is missing", |_| MISSING.to_owned()).says("not found"),
        get("get secret", |known| known.secret("key").id),
        row("list secrets as a union", |known| ListSecretsRequest {
            filters: Some(list_secrets_request::Filters {
                names: vec!["BIG".to_owned()],
                name_prefixes: vec!["name.".to_owned()],
                id_prefixes: vec![known.secret("key").id],
                ..Default::default()
            }),
        }),
        update_secret("new data for a secret", |spec| spec.data = b"new".to_vec()),
        update_secret("new name for a secret", |spec| {
            spec.annotations = annotations("new");
        }),
        update_secret("the same data for a secret", |spec| {
            spec.data = b"data".to_vec();
        }),
        update_secret("labels for a secret", |spec| {
            spec.annotations = labelled("key", "a", "b");
        }),
        row("update secret with a stale version", |known| {
            UpdateSecretRequest {
                secret_id: known.secret("key").id,
                secret_version: Some(Version { index: 1 }),
                spec: known.secret("key").spec,
            }
        })
        .says("update out of sequence"),
        row("update secret without version", |known| {
            UpdateSecretRequest {
                secret_id: known.secret("key").id,
                spec: known.secret("key").spec,
                ..Default::default()
            }
        })
        .says("invalid argument"),
        row("update secret that is missing", |known| {
            UpdateSecretRequest {
                secret_id: MISSING.to_owned(),
                secret_version: Some(Version { index: 1 }),
                spec: known.secret("key").spec,
            }
        })
        .says("not found"),
        remove_secret("remove secret in use", |known| known.secret("key").id)
            .says("is in use by the following services: "),
        remove_secret("remove secret", |known| known.secret("big").id),
        remove_secret("remove secret again", |known| known.secret("big").id),
        remove_secret("remove secret without ID", |_| String::new()),
    ]
}

fn update_config(name: &'static str, change: fn(&mut ConfigSpec)) -> Row {
    row(name, move |known| {
        let config = known.config("conf");
        let mut spec = config.spec.unwrap_or_default();
        change(&mut spec);
        UpdateConfigRequest {
            config_id: config.id,
            config_version: config.meta.unwrap_or_default().version,
            spec: Some(spec),
        }
    })
    .fresh()
}

fn configs() -> Vec<Row> {
    let get = |name, id: fn(&Known) -> String| {
        row(name, move |known| GetConfigRequest {
            config_id: id(known),
        })
    };
    let remove = |name, id: fn(&Known) -> String| {
        row(name, move |known| RemoveConfigRequest {
            config_id: id(known),
        })
    };
    vec![
        get("get config without ID", |_| String::new()),
        get("get config that is missing", |_| MISSING.to_owned()).says("not found"),
        get("get config", |known| known.config("conf").id),
        row("list configs", |_| ListConfigsRequest::default()),
        update_config("new data for a config", |spec| spec.data = b"new".to_vec()),
        update_config("labels for a config", |spec| {
            spec.annotations = labelled("conf", "a", "b");
        }),
        row("update config with a stale version", |known| {
            UpdateConfigRequest {
                config_id: known.config("conf").id,
                config_version: Some(Version { index: 1 }),
                spec: known.config("conf").spec,
            }
        })
        .says("update out of sequence"),
        remove("remove config in use", |known| known.config("conf").id)
            .says("is in use by the following services: "),
        remove("remove config", |known| known.config("big").id),
        remove("remove config again", |known| known.config("big").id),
    ]
}

fn other_kinds() -> Vec<Row> {
    vec![
        row("get extension without ID", |_| {
            GetExtensionRequest::default()
        }),
        row("get extension that is missing", |_| GetExtensionRequest {
            extension_id: MISSING.to_owned(),
        })
        .says("not found"),
        row("get resource without ID", |_| GetResourceRequest::default()),
        row("get resource that is missing", |_| GetResourceRequest {
            resource_id: MISSING.to_owned(),
        })
        .says("not found"),
        row("list resources", |_| ListResourcesRequest::default()),
        row("create extension without name", |_| {
            CreateExtensionRequest::default()
        }),
        row("create extension", |_| CreateExtensionRequest {
            annotations: annotations("gadgets"),
            description: String::new(),
        }),
        row("create resource of an unknown kind", |_| {
            CreateResourceRequest {
                annotations: annotations("one"),
                kind: "ghost".to_owned(),
                payload: None,
            }
        }),
        row("create resource", |_| CreateResourceRequest {
            annotations: annotations("one"),
            kind: "gadgets".to_owned(),
            payload: None,
        }),
        row("remove extension without ID", |_| {
            RemoveExtensionRequest::default()
        }),
        row("create volume", |_| CreateVolumeRequest::default()),
        row("list volumes", |_| ListVolumesRequest::default()),
    ]
}

fn create_network(name: &'static str, spec: fn() -> NetworkSpec) -> Row {
    row(name, move |_| CreateNetworkRequest { spec: Some(spec()) })
}

fn named_network(name: &str) -> NetworkSpec {
    NetworkSpec {
        annotations: annotations(name),
        ..Default::default()
    }
}

fn networks() -> Vec<Row> {
    let get = |name, id: fn(&Known) -> String| {
        row(name, move |known| GetNetworkRequest {
            network_id: id(known),
            ..Default::default()
        })
    };
    let remove = |name, id: fn(&Known) -> String| {
        row(name, move |known| RemoveNetworkRequest {
            network_id: id(known),
            ..Default::default()
        })
    };
    vec![
        get("get network without ID", |_| String::new()).says("invalid argument"),
        get("get network that is missing", |_| MISSING.to_owned()).says("not found"),
        get("get network", |known| known.network("ingress").id),
        row("list networks by another name", |_| ListNetworksRequest {
            filters: Some(list_networks_request::Filters {
                names: vec!["ghost".to_owned()],
                ..Default::default()
            }),
            ..Default::default()
        }),
        row("create network without spec", |_| {
            CreateNetworkRequest::default()
        }),
        create_network("create network without name", || named_network("")),
        create_network("create network", || named_network("back")),
        create_network("create network again", || named_network("back")),
        create_network("create a second ingress network", || NetworkSpec {
            ingress: true,
            ..named_network("ingress2")
        }),
        remove("remove network without ID", |_| String::new()),
        remove("remove network that is missing", |_| MISSING.to_owned()),
        remove("remove network", |known| known.network("back").id),
    ]
}

fn health() -> Vec<Row> {
    let check = |name, service: &'static str| {
        row(name, move |_| HealthCheckRequest {
            service: service.to_owned(),
        })
    };
    vec![
        check("health of the process", ""),
        check("health of the Control API", "ControlAPI"),
        check("health of nothing", "nothing"),
    ]
}
