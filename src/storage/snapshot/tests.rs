//! A store's state goes out, comes in below another state directory, and is the same there.

use super::*;
use crate::api::types::{Annotations, Config, ConfigSpec, Meta, RaftMember, Task, Version};
use crate::storage::engines::{EngineOptions, Engines};
use crate::storage::log::Identity;
use crate::storage::testing::{TestStore, ring};
use crate::storage::{By, Tx};
use tempfile::TempDir;

fn config(id: &str, bytes: usize) -> Config {
    Config {
        id: id.to_owned(),
        spec: Some(ConfigSpec {
            annotations: Some(Annotations {
                name: format!("name-{id}"),
                ..Default::default()
            }),
            data: vec![7; bytes],
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A store with configs, one of them larger than a piece, and tasks.
async fn source() -> TestStore {
    let store = TestStore::new();
    for round in 0..20 {
        let create = move |tx: &mut Tx| -> Result<(), StoreError> {
            for at in 0..20 {
                let bytes = if at == 3 && round == 4 { 400_000 } else { 1000 };
                tx.create(config(&format!("c{round:02}{at:02}"), bytes))?;
                tx.create(Task {
                    id: format!("t{round:02}{at:02}"),
                    service_id: "s".into(),
                    node_id: format!("n{at}"),
                    slot: at,
                    meta: Some(Meta {
                        version: Some(Version { index: 9 }),
                        ..Default::default()
                    }),
                    ..Default::default()
                })?;
            }
            Ok(())
        };
        store.update(create).await.unwrap();
    }
    store
}

/// A member's state directory with an empty database and a claimed log.
fn member() -> (TempDir, Arc<StateDir>) {
    let dir = tempfile::tempdir().unwrap();
    let state_dir = Arc::new(StateDir::open(dir.path().join("state")).unwrap());
    let mut engines = Engines::open(&state_dir, &ring(), &EngineOptions::default()).unwrap();
    let identity = Identity {
        raft_id: 5,
        node_id: "n".into(),
        cluster_id: "c".into(),
        address: "a:1".into(),
        created_unix_s: 0,
    };
    engines
        .log
        .claim(identity, &Default::default(), &[])
        .unwrap();
    (dir, state_dir)
}

/// Spools a snapshot into a member's directory.
fn receive(state_dir: &Arc<StateDir>, outgoing: &OutgoingSnapshot) -> Incoming {
    let engines = Engines::open(state_dir, &ring(), &EngineOptions::default()).unwrap();
    let incoming = Incoming::new(state_dir.clone(), engines.db.clone());
    let mut spool = incoming.begin(&outgoing.metadata()).unwrap();
    outgoing
        .write(|piece| {
            spool.push(&piece).unwrap();
            true
        })
        .unwrap();
    spool.finish().unwrap();
    incoming
}

/// A member that has received and accepted the state of a store.
async fn accepted() -> (TempDir, Arc<StateDir>) {
    let store = source().await;
    with_membership(&store);
    let outgoing = store.outgoing_snapshot().unwrap();
    let (dir, state_dir) = member();
    let incoming = receive(&state_dir, &outgoing);
    assert!(incoming.accept(1000, 3).unwrap());
    (dir, state_dir)
}

/// All pieces after each other, and how many they are.
fn whole_of(outgoing: &OutgoingSnapshot) -> (Vec<u8>, usize) {
    let (mut whole, mut count) = (Vec::new(), 0);
    outgoing
        .write(|piece| {
            count += 1;
            whole.extend(piece);
            true
        })
        .unwrap();
    (whole, count)
}

fn objects_of(store: &Store) -> (Vec<Arc<Config>>, Vec<Arc<Task>>) {
    store.view(|tx| {
        let configs = tx.find::<Config>(By::All).unwrap();
        let tasks = tx.find::<Task>(By::All).unwrap();
        (configs, tasks)
    })
}

fn with_membership(store: &TestStore) -> Membership {
    let membership = Membership {
        conf_state: raftpb::ConfState {
            voters: vec![1, 5],
            ..Default::default()
        },
        members: vec![RaftMember {
            raft_id: 5,
            node_id: "n".into(),
            addr: "host.example:1".into(),
            status: None,
        }],
        removed: vec![3, 4],
    };
    let entry = CommittedEntry {
        index: 1000,
        term: 3,
        payload: Payload::Membership(membership.clone()),
    };
    store.apply(vec![entry]).unwrap();
    membership
}

// 04-A23 (with our own bytes); of 04-A22 the state and the names, not the events
#[tokio::test]
async fn the_state_arrives_as_it_was() {
    let store = source().await;
    let membership = with_membership(&store);
    let outgoing = store.outgoing_snapshot().unwrap();
    let metadata = outgoing.metadata();
    assert_eq!((metadata.index(), metadata.term()), (1000, 3));

    // All pieces together are one message, as the peer reads it.
    let (whole, count) = whole_of(&outgoing);
    assert!(count > 3, "{count}");
    let message = Snapshot::decode(whole.as_slice()).unwrap();
    let objects = message.store.unwrap();
    assert_eq!((objects.configs.len(), objects.tasks.len()), (400, 400));
    assert_eq!(message.membership.unwrap().removed, [3, 4]);

    let (_dir, state_dir) = member();
    drop(receive(&state_dir, &outgoing));
    // Received is not yet accepted: the next start knows nothing of it.
    let incoming = {
        let engines = Engines::open(&state_dir, &ring(), &EngineOptions::default()).unwrap();
        assert_eq!(engines.applied.index, 0);
        drop(engines);
        receive(&state_dir, &outgoing)
    };
    let spooled = fs::read(state_dir.raft_incoming().join(RECEIVED)).unwrap();
    let readable = |text: &[u8]| spooled.windows(text.len()).any(|window| window == text);
    assert!(!readable(b"name-c0000"), "sealed");
    assert!(incoming.accept(1000, 3).unwrap());
    drop(incoming);

    let engines = Engines::open(&state_dir, &ring(), &EngineOptions::default()).unwrap();
    assert_eq!((engines.applied.index, engines.applied.term), (1000, 3));
    assert_eq!(engines.log.first_index(), 1001);
    assert_eq!(fs::read_dir(state_dir.raft_incoming()).unwrap().count(), 0);
    let installed = Store::open(engines.db.clone()).unwrap();
    assert_eq!(installed.membership(), membership);
    assert_eq!(objects_of(&installed), objects_of(&store.store()));
    let by_name = installed.view(|tx| tx.find::<Config>(By::Name("name-c0403".into())));
    assert_eq!(by_name.unwrap().len(), 1);
    let by_node = installed.view(|tx| tx.find::<Task>(By::NodeId("n7".into())));
    assert_eq!(by_node.unwrap().len(), 20);
    drop((installed, engines));
    // And again from there, as after any stop.
    let engines = Engines::open(&state_dir, &ring(), &EngineOptions::default()).unwrap();
    assert_eq!(engines.applied.index, 1000);
}

#[tokio::test]
async fn a_damaged_snapshot_changes_nothing() {
    let (_dir, state_dir) = accepted().await;
    let path = state_dir.raft_incoming().join(ACCEPTED);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let engines = Engines::open(&state_dir, &ring(), &EngineOptions::default()).unwrap();
    assert_eq!(engines.applied.index, 0);
    assert_eq!(fs::read_dir(state_dir.raft_incoming()).unwrap().count(), 0);
}

#[tokio::test]
async fn an_interrupted_installation_is_done_again() {
    let (_dir, state_dir) = accepted().await;
    // Killed while the new database was built.
    fs::create_dir(state_dir.raft_db().join("2")).unwrap();
    fs::write(state_dir.raft_db().join("2/CURRENT"), "half").unwrap();
    let engines = Engines::open(&state_dir, &ring(), &EngineOptions::default()).unwrap();
    assert_eq!(engines.applied.index, 1000);
}

/// Spools a whole message in pieces of the given size.
fn receive_cut(state_dir: &Arc<StateDir>, outgoing: &OutgoingSnapshot, whole: &[u8], bytes: usize) {
    let engines = Engines::open(state_dir, &ring(), &EngineOptions::default()).unwrap();
    let incoming = Incoming::new(state_dir.clone(), engines.db.clone());
    let mut spool = incoming.begin(&outgoing.metadata()).unwrap();
    for piece in whole.chunks(bytes) {
        spool.push(piece).unwrap();
    }
    spool.finish().unwrap();
    assert!(incoming.accept(1000, 3).unwrap());
}

// 04-A23: the peer encodes the whole and cuts it by size, through objects and lengths.
#[tokio::test]
async fn pieces_may_be_cut_anywhere() {
    let store = source().await;
    let membership = with_membership(&store);
    let outgoing = store.outgoing_snapshot().unwrap();
    let (bytes, _) = whole_of(&outgoing);
    // As the peer encodes it: one message, one store.
    let whole = Snapshot::decode(bytes.as_slice()).unwrap().encode_to_vec();
    for size in [997, 100_003, 4 * 1024 * 1024] {
        let (_dir, state_dir) = member();
        receive_cut(&state_dir, &outgoing, &whole, size);
        let engines = Engines::open(&state_dir, &ring(), &EngineOptions::default()).unwrap();
        assert_eq!(engines.applied.index, 1000, "pieces of {size}");
        let installed = Store::open(engines.db.clone()).unwrap();
        assert_eq!(installed.membership(), membership);
        assert_eq!(
            objects_of(&installed),
            objects_of(&store.store()),
            "pieces of {size}"
        );
    }
    // What ends too early is no state.
    for missing in [1, 50_000] {
        let (_dir, state_dir) = member();
        let short = &whole[..whole.len() - missing];
        receive_cut(&state_dir, &outgoing, short, 100_003);
        let engines = Engines::open(&state_dir, &ring(), &EngineOptions::default()).unwrap();
        assert_eq!(engines.applied.index, 0, "{missing} bytes missing");
    }
}

#[tokio::test]
async fn only_the_snapshot_that_was_meant_is_accepted() {
    let store = source().await;
    with_membership(&store);
    let outgoing = store.outgoing_snapshot().unwrap();
    let (_dir, state_dir) = member();
    let incoming = receive(&state_dir, &outgoing);
    assert!(!incoming.accept(999, 3).unwrap());
    assert!(!incoming.accept(1000, 2).unwrap());
    assert!(!state_dir.raft_incoming().join(ACCEPTED).exists());
    // An attempt that was given up takes nothing away.
    drop(incoming.begin(&outgoing.metadata()).unwrap());
    assert!(incoming.accept(1000, 3).unwrap());
    assert!(!incoming.accept(1000, 3).unwrap(), "only once");
}
