//! The managers a node may connect to, with what it has learnt about each (spec 03 section 13).
//!
//! [`Remotes`] is a pure weighted set: good experience raises a manager's weight, bad experience lowers
//! it, and the choice is random in proportion. [`SharedRemotes`] is the one copy of a node, shared by
//! everything that dials managers, and keeps the addresses (never the weights) in `state.json`, so that a
//! restarted node finds its cluster without being told again.
//!
//! Guarantees: weights stay within ±[`WEIGHT_MAX`], a choice is made whenever there is a manager that is
//! not excluded, and the file is replaced as a whole or not at all.

use crate::api::types::{Peer, WeightedPeer};
use parking_lot::Mutex;
use rand::Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;

#[cfg(test)]
mod tests;

/// Weights and observations are clipped to ± this.
pub const WEIGHT_MAX: i64 = 256;
/// What one good (+) or bad (−) experience counts.
pub const OBSERVATION: i64 = 10;
/// Added to each weight when choosing, so that managers with weight 0 are chosen at all.
const BIAS: f64 = 0.001;
/// Managers kept at most: far above any raft group, a bound on what a hostile list can take.
const REMOTES_MAX: usize = 1024;
/// Largest `state.json` that is read, 1 MiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A manager: its node ID (empty while unknown) and its remote address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Remote {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub addr: String,
}

impl From<&Peer> for Remote {
    fn from(peer: &Peer) -> Remote {
        Remote {
            node_id: peer.node_id.clone(),
            addr: peer.addr.clone(),
        }
    }
}

/// No manager to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no remote hosts provided")]
pub struct NoRemotes;

/// Managers and their weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remotes {
    weights: BTreeMap<Remote, i64>,
}

impl Remotes {
    /// Takes an experience into account: the new weight is the mean of the old one and `observation`,
    /// rounded up. Unknown managers start at 0.
    pub fn observe(&mut self, remote: &Remote, observation: i64) {
        let known = self.weights.len();
        match self.weights.get_mut(remote) {
            Some(weight) => *weight = blend(*weight, observation),
            None if known < REMOTES_MAX => {
                self.weights.insert(remote.clone(), blend(0, observation));
            }
            None => {}
        }
    }

    /// Like [`Remotes::observe`], but leaves unknown managers unknown.
    pub fn observe_if_exists(&mut self, remote: &Remote, observation: i64) {
        if self.weights.contains_key(remote) {
            self.observe(remote, observation);
        }
    }

    /// The weight of a known manager.
    pub fn weight(&self, remote: &Remote) -> Option<i64> {
        self.weights.get(remote).copied()
    }

    /// Chooses a manager whose node ID and address are both not among `excludes`.
    pub fn select<R: Rng>(&self, excludes: &[&str], random: &mut R) -> Result<Remote, NoRemotes> {
        let candidates: Vec<(&Remote, f64)> = self
            .weights
            .iter()
            .filter(|(remote, _)| {
                !excludes
                    .iter()
                    .any(|exclude| remote.node_id == *exclude || remote.addr == *exclude)
            })
            .map(|(remote, weight)| (remote, (*weight).max(0) as f64 + BIAS))
            .collect();
        let total: f64 = candidates.iter().map(|(_, share)| share).sum();
        let (last, _) = candidates.last().ok_or(NoRemotes)?;
        let mut point = random.random::<f64>() * total;
        for (remote, share) in &candidates {
            point -= share;
            if point < 0.0 {
                return Ok((*remote).clone());
            }
        }
        // Rounding may leave a sliver at the end.
        Ok((*last).clone())
    }

    /// Replaces the set by the managers of a session message: each is observed with its weight, every
    /// other one is forgotten. A list without any usable entry changes nothing, since it would leave the
    /// node without a way back.
    pub fn take_list(&mut self, managers: &[WeightedPeer]) {
        let listed: Vec<(Remote, i64)> = managers
            .iter()
            .filter_map(|entry| {
                let peer = entry.peer.as_ref().filter(|peer| !peer.addr.is_empty())?;
                Some((Remote::from(peer), entry.weight))
            })
            .take(REMOTES_MAX)
            .collect();
        if listed.is_empty() {
            return;
        }
        self.weights
            .retain(|known, _| listed.iter().any(|(remote, _)| remote == known));
        for (remote, weight) in &listed {
            self.observe(remote, *weight);
        }
    }

    /// All managers, sorted by node ID, then address.
    pub fn list(&self) -> Vec<Remote> {
        self.weights.keys().cloned().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }
}

/// `ceil(0.5 * clip(observation) + 0.5 * old)`, clipped.
fn blend(old: i64, observation: i64) -> i64 {
    let sum = old + observation.clamp(-WEIGHT_MAX, WEIGHT_MAX);
    (sum.div_euclid(2) + sum.rem_euclid(2)).clamp(-WEIGHT_MAX, WEIGHT_MAX)
}

/// The node's one set of managers.
#[derive(Clone)]
pub struct SharedRemotes {
    remotes: Arc<Mutex<Remotes>>,
    list: watch::Sender<Vec<Remote>>,
}

impl SharedRemotes {
    /// A set that starts with these managers, each observed once as good.
    pub fn new(initial: impl IntoIterator<Item = Remote>) -> SharedRemotes {
        let mut remotes = Remotes::default();
        for remote in initial {
            remotes.observe(&remote, OBSERVATION);
        }
        let list = watch::Sender::new(remotes.list());
        SharedRemotes {
            remotes: Arc::new(Mutex::new(remotes)),
            list,
        }
    }

    /// The sorted set, and its changes.
    pub fn watch(&self) -> watch::Receiver<Vec<Remote>> {
        self.list.subscribe()
    }

    /// See [`Remotes::select`].
    pub fn select(&self, excludes: &[&str]) -> Result<Remote, NoRemotes> {
        self.remotes.lock().select(excludes, &mut rand::rng())
    }

    /// See [`Remotes::observe_if_exists`].
    pub fn observe_if_exists(&self, remote: &Remote, observation: i64) {
        self.remotes.lock().observe_if_exists(remote, observation);
    }

    /// See [`Remotes::take_list`].
    pub fn take_list(&self, managers: &[WeightedPeer]) {
        let list = {
            let mut remotes = self.remotes.lock();
            remotes.take_list(managers);
            remotes.list()
        };
        self.list.send_if_modified(|current| {
            let changed = *current != list;
            *current = list;
            changed
        });
    }

    /// Keeps `state.json` equal to the set until it is dropped. A failed write is logged and made up for
    /// with the next change: the file is a help for the next start, not a record.
    pub async fn persist(self, path: std::path::PathBuf) {
        let mut list = self.watch();
        drop(self);
        loop {
            let current = list.borrow_and_update().clone();
            let target = path.clone();
            let written = tokio::task::spawn_blocking(move || save(&target, &current)).await;
            match written {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(path = %path.display(), %error, "cannot store the list of managers");
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "storing the list of managers failed");
                }
            }
            if list.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Reads `state.json`; a missing file is an empty list.
pub fn load(path: &Path) -> io::Result<Vec<Remote>> {
    let bytes = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} has {} bytes, more than a list of managers can have",
                    path.display(),
                    metadata.len()
                ),
            ));
        }
        Ok(_) => std::fs::read(path)?,
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} is not a list of managers ({error}); remove it and give the address of a manager instead",
                path.display()
            ),
        )
    })
}

/// Replaces `state.json` (mode 0600, synced, renamed) if the sorted set differs from what it holds.
pub fn save(path: &Path, remotes: &[Remote]) -> io::Result<()> {
    let mut sorted = remotes.to_vec();
    sorted.sort();
    let text = serde_json::to_vec(&sorted)?;
    if std::fs::read(path).is_ok_and(|current| current == text) {
        return Ok(());
    }
    crate::storage::files::replace(path, &text, 0o600)
}
