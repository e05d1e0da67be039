//! A raft member without its group: engines and store, driven entry by entry.

use prost::Message;
use raft::eraftpb::{Entry, HardState};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use swarm_manager::api::raftpb::ConfState;
use swarm_manager::api::types::store_action::Target;
use swarm_manager::api::types::{
    Annotations, InternalRaftRequest, Meta, RaftMember, Service, ServiceSpec, StoreAction,
    StoreActionKind, Version,
};
use swarm_manager::identity::private_key::PrivateKey;
use swarm_manager::identity::{Kek, KeyFile};
use swarm_manager::storage::log::{Identity, RaftLog};
use swarm_manager::storage::seal::{Dek, DekRing};
use swarm_manager::storage::state_dir::StateDir;
use swarm_manager::storage::{CommittedEntry, EngineOptions, Engines, Membership, Payload, Store};

/// Share of the full counts to run (a tenth unless told otherwise).
pub fn scaled(full: u64) -> u64 {
    let scale = std::env::var("SWARM_TEST_SCALE")
        .ok()
        .and_then(|scale| scale.parse::<f64>().ok())
        .unwrap_or(0.1);
    ((full as f64 * scale) as u64).max(1)
}

/// Makes the node key of a state directory, and returns the data key in it.
pub fn node_key(dir: &StateDir, kek: Option<&[u8]>) -> DekRing {
    let file = KeyFile::new(&dir.certificates(), Kek::default());
    let key = PrivateKey::generate().expect("a key");
    let kek = kek.map(|key| Kek::new(key, 1));
    file.write(b"", &key, kek).expect("a key file");
    let dek = file.ensure_dek().expect("a data key");
    DekRing::single(Dek::from_bytes(dek.as_bytes()).expect("32 bytes"))
}

/// The name of the service that an entry creates.
pub fn service_name(index: u64) -> String {
    format!("needle-service-{index}")
}

/// The service that an entry creates.
pub fn service(index: u64) -> Service {
    Service {
        id: format!("{index:025}"),
        meta: Some(Meta {
            version: Some(Version { index: index - 1 }),
            ..Meta::default()
        }),
        spec: Some(ServiceSpec {
            annotations: Some(Annotations {
                name: service_name(index),
                ..Annotations::default()
            }),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

pub fn request(index: u64) -> Vec<u8> {
    InternalRaftRequest {
        id: index,
        action: vec![StoreAction {
            action: StoreActionKind::StoreActionCreate as i32,
            target: Some(Target::Service(service(index))),
        }],
    }
    .encode_to_vec()
}

/// An open member.
pub struct Member {
    pub engines: Engines,
    pub store: Store,
    _dir: StateDir,
}

impl Member {
    /// Opens the member, creates it if the directory is empty.
    pub fn open(dir: StateDir, ring: &DekRing) -> Member {
        let mut engines =
            Engines::open(&dir, ring, &EngineOptions::default()).expect("engines open");
        let store = Store::open(engines.db.clone()).expect("the store opens");
        if engines.log.identity().is_none() {
            let identity = Identity {
                raft_id: 0xabc,
                node_id: "node1".into(),
                cluster_id: "cluster1".into(),
                address: "127.0.0.1:2377".into(),
                created_unix_s: 1_700_000_000,
            };
            let state = HardState {
                term: 1,
                vote: 0xabc,
                ..HardState::default()
            };
            engines.log.claim(identity, &state, &[]).expect("a claim");
        }
        let mut member = Member {
            engines,
            store,
            _dir: dir,
        };
        member.catch_up();
        member
    }

    /// Applies what the log holds beyond the applied index.
    fn catch_up(&mut self) {
        let last = self.engines.log.last_index();
        for index in self.store.applied() + 1..=last {
            let entries = self
                .engines
                .log
                .entries(index, index + 1, 0)
                .expect("an entry");
            self.apply(index, entries[0].data.to_vec());
        }
    }

    /// Appends and applies the next entry, which creates a service. Acknowledged when this returns.
    pub fn create(&mut self) -> u64 {
        let index = self.append();
        self.apply(index, request(index));
        index
    }

    /// Appends the next entry.
    pub fn append(&mut self) -> u64 {
        append_to(&mut self.engines.log)
    }

    fn apply(&self, index: u64, data: Vec<u8>) {
        apply_to(&self.store, index, data);
    }
}

/// Appends the next entry.
pub fn append_to(log: &mut RaftLog) -> u64 {
    let index = log.last_index() + 1;
    let entry = Entry {
        index,
        term: 1,
        data: request(index).into(),
        ..Entry::default()
    };
    log.append(&[entry], None).expect("an append");
    index
}

/// Applies an entry.
pub fn apply_to(store: &Store, index: u64, data: Vec<u8>) {
    let payload = if index == 1 {
        Payload::Membership(Membership {
            conf_state: ConfState {
                voters: vec![0xabc],
                ..ConfState::default()
            },
            members: vec![RaftMember {
                raft_id: 0xabc,
                node_id: "node1".into(),
                addr: "127.0.0.1:2377".into(),
                ..RaftMember::default()
            }],
            removed: vec![0xdead],
        })
    } else {
        Payload::Request(data)
    };
    let entry = CommittedEntry {
        index,
        term: 1,
        payload,
    };
    store.apply(vec![entry]).expect("an apply");
}

/// Every file below a directory with its content.
pub fn files_below(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for item in std::fs::read_dir(path).expect("a directory") {
        let path = item.expect("an entry").path();
        if path.is_dir() {
            files.append(&mut files_below(&path));
        } else {
            let content = std::fs::read(&path).expect("a file");
            files.insert(path, content);
        }
    }
    files
}

/// Files below a directory that contain `needle`.
pub fn files_with(path: &Path, needle: &[u8]) -> Vec<PathBuf> {
    let found = files_below(path)
        .into_iter()
        .filter(|(_, content)| contains(content, needle));
    found.map(|(path, _)| path).collect()
}

/// Finds the last byte of the needle with the library's fast search, then looks back: files are large,
/// and tests are not optimised.
fn contains(content: &[u8], needle: &[u8]) -> bool {
    let Some(last) = needle.last() else {
        return true;
    };
    let (mut rest, mut end) = (content, 0);
    while let Ok(skipped @ 1..) = rest.skip_until(*last) {
        end += skipped;
        if content[..end].ends_with(needle) {
            return true;
        }
    }
    false
}
