//! What each selector finds, and where it may be used.

use super::support::*;
use crate::api::types::task_spec::Runtime;
use crate::api::types::*;
use crate::storage::testing::TestStore;
use crate::storage::{By, Store, StoreError, StoreObject};

fn name(name: &str) -> By {
    By::Name(name.into())
}

fn attach(network: &str) -> Vec<NetworkAttachmentConfig> {
    vec![NetworkAttachmentConfig {
        target: network.into(),
        ..Default::default()
    }]
}

fn refused<T: StoreObject>(store: &Store, by: By) {
    for by in [by.clone(), By::Or(vec![name("a"), by])] {
        let found = store.view(|tx| tx.find::<T>(by.clone()));
        assert!(matches!(found, Err(StoreError::InvalidFindBy)), "{by:?}");
        let counted = store.view(|tx| tx.count::<T>(by.clone()));
        assert!(matches!(counted, Err(StoreError::InvalidFindBy)), "{by:?}");
    }
}

// 04-A4
#[tokio::test]
async fn or_finds_each_object_once() {
    let store = TestStore::new();
    create(&store, service("id-a", "a")).await;
    create(&store, service("id-b", "b")).await;
    let or = |members: Vec<By>| ids::<Service>(&store, By::Or(members));
    assert_eq!(or(vec![]), [""; 0]);
    assert_eq!(or(vec![name("a"), name("A")]), ["id-a"]);
    let prefix = || By::IdPrefix("id-a".into());
    assert_eq!(or(vec![name("a"), prefix()]), ["id-a"]);
    assert_eq!(or(vec![name("b"), prefix(), By::All]), ["id-b", "id-a"]);
}

// 04-A5
#[tokio::test]
async fn selectors_of_other_tables_are_refused() {
    let store = TestStore::new();
    refused::<Task>(&store, By::Role(NodeRole::Manager));
    refused::<Extension>(&store, By::NamePrefix("a".into()));
    refused::<Service>(&store, By::NodeId("n".into()));
    refused::<Node>(&store, By::Kind("k".into()));
    refused::<Network>(&store, By::Runtime("container".into()));
    refused::<Secret>(&store, By::ReferencedSecret("s".into()));
    refused::<Task>(&store, By::VolumeGroup("g".into()));
}

// 04-A6
#[tokio::test]
async fn the_old_list_of_networks_counts_only_without_the_new_one() {
    let store = TestStore::new();
    let mut web = service("s", "web");
    web.spec.as_mut().unwrap().networks = attach("N");
    let stored = create(&store, web).await;
    let using = |network: &str| ids::<Service>(&store, By::ReferencedNetwork(network.into()));
    assert_eq!(using("N"), ["s"]);
    let mut moved = (*stored).clone();
    moved.spec.as_mut().unwrap().task = Some(TaskSpec {
        networks: attach("M"),
        ..Default::default()
    });
    let moved = store.update::<_, StoreError>(|tx| tx.update(moved)).await;
    moved.unwrap();
    assert_eq!(using("N"), [""; 0]);
    assert_eq!(using("M"), ["s"]);
}

// 04-A7
#[tokio::test]
async fn tasks_are_found_by_the_name_that_is_made_for_them() {
    let store = TestStore::new();
    let global = Task {
        node_id: "n".into(),
        service_annotations: annotations("s"),
        ..task("t", "svc", 0)
    };
    create(&store, global).await;
    let slotted = Task {
        service_annotations: annotations("theservice"),
        ..task("taskID", "svc", 10)
    };
    create(&store, slotted).await;
    let named = Task {
        annotations: annotations("Own.Name"),
        ..task("u", "svc", 3)
    };
    create(&store, named).await;
    assert_eq!(ids::<Task>(&store, name("S.N.T")), ["t"]);
    assert_eq!(
        ids::<Task>(&store, name("theservice.10.taskid")),
        ["taskID"]
    );
    assert_eq!(ids::<Task>(&store, name("own.name")), ["u"]);
    assert_eq!(ids::<Task>(&store, By::NamePrefix("S.".into())), ["t"]);
}

// 04-A8
#[tokio::test]
async fn slots_and_services_match_as_a_whole() {
    let store = TestStore::new();
    for (id, service, slot) in [
        ("1", "svc", 1),
        ("2", "svc", 10),
        ("3", "svc", 0),
        ("4", "a", 1),
        ("5", "ab", 1),
    ] {
        create(&store, task(id, service, slot)).await;
    }
    let slot = |service: &str, slot: u64| {
        let service_id = service.to_owned();
        ids::<Task>(&store, By::Slot { service_id, slot })
    };
    let of = |service: &str| ids::<Task>(&store, By::ServiceId(service.into()));
    assert_eq!(slot("svc", 1), ["1"]);
    assert_eq!(slot("svc", 10), ["2"]);
    assert_eq!(slot("svc", 0), ["3"]);
    assert_eq!(of("a"), ["4"]);
    assert_eq!(of("ab"), ["5"]);
    assert_eq!(of("svc"), ["1", "2", "3"]);
    assert_eq!(ids::<Task>(&store, By::NodeId(String::new())).len(), 5);
}

// 04-A9
#[tokio::test]
async fn custom_entries_are_found_by_value_and_by_prefix() {
    let store = TestStore::new();
    let entry = |key: &str, val: &str| IndexEntry {
        key: key.into(),
        val: val.into(),
    };
    let mut labelled = node("n", "host");
    labelled.spec = Some(NodeSpec {
        annotations: Some(Annotations {
            indices: vec![entry("k", "v1"), entry("k", "v2"), entry("k2", "v")],
            ..Default::default()
        }),
        ..Default::default()
    });
    create(&store, labelled).await;
    create(&store, node("other", "host")).await;
    let exact = |index: &str, value: &str| {
        let (index, value) = (index.to_owned(), value.to_owned());
        ids::<Node>(&store, By::Custom { index, value })
    };
    let prefix = |index: &str, value: &str| {
        let (index, value) = (index.to_owned(), value.to_owned());
        ids::<Node>(&store, By::CustomPrefix { index, value })
    };
    assert_eq!(exact("k", "v1"), ["n"]);
    assert_eq!(exact("k", "v2"), ["n"]);
    assert_eq!(exact("k", "v"), [""; 0]);
    assert_eq!(exact("k", "V1"), [""; 0]);
    assert_eq!(prefix("k", "v"), ["n"]);
    assert_eq!(prefix("k", ""), ["n"]);
    assert_eq!(prefix("k", "w"), [""; 0]);
    assert_eq!(prefix("k2", "v"), ["n"]);
}

/// The runtime of a query is lower-cased, as the stored one is (spec 04 section 20).
#[tokio::test]
async fn runtimes_are_found_in_any_spelling() {
    let store = TestStore::new();
    let mut plugin = service("s", "web");
    plugin.spec.as_mut().unwrap().task = Some(TaskSpec {
        runtime: Some(Runtime::Generic(GenericRuntimeSpec {
            kind: "Plug-In".into(),
            ..Default::default()
        })),
        ..Default::default()
    });
    create(&store, plugin).await;
    create(&store, service("t", "none")).await;
    for kind in ["plug-in", "Plug-In", "PLUG-IN"] {
        assert_eq!(ids::<Service>(&store, By::Runtime(kind.into())), ["s"]);
    }
    assert_eq!(ids::<Service>(&store, By::Runtime(String::new())), [""; 0]);
}

/// Many tasks: each index gives exactly its set, also after a part of them has moved on.
// 04-A38
#[tokio::test]
async fn indexes_of_many_tasks_are_exact() {
    const PER_NODE: u64 = 100;
    let total = scaled(50_000).max(1000) / PER_NODE * PER_NODE;
    let store = TestStore::new();
    let state = |number: u64| match number % 5 {
        0 => TaskState::Failed,
        _ => TaskState::Running,
    };
    let mut batch = store.batch();
    for number in 0..total {
        let object = Task {
            node_id: format!("node{}", number / PER_NODE),
            status: Some(TaskStatus {
                state: state(number) as i32,
                ..Default::default()
            }),
            desired_state: TaskState::Running as i32,
            ..task(
                &format!("{number:06}"),
                &format!("svc{}", number % 7),
                number,
            )
        };
        let created = batch.update::<_, StoreError>(|tx| tx.create(object)).await;
        created.unwrap();
    }
    batch.commit().await.unwrap();
    let store = store.reopen();
    let expected = |wanted: &dyn Fn(u64) -> bool| -> Vec<String> {
        let numbers = (0..total).filter(|number| wanted(*number));
        numbers.map(|number| format!("{number:06}")).collect()
    };
    let by_node = ids::<Task>(&store, By::NodeId("node3".into()));
    assert_eq!(by_node, expected(&|number| number / PER_NODE == 3));
    let by_service = ids::<Task>(&store, By::ServiceId("svc5".into()));
    assert_eq!(by_service, expected(&|number| number % 7 == 5));
    let failed = ids::<Task>(&store, By::TaskState(TaskState::Failed));
    assert_eq!(
        failed,
        expected(&|number| state(number) == TaskState::Failed)
    );
    let desired = By::DesiredState(TaskState::Running);
    let count = store.view(|tx| tx.count::<Task>(desired)).unwrap();
    assert_eq!(count as u64, total);
    let slot = By::Slot {
        service_id: "svc4".into(),
        slot: 11,
    };
    assert_eq!(ids::<Task>(&store, slot), ["000011"]);
    // One of them moves on.
    let moved = store.update::<_, StoreError>(|tx| {
        let old = tx.get::<Task>("000300")?.ok_or(StoreError::NotExist)?;
        let node_id = "elsewhere".to_owned();
        tx.update(Task {
            node_id,
            ..(*old).clone()
        })
    });
    moved.await.unwrap();
    assert_eq!(
        ids::<Task>(&store, By::NodeId("node3".into())).len() as u64,
        PER_NODE - 1
    );
    assert_eq!(
        ids::<Task>(&store, By::NodeId("elsewhere".into())),
        ["000300"]
    );
    assert!(store.check().unwrap().is_clean());
}
