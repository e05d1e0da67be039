use super::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap as Map;

fn remote(node_id: &str, addr: &str) -> Remote {
    Remote {
        node_id: node_id.to_owned(),
        addr: addr.to_owned(),
    }
}

fn listed(node_id: &str, addr: &str, weight: i64) -> WeightedPeer {
    WeightedPeer {
        peer: Some(Peer {
            node_id: node_id.to_owned(),
            addr: addr.to_owned(),
        }),
        weight,
    }
}

// 03-A32
#[test]
fn weights_follow_the_mean_of_old_and_new() {
    let mut remotes = Remotes::default();
    let peer = remote("a", "a:1");
    remotes.observe(&peer, 10);
    assert_eq!(remotes.weight(&peer), Some(5));
    let from_five = remotes.clone();
    for _ in 0..10 {
        remotes.observe(&peer, 10);
    }
    assert_eq!(remotes.weight(&peer), Some(10));
    remotes.observe(&peer, -10);
    assert_eq!(remotes.weight(&peer), Some(0));

    let mut remotes = from_five;
    remotes.observe(&peer, -10);
    assert_eq!(remotes.weight(&peer), Some(-2));
}

// 03-A32
#[test]
fn excluded_by_id_or_address_and_empty() {
    let mut random = StdRng::seed_from_u64(1);
    assert_eq!(
        Remotes::default().select(&[], &mut random),
        Err(NoRemotes),
        "{NoRemotes}"
    );
    assert_eq!(NoRemotes.to_string(), "no remote hosts provided");
    let mut remotes = Remotes::default();
    remotes.observe(&remote("a", "a:1"), 10);
    remotes.observe(&remote("b", "b:1"), 10);
    for exclude in ["a", "a:1"] {
        for _ in 0..50 {
            let chosen = remotes.select(&[exclude], &mut random).unwrap();
            assert_eq!(chosen.node_id, "b");
        }
    }
    assert_eq!(remotes.select(&["a", "b:1"], &mut random), Err(NoRemotes));
}

#[test]
fn one_bad_experience_makes_a_choice_rare_but_zero_weights_are_chosen() {
    let mut random = StdRng::seed_from_u64(7);
    let mut remotes = Remotes::default();
    for id in ["a", "b", "c"] {
        for _ in 0..12 {
            remotes.observe(&remote(id, id), 10);
        }
    }
    remotes.observe(&remote("c", "c"), -10);
    let mut counts: Map<String, u32> = Map::new();
    for _ in 0..20_000 {
        let chosen = remotes.select(&[], &mut random).unwrap();
        *counts.entry(chosen.node_id).or_default() += 1;
    }
    assert!(counts.get("c").copied().unwrap_or(0) < 20, "{counts:?}");
    assert!(counts["a"] > 9_000 && counts["b"] > 9_000, "{counts:?}");

    let mut remotes = Remotes::default();
    for id in ["a", "b"] {
        remotes.observe(&remote(id, id), 0);
    }
    let chosen: std::collections::BTreeSet<String> = (0..200)
        .map(|_| remotes.select(&[], &mut random).unwrap().node_id)
        .collect();
    assert_eq!(chosen.len(), 2);
}

#[test]
fn extreme_observations_are_clipped() {
    let mut remotes = Remotes::default();
    let peer = remote("a", "a");
    for _ in 0..40 {
        remotes.observe(&peer, i64::MAX);
    }
    assert_eq!(remotes.weight(&peer), Some(WEIGHT_MAX));
    for _ in 0..40 {
        remotes.observe(&peer, i64::MIN);
    }
    assert!(remotes.weight(&peer).unwrap() >= -WEIGHT_MAX);
    remotes.observe_if_exists(&remote("b", "b"), 10);
    assert_eq!(remotes.weight(&remote("b", "b")), None);
}

#[test]
fn a_list_replaces_everything_but_an_empty_one_is_ignored() {
    let shared = SharedRemotes::new([remote("", "join:2377")]);
    let mut watch = shared.watch();
    assert_eq!(*watch.borrow_and_update(), [remote("", "join:2377")]);

    shared.take_list(&[]);
    shared.take_list(&[listed("m", "", 10), WeightedPeer::default()]);
    assert!(!watch.has_changed().unwrap());

    shared.take_list(&[listed("m2", "b:1", 10), listed("m1", "a:1", 10)]);
    assert_eq!(
        *watch.borrow_and_update(),
        [remote("m1", "a:1"), remote("m2", "b:1")]
    );
    shared.take_list(&[listed("m1", "a:1", 10), listed("m2", "b:1", 10)]);
    assert!(!watch.has_changed().unwrap(), "weights alone are no change");
}

#[test]
fn the_file_holds_the_sorted_set_without_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    assert_eq!(load(&path).unwrap(), []);
    save(&path, &[remote("m2", "b:1"), remote("", "a:1")]).unwrap();
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        r#"[{"addr":"a:1"},{"node_id":"m2","addr":"b:1"}]"#
    );
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(
        load(&path).unwrap(),
        [remote("", "a:1"), remote("m2", "b:1")]
    );

    save(&path, &[remote("", "a:1"), remote("m2", "b:1")]).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().ino(),
        metadata.ino(),
        "an equal set is not written again"
    );
    save(&path, &[remote("m2", "b:1")]).unwrap();
    assert_ne!(std::fs::metadata(&path).unwrap().ino(), metadata.ino());
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "no temporary file is left");

    std::fs::write(&path, b"{").unwrap();
    let error = load(&path).unwrap_err().to_string();
    assert!(error.contains("is not a list of managers"), "{error}");
}

#[tokio::test]
async fn changes_reach_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    let shared = SharedRemotes::new([remote("", "join:2377")]);
    let writer = tokio::spawn(shared.clone().persist(path.clone()));
    shared.take_list(&[listed("m1", "a:1", 10)]);
    drop(shared);
    writer.await.unwrap();
    assert_eq!(load(&path).unwrap(), [remote("m1", "a:1")]);
}
