//! The stream of a session: tells a node who it is, who the managers are, and under which keys.
//!
//! Every message is complete, so an agent may take the latest one and forget the others. The list
//! of managers is never empty and never holds an entry without a usable address: agents forget
//! every manager that is not in the latest message.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::sync::watch;

use super::active::{ActiveTerm, ClusterFacts};
use super::feed::{Feed, Outbox, feed};
use super::live_session::{End, OpenStream};
use super::refusal::Refusal;
use crate::api::types::{Node, SessionMessage, WeightedPeer};
use crate::storage::{Action, EventBatch, Interest, RecvError, Store, Subscription, Table};

/// Starts the stream of a session. Its first message is complete and current.
pub async fn start(
    active: &Arc<ActiveTerm>,
    session: OpenStream,
) -> Result<Feed<SessionMessage>, Refusal> {
    let mut managers = active.managers.clone();
    tokio::select! {
        biased;
        end = session.ended() => return Err(end.refusal()),
        known = managers.wait_for(|managers| !reachable(managers).is_empty()) => {
            known.map_err(|_| Refusal::NoManagers)?;
        }
        () = tokio::time::sleep(active.settings.write_wait_max) => return Err(Refusal::NoManagers),
    }
    let (node, events) = node_and_watch(&active.store, &session.node_id)?;
    let mut content = Content {
        store: active.store.clone(),
        facts: active.facts.subscribe(),
        managers,
        events,
        message: SessionMessage {
            session_id: session.id.clone(),
            node: Some(Node::clone(&node)),
            ..Default::default()
        },
    };
    content.take_facts();
    content.take_managers();
    let (outbox, feed) = feed();
    active.tracker.spawn(run(session, content, outbox));
    Ok(feed)
}

async fn run(session: OpenStream, mut content: Content, outbox: Outbox<SessionMessage>) {
    let refusal = tokio::select! {
        biased;
        () = outbox.closed() => return,
        end = session.ended() => match end {
            End::Stopped => Refusal::MustDisconnect,
            End::Replaced | End::Expired | End::Removed => end.refusal(),
        },
        refusal = content.follow(&outbox) => refusal,
    };
    if matches!(refusal, Refusal::MustDisconnect) {
        content.take_facts();
        content.take_managers();
        outbox.end_with(content.message, refusal);
    } else {
        outbox.end(refusal);
    }
}

/// What the messages are made of.
struct Content {
    store: Store,
    facts: watch::Receiver<ClusterFacts>,
    managers: watch::Receiver<Vec<WeightedPeer>>,
    /// Changes of the node.
    events: Subscription,
    message: SessionMessage,
}

impl Content {
    /// Sends the message, and again whenever it has changed. Ends when it cannot go on.
    async fn follow(&mut self, outbox: &Outbox<SessionMessage>) -> Refusal {
        loop {
            if !outbox.send(self.message.clone()).await {
                return Refusal::Stopped;
            }
            let mut changed = false;
            while !changed {
                changed = match self.next_change().await {
                    Ok(changed) => changed,
                    Err(refusal) => return refusal,
                };
            }
        }
    }

    /// Waits until something happens that the message may depend on, and says whether it does.
    async fn next_change(&mut self) -> Result<bool, Refusal> {
        tokio::select! {
            // Neither sender outlives its use; the branch of a lost one is left out.
            Ok(()) = self.facts.changed() => Ok(self.take_facts()),
            Ok(()) = self.managers.changed() => Ok(self.take_managers()),
            batch = self.events.recv() => self.take_node(batch),
        }
    }

    fn take_facts(&mut self) -> bool {
        let facts = self.facts.borrow_and_update();
        let message = &mut self.message;
        if message.network_bootstrap_keys == facts.network_keys && message.root_ca == facts.root_ca
        {
            return false;
        }
        message
            .network_bootstrap_keys
            .clone_from(&facts.network_keys);
        message.root_ca.clone_from(&facts.root_ca);
        true
    }

    /// Takes the list of managers, unless that would leave the node without any.
    fn take_managers(&mut self) -> bool {
        let managers = reachable(&self.managers.borrow_and_update());
        if managers.is_empty() || managers == self.message.managers {
            return false;
        }
        self.message.managers = managers;
        true
    }

    fn take_node(&mut self, batch: Result<EventBatch, RecvError>) -> Result<bool, Refusal> {
        let node = match batch {
            Ok(batch) => {
                let mut changes = batch.changes.iter().rev();
                let latest = changes.find(|change| change.action != Action::Remove);
                latest.and_then(|change| change.get::<Node>().cloned())
            }
            Err(RecvError::Lagged(_)) => {
                let node_id = self
                    .message
                    .node
                    .as_ref()
                    .map_or("", |node| node.id.as_str());
                let (node, events) = node_and_watch(&self.store, node_id)?;
                self.events = events;
                Some(node)
            }
            Err(RecvError::Closed) => return Err(Refusal::Stopped),
        };
        // The end of a removed node's session comes from the registry.
        let Some(node) = node else {
            return Ok(false);
        };
        let changed = self.message.node.as_ref() != Some(&*node);
        self.message.node = Some(Node::clone(&node));
        Ok(changed)
    }
}

fn node_and_watch(store: &Store, node_id: &str) -> Result<(Arc<Node>, Subscription), Refusal> {
    let interests = [Interest::Object(Table::Node, node_id.to_owned())];
    let (node, events) = store.view_and_watch(&interests, |tx| tx.get::<Node>(node_id));
    Ok((node?.ok_or(Refusal::NodeNotFound)?, events))
}

/// The managers that a node could dial.
fn reachable(managers: &[WeightedPeer]) -> Vec<WeightedPeer> {
    let usable = |manager: &&WeightedPeer| {
        manager.peer.as_ref().is_some_and(|peer| {
            let unspecified = |addr: SocketAddr| IpAddr::is_unspecified(&addr.ip());
            !peer.addr.is_empty() && !peer.addr.parse().is_ok_and(unspecified)
        })
    };
    managers.iter().filter(usable).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::Peer;

    #[test]
    fn managers_that_cannot_be_dialled_are_left_out() {
        let manager = |addr: &str| WeightedPeer {
            peer: Some(Peer {
                node_id: "n1".to_owned(),
                addr: addr.to_owned(),
            }),
            weight: 10,
        };
        let good = [manager("10.0.0.1:2377"), manager("manager.example:2377")];
        let mut all = vec![manager(""), manager("0.0.0.0:2377"), manager("[::]:2377")];
        all.push(WeightedPeer {
            peer: None,
            weight: 10,
        });
        assert!(reachable(&all).is_empty());
        all.extend(good.clone());
        assert_eq!(reachable(&all), good);
    }
}
