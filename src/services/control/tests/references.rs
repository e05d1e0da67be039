//! References of a service to secrets and configs.

use super::service_specs::{Case, check};
use super::*;

fn secret_file(id: &str, name: &str, file: &str) -> SecretReference {
    SecretReference {
        secret_id: id.into(),
        secret_name: name.into(),
        target: Some(secret_reference::Target::File(FileTarget {
            name: file.into(),
            ..Default::default()
        })),
    }
}

fn config_file(id: &str, name: &str, file: &str) -> ConfigReference {
    ConfigReference {
        config_id: id.into(),
        config_name: name.into(),
        target: Some(config_reference::Target::File(FileTarget {
            name: file.into(),
            ..Default::default()
        })),
    }
}

fn config_runtime(id: &str, name: &str) -> ConfigReference {
    ConfigReference {
        target: Some(config_reference::Target::Runtime(RuntimeTarget {})),
        ..config_file(id, name, "")
    }
}

/// A cluster with the secrets s1, s2 and the configs c1, c2, named `secret-s1` and so on.
async fn bed_with_payloads() -> Bed {
    let bed = Bed::new();
    bed.put(["s1", "s2"].map(|id| Secret {
        id: id.into(),
        spec: Some(SecretSpec {
            annotations: named(&format!("secret-{id}")),
            ..Default::default()
        }),
        ..Default::default()
    }))
    .await;
    bed.put(["c1", "c2"].map(|id| Config {
        id: id.into(),
        spec: Some(ConfigSpec {
            annotations: named(&format!("config-{id}")),
            ..Default::default()
        }),
        ..Default::default()
    }))
    .await;
    bed
}

// 05-A12
#[tokio::test]
async fn secret_references() {
    fn put(spec: &mut ServiceSpec, references: &[SecretReference]) {
        container_of(spec).secrets = references.to_vec();
    }
    let bed = bed_with_payloads().await;
    let conflict = "InvalidArgument: secret references 'secret-s";
    let cases: &[Case] = &[
        (|s| put(s, &[secret_file("s1", "secret-s1", "f")]), "OK"),
        (
            |s| put(s, &[secret_file("s9", "b", "f")]),
            "InvalidArgument: secret not found: b",
        ),
        (
            |s| {
                put(
                    s,
                    &[secret_file("s9", "b", "f"), secret_file("s1", "c", "g")],
                )
            },
            "InvalidArgument: secrets not found: b, c",
        ),
        (
            |s| put(s, &[secret_file("s1", "secret-s2", "f")]),
            "InvalidArgument: secret not found: secret-s2",
        ),
        (
            |s| put(s, &[secret_file("", "secret-s1", "f")]),
            "InvalidArgument: malformed secret reference",
        ),
        (
            |s| put(s, &[secret_file("s1", "", "f")]),
            "InvalidArgument: malformed secret reference",
        ),
        (
            |s| {
                put(
                    s,
                    &[SecretReference {
                        target: None,
                        ..secret_file("s1", "secret-s1", "")
                    }],
                )
            },
            "InvalidArgument: malformed secret reference, no target provided",
        ),
        (
            |s| put(s, &[secret_file("s1", "secret-s1", "")]),
            "InvalidArgument: malformed secret reference, invalid target file name",
        ),
        (
            |s| {
                put(
                    s,
                    &[
                        secret_file("s1", "secret-s1", "f"),
                        secret_file("s2", "secret-s2", "f"),
                    ],
                )
            },
            conflict,
        ),
        (
            |s| {
                put(
                    s,
                    &[
                        secret_file("s1", "secret-s1", "f"),
                        secret_file("s1", "secret-s1", "f"),
                    ],
                )
            },
            conflict,
        ),
        (
            |s| {
                put(
                    s,
                    &[
                        secret_file("s1", "secret-s1", "f"),
                        secret_file("s1", "secret-s1", "g"),
                    ],
                )
            },
            "OK",
        ),
        (|s| put(s, &[secret_file("s1", "secret-s1", "../x")]), "OK"),
    ];
    check(&bed, cases).await;
}

// 05-A12
#[tokio::test]
async fn config_references() {
    fn put(spec: &mut ServiceSpec, references: &[ConfigReference]) {
        container_of(spec).configs = references.to_vec();
    }
    let bed = bed_with_payloads().await;
    let cases: &[Case] = &[
        (|s| put(s, &[config_file("c1", "config-c1", "f")]), "OK"),
        (
            |s| put(s, &[config_file("c9", "b", "f")]),
            "InvalidArgument: config not found: b",
        ),
        (
            |s| put(s, &[config_file("c1", "config-c2", "f")]),
            "InvalidArgument: config not found: config-c2",
        ),
        (
            |s| put(s, &[config_file("c1", "config-c1", "")]),
            "InvalidArgument: malformed config reference",
        ),
        (
            |s| {
                put(
                    s,
                    &[ConfigReference {
                        target: None,
                        ..config_file("c1", "config-c1", "")
                    }],
                )
            },
            "InvalidArgument: malformed config reference, no target provided",
        ),
        (
            |s| {
                put(
                    s,
                    &[
                        config_file("c1", "config-c1", "f"),
                        config_file("c2", "config-c2", "f"),
                    ],
                )
            },
            "InvalidArgument: config references 'config-c2'",
        ),
        (
            |s| {
                put(
                    s,
                    &[
                        config_runtime("c1", "config-c1"),
                        config_runtime("c2", "config-c2"),
                    ],
                )
            },
            "OK",
        ),
    ];
    check(&bed, cases).await;
}

// 05-A13
#[tokio::test]
async fn credential_specs() {
    fn put(spec: &mut ServiceSpec, references: &[ConfigReference]) {
        let container = container_of(spec);
        container.configs = references.to_vec();
        container.privileges = Some(Privileges {
            credential_spec: Some(privileges::CredentialSpec {
                source: Some(privileges::credential_spec::Source::Config("c1".into())),
            }),
            ..Default::default()
        });
    }
    let bed = bed_with_payloads().await;
    let missing = "InvalidArgument: CredentialSpec: config c1 is not among the config references";
    let cases: &[Case] = &[
        (|s| put(s, &[]), missing),
        (|s| put(s, &[config_file("c1", "config-c1", "f")]), missing),
        (|s| put(s, &[config_runtime("c2", "config-c2")]), missing),
        (|s| put(s, &[config_runtime("c1", "config-c1")]), "OK"),
    ];
    check(&bed, cases).await;
}
