//! Node calls: member overlay, filters, demotion, removal.

use super::*;
use crate::api::time;
use NodeRole::{Manager, Worker};
use node_status::State::{Disconnected, Down, Ready, Unknown};
use prost_types::Timestamp;
use raft_member_status::Reachability;

async fn get(bed: &Bed, id: &str) -> Node {
    let request = Request::new(GetNodeRequest { node_id: id.into() });
    ok(Control::get_node(&bed.control, request).await)
        .node
        .unwrap()
}

/// Changes the spec of a node as a client would: read, change, write.
async fn change(bed: &Bed, id: &str, f: impl FnOnce(&mut NodeSpec)) -> String {
    let node = get(bed, id).await;
    let mut spec = node.spec.unwrap();
    f(&mut spec);
    let request = UpdateNodeRequest {
        node_id: id.into(),
        node_version: version_of(&node.meta),
        spec: Some(spec),
    };
    seen(&Control::update_node(&bed.control, Request::new(request)).await)
}

async fn demote(bed: &Bed, id: &str) -> String {
    change(bed, id, |spec| spec.desired_role = Worker as i32).await
}

async fn remove(bed: &Bed, id: &str, force: bool) -> String {
    let request = Request::new(RemoveNodeRequest {
        node_id: id.into(),
        force,
    });
    seen(&Control::remove_node(&bed.control, request).await)
}

fn default_cluster() -> Cluster {
    Cluster {
        id: "cluster".into(),
        spec: Some(ClusterSpec {
            annotations: named("default"),
            ..Default::default()
        }),
        ..Default::default()
    }
}

// 05-A5
#[tokio::test]
async fn managers_show_their_place_in_the_group() {
    let bed = Bed::new();
    bed.put(["m1", "m2"].map(|id| node(id, Manager, Ready)))
        .await;
    bed.put([node("w1", Worker, Ready)]).await;
    for reachable in [true, false, true] {
        let members = vec![member(1, "m1", true), member(2, "m2", reachable)];
        *bed.group.members.lock() = Some(members);
        let expected = if reachable {
            Reachability::Reachable
        } else {
            Reachability::Unreachable
        };
        let status = get(&bed, "m2").await.manager_status.unwrap();
        assert_eq!(status.raft_id, 2);
        assert_eq!(status.addr, "10.0.0.2:2377");
        assert!(!status.leader);
        assert_eq!(status.reachability, expected as i32);

        let list = Request::new(ListNodesRequest::default());
        let nodes = ok(Control::list_nodes(&bed.control, list).await).nodes;
        let statuses: Vec<_> = nodes
            .iter()
            .filter_map(|n| n.manager_status.as_ref())
            .collect();
        assert_eq!(statuses.len(), 2);
        assert_eq!(statuses.iter().filter(|status| status.leader).count(), 1);
        assert_eq!(statuses[1], &status);
    }
    assert_eq!(get(&bed, "w1").await.manager_status, None);
    assert_eq!(
        bed.get::<Node>("m1").unwrap().manager_status,
        None,
        "nothing is stored"
    );
}

// 05-A6
#[tokio::test]
async fn demotion_keeps_the_quorum() {
    let bed = Bed::new();
    bed.put(["m1", "m2", "m3"].map(|id| node(id, Manager, Ready)))
        .await;
    let group = |up: &[(u64, bool)]| {
        let members = up
            .iter()
            .map(|(id, up)| member(*id, &format!("m{id}"), *up));
        *bed.group.members.lock() = Some(members.collect());
    };
    let no_quorum = "FailedPrecondition: \
        can't remove member from the raft: this would result in a loss of quorum \
        (without it 1 managers are reachable, 2 are needed)";

    group(&[(1, true), (2, true), (3, false)]);
    assert_eq!(demote(&bed, "m1").await, no_quorum);
    assert_eq!(demote(&bed, "m2").await, no_quorum);
    assert_eq!(demote(&bed, "m3").await, "OK");

    // The role manager carries it out.
    group(&[(1, true), (2, true)]);
    set_role(&bed, "m3", Worker).await;
    assert_eq!(demote(&bed, "m2").await, "OK");
    group(&[(1, true)]);
    set_role(&bed, "m2", Worker).await;
    assert_eq!(
        demote(&bed, "m1").await,
        "FailedPrecondition: attempting to demote the last manager of the swarm"
    );
    let drain = |spec: &mut NodeSpec| spec.availability = node_spec::Availability::Drain as i32;
    assert_eq!(change(&bed, "m1", drain).await, "OK");
}

async fn set_role(bed: &Bed, id: &str, role: NodeRole) {
    let set = |tx: &mut Tx| {
        let mut node = (*tx.get::<Node>(id)?.unwrap()).clone();
        node.role = role as i32;
        tx.update(node)
    };
    let result: Result<_, StoreError> = bed.store.update(set).await;
    result.unwrap();
}

// 05-A6
#[tokio::test]
async fn demotion_of_a_node_outside_of_the_group() {
    let bed = Bed::new();
    bed.put(["m1", "m2"].map(|id| node(id, Manager, Ready)))
        .await;
    *bed.group.members.lock() = Some(vec![member(1, "m1", true)]);
    assert_eq!(
        demote(&bed, "m2").await,
        "NotFound: raft member of node m2 not found"
    );
    *bed.group.members.lock() = None;
    assert!(demote(&bed, "m2").await.starts_with("FailedPrecondition: "));
}

#[tokio::test]
async fn bad_updates_change_nothing() {
    let bed = Bed::new();
    bed.put([node("w1", Worker, Ready)]).await;
    let stored = bed.get::<Node>("w1").unwrap();
    let version = version_of(&stored.meta);
    let stale = Some(Version { index: 12_345 });
    let spec = stored.spec.clone();
    let with = |f: fn(&mut NodeSpec)| {
        let mut spec = spec.clone();
        f(spec.as_mut().unwrap());
        spec
    };
    for (node_id, node_version, spec, expected) in [
        (
            "",
            version,
            spec.clone(),
            "InvalidArgument: invalid argument",
        ),
        (
            "w1",
            None,
            spec.clone(),
            "InvalidArgument: invalid argument",
        ),
        ("w1", version, None, "InvalidArgument: invalid argument"),
        ("w9", version, spec.clone(), "NotFound: node w9 not found"),
        ("w1", stale, spec.clone(), "Unknown: update out of sequence"),
        (
            "w1",
            version,
            with(|s| s.availability = 9),
            "InvalidArgument: availability: unknown value 9",
        ),
        (
            "w1",
            version,
            with(|s| s.membership = 9),
            "InvalidArgument: membership: unknown value 9",
        ),
        (
            "w1",
            version,
            with(|s| s.desired_role = 9),
            "InvalidArgument: desired role: unknown value 9",
        ),
    ] {
        let request = UpdateNodeRequest {
            node_id: node_id.into(),
            node_version,
            spec,
        };
        let result = Control::update_node(&bed.control, Request::new(request)).await;
        assert_eq!(seen(&result), expected);
    }
    assert_eq!(bed.get::<Node>("w1").unwrap(), stored);
}

// 05-A7
#[tokio::test]
async fn removal_guards() {
    let bed = Bed::new();
    bed.put([default_cluster()]).await;
    bed.put([
        node("ready", Worker, Ready),
        node("down", Worker, Down),
        node("unknown", Worker, Unknown),
        node("disconnected", Worker, Disconnected),
        node("manager", Manager, Down),
    ])
    .await;
    *bed.group.members.lock() = Some(vec![member(1, "manager", true)]);
    let manager = "FailedPrecondition: node manager is a cluster manager and is a member of \
                   the raft cluster. It must be demoted to worker before removal";
    for (id, force, expected) in [
        ("", true, "InvalidArgument: invalid argument"),
        ("nope", false, "NotFound: node nope not found"),
        (
            "ready",
            false,
            "FailedPrecondition: node ready is not down and can't be removed",
        ),
        ("ready", true, "OK"),
        ("ready", true, "NotFound: node ready not found"),
        ("down", false, "OK"),
        ("unknown", false, "OK"),
        ("disconnected", false, "OK"),
        ("manager", false, manager),
        ("manager", true, manager),
    ] {
        assert_eq!(remove(&bed, id, force).await, expected, "{id} {force}");
    }
    *bed.group.members.lock() = None;
    assert!(
        remove(&bed, "manager", true)
            .await
            .starts_with("FailedPrecondition: ")
    );
    *bed.group.members.lock() = Some(Vec::new());
    assert_eq!(
        remove(&bed, "manager", true).await,
        "OK",
        "no member any more"
    );
}

#[tokio::test]
async fn removal_needs_the_cluster() {
    let bed = Bed::new();
    bed.put([node("w1", Worker, Down)]).await;
    assert!(remove(&bed, "w1", false).await.starts_with("Internal: "));
    assert!(bed.get::<Node>("w1").is_some());
}

fn revoked(id: &str, seconds: Option<i64>) -> (String, BlacklistedCertificate) {
    let expiry = seconds.map(|seconds| Timestamp {
        seconds: time::now().seconds + seconds,
        nanos: 0,
    });
    (id.to_owned(), BlacklistedCertificate { expiry })
}

// 05-A8
#[tokio::test]
async fn what_becomes_of_a_removed_node() {
    const DAY: i64 = 86_400;
    let bed = Bed::new();
    let root = crate::identity::root_ca::RootCa::generate(std::time::SystemTime::now()).unwrap();
    let mut with_certificate = node("n1", Worker, Down);
    with_certificate.certificate = Some(Certificate {
        certificate: root.roots_pem().to_vec(),
        ..Default::default()
    });
    bed.put([with_certificate, node("n2", Worker, Down)]).await;
    bed.put([Cluster {
        blacklisted_certificates: [
            revoked("future", Some(DAY)),
            revoked("recent", Some(-6 * DAY)),
            revoked("long ago", Some(-8 * DAY)),
            revoked("never", None),
        ]
        .into(),
        ..default_cluster()
    }])
    .await;
    bed.put([
        task("running", "s1", "n1", TaskState::Running),
        task("new", "s1", "n1", TaskState::New),
        task("attachment", "", "n1", TaskState::Running),
        task("complete", "s1", "n1", TaskState::Complete),
        task("failed", "s1", "n1", TaskState::Failed),
        task("elsewhere", "s1", "n2", TaskState::Running),
    ])
    .await;
    let entries = bed.store.proposer().history().len();
    assert_eq!(remove(&bed, "n1", false).await, "OK");
    assert_eq!(
        bed.store.proposer().history().len(),
        entries + 1,
        "one entry for all of it"
    );

    let states: Vec<_> = [
        "running",
        "new",
        "attachment",
        "complete",
        "failed",
        "elsewhere",
    ]
    .into_iter()
    .map(|id| bed.get::<Task>(id).unwrap().status.clone().unwrap())
    .collect();
    for orphaned in &states[..3] {
        assert_eq!(orphaned.state, TaskState::Orphaned as i32);
        assert_eq!(
            orphaned.message,
            "Task belonged to a node that has been deleted"
        );
        assert!(orphaned.timestamp.is_some());
    }
    let untouched: Vec<i32> = states[3..].iter().map(|status| status.state).collect();
    let expected = [TaskState::Complete, TaskState::Failed, TaskState::Running];
    assert_eq!(untouched, expected.map(|state| state as i32));

    let cluster = bed.get::<Cluster>("cluster").unwrap();
    let listed: Vec<&str> = cluster
        .blacklisted_certificates
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(listed, ["future", "n1", "never", "recent"]);
    let expiry = cluster.blacklisted_certificates["n1"].expiry.unwrap();
    assert!(
        expiry.seconds > time::now().seconds + 365 * DAY,
        "that of the certificate"
    );

    assert_eq!(remove(&bed, "n2", false).await, "OK");
    let cluster = bed.get::<Cluster>("cluster").unwrap();
    assert_eq!(cluster.blacklisted_certificates["n2"].expiry, None);
}

// 05-A8
#[tokio::test]
async fn a_node_with_very_many_tasks() {
    let bed = Bed::new();
    bed.put([default_cluster()]).await;
    bed.put([node("n1", Worker, Down)]).await;
    let tasks = 450;
    bed.put((0..tasks).map(|n| task(&format!("t{n}"), "s1", "n1", TaskState::Running)))
        .await;
    assert_eq!(remove(&bed, "n1", false).await, "OK");
    assert!(bed.all::<Task>().iter().all(|task| is_orphaned(task)));
    assert_eq!(bed.all::<Task>().len(), tasks);
}

fn is_orphaned(task: &Task) -> bool {
    task.status.as_ref().unwrap().state == TaskState::Orphaned as i32
}

#[tokio::test]
async fn a_new_term_finishes_what_a_dead_manager_began() {
    let bed = Bed::new();
    bed.put([node("here", Worker, Ready)]).await;
    bed.put([
        task("lost", "s1", "gone", TaskState::Running),
        task("done", "s1", "gone", TaskState::Complete),
        task("fine", "s1", "here", TaskState::Running),
        task("waiting", "s1", "", TaskState::Pending),
    ])
    .await;
    orphans::sweep(&bed.store).await.unwrap();
    let orphaned: Vec<String> = bed
        .all::<Task>()
        .iter()
        .filter(|task| is_orphaned(task))
        .map(|task| task.id.clone())
        .collect();
    assert_eq!(orphaned, ["lost"]);
}
