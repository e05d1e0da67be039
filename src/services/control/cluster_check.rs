//! Checks of a cluster spec, and what of it cannot be changed yet.

use super::cluster::DEFAULT_NAME;
use super::error::{Answer, ControlError};
use crate::api::types::*;
use crate::api::validate;

/// Shortest life of node certificates, in nanoseconds: 1 hour, so that they can be renewed in time.
const NODE_EXPIRY_NANOS_MIN: i128 = 3_600 * 1_000_000_000;

/// The only algorithm for the secret of an acceptance policy.
const POLICY_ALGORITHM: &str = "bcrypt";

/// Ticks that count when a spec leaves them zero.
const DEFAULT_HEARTBEAT_TICK: u32 = 1;
const DEFAULT_ELECTION_TICK: u32 = 10;

/// Checks that need nothing but the spec, in the order in which they are reported.
pub(super) fn check_spec(spec: &ClusterSpec) -> Answer<()> {
    check_node_expiry(spec)?;
    check_acceptance_policy(spec)?;
    let dispatcher = spec.dispatcher.as_ref();
    let period = dispatcher.and_then(|dispatcher| dispatcher.heartbeat_period.as_ref());
    validate::span_not_negative("heartbeat time period", period)?;
    let name = spec
        .annotations
        .as_ref()
        .map_or("", |annotations| &annotations.name);
    if name != DEFAULT_NAME {
        return Err(ControlError::InvalidArgument(format!(
            "modification of cluster name is not allowed: it must be {DEFAULT_NAME:?}"
        )));
    }
    check_raft(spec)
}

fn check_node_expiry(spec: &ClusterSpec) -> Answer<()> {
    let ca_config = spec.ca_config.as_ref();
    let Some(expiry) = ca_config.and_then(|config| config.node_cert_expiry.as_ref()) else {
        return Ok(());
    };
    if validate::span_nanos("node certificate expiry", expiry)? < NODE_EXPIRY_NANOS_MIN {
        return Err(ControlError::invalid(
            "minimum certificate expiry time is: 1h0m0s",
        ));
    }
    Ok(())
}

#[allow(deprecated)] // Old clients may still send it; it is checked and otherwise ignored.
fn check_acceptance_policy(spec: &ClusterSpec) -> Answer<()> {
    let policies = spec
        .acceptance_policy
        .iter()
        .flat_map(|policy| &policy.policies);
    for secret in policies.filter_map(|policy| policy.secret.as_ref()) {
        if !secret.alg.eq_ignore_ascii_case(POLICY_ALGORITHM) {
            return Err(ControlError::InvalidArgument(format!(
                "hashing algorithm is not supported: {}",
                secret.alg
            )));
        }
    }
    Ok(())
}

/// Zero stands for the default; the values that result must make elections possible.
fn check_raft(spec: &ClusterSpec) -> Answer<()> {
    let Some(raft) = &spec.raft else {
        return Ok(());
    };
    let or_default = |ticks, default| if ticks == 0 { default } else { ticks };
    let heartbeat = or_default(raft.heartbeat_tick, DEFAULT_HEARTBEAT_TICK);
    let election = or_default(raft.election_tick, DEFAULT_ELECTION_TICK);
    if election <= heartbeat {
        return Err(ControlError::InvalidArgument(format!(
            "raft: the election tick ({election}) must be larger than the heartbeat tick ({heartbeat})"
        )));
    }
    Ok(())
}

/// Refuses what a spec asks for and nothing would carry out.
pub(super) fn check_available(cluster: &Cluster, spec: &ClusterSpec) -> Answer<()> {
    let ca_config = spec.ca_config.clone().unwrap_or_default();
    if !ca_config.signing_ca_key.is_empty() && ca_config.signing_ca_cert.is_empty() {
        return Err(ControlError::invalid(
            "if a signing CA key is provided, the signing CA cert must also be provided",
        ));
    }
    let last_forced = cluster
        .root_ca
        .as_ref()
        .map_or(0, |root_ca| root_ca.last_forced_rotation);
    if !ca_config.signing_ca_cert.is_empty() || ca_config.force_rotate != last_forced {
        return Err(ControlError::not_available(
            "changing the root certificate of the cluster",
        ));
    }
    let stored = cluster.spec.clone().unwrap_or_default();
    if ca_config.external_cas != stored.ca_config.unwrap_or_default().external_cas {
        return Err(ControlError::not_available(
            "external certificate authorities",
        ));
    }
    if spec
        .encryption_config
        .is_some_and(|config| config.auto_lock_managers)
    {
        return Err(ControlError::not_available("locking managers (autolock)"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_types::Duration;

    fn default_spec() -> ClusterSpec {
        ClusterSpec {
            annotations: Some(Annotations {
                name: DEFAULT_NAME.into(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn seconds(seconds: i64) -> Option<Duration> {
        Some(Duration { seconds, nanos: 0 })
    }

    fn is_valid(change: impl FnOnce(&mut ClusterSpec)) -> bool {
        let mut spec = default_spec();
        change(&mut spec);
        check_spec(&spec).is_ok()
    }

    // 05-A25
    #[test]
    fn specs() {
        let expiry = |node_cert_expiry| {
            is_valid(|spec| {
                let ca_config = CaConfig {
                    node_cert_expiry,
                    ..Default::default()
                };
                spec.ca_config = Some(ca_config);
            })
        };
        assert!(!expiry(seconds(59 * 60)));
        assert!(expiry(seconds(3_600)));
        assert!(expiry(None));
        assert!(!expiry(Some(Duration {
            seconds: 7_200,
            nanos: -1
        })));

        let heartbeat = |heartbeat_period| {
            is_valid(|spec| spec.dispatcher = Some(DispatcherConfig { heartbeat_period }))
        };
        assert!(!heartbeat(seconds(-1)));
        assert!(heartbeat(seconds(0)));
        assert!(heartbeat(seconds(5)));

        assert!(!is_valid(|spec| spec.annotations = None));
        let rename = |spec: &mut ClusterSpec| {
            spec.annotations = Some(Annotations {
                name: "other".into(),
                ..Default::default()
            });
        };
        assert!(!is_valid(rename));
    }

    // 05-A25
    #[test]
    #[allow(deprecated)]
    fn acceptance_policies() {
        use acceptance_policy::{RoleAdmissionPolicy, role_admission_policy::Secret};
        for (alg, valid) in [
            ("bcrypt", true),
            ("BCrypt", true),
            ("md5", false),
            ("", false),
        ] {
            let secret = Secret {
                alg: alg.into(),
                ..Default::default()
            };
            let policy = RoleAdmissionPolicy {
                secret: Some(secret),
                ..Default::default()
            };
            let policies = vec![policy];
            let with_policy = |spec: &mut ClusterSpec| {
                spec.acceptance_policy = Some(AcceptancePolicy { policies });
            };
            assert_eq!(is_valid(with_policy), valid, "{alg:?}");
        }
    }

    #[test]
    fn raft_ticks() {
        for (heartbeat_tick, election_tick, valid) in [
            (0, 0, true),
            (1, 10, true),
            (0, 1, false),
            (10, 0, false),
            (3, 3, false),
            (3, 4, true),
        ] {
            let raft = RaftConfig {
                heartbeat_tick,
                election_tick,
                ..Default::default()
            };
            assert_eq!(is_valid(|spec| spec.raft = Some(raft)), valid, "{raft:?}");
        }
    }
}
