//! One session with a manager: from the registration to the first error (spec 08 section 15.2).
//!
//! A session is one connection with a `Session` stream, heartbeats, an `Assignments` stream and a
//! subscription to log requests. Any error of any of them ends all of it; the agent then starts a new one.
//! Nothing here outlives the session: what the managers said goes to the view, the worker and the
//! reporter.

use super::connect::Connection;
use super::reporter::ReportChannel;
use super::run::Context;
use super::sequence::{Sequence, Verdict};
use super::view::same_node;
use super::worker::ListKind;
use crate::api::time;
use crate::api::types::dispatcher_client::DispatcherClient;
use crate::api::types::log_broker_client::LogBrokerClient;
use crate::api::types::{
    AssignmentsRequest, HeartbeatRequest, ListenSubscriptionsRequest, NodeDescription,
    SessionMessage, SessionRequest,
};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

/// Time from the call to the first session message (spec 08 section 15.2).
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for one heartbeat (spec 08 section 2).
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);
/// Heartbeat period if the manager names none.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(5);
/// Shortest heartbeat period that is obeyed: a bound on what a mistaken answer can cost.
const HEARTBEAT_PERIOD_MIN: Duration = Duration::from_millis(10);
/// How often the node's description is compared (spec 08 section 15.3).
const DESCRIPTION_PERIOD: Duration = Duration::from_secs(20);
/// Pause before the stream of assignments is opened again after a gap; twice as long each time.
const GAP_PAUSE: Duration = Duration::from_millis(100);
/// More gaps than this in a row end the session.
const GAPS_MAX: u32 = 3;
/// Largest message accepted (spec 08 section 1).
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    /// The node has another description than it registered with.
    #[error("the node's description changed")]
    NewDescription,
    #[error("{0}")]
    Failed(String),
}

fn failed(what: &str, status: &Status) -> SessionEnd {
    SessionEnd::Failed(format!(
        "{what}: {} ({:?})",
        status.message(),
        status.code()
    ))
}

/// A registration that a manager has confirmed.
pub(crate) struct Session {
    pub(crate) id: String,
    client: DispatcherClient<Channel>,
    connection: Connection,
    messages: Streaming<SessionMessage>,
    /// What the node registered with.
    description: NodeDescription,
}

impl Session {
    /// Registers with a manager, or takes up the session `previous_id` again.
    pub(crate) async fn register(
        context: &Context,
        connection: Connection,
        description: NodeDescription,
        previous_id: &str,
    ) -> Result<Session, SessionEnd> {
        let client = DispatcherClient::new(connection.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let request = SessionRequest {
            description: Some(description.clone()),
            session_id: previous_id.to_owned(),
        };
        let opening = open(client.clone(), request);
        let opened = tokio::time::timeout(REGISTRATION_TIMEOUT, opening)
            .await
            .unwrap_or_else(|_| {
                Err(SessionEnd::Failed(
                    "session initiation timed out".to_owned(),
                ))
            });
        match opened {
            Ok((first, messages)) => {
                let session = Session {
                    id: first.session_id.clone(),
                    client,
                    connection,
                    messages,
                    description,
                };
                take_message(context, first).await;
                Ok(session)
            }
            Err(end) => {
                connection.close(false);
                Err(end)
            }
        }
    }

    pub(crate) fn target(&self) -> &str {
        self.connection.target()
    }

    /// Runs the session to its end.
    pub(crate) async fn run(self, context: &Context) -> SessionEnd {
        let (failed_sender, mut reports_failed) = mpsc::channel(1);
        let statuses = match context.worker.statuses().await {
            Ok(statuses) => statuses,
            Err(error) => return SessionEnd::Failed(error.to_string()),
        };
        let channel = ReportChannel {
            client: self.client.clone(),
            session_id: self.id.clone(),
            failed: failed_sender,
        };
        context.reporter.session_started(channel, statuses);
        let end = tokio::select! {
            end = read_messages(context, self.messages) => end,
            end = heartbeats(self.client.clone(), self.id.clone()) => end,
            end = assignments(context, self.client.clone(), self.id.clone()) => end,
            end = log_subscriptions(self.connection.channel.clone()) => end,
            end = description_changes(context, &self.description) => end,
            Some(status) = reports_failed.recv() => failed("cannot report task statuses", &status),
        };
        context.reporter.session_ended();
        // A new description is a fresh session with whoever is chosen; it says nothing about this one.
        if matches!(end, SessionEnd::Failed(_)) {
            self.connection.close(false);
        }
        end
    }
}

/// Opens the stream and waits for the message that confirms the registration.
async fn open(
    mut client: DispatcherClient<Channel>,
    request: SessionRequest,
) -> Result<(SessionMessage, Streaming<SessionMessage>), SessionEnd> {
    let mut messages = client
        .session(request)
        .await
        .map_err(|status| failed("cannot open a session", &status))?
        .into_inner();
    match messages.message().await {
        Ok(Some(first)) if !first.session_id.is_empty() => Ok((first, messages)),
        Ok(Some(_)) => Err(SessionEnd::Failed(
            "the manager named no session".to_owned(),
        )),
        Ok(None) => Err(SessionEnd::Failed(
            "the manager closed the session at once".to_owned(),
        )),
        Err(status) => Err(failed("cannot open a session", &status)),
    }
}

async fn read_messages(context: &Context, mut messages: Streaming<SessionMessage>) -> SessionEnd {
    loop {
        match messages.message().await {
            Ok(Some(message)) => take_message(context, message).await,
            Ok(None) => return SessionEnd::Failed("the manager closed the session".to_owned()),
            Err(status) => return failed("session ended", &status),
        }
    }
}

/// Acts on what a manager says about the node and the cluster (spec 08 section 15.4).
async fn take_message(context: &Context, message: SessionMessage) {
    context.remotes.take_list(&message.managers);
    let before = context.view.borrow().clone();
    context.view.send_if_modified(|view| {
        view.take(message);
        *view != before
    });
    let after = context.view.borrow().clone();
    if !same_node(before.node.as_ref(), after.node.as_ref())
        && let Some(node) = after.node.clone()
        && let Err(error) = context.executor.configure(node).await
    {
        tracing::error!(%error, "cannot configure the executor for this node");
    }
    if before.network_keys != after.network_keys
        && let Err(error) = context.executor.set_network_keys(after.network_keys).await
    {
        tracing::error!(%error, "cannot hand the network keys to the executor");
    }
}

async fn heartbeats(mut client: DispatcherClient<Channel>, session_id: String) -> SessionEnd {
    loop {
        let request = HeartbeatRequest {
            session_id: session_id.clone(),
        };
        let answer = tokio::time::timeout(HEARTBEAT_TIMEOUT, client.heartbeat(request)).await;
        let period = match answer {
            Ok(Ok(answer)) => answer.into_inner().period,
            Ok(Err(status)) => return failed("heartbeat refused", &status),
            Err(_) => return SessionEnd::Failed("heartbeat timed out".to_owned()),
        };
        let period = match time::to_std_or_zero(period.as_ref()) {
            Duration::ZERO => HEARTBEAT_PERIOD,
            period => period.max(HEARTBEAT_PERIOD_MIN),
        };
        tokio::time::sleep(period).await;
    }
}

/// Reads assignments and has the worker apply them. A gap is healed by asking for everything again.
async fn assignments(
    context: &Context,
    mut client: DispatcherClient<Channel>,
    session_id: String,
) -> SessionEnd {
    let mut gaps = 0;
    loop {
        let request = AssignmentsRequest {
            session_id: session_id.clone(),
        };
        let mut stream = match client.assignments(request).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return failed("cannot ask for assignments", &status),
        };
        let mut sequence = Sequence::default();
        loop {
            let message = match stream.message().await {
                Ok(Some(message)) => message,
                Ok(None) => {
                    return SessionEnd::Failed("the manager ended the assignments".to_owned());
                }
                Err(status) => return failed("assignments ended", &status),
            };
            let kind = match sequence.check(&message) {
                Verdict::Complete => ListKind::Complete,
                Verdict::Incremental => ListKind::Incremental,
                Verdict::Gap => {
                    tracing::warn!(
                        applies_to = message.applies_to,
                        results_in = message.results_in,
                        "a list of assignments does not follow the one before; asking for all of them"
                    );
                    break;
                }
            };
            if let Err(error) = context.worker.assign(kind, message.changes).await {
                return SessionEnd::Failed(error.to_string());
            }
            gaps = 0;
        }
        gaps += 1;
        if gaps > GAPS_MAX {
            return SessionEnd::Failed("the lists of assignments never fit together".to_owned());
        }
        tokio::time::sleep(GAP_PAUSE * 2u32.pow(gaps)).await;
    }
}

/// Keeps this node known as one that can be asked for logs. A manager without a log broker is fine.
async fn log_subscriptions(channel: Channel) -> SessionEnd {
    let mut client = LogBrokerClient::new(channel);
    let mut subscriptions = match client
        .listen_subscriptions(ListenSubscriptionsRequest {})
        .await
    {
        Ok(stream) => stream.into_inner(),
        Err(status) if status.code() == Code::Unimplemented => return std::future::pending().await,
        Err(status) => return failed("cannot listen for log requests", &status),
    };
    loop {
        match subscriptions.message().await {
            Ok(Some(subscription)) => tracing::debug!(
                subscription = subscription.id,
                "logs are asked for; this node does not publish any yet"
            ),
            Ok(None) => {
                return SessionEnd::Failed("the manager ended the log requests".to_owned());
            }
            Err(status) if status.code() == Code::Unimplemented => {
                return std::future::pending().await;
            }
            Err(status) => return failed("log requests ended", &status),
        }
    }
}

/// Ends the session when the node no longer is what it registered as.
async fn description_changes(context: &Context, registered: &NodeDescription) -> SessionEnd {
    let mut tls_info = context.tls_info.clone();
    tls_info.mark_unchanged();
    loop {
        tokio::select! {
            () = tokio::time::sleep(DESCRIPTION_PERIOD) => {}
            Ok(()) = tls_info.changed() => {}
        }
        match context.describe().await {
            Ok(now) if now != *registered => return SessionEnd::NewDescription,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot describe this node; its last description stands")
            }
        }
    }
}
