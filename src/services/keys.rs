//! The keys that engines encrypt their overlay networks with.
//!
//! Engines gossip with each other (`networking:gossip`) and encrypt overlay traffic
//! (`networking:ipsec`) under keys that the manager hands out with every session message. They are
//! strict about them: exactly [`KEYS_PER_SUBSYSTEM`] keys of each subsystem, no Lamport time used
//! twice, no other subsystem. A set that breaks one of these rules is refused as a whole, and then
//! the engine's networks silently stop working, which is why a set is only ever made here.
//!
//! The first set is made in the transaction that creates the cluster object, so that no engine ever
//! sees a cluster without keys. Keys are not rotated yet. Nothing here logs or prints a key.

use rand::RngCore;

use crate::api::types::encryption_key::Algorithm;
use crate::api::types::{Cluster, EncryptionKey};

/// Subsystem of the keys that protect the engines' gossip.
pub const SUBSYSTEM_GOSSIP: &str = "networking:gossip";

/// Subsystem of the keys that protect encrypted overlay traffic.
pub const SUBSYSTEM_IPSEC: &str = "networking:ipsec";

/// Keys an engine demands of each subsystem (spec 08 section 6): the newest is only accepted, the
/// second oldest encrypts, the oldest is on its way out.
pub const KEYS_PER_SUBSYSTEM: usize = 3;

/// Bytes of an AES-128-GCM key.
const KEY_BYTES: usize = 16;

/// The keys of a cluster and the clock that gave each its time, as the cluster object holds them.
#[derive(Clone, PartialEq)]
pub struct NetworkKeys {
    /// [`KEYS_PER_SUBSYSTEM`] keys for gossip, then as many for overlay traffic, oldest first.
    pub keys: Vec<EncryptionKey>,
    /// Lamport time of the newest key.
    pub lamport_clock: u64,
}

/// Draws the first keys of a new cluster.
///
/// The Lamport clock starts at a random 16-bit number, so that the keys of two clusters are not
/// mistaken for each other by an engine that leaves one and joins the other.
pub fn first_network_keys() -> NetworkKeys {
    let mut rng = rand::rng();
    let mut lamport_clock = rng.next_u64() & 0xffff;
    let mut keys = Vec::with_capacity(2 * KEYS_PER_SUBSYSTEM);
    for subsystem in [SUBSYSTEM_GOSSIP, SUBSYSTEM_IPSEC] {
        for _ in 0..KEYS_PER_SUBSYSTEM {
            let mut key = vec![0; KEY_BYTES];
            rng.fill_bytes(&mut key);
            lamport_clock += 1;
            keys.push(EncryptionKey {
                subsystem: subsystem.to_owned(),
                algorithm: Algorithm::Aes128Gcm as i32,
                key,
                lamport_time: lamport_clock,
            });
        }
    }
    NetworkKeys {
        keys,
        lamport_clock,
    }
}

/// Gives a cluster object its first keys, unless it has some. Says whether the object changed.
///
/// Right at any time: for the object a new cluster starts with, and for one that was brought in
/// from a cluster without networks.
pub fn ensure_network_keys(cluster: &mut Cluster) -> bool {
    if !cluster.network_bootstrap_keys.is_empty() {
        return false;
    }
    let first = first_network_keys();
    cluster.network_bootstrap_keys = first.keys;
    cluster.encryption_key_lamport_clock = first.lamport_clock;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    // 08-A26, the part without rotation.
    #[test]
    fn a_fresh_cluster_gets_three_keys_per_subsystem_with_consecutive_times() {
        let mut cluster = Cluster::default();
        assert!(ensure_network_keys(&mut cluster));

        let keys = &cluster.network_bootstrap_keys;
        let subsystems: Vec<&str> = keys.iter().map(|key| key.subsystem.as_str()).collect();
        assert_eq!(
            subsystems,
            [
                "networking:gossip",
                "networking:gossip",
                "networking:gossip",
                "networking:ipsec",
                "networking:ipsec",
                "networking:ipsec"
            ]
        );
        let first = keys[0].lamport_time;
        assert!((1..=0x1_0000).contains(&first));
        let times: Vec<u64> = keys.iter().map(|key| key.lamport_time).collect();
        assert_eq!(times, (first..first + 6).collect::<Vec<_>>());
        assert_eq!(cluster.encryption_key_lamport_clock, first + 5);
        assert!(
            keys.iter()
                .all(|key| key.key.len() == 16 && key.algorithm == 0)
        );
        let distinct: BTreeSet<&[u8]> = keys.iter().map(|key| key.key.as_slice()).collect();
        assert_eq!(distinct.len(), 6);
    }

    #[test]
    fn existing_keys_are_adopted() {
        let mut cluster = Cluster::default();
        ensure_network_keys(&mut cluster);
        let before = cluster.clone();
        assert!(!ensure_network_keys(&mut cluster));
        assert_eq!(cluster, before);
    }
}
