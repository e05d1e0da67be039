//! Stories of promotions and demotions against a group that is what the test says.

use super::*;
use crate::api::types::NodeSpec;
use crate::storage::testing::TestStore;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

const MANAGER: i32 = NodeRole::Manager as i32;
const WORKER: i32 = NodeRole::Worker as i32;

/// Members by raft ID, and what was done to them.
#[derive(Default)]
struct FakeGroup {
    members: Mutex<Vec<Member>>,
    done: Mutex<Vec<String>>,
    transfer_fails: bool,
}

impl FakeGroup {
    /// Nodes `n1`, `n2`, … with raft IDs 1, 2, …; `n1` leads.
    fn new(reachable: &[bool]) -> FakeGroup {
        let members = reachable.iter().zip(1..).map(|(reachable, id)| Member {
            raft_id: id,
            node_id: format!("n{id}"),
            addr: String::new(),
            leader: id == 1,
            reachable: *reachable,
        });
        FakeGroup {
            members: Mutex::new(members.collect()),
            ..FakeGroup::default()
        }
    }

    fn done(&self) -> Vec<String> {
        self.done.lock().clone()
    }
}

struct Shared(Arc<FakeGroup>);

impl GroupControl for Shared {
    fn raft_id(&self) -> u64 {
        1
    }

    fn members(&self) -> Option<Vec<Member>> {
        Some(self.0.members.lock().clone())
    }

    fn remove(&self, raft_id: u64) -> BoxFuture<'static, Result<(), RaftError>> {
        let group = self.0.clone();
        async move {
            group.done.lock().push(format!("remove {raft_id}"));
            group
                .members
                .lock()
                .retain(|member| member.raft_id != raft_id);
            Ok(())
        }
        .boxed()
    }

    fn transfer(&self) -> BoxFuture<'static, Result<(), RaftError>> {
        let group = self.0.clone();
        async move {
            group.done.lock().push("transfer".to_owned());
            match group.transfer_fails {
                true => Err(RaftError::NoClusterLeader),
                false => Ok(()),
            }
        }
        .boxed()
    }
}

fn node(id: &str, desired: i32, role: i32) -> Node {
    Node {
        id: id.to_owned(),
        spec: Some(NodeSpec {
            desired_role: desired,
            ..Default::default()
        }),
        role,
        ..Default::default()
    }
}

struct World {
    store: TestStore,
    group: Arc<FakeGroup>,
    cancel: CancellationToken,
}

impl World {
    async fn new(group: FakeGroup, nodes: &[(&str, i32, i32)]) -> World {
        let store = TestStore::new();
        for (id, desired, role) in nodes {
            let node = node(id, *desired, *role);
            let created = store.update(move |tx: &mut Tx| tx.create(node)).await;
            created.map_err(|error: StoreError| error).unwrap();
        }
        let cancel = CancellationToken::new();
        let term = Term {
            raft_term: 2,
            store: store.store(),
            cluster_id: "cluster".into(),
            node_id: "n1".into(),
            cancel: cancel.clone(),
        };
        let (ready, loaded) = tokio::sync::oneshot::channel();
        let group = Arc::new(group);
        let manager = RoleManager::new(Arc::new(Shared(group.clone())));
        tokio::spawn(manager.run(term, Ready(ready)));
        loaded.await.unwrap();
        World {
            store,
            group,
            cancel,
        }
    }

    fn role(&self, id: &str) -> i32 {
        let node = self.store.view(|view| view.get::<Node>(id)).unwrap();
        node.unwrap().role
    }

    async fn wish(&self, id: &str, desired: i32) {
        let id = id.to_owned();
        let update = move |tx: &mut Tx| -> Result<(), StoreError> {
            let mut node = Arc::unwrap_or_clone(tx.get::<Node>(&id)?.unwrap());
            node.spec.get_or_insert_default().desired_role = desired;
            tx.update(node)?;
            Ok(())
        };
        self.store.update(update).await.unwrap();
    }

    async fn wait_role(&self, id: &str, role: i32) {
        let mut events = self.store.watch(&[Interest::Table(Table::Node)]);
        while self.role(id) != role {
            events.recv().await.unwrap();
        }
    }

    /// Waits until this was done to the group.
    async fn wait_done(&self, what: &[&str]) {
        while self.group.done() != what {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

// 03-A29, the leader's part.
#[tokio::test]
async fn roles_follow_wishes() {
    let group = FakeGroup::new(&[true, true, true]);
    let nodes = [
        ("n1", MANAGER, MANAGER),
        ("n2", MANAGER, MANAGER),
        ("n3", MANAGER, MANAGER),
        ("n4", WORKER, WORKER),
        ("n5", MANAGER, WORKER),
    ];
    let world = World::new(group, &nodes).await;
    // What was wished for before the term.
    world.wait_role("n5", MANAGER).await;
    // A promotion: the group is not touched.
    world.wish("n4", MANAGER).await;
    world.wait_role("n4", MANAGER).await;
    assert!(world.group.done().is_empty());
    // A demotion: out of the group first.
    world.wish("n3", WORKER).await;
    world.wait_role("n3", WORKER).await;
    assert_eq!(world.group.done(), ["remove 3"]);
    // Not a member any more, or not yet: only the role.
    world.wish("n4", WORKER).await;
    world.wait_role("n4", WORKER).await;
    assert_eq!(world.group.done(), ["remove 3"]);
    world.cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_demotion_waits_for_a_quorum() {
    let nodes = [
        ("n1", MANAGER, MANAGER),
        ("n2", WORKER, MANAGER),
        ("n3", MANAGER, MANAGER),
    ];
    let world = World::new(FakeGroup::new(&[true, true, false]), &nodes).await;
    tokio::time::sleep(RETRY_INTERVAL * 3).await;
    assert_eq!(world.role("n2"), MANAGER);
    assert!(world.group.done().is_empty());
    world.group.members.lock()[2].reachable = true;
    let begin = Instant::now();
    world.wait_role("n2", WORKER).await;
    assert!(begin.elapsed() <= RETRY_INTERVAL + Duration::from_secs(1));
    assert_eq!(world.group.done(), ["remove 2"]);
}

#[tokio::test]
async fn the_leader_hands_over_before_it_goes() {
    let nodes = [("n1", WORKER, MANAGER), ("n2", MANAGER, MANAGER)];
    let world = World::new(FakeGroup::new(&[true, true]), &nodes).await;
    world.wait_done(&["transfer"]).await;
    assert_eq!(world.role("n1"), MANAGER, "the next leader does the rest");

    let group = FakeGroup {
        transfer_fails: true,
        ..FakeGroup::new(&[true, true])
    };
    let world = World::new(group, &nodes).await;
    world.wait_role("n1", WORKER).await;
    assert_eq!(world.group.done(), ["transfer", "remove 1"]);
}

#[tokio::test]
async fn the_only_manager_stays() {
    let world = World::new(FakeGroup::new(&[true]), &[("n1", WORKER, MANAGER)]).await;
    // Something later is done, so the wish was looked at.
    world.wish("n1", MANAGER).await;
    world.wish("n1", WORKER).await;
    assert!(world.group.done().is_empty());
    assert_eq!(world.role("n1"), MANAGER);
}

#[tokio::test]
async fn members_without_a_node_are_taken_out() {
    let nodes = [("n1", MANAGER, MANAGER), ("n2", MANAGER, MANAGER)];
    let world = World::new(FakeGroup::new(&[true, true, true]), &nodes).await;
    world.wait_done(&["remove 3"]).await;
    let delete = |tx: &mut Tx| tx.delete::<Node>("n2");
    world
        .store
        .update(delete)
        .await
        .map_err(|error: StoreError| error)
        .unwrap();
    world.wait_done(&["remove 3", "remove 2"]).await;
}

#[tokio::test]
async fn a_role_is_written_only_if_it_is_still_wished_for() {
    let store = TestStore::new();
    let create = |tx: &mut Tx| tx.create(node("n1", WORKER, WORKER));
    store
        .update(create)
        .await
        .map_err(|error: StoreError| error)
        .unwrap();
    let before = store.view(|view| view.get::<Node>("n1")).unwrap().unwrap();
    assert!(
        set_role(&store.store(), "n1", NodeRole::Manager)
            .await
            .unwrap()
    );
    let after = store.view(|view| view.get::<Node>("n1")).unwrap().unwrap();
    assert_eq!(before, after);
}
