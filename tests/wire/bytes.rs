//! Bytes of messages: that they are the peer's, that they are the same each time, and that hostile
//! ones are refused.

use prost::Message;
use swarm_manager::api::types::{Annotations, ClusterSnapshot, JoinResponse};
use swarm_manager::api::{raftpb, types};

// 01-A7: the names exist in Rust, as client and as server.
#[test]
fn every_service_is_generated() {
    use types::*;
    assert_eq!(ca_server::SERVICE_NAME, "docker.swarmkit.v1.CA");
    assert_eq!(node_ca_server::SERVICE_NAME, "docker.swarmkit.v1.NodeCA");
    assert_eq!(control_server::SERVICE_NAME, "docker.swarmkit.v1.Control");
    assert_eq!(
        dispatcher_server::SERVICE_NAME,
        "docker.swarmkit.v1.Dispatcher"
    );
    assert_eq!(health_server::SERVICE_NAME, "docker.swarmkit.v1.Health");
    assert_eq!(
        log_broker_server::SERVICE_NAME,
        "docker.swarmkit.v1.LogBroker"
    );
    assert_eq!(logs_server::SERVICE_NAME, "docker.swarmkit.v1.Logs");
    assert_eq!(raft_server::SERVICE_NAME, "docker.swarmkit.v1.Raft");
    assert_eq!(
        raft_membership_server::SERVICE_NAME,
        "docker.swarmkit.v1.RaftMembership"
    );
    assert_eq!(
        resource_allocator_server::SERVICE_NAME,
        "docker.swarmkit.v1.ResourceAllocator"
    );
    assert_eq!(watch_server::SERVICE_NAME, "docker.swarmkit.v1.Watch");
    fn exists<Client>() {}
    exists::<control_client::ControlClient<tonic::transport::Channel>>();
    exists::<dispatcher_client::DispatcherClient<tonic::transport::Channel>>();
    exists::<raft_client::RaftClient<tonic::transport::Channel>>();
}

/// A message in which scalar fields are set although they are zero, as the peer writes it.
fn append_message() -> raftpb::Message {
    raftpb::Message {
        r#type: Some(raftpb::MessageType::MsgApp as i32),
        to: Some(1),
        from: Some(2),
        term: Some(5),
        log_term: Some(0),
        index: Some(0),
        entries: vec![raftpb::Entry {
            r#type: Some(raftpb::EntryType::EntryNormal as i32),
            term: Some(5),
            index: Some(1),
            data: Some(vec![1, 2, 3]),
        }],
        commit: Some(0),
        ..Default::default()
    }
}

const APPEND_BYTES: [u8; 27] = [
    0x08, 0x03, 0x10, 0x01, 0x18, 0x02, 0x20, 0x05, 0x28, 0x00, 0x30, 0x00, 0x3a, 0x0b, 0x08, 0x00,
    0x10, 0x05, 0x18, 0x01, 0x22, 0x03, 0x01, 0x02, 0x03, 0x40, 0x00,
];

// 01-A8
#[test]
fn explicit_zeros_are_written() {
    assert_eq!(append_message().encode_to_vec(), APPEND_BYTES);
}

/// The peer sets the remaining scalar fields too, so a message as it comes from there is longer.
#[test]
fn remaining_scalars_follow_in_order_of_their_numbers() {
    let message = raftpb::Message {
        reject: Some(false),
        reject_hint: Some(0),
        vote: Some(0),
        ..append_message()
    };
    let expected = [&APPEND_BYTES[..], &[0x50, 0x00, 0x58, 0x00, 0x68, 0x00]].concat();
    assert_eq!(message.encode_to_vec(), expected);
}

// 01-A8, the other way: absent and zero are read alike.
#[test]
fn absent_and_zero_read_alike() {
    let full = raftpb::Message::decode(&APPEND_BYTES[..]).unwrap();
    assert_eq!(full, append_message());
    let bare = raftpb::Message {
        log_term: None,
        index: None,
        commit: None,
        ..append_message()
    };
    let read = raftpb::Message::decode(&bare.encode_to_vec()[..]).unwrap();
    assert_eq!(read.log_term(), full.log_term());
    assert_eq!(read.index(), full.index());
    assert_eq!(read.commit(), full.commit());
}

/// Raft messages nested `depth` deep through the list of responses.
fn nested(depth: usize) -> Vec<u8> {
    (0..depth).fold(Vec::new(), |inner, _| {
        let mut outer = Vec::new();
        prost::encoding::encode_key(14, prost::encoding::WireType::LengthDelimited, &mut outer);
        prost::encoding::encode_varint(inner.len() as u64, &mut outer);
        outer.extend_from_slice(&inner);
        outer
    })
}

// 01-A10: the part about nesting.
#[test]
fn messages_nested_too_deep_are_refused() {
    assert!(raftpb::Message::decode(&nested(50)[..]).is_ok());
    let error = raftpb::Message::decode(&nested(200)[..]).unwrap_err();
    assert!(error.to_string().contains("recursion limit"), "{error}");
    assert!(raftpb::Message::decode(&nested(20_000)[..]).is_err());
}

#[test]
fn packing_of_raft_ids() {
    let snapshot = ClusterSnapshot {
        removed: vec![1, 2],
        ..Default::default()
    };
    assert_eq!(snapshot.encode_to_vec(), [0x10, 1, 0x10, 2]);
    let packed = [0x12, 2, 1, 2];
    assert_eq!(ClusterSnapshot::decode(&packed[..]).unwrap(), snapshot);
    let join = JoinResponse {
        removed_members: vec![1, 2],
        ..Default::default()
    };
    assert_eq!(join.encode_to_vec(), [0x1a, 2, 1, 2]);
    // Lists of a proto2 message are unpacked.
    let conf = raftpb::ConfState {
        voters: vec![1, 2],
        auto_leave: Some(false),
        ..Default::default()
    };
    assert_eq!(conf.encode_to_vec(), [0x08, 1, 0x08, 2, 0x28, 0]);
}

#[test]
fn equal_maps_encode_to_equal_bytes() {
    let labels = |order: &[&str]| Annotations {
        labels: order
            .iter()
            .map(|key| (key.to_string(), "x".to_string()))
            .collect(),
        ..Default::default()
    };
    let (one, other) = (labels(&["b", "a", "c"]), labels(&["c", "b", "a"]));
    assert_eq!(one.encode_to_vec(), other.encode_to_vec());
}

#[test]
fn unknown_enum_numbers_survive() {
    let status = types::TaskStatus {
        state: 9_999,
        ..Default::default()
    };
    let read = types::TaskStatus::decode(&status.encode_to_vec()[..]).unwrap();
    assert_eq!(read.state, 9_999);
    assert!(types::TaskState::try_from(read.state).is_err());
}
