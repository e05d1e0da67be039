//! The loop, with a machine that wants every service marked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Now, Reconciler, drive, each_in_batches, item};
use crate::api::types::{Annotations, Service, ServiceSpec};
use crate::services::leader::{Ready, Term};
use crate::storage::testing::TestStore;
use crate::storage::{
    AnyObject, By, EventBatch, Interest, ProposeError, ReadTx, Store, StoreError, Table, Tx,
};

/// Marks services by their `pending_delete`.
#[derive(Default)]
struct Marker {
    unmarked: BTreeSet<String>,
    due: Option<Instant>,
    loads: Arc<AtomicUsize>,
}

impl Marker {
    fn note(&mut self, service: &Service, now: Now) {
        if !service.pending_delete {
            self.unmarked.insert(service.id.clone());
            self.due = Some(now.instant);
        }
    }
}

impl Reconciler for Marker {
    type Work = Vec<String>;
    type Outcome = ();

    fn name(&self) -> &'static str {
        "marker"
    }

    fn interests(&self) -> Vec<Interest> {
        vec![Interest::Table(Table::Service)]
    }

    fn load(&mut self, view: &ReadTx, now: Now) -> Result<(), StoreError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.unmarked.clear();
        view.each::<Service>(By::All, |service| self.note(service, now))
    }

    fn observe(&mut self, batch: &EventBatch, now: Now) {
        for change in &batch.changes {
            if let AnyObject::Service(service) = &change.object {
                self.note(service, now);
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.due
    }

    fn plan(&mut self, _now: Now) -> Option<Vec<String>> {
        self.due = None;
        let unmarked = std::mem::take(&mut self.unmarked);
        (!unmarked.is_empty()).then(|| unmarked.into_iter().collect())
    }

    fn perform(store: Store, work: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>> {
        async move {
            each_in_batches(&store, work, "mark a service", |tx, id| mark(tx, id)).await?;
            Ok(())
        }
        .boxed()
    }

    fn settle(&mut self, (): (), _now: Now) {}
}

fn mark(tx: &mut Tx, id: &str) -> Result<(), StoreError> {
    if let Some(stored) = tx.get::<Service>(id)?
        && !stored.pending_delete
    {
        let mut service = Service::clone(&stored);
        service.pending_delete = true;
        tx.update(service)?;
    }
    Ok(())
}

fn service(id: &str) -> Service {
    Service {
        id: id.to_owned(),
        spec: Some(ServiceSpec {
            annotations: Some(Annotations {
                name: id.to_owned(),
                ..Annotations::default()
            }),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

async fn create(store: &Store, ids: impl Iterator<Item = String>) {
    let ids: Vec<String> = ids.collect();
    let created: Result<(), StoreError> = store
        .update(|tx: &mut Tx| {
            for id in &ids {
                tx.create(service(id))?;
            }
            Ok(())
        })
        .await;
    created.expect("create");
}

struct Driven {
    store: TestStore,
    cancel: CancellationToken,
    ended: JoinHandle<anyhow::Result<()>>,
    loaded: oneshot::Receiver<()>,
    loads: Arc<AtomicUsize>,
}

fn start() -> Driven {
    let store = TestStore::new();
    let cancel = CancellationToken::new();
    let term = Term {
        raft_term: 1,
        store: store.store(),
        cluster_id: "cluster".to_owned(),
        node_id: "node".to_owned(),
        cancel: cancel.clone(),
    };
    let (sender, loaded) = oneshot::channel();
    let marker = Marker::default();
    let loads = Arc::clone(&marker.loads);
    let ended = tokio::spawn(drive(term, Ready(sender), marker));
    Driven {
        store,
        cancel,
        ended,
        loaded,
        loads,
    }
}

impl Driven {
    /// Waits until so many services are marked.
    async fn marked(&self, count: usize) {
        let mut news = self.store.watch(&[Interest::Table(Table::Service)]);
        loop {
            let mut marked = 0;
            self.store
                .view(|view| {
                    view.each::<Service>(By::All, |service| {
                        marked += usize::from(service.pending_delete);
                    })
                })
                .expect("read");
            if marked == count {
                return;
            }
            if news.recv().await.is_err() {
                news = self.store.watch(&[Interest::Table(Table::Service)]);
            }
        }
    }

    async fn end(self) -> anyhow::Result<()> {
        self.cancel.cancel();
        self.ended.await.expect("no panic")
    }
}

#[tokio::test]
async fn loads_listens_and_ends_with_the_term() {
    let mut driven = start();
    (&mut driven.loaded).await.expect("loaded");
    create(&driven.store, (0..300).map(|n| format!("s{n}"))).await;
    driven.marked(300).await;
    driven.end().await.expect("an orderly end");
}

/// The subscription overflows while the machine does not get a turn: the state is loaded again.
#[tokio::test]
async fn missed_events_cost_no_change() {
    let mut driven = start();
    (&mut driven.loaded).await.expect("loaded");
    driven.store.hold();
    let mut entries = Vec::new();
    for entry in 0..21 {
        let store = driven.store.store();
        entries.push(tokio::spawn(async move {
            create(&store, (0..500).map(|n| format!("s{entry}-{n}"))).await;
        }));
    }
    while driven.store.proposer().waiting() < entries.len() {
        tokio::task::yield_now().await;
    }
    driven.store.release();
    driven.marked(21 * 500).await;
    assert!(driven.loads.load(Ordering::Relaxed) > 1);
    driven.end().await.expect("an orderly end");
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_tried_again_later() {
    let mut driven = start();
    (&mut driven.loaded).await.expect("loaded");
    let began = Instant::now();
    create(&driven.store, std::iter::once("s".to_owned())).await;
    driven.store.proposer().refuse(Some(ProposeError::Busy));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!driven.ended.is_finished());
    driven.store.proposer().refuse(None);
    driven.marked(1).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    driven.end().await.expect("an orderly end");
}

#[tokio::test(start_paused = true)]
async fn lost_leadership_waits_for_the_end_of_the_term() {
    let mut driven = start();
    (&mut driven.loaded).await.expect("loaded");
    driven.store.hold();
    let store = driven.store.store();
    let held = tokio::spawn(async move { create(&store, std::iter::once("s".to_owned())).await });
    tokio::task::yield_now().await;
    driven.store.release();
    held.await.expect("created");
    driven.store.lose_leadership();
    tokio::time::sleep(Duration::from_secs(1)).await;
    driven.end().await.expect("an orderly end");
}

#[tokio::test]
async fn one_bad_item_does_not_spoil_the_batch() {
    let store = TestStore::new();
    create(&store, std::iter::once("b".to_owned())).await;
    let ids: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
    let done = each_in_batches(&store, ids, "create a service", |tx, id| {
        tx.create(service(id)).map(|_| ())
    });
    let done = done.await.expect("batch");
    let done: Vec<bool> = done
        .into_iter()
        .map(|(_, created)| created.is_some())
        .collect();
    assert_eq!(done, [true, false, true]);
    assert_eq!(store.len(Table::Service), 3);

    let mut batch = store.batch();
    store.proposer().refuse(Some(ProposeError::Busy));
    let created = item(&mut batch, "create a service", "d", |tx| {
        tx.create(service("d"))
    })
    .await;
    assert!(created.is_ok_and(|created: Option<Arc<Service>>| created.is_some()));
    assert!(batch.commit().await.is_err());
}
