//! The raft services, called over a connection.

use super::*;
use crate::api::raftpb::{Message, MessageType, Snapshot};
use crate::api::types::raft_client::RaftClient;
use crate::api::types::raft_membership_client::RaftMembershipClient;
use crate::api::types::{
    JoinRequest, LeaveRequest, ProcessRaftMessageRequest, ResolveAddressRequest,
    StreamRaftMessageRequest,
};
use crate::raft::rpc::{DialBack, MESSAGE_BYTES_MAX, METADATA_RAFT_ID, RaftRpc};
use crate::raft::testing::Notes;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::transport::{Channel, Server};

/// Only port 1 cannot be reached.
struct Reachable;

impl DialBack for Reachable {
    fn check(&self, addr: String) -> futures::future::BoxFuture<'_, Result<(), tonic::Status>> {
        let result = match addr.ends_with(":1") {
            true => Err(tonic::Status::unavailable("nobody answers")),
            false => Ok(()),
        };
        Box::pin(std::future::ready(result))
    }
}

/// Every request is one of this manager, unless its metadata name another.
#[derive(Clone)]
struct ByNode(&'static str);

impl tonic::service::Interceptor for ByNode {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        let other = request.metadata().get("by-node");
        let node_id = other.and_then(|name| name.to_str().ok()).unwrap_or(self.0);
        let node_id = node_id.to_owned();
        request.extensions_mut().insert(crate::identity::Caller {
            node_id,
            organization: String::new(),
            role: None,
            remote_addr: Some("192.0.2.7:4000".parse().unwrap()),
            forwarded_by: None,
            local: false,
        });
        Ok(request)
    }
}

/// A member that was told of a removed one, and a connection to its services.
struct Served {
    subject: Subject,
    channel: Channel,
}

async fn serve() -> Served {
    let (hard_state, entries) = first_log(&[record(1)]);
    let machine = NotingMachine(Watched::new(Notes::default()));
    machine.0.with(|notes| notes.membership.removed = vec![66]);
    let subject = Subject::start(MemLog::new(hard_state, entries), machine);
    let mut leadership = subject.member.leadership();
    let leads = leadership.wait_for(|now| now.term().is_some()).await;
    leads.unwrap();
    serve_member(subject).await
}

async fn serve_member(subject: Subject) -> Served {
    let rpc = RaftRpc::new(subject.member.clone(), Arc::new(Reachable), None);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder()
        .layer(tonic::service::InterceptorLayer::new(ByNode("node2")))
        .add_service(rpc.raft_server())
        .add_service(rpc.membership_server())
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    Served {
        subject,
        channel: channel.connect().await.unwrap(),
    }
}

impl Served {
    async fn process(&self, message: Option<Message>) -> Result<(), tonic::Status> {
        self.process_by("node2", message).await
    }

    async fn process_by(
        &self,
        node_id: &'static str,
        message: Option<Message>,
    ) -> Result<(), tonic::Status> {
        let mut request = tonic::Request::new(ProcessRaftMessageRequest { message });
        let node_id = tonic::metadata::MetadataValue::from_static(node_id);
        request.metadata_mut().insert("by-node", node_id);
        let mut client = RaftClient::new(self.channel.clone());
        client.process_raft_message(request).await.map(drop)
    }

    async fn stream(&self, chunks: Vec<Option<Message>>) -> Result<(), tonic::Status> {
        let chunks = chunks
            .into_iter()
            .map(|message| StreamRaftMessageRequest { message });
        let mut client = RaftClient::new(self.channel.clone());
        let stream = tokio_stream::iter(chunks.collect::<Vec<_>>());
        client.stream_raft_message(stream).await.map(drop)
    }

    fn term(&self) -> u64 {
        self.subject.member.leadership().borrow().term().unwrap()
    }
}

/// A message to member 1 of a term that would depose it.
fn message(kind: MessageType, from: u64) -> Message {
    Message {
        r#type: Some(kind as i32),
        from: Some(from),
        to: Some(1),
        term: Some(100),
        ..Default::default()
    }
}

fn chunk(index: u64, bytes: usize) -> Option<Message> {
    Some(Message {
        index: Some(index),
        snapshot: Some(Snapshot {
            data: Some(vec![1; bytes]),
            metadata: None,
        }),
        ..message(MessageType::MsgSnap, 5)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn messages_are_checked_before_they_are_stepped() {
    let served = serve().await;
    let term = served.term();
    served.process(None).await.unwrap();
    let removed = served
        .process(Some(message(MessageType::MsgHeartbeat, 66)))
        .await;
    let removed = removed.unwrap_err();
    assert_eq!(removed.code(), Code::NotFound);
    assert_eq!(
        removed.message(),
        "raft: member was removed from the cluster"
    );
    // Dropped: a stranger's vote, a proposal, a message for somebody else, one from "ourselves".
    let vote = message(MessageType::MsgVote, 9);
    served.process(Some(vote)).await.unwrap();
    let proposal = message(MessageType::MsgProp, 9);
    served.process(Some(proposal)).await.unwrap();
    let mut foreign = message(MessageType::MsgHeartbeat, 9);
    foreign.to = Some(2);
    served.process(Some(foreign)).await.unwrap();
    let own = message(MessageType::MsgHeartbeat, 1);
    served.process(Some(own)).await.unwrap();
    // 01-A10
    let mut unknown = message(MessageType::MsgHeartbeat, 9);
    unknown.r#type = Some(19);
    let refused = served.process(Some(unknown)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let heartbeat = message(MessageType::MsgHeartbeat, 9);
    served.process(Some(heartbeat)).await.unwrap();
    assert_eq!(
        served.term(),
        term,
        "nothing of all this deposed the leader"
    );
    served.subject.member.stop().await.unwrap();
    let late = message(MessageType::MsgHeartbeat, 9);
    served.process(Some(late)).await.unwrap();
}

/// Notes what the member sends, and says that there is contact with nobody.
#[derive(Clone)]
struct NoContact(Arc<Watched<Vec<Message>>>);

impl Outbox for NoContact {
    fn send(&mut self, messages: Vec<Message>) {
        self.0.with(|sent| sent.extend(messages));
    }

    fn is_active(&self, _raft_id: u64) -> Option<bool> {
        Some(false)
    }
}

// 03-A11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidate_that_cannot_be_reached_gets_no_vote() {
    let unreachable = RaftMember {
        addr: "10.0.0.2:1".into(),
        ..record(2)
    };
    let (hard_state, entries) = first_log(&[record(1), unreachable, record(3)]);
    let log = MemLog::new(hard_state, entries);
    let outbox = NoContact(Watched::new(Vec::new()));
    let machine = NotingMachine::default();
    let subject = Subject::start_as(1, log, machine, Box::new(outbox.clone()));
    let served = serve_member(subject).await;
    // The members of the first entries are known once these are applied.
    let knows = |found: &mut Notes| (found.applied >= 3).then_some(());
    served.subject.machine.0.wait("its members", knows);
    let vote = |from| Message {
        index: Some(1000),
        log_term: Some(99),
        ..message(MessageType::MsgVote, from)
    };
    served.process(Some(vote(2))).await.unwrap();
    // Nor one that another node speaks for.
    served.process(Some(vote(3))).await.unwrap();
    served.process_by("node3", Some(vote(3))).await.unwrap();
    let kind = Some(MessageType::MsgVoteResp as i32);
    let answers = |sent: &mut Vec<Message>| {
        let answers = sent.iter().filter(|message| message.r#type == kind);
        let answers: Vec<_> = answers.map(|m| (m.to(), m.reject())).collect();
        (!answers.is_empty()).then_some(answers)
    };
    assert_eq!(outbox.0.wait("a vote", answers), [(3, false)]);
    served.subject.member.stop().await.unwrap();
    assert_eq!(outbox.0.wait("a vote", answers), [(3, false)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn streams_are_assembled_or_refused() {
    let served = serve().await;
    served.stream(vec![chunk(0, 2 << 20)]).await.unwrap();
    served
        .stream(vec![chunk(0, 1000), chunk(0, 1000)])
        .await
        .unwrap();
    let large = served
        .stream(vec![chunk(0, MESSAGE_BYTES_MAX)])
        .await
        .unwrap_err();
    assert_eq!(large.code(), Code::ResourceExhausted);
    let text = large.message();
    assert!(
        text.starts_with("grpc: received message larger than max ("),
        "{text}"
    );
    assert!(text.ends_with(" vs. 4194304)"), "{text}");
    let mixed = served
        .stream(vec![chunk(0, 1), chunk(1, 1)])
        .await
        .unwrap_err();
    assert_eq!(mixed.code(), Code::InvalidArgument);
    assert_eq!(
        mixed.message(),
        "Raft message chunk with index 1 is different from the previously received raft message index 0"
    );
    let append = || Some(message(MessageType::MsgApp, 5));
    let appends = served.stream(vec![append(), append()]).await.unwrap_err();
    assert_eq!(appends.message(), "Raft message chunk is not of type 7");
    let empty = served.stream(Vec::new()).await.unwrap_err();
    assert_eq!(empty.code(), Code::InvalidArgument);
    let hollow = served.stream(vec![None]).await.unwrap_err();
    assert_eq!(hollow.code(), Code::InvalidArgument);
    served.subject.member.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn addresses_and_membership() {
    let served = serve().await;
    let mut raft = RaftClient::new(served.channel.clone());
    let known = raft
        .resolve_address(ResolveAddressRequest { raft_id: 1 })
        .await;
    assert_eq!(known.unwrap().into_inner().addr, "10.0.0.1:2377");
    let unknown = raft
        .resolve_address(ResolveAddressRequest { raft_id: 0xab })
        .await;
    let unknown = unknown.unwrap_err();
    assert_eq!(
        (unknown.code(), unknown.message()),
        (Code::NotFound, "member ab not found")
    );

    let mut membership = RaftMembershipClient::new(served.channel.clone());
    let joining = |addr: &str, stored: Option<&str>| {
        let addr = addr.to_owned();
        let mut request = tonic::Request::new(JoinRequest { addr });
        if let Some(stored) = stored {
            let stored = stored.parse().unwrap();
            request.metadata_mut().insert(METADATA_RAFT_ID, stored);
        }
        request
    };
    // 03-A6
    for (request, code, text) in [
        (
            joining("bad", Some("0")),
            Code::InvalidArgument,
            "invalid address bad in raft join request",
        ),
        (
            joining("10.0.0.2:1", Some("0")),
            Code::Unavailable,
            "could not connect to prospective new cluster member using its advertised address: \
             nobody answers",
        ),
        (
            joining("10.0.0.2:2377", None),
            Code::FailedPrecondition,
            "a Docker Engine cannot be a manager beside this product's managers: let it join as a \
             worker, with a worker token",
        ),
    ] {
        let refused = membership.join(request).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (code, text));
    }
    assert_eq!(served.subject.member.book().len(), 1);

    let nobody = membership
        .leave(LeaveRequest { node: None })
        .await
        .unwrap_err();
    assert_eq!(nobody.code(), Code::InvalidArgument);
    assert_eq!(nobody.message(), "no node information provided");
    for (raft_id, text) in [
        (
            1,
            "raft: member cannot be removed, because removing it may result in loss of quorum",
        ),
        (2, "membership: member not found in cluster list"),
        (66, "membership: node was removed during cluster lifetime"),
    ] {
        let node = Some(record(raft_id));
        let refused = membership.leave(LeaveRequest { node }).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::Unknown, text));
    }

    served.subject.member.stop().await.unwrap();
    let message = "raft: node is not yet part of a raft cluster";
    let addr = "10.0.0.2:2377".to_owned();
    let join = membership.join(JoinRequest { addr }).await.unwrap_err();
    assert_eq!(
        (join.code(), join.message()),
        (Code::FailedPrecondition, message)
    );
    let gone = raft
        .resolve_address(ResolveAddressRequest { raft_id: 1 })
        .await
        .unwrap_err();
    assert_eq!((gone.code(), gone.message()), (Code::Unknown, message));
}
