//! The supervisor starts in order, ends in reverse, and never leaves half a leader.

use super::*;
use crate::storage::testing::TestStore;
use parking_lot::Mutex;

type Journal = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Good,
    FailsToLoad,
    PanicsOnceLoaded,
    NeverLoads,
    NeverEnds,
}

struct Scripted {
    name: &'static str,
    mode: Mode,
    journal: Journal,
}

impl LeaderService for Scripted {
    fn name(&self) -> &'static str {
        self.name
    }
    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>> {
        let (name, mode, journal) = (self.name, self.mode, self.journal.clone());
        Box::pin(async move {
            journal.lock().push(format!("start {name}"));
            match mode {
                Mode::FailsToLoad => anyhow::bail!("no keys"),
                Mode::NeverLoads => std::future::pending::<()>().await,
                Mode::PanicsOnceLoaded => {
                    ready.loaded();
                    tokio::task::yield_now().await;
                    panic!("boom");
                }
                Mode::NeverEnds => {
                    ready.loaded();
                    std::future::pending::<()>().await;
                }
                Mode::Good => ready.loaded(),
            }
            term.cancel.cancelled().await;
            journal.lock().push(format!("end {name}"));
            Ok(())
        })
    }
}

fn services(journal: &Journal, modes: &[(&'static str, Mode)]) -> Vec<Arc<dyn LeaderService>> {
    modes
        .iter()
        .map(|&(name, mode)| {
            Arc::new(Scripted {
                name,
                mode,
                journal: journal.clone(),
            }) as Arc<dyn LeaderService>
        })
        .collect()
}

fn term(store: Store) -> Term {
    Term {
        raft_term: 1,
        store,
        cluster_id: "cluster".into(),
        node_id: "node".into(),
        cancel: CancellationToken::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn starts_in_order_and_ends_in_reverse() {
    let journal = Journal::default();
    let test = TestStore::new();
    let term = term(test.store());
    let list = services(&journal, &[("a", Mode::Good), ("b", Mode::Good)]);
    let cancel = term.cancel.clone();
    let (end, ()) = tokio::join!(run_term(&term, &list), async {
        while journal.lock().len() < 2 {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    });
    assert!(matches!(end, TermEnd::Cancelled));
    assert_eq!(*journal.lock(), ["start a", "start b", "end b", "end a"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_load_ends_the_term_before_later_ones_start() {
    let journal = Journal::default();
    let test = TestStore::new();
    let list = services(
        &journal,
        &[
            ("a", Mode::Good),
            ("b", Mode::FailsToLoad),
            ("c", Mode::Good),
        ],
    );
    match run_term(&term(test.store()), &list).await {
        TermEnd::Failed { service, reason } => {
            assert_eq!((service, reason.as_str()), ("b", "no keys"))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(*journal.lock(), ["start a", "start b", "end a"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_term_and_is_named() {
    let journal = Journal::default();
    let test = TestStore::new();
    let list = services(
        &journal,
        &[("a", Mode::Good), ("b", Mode::PanicsOnceLoaded)],
    );
    match run_term(&term(test.store()), &list).await {
        TermEnd::Failed { service, reason } => {
            assert_eq!((service, reason.as_str()), ("b", "panicked: boom"))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(journal.lock().last().map(String::as_str), Some("end a"));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_hangs_is_given_up() {
    let journal = Journal::default();
    let test = TestStore::new();
    let list = services(&journal, &[("a", Mode::NeverLoads)]);
    let end = run_term(&term(test.store()), &list).await;
    assert!(
        matches!(end, TermEnd::Failed { service: "a", .. }),
        "{end:?}"
    );

    let list = services(&journal, &[("b", Mode::NeverEnds)]);
    let term = term(test.store());
    let cancel = term.cancel.clone();
    let (end, ()) = tokio::join!(run_term(&term, &list), async {
        while !journal.lock().iter().any(|line| line == "start b") {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    });
    assert!(matches!(end, TermEnd::Cancelled));
}
