//! Random concurrent transactions against a plain map.
//!
//! Several writers run transactions at once: reads, creates, updates, deletes, failures, batches. The
//! double holds proposals back, commits them in runs, or loses leadership, after which each lost entry
//! may be committed all the same, by others, or never. Afterwards the serial order is known: it is that
//! of the entries. The model replays them one by one with the simplest possible rules, and must come to
//! the same objects; what writers were told must agree with what is there.

use super::support::*;
use crate::api::types::store_action::Target;
use crate::api::types::*;
use crate::storage::testing::TestStore;
use crate::storage::{By, CommittedEntry, Interest, ProposeError, Store, StoreError};
use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashSet};

/// Few of them, so that transactions meet.
const IDS: u64 = 12;
const NAMES: u64 = 8;
const WRITERS: u64 = 4;

/// The simplest store: services by ID, and the rules of names, existence and nothing else.
#[derive(Default, Clone)]
struct Model(BTreeMap<String, Service>);

impl Model {
    fn name(service: &Service) -> String {
        let spec = service.spec.as_ref().unwrap();
        spec.annotations.as_ref().unwrap().name.to_lowercase()
    }

    fn apply_action(&mut self, action: StoreAction) -> bool {
        let kind = action.action();
        let Some(Target::Service(service)) = action.target else {
            panic!("another table");
        };
        let name = Model::name(&service);
        let taken = self
            .0
            .values()
            .any(|other| other.id != service.id && Model::name(other) == name);
        let known = self.0.contains_key(&service.id);
        match kind {
            StoreActionKind::StoreActionCreate if known || taken => return false,
            StoreActionKind::StoreActionUpdate if !known || taken => return false,
            StoreActionKind::StoreActionRemove if !known => return false,
            StoreActionKind::StoreActionRemove => drop(self.0.remove(&service.id)),
            _ => drop(self.0.insert(service.id.clone(), service)),
        }
        true
    }

    /// Plays one entry; false if it breaks a rule and is void.
    fn apply(&mut self, data: &[u8]) -> bool {
        let request = InternalRaftRequest::decode(data).unwrap();
        let mut next = self.clone();
        for action in request.action {
            if !next.apply_action(action) {
                return false;
            }
        }
        *self = next;
        true
    }
}

/// What one writer was told: the mark of each transaction, and whether it wrote an object with it.
type Told = Vec<(String, Result<bool, StoreError>)>;

/// One random transaction; every write carries `mark` in a label.
fn transaction(
    tx: &mut crate::storage::Tx,
    random: &mut StdRng,
    mark: &str,
) -> Result<bool, StoreError> {
    let mut wrote = false;
    for _ in 0..random.random_range(1..4) {
        let id = format!("id{}", random.random_range(0..IDS));
        let name = format!("Name{}", random.random_range(0..NAMES));
        let mut object = service(&id, &name);
        let annotations = object.spec.as_mut().unwrap().annotations.as_mut();
        let labels = [("mark".to_owned(), mark.to_owned())];
        annotations.unwrap().labels = labels.into();
        let stored = tx.get::<Service>(&id)?;
        let outcome = match (random.random_range(0..10), stored) {
            (0..6, None) => tx.create(object).map(|_| wrote = true),
            (0..6, Some(stored)) => {
                object.meta = stored.meta;
                tx.update(object).map(|_| wrote = true)
            }
            (6, Some(stored)) => {
                // A stale copy.
                object.meta = Some(Meta {
                    version: Some(Version { index: u64::MAX }),
                    ..stored.meta.unwrap_or_default()
                });
                let refused = tx.update(object);
                let wrong = [
                    matches!(refused, Err(StoreError::SequenceConflict { .. })),
                    matches!(refused, Err(StoreError::NameConflict)),
                ];
                assert!(wrong.contains(&true));
                Ok(())
            }
            (7, _) => {
                // What the transaction sees is consistent in itself.
                let all = tx.find::<Service>(By::All)?;
                for found in &all {
                    let named = tx.find::<Service>(By::Name(Model::name(found)))?;
                    assert_eq!(named.len(), 1);
                    assert_eq!(named[0], *found);
                }
                Ok(())
            }
            (_, Some(_)) => tx.delete::<Service>(&id),
            (_, None) => Ok(()),
        };
        match outcome {
            // A refused call leaves no trace; the transaction goes on.
            Ok(()) | Err(StoreError::NameConflict) => {}
            Err(error) => return Err(error),
        }
    }
    match random.random_range(0..8) {
        0 => Err(StoreError::Rule("changed its mind")),
        _ => Ok(wrote),
    }
}

async fn writer(store: Store, seed: u64, number: u64, transactions: u64) -> Told {
    let mut random = StdRng::seed_from_u64(seed ^ (number << 32));
    let mut told = Told::new();
    for turn in 0..transactions {
        let mark = format!("{number}-{turn}");
        if random.random_range(0..5) > 0 {
            let outcome = store.update(|tx| transaction(tx, &mut random, &mark)).await;
            told.push((mark, outcome));
            continue;
        }
        let mut batch = store.batch();
        let mut parts = Vec::new();
        for part in 0..random.random_range(1..4) {
            let mark = format!("{mark}-{part}");
            let outcome = batch.update(|tx| transaction(tx, &mut random, &mark)).await;
            parts.push((mark, outcome));
        }
        let end = batch.commit().await;
        for (mark, outcome) in parts {
            told.push((mark, outcome.and_then(|wrote| end.clone().map(|()| wrote))));
        }
    }
    told
}

/// Every label that an entry carries.
fn marks(data: &[u8]) -> HashSet<String> {
    let request = InternalRaftRequest::decode(data).unwrap();
    let services =
        request
            .action
            .into_iter()
            .filter_map(|action| match (action.action(), action.target) {
                (StoreActionKind::StoreActionRemove, _) => None,
                (_, Some(Target::Service(service))) => service.spec?.annotations,
                _ => None,
            });
    services
        .filter_map(|annotations| annotations.labels.get("mark").cloned())
        .collect()
}

/// The group around the store: holds back, releases, changes the leader.
async fn disturb(store: &TestStore, random: &mut StdRng, term: &mut u64) {
    for _ in 0..random.random_range(0..30) {
        tokio::task::yield_now().await;
    }
    match random.random_range(0..6) {
        0..2 => store.hold(),
        2..4 => store.release(),
        _ => {
            let lost = store.lose_leadership();
            // The next leader has some prefix of what was lost, and may add an entry of its own.
            let kept = random.random_range(0..=lost.len());
            let mut entries: Vec<CommittedEntry> = lost.into_iter().take(kept).collect();
            let next = store
                .applied()
                .max(entries.last().map_or(0, |last| last.index))
                + 1;
            if random.random_range(0..2) == 0 {
                let id = format!("id{}", random.random_range(0..IDS));
                let name = format!("Name{}", random.random_range(0..NAMES));
                entries.push(entry(
                    next,
                    [(CREATE, Target::Service(service(&id, &name)))],
                ));
            }
            store.proposer().record(entries.clone());
            store.apply(entries).unwrap();
            *term += 1;
            store.lead(*term);
        }
    }
}

async fn round(seed: u64, transactions: u64) {
    let store = TestStore::new();
    let mut events = store.watch(&[Interest::All]);
    let mut random = StdRng::seed_from_u64(seed);
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| tokio::spawn(writer(store.store(), seed, number, transactions)))
        .collect();
    let mut term = 1;
    while !writers.iter().all(|writer| writer.is_finished()) {
        disturb(&store, &mut random, &mut term).await;
    }
    store.release();
    let mut told = Told::new();
    for writer in writers {
        told.extend(writer.await.unwrap());
    }

    // The log is the serial order.
    let mut model = Model::default();
    let mut effective = Vec::new();
    let mut written = HashSet::new();
    let mut stamps: BTreeMap<String, u64> = BTreeMap::new();
    for (index, data) in store.proposer().history() {
        if model.apply(&data) {
            effective.push(index);
            written.extend(marks(&data));
            for object in model.0.values() {
                let stamp = object.meta.as_ref().and_then(|meta| meta.version.as_ref());
                let stamp = stamp.map_or(0, |version| version.index);
                assert!(stamp < index, "seed {seed}: a stamp from the future");
                let before = stamps.insert(object.id.clone(), stamp).unwrap_or(0);
                assert!(
                    before <= stamp || stamp == 0,
                    "seed {seed}: a stamp went back"
                );
            }
        }
    }
    let found = store.view(|tx| tx.find::<Service>(By::All)).unwrap();
    let found: BTreeMap<_, _> = found
        .into_iter()
        .map(|service| (service.id.clone(), (*service).clone()))
        .collect();
    assert_eq!(found, model.0, "seed {seed}");
    let report = store.check().unwrap();
    assert!(report.is_clean(), "seed {seed}: {report:?}");

    // Each effective entry has shown exactly once, in order.
    let mut shown = Vec::new();
    while let Some(batch) = events.try_recv().unwrap() {
        shown.push(batch.index);
    }
    assert_eq!(shown, effective, "seed {seed}");
    for (mark, outcome) in told {
        match outcome {
            // What was refused before it was proposed left no trace; what was lost may have any.
            Err(StoreError::Propose(ProposeError::LostLeadership)) | Ok(false) => {}
            Ok(true) => assert!(written.contains(&mark), "seed {seed}: {mark} is lost"),
            Err(_) => assert!(!written.contains(&mark), "seed {seed}: {mark} was refused"),
        }
    }
}

// 04-A19
#[tokio::test]
async fn random_transactions_agree_with_a_plain_map() {
    for seed in 0..scaled(200) {
        round(seed, 40).await;
    }
}
