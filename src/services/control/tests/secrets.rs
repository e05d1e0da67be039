//! Secrets and configs.

use super::*;

async fn create_secret(bed: &Bed, name: &str, bytes: usize) -> Result<Secret, String> {
    let spec = SecretSpec {
        annotations: named(name),
        data: vec![7; bytes],
        ..Default::default()
    };
    let request = Request::new(CreateSecretRequest { spec: Some(spec) });
    let result = Control::create_secret(&bed.control, request).await;
    let seen = seen(&result);
    result
        .map(|response| response.into_inner().secret.unwrap())
        .map_err(|_| seen)
}

async fn create_config(bed: &Bed, name: &str, bytes: usize) -> Result<Config, String> {
    let spec = ConfigSpec {
        annotations: named(name),
        data: vec![7; bytes],
        ..Default::default()
    };
    let request = Request::new(CreateConfigRequest { spec: Some(spec) });
    let result = Control::create_config(&bed.control, request).await;
    let seen = seen(&result);
    result
        .map(|response| response.into_inner().config.unwrap())
        .map_err(|_| seen)
}

// 05-A30, 05-A31
#[tokio::test]
async fn creation() {
    let bed = Bed::new();
    let secret = create_secret(&bed, "s1", 511_999).await.unwrap();
    assert!(secret.spec.unwrap().data.is_empty(), "nothing is given out");
    let stored = bed.get::<Secret>(&secret.id).unwrap();
    assert_eq!(stored.spec.as_ref().unwrap().data.len(), 511_999);
    let config = create_config(&bed, "c1", 1_023_999).await.unwrap();
    assert_eq!(config.spec.unwrap().data.len(), 1_023_999);

    let secret_size =
        "InvalidArgument: secret data must be larger than 0 and less than 512000 bytes";
    let config_size =
        "InvalidArgument: config data must be larger than 0 and less than 1024000 bytes";
    let bad_name = "InvalidArgument: invalid name, only 64 [a-zA-Z0-9-_.] characters allowed, \
                    and the start and end character must be [a-zA-Z0-9]";
    for (name, bytes, expected) in [
        ("new", 0, secret_size),
        ("new", 512_000, secret_size),
        ("", 1, "InvalidArgument: name must be provided"),
        ("-new", 1, bad_name),
        ("s1", 1, "AlreadyExists: secret s1 already exists"),
        ("S1", 1, "AlreadyExists: secret S1 already exists"),
    ] {
        assert_eq!(
            create_secret(&bed, name, bytes).await,
            Err(expected.to_owned())
        );
    }
    for (name, bytes, expected) in [
        ("new", 0, config_size),
        ("new", 1_024_000, config_size),
        ("", 1, "InvalidArgument: name must be provided"),
        ("-new", 1, bad_name),
        ("C1", 1, "AlreadyExists: config C1 already exists"),
    ] {
        assert_eq!(
            create_config(&bed, name, bytes).await,
            Err(expected.to_owned())
        );
    }
    let none = Request::new(CreateSecretRequest { spec: None });
    let none = Control::create_secret(&bed.control, none).await;
    assert_eq!(seen(&none), "InvalidArgument: invalid argument");
    assert_eq!(
        (bed.all::<Secret>().len(), bed.all::<Config>().len()),
        (1, 1)
    );
}

// 05-A30
#[tokio::test]
async fn secret_drivers() {
    let bed = Bed::new();
    for (driver, expected) in [
        ("", "InvalidArgument: secret driver must have a name"),
        ("vault", "Unimplemented: secret drivers: not available yet"),
    ] {
        let driver = Some(Driver {
            name: driver.into(),
            ..Default::default()
        });
        let spec = SecretSpec {
            annotations: named("s1"),
            driver,
            ..Default::default()
        };
        let request = Request::new(CreateSecretRequest { spec: Some(spec) });
        assert_eq!(
            seen(&Control::create_secret(&bed.control, request).await),
            expected
        );
    }
}

// 05-A31
#[tokio::test]
async fn secrets_are_never_given_out() {
    let bed = Bed::new();
    let spec = |name: &str| {
        let data = b"content".to_vec();
        Some(SecretSpec {
            annotations: named(name),
            data,
            ..Default::default()
        })
    };
    bed.put([
        Secret {
            id: "s1".into(),
            spec: spec("plain"),
            ..Default::default()
        },
        Secret {
            id: "s2".into(),
            spec: spec("hidden"),
            internal: true,
            ..Default::default()
        },
    ])
    .await;
    for id in ["s1", "s2"] {
        let get = Request::new(GetSecretRequest {
            secret_id: id.into(),
        });
        let secret = ok(Control::get_secret(&bed.control, get).await)
            .secret
            .unwrap();
        assert!(secret.spec.unwrap().data.is_empty());
    }
    let list = Request::new(ListSecretsRequest::default());
    let secrets = ok(Control::list_secrets(&bed.control, list).await).secrets;
    let ids: Vec<&str> = secrets.iter().map(|secret| secret.id.as_str()).collect();
    assert_eq!(ids, ["s1"]);
    assert!(secrets[0].spec.as_ref().unwrap().data.is_empty());
}

// 05-A31
#[tokio::test]
async fn only_labels_of_a_secret_can_be_changed() {
    let bed = Bed::new();
    let id = create_secret(&bed, "s1", 3).await.unwrap().id;
    let refused = "InvalidArgument: only updates to Labels are allowed";
    let stale = Some(Version { index: 98_765 });
    let current = || version_of(&bed.get::<Secret>(&id).unwrap().meta);
    let spec = |name: &str, data: &[u8]| SecretSpec {
        annotations: labelled(name, &[("k", "v")]),
        data: data.to_vec(),
        templating: Some(Driver {
            name: "golang".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    for (secret_id, secret_version, spec, expected) in [
        (
            "",
            current(),
            Some(spec("s1", &[])),
            "InvalidArgument: invalid argument",
        ),
        (
            id.as_str(),
            None,
            Some(spec("s1", &[])),
            "InvalidArgument: invalid argument",
        ),
        (
            id.as_str(),
            current(),
            None,
            "InvalidArgument: invalid argument",
        ),
        (
            "nope",
            current(),
            Some(spec("s1", &[])),
            "NotFound: secret nope not found",
        ),
        (id.as_str(), current(), Some(spec("s2", &[])), refused),
        (id.as_str(), current(), Some(spec("S1", &[])), refused),
        (id.as_str(), current(), Some(spec("s1", &[7, 7])), refused),
        (
            id.as_str(),
            stale,
            Some(spec("s1", &[])),
            "Unknown: update out of sequence",
        ),
    ] {
        let request = UpdateSecretRequest {
            secret_id: secret_id.into(),
            secret_version,
            spec,
        };
        let result = Control::update_secret(&bed.control, Request::new(request)).await;
        assert_eq!(seen(&result), expected);
    }
    for data in [&[][..], &[7, 7, 7]] {
        let request = UpdateSecretRequest {
            secret_id: id.clone(),
            secret_version: current(),
            spec: Some(spec("s1", data)),
        };
        let answer = ok(Control::update_secret(&bed.control, Request::new(request)).await);
        let shown = answer.secret.unwrap().spec.unwrap();
        assert!(shown.data.is_empty());
        let stored = bed.get::<Secret>(&id).unwrap();
        let stored = stored.spec.as_ref().unwrap();
        assert_eq!(stored.annotations, labelled("s1", &[("k", "v")]));
        assert_eq!(stored.data, [7, 7, 7]);
        assert_eq!(stored.templating, None, "everything but labels is ignored");
    }
}

// 05-A31
#[tokio::test]
async fn only_labels_of_a_config_can_be_changed() {
    let bed = Bed::new();
    let config = create_config(&bed, "c1", 3).await.unwrap();
    let update = async |name: &str, data: &[u8]| {
        let spec = ConfigSpec {
            annotations: labelled(name, &[("k", "v")]),
            data: data.to_vec(),
            ..Default::default()
        };
        let request = UpdateConfigRequest {
            config_id: config.id.clone(),
            config_version: version_of(&bed.get::<Config>(&config.id).unwrap().meta),
            spec: Some(spec),
        };
        seen(&Control::update_config(&bed.control, Request::new(request)).await)
    };
    let refused = "InvalidArgument: only updates to Labels are allowed";
    assert_eq!(update("c2", &[]).await, refused);
    assert_eq!(update("c1", &[7]).await, refused);
    assert_eq!(update("c1", &[]).await, "OK");
    assert_eq!(update("c1", &[7, 7, 7]).await, "OK");
    let stored = bed.get::<Config>(&config.id).unwrap();
    let stored = stored.spec.as_ref().unwrap();
    assert_eq!(
        (&stored.annotations, &stored.data[..]),
        (&labelled("c1", &[("k", "v")]), &[7, 7, 7][..])
    );
}

fn using(name: &str, secret: Option<(&str, &str)>, config: Option<(&str, &str)>) -> ServiceSpec {
    let mut spec = web(name);
    let file = || FileTarget {
        name: "file".into(),
        ..Default::default()
    };
    container_of(&mut spec).secrets = secret
        .map(|(id, name)| SecretReference {
            secret_id: id.into(),
            secret_name: name.into(),
            target: Some(secret_reference::Target::File(file())),
        })
        .into_iter()
        .collect();
    container_of(&mut spec).configs = config
        .map(|(id, name)| ConfigReference {
            config_id: id.into(),
            config_name: name.into(),
            target: Some(config_reference::Target::File(file())),
        })
        .into_iter()
        .collect();
    spec
}

// 05-A32
#[tokio::test]
async fn removal() {
    let bed = Bed::new();
    let secret = create_secret(&bed, "s1", 1).await.unwrap().id;
    let config = create_config(&bed, "c1", 1).await.unwrap().id;
    let remove_secret = async || {
        let request = Request::new(RemoveSecretRequest {
            secret_id: secret.clone(),
        });
        seen(&Control::remove_secret(&bed.control, request).await)
    };
    let remove_config = async || {
        let request = Request::new(RemoveConfigRequest {
            config_id: config.clone(),
        });
        seen(&Control::remove_config(&bed.control, request).await)
    };
    let mut users = Vec::new();
    for name in ["web", "db"] {
        let spec = using(name, Some((&secret, "s1")), Some((&config, "c1")));
        users.push((bed.create(spec).await.id, name));
    }
    // Services are listed in the order of their IDs.
    users.sort_unstable();
    let both = users
        .iter()
        .map(|(_, name)| *name)
        .collect::<Vec<_>>()
        .join(", ");
    let in_use =
        |what: &str| format!("InvalidArgument: {what} is in use by the following services: {both}");
    assert_eq!(remove_secret().await, in_use("secret 's1'"));
    assert_eq!(remove_config().await, in_use("config 'c1'"));

    let (first, last) = (&users[0], &users[1]);
    for (service_id, name) in [(&first.0, Some(last.1)), (&last.0, None)] {
        let request = Request::new(RemoveServiceRequest {
            service_id: service_id.clone(),
        });
        ok(Control::remove_service(&bed.control, request).await);
        if let Some(name) = name {
            let text = "InvalidArgument: secret 's1' is in use by the following service:";
            assert_eq!(remove_secret().await, format!("{text} {name}"));
        }
    }
    assert_eq!(remove_secret().await, "OK");
    assert_eq!(
        remove_secret().await,
        format!("NotFound: secret {secret} not found")
    );
    assert_eq!(remove_config().await, "OK");
    assert_eq!(
        remove_config().await,
        format!("NotFound: config {config} not found")
    );
}

#[tokio::test]
async fn a_volume_keeps_its_secret() {
    let bed = Bed::new();
    let secret = create_secret(&bed, "s1", 1).await.unwrap().id;
    bed.put([Volume {
        id: "v1".into(),
        spec: Some(VolumeSpec {
            annotations: named("vol"),
            driver: Some(Driver {
                name: "csi".into(),
                ..Default::default()
            }),
            secrets: vec![VolumeSecret {
                key: "k".into(),
                secret: secret.clone(),
            }],
            ..Default::default()
        }),
        ..Default::default()
    }])
    .await;
    let request = Request::new(RemoveSecretRequest { secret_id: secret });
    assert_eq!(
        seen(&Control::remove_secret(&bed.control, request).await),
        "InvalidArgument: secret 's1' is in use by the following volume: vol"
    );
}
