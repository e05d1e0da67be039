//! How a node gets a session: registering, and taking up an existing session again.
//!
//! A registration counts once the node is written as ready, so nobody is told of a session that a
//! crash could undo. Once it has begun it is carried through even if the caller goes away, because
//! a node that is written as ready must also have a deadline that takes it down again.

use std::net::SocketAddr;
use std::sync::Arc;

use prost::Message as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::active::ActiveTerm;
use super::counters::add;
use super::live_session::LiveSession;
use super::refusal::Refusal;
use super::registry::RateLimit;
use super::settings::DESCRIPTION_BYTES_MAX;
use super::writes::NodeUpdate;
use crate::api::types::node_status::State as NodeState;
use crate::api::types::{Node, NodeDescription, WeightedPeer};
use crate::identity::Caller;

/// A node that asks for a session.
pub struct Arrival {
    node_id: String,
    /// The session the node believes to have; empty for none.
    session_id: String,
    description: Option<NodeDescription>,
    /// Host part of the address the node calls from, if that is known.
    host: Option<String>,
    /// The whole address, for the node's history.
    peer: Option<String>,
}

impl Arrival {
    /// Checks a request for a session. `managers` supplies the address of a manager's own node,
    /// which calls through the control socket and so comes from nowhere.
    pub fn new(
        caller: &Caller,
        session_id: String,
        description: Option<NodeDescription>,
        managers: &[WeightedPeer],
    ) -> Result<Arrival, Refusal> {
        let bytes = description
            .as_ref()
            .map_or(0, |description| description.encoded_len());
        if bytes > DESCRIPTION_BYTES_MAX {
            return Err(Refusal::TooLarge {
                what: format!("description of node {}", caller.node_id),
                bytes,
                bytes_max: DESCRIPTION_BYTES_MAX,
            });
        }
        let host = match caller.remote_addr {
            Some(addr) => Some(addr.ip().to_canonical().to_string()),
            None => own_host(&caller.node_id, managers),
        };
        Ok(Arrival {
            node_id: caller.node_id.clone(),
            session_id,
            description,
            peer: caller
                .remote_addr
                .as_ref()
                .map(SocketAddr::to_string)
                .or(host.clone()),
            host,
        })
    }
}

/// The host under which a manager is known to the others.
fn own_host(node_id: &str, managers: &[WeightedPeer]) -> Option<String> {
    let mut peers = managers.iter().filter_map(|manager| manager.peer.as_ref());
    let own = peers.find(|peer| peer.node_id == node_id)?;
    let (host, _port) = own.addr.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then(|| host.to_owned())
}

impl ActiveTerm {
    /// Gives the node a session, or the one it has if it names it.
    pub async fn open_session(
        self: &Arc<ActiveTerm>,
        arrival: Arrival,
    ) -> Result<Arc<LiveSession>, Refusal> {
        let node_id = arrival.node_id.clone();
        let active = Arc::clone(self);
        let admitted = async move {
            let places = Arc::clone(&active.registrations);
            let place = places.acquire_owned().await.map_err(|_| Refusal::Stopped)?;
            let registering = active.tracker.clone();
            let work = registering.spawn(active.register(arrival, place));
            work.await.map_err(|_| Refusal::Stopped)?
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Refusal::Stopped),
            result = admitted => result,
            () = tokio::time::sleep(self.settings.write_wait_max) => {
                Err(Refusal::Busy(format!("registration of node {node_id}")))
            }
        }
    }

    async fn register(
        self: Arc<ActiveTerm>,
        arrival: Arrival,
        _place: OwnedSemaphorePermit,
    ) -> Result<Arc<LiveSession>, Refusal> {
        let node_id = arrival.node_id.as_str();
        if self.store.view(|tx| tx.get::<Node>(node_id))?.is_none() {
            return Err(Refusal::NodeNotFound);
        }
        let resumes = self.admit(&arrival)?;
        let update = NodeUpdate {
            state: NodeState::Ready,
            addr: arrival.host.clone(),
            description: arrival.description.clone(),
            ..Default::default()
        };
        let written = self.writer.update_node_and_tell(Arc::from(node_id), update);
        let written = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(Refusal::Stopped),
            written = written => written.map_err(|_| Refusal::Stopped)?,
        };
        if let Err(refusal) = written {
            if matches!(refusal, Refusal::NodeNotFound) {
                self.registry.lock().remove(node_id);
            }
            return Err(refusal);
        }
        let session = self.install(&arrival, resumes)?;
        add(&self.counters.registrations, 1);
        Ok(session)
    }

    /// Lets a node in, which keeps it from expiring until its registration is through. Says whether
    /// it takes up its current session again; that is not counted as a registration.
    fn admit(&self, arrival: &Arrival) -> Result<bool, Refusal> {
        let deadline = self.expiry(self.choose_period());
        let limit = RateLimit {
            count: self.settings.rate_limit_count,
            period: self.settings.rate_limit_period,
        };
        let node_id = arrival.node_id.as_str();
        self.with_registry(|registry| {
            if registry
                .beat(node_id, &arrival.session_id, deadline)
                .is_ok()
            {
                return Ok(true);
            }
            let admitted = registry.admit(node_id, Instant::now(), limit, deadline);
            if admitted.is_err() {
                add(&self.counters.registrations_refused, 1);
            }
            admitted.map(|()| false)
        })
    }

    /// Starts the session of a node that is written as ready.
    fn install(&self, arrival: &Arrival, resumes: bool) -> Result<Arc<LiveSession>, Refusal> {
        let deadline = self.expiry(self.choose_period());
        let node_id = arrival.node_id.as_str();
        let (session, was_down) = self.with_registry(|registry| {
            // After the end of the term there is no registry to enter.
            if self.cancel.is_cancelled() {
                return Err(Refusal::Stopped);
            }
            if resumes {
                match registry.session(node_id, &arrival.session_id) {
                    Ok(session) => return Ok((session, false)),
                    Err(Refusal::NotRegistered) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            Ok(registry.register(node_id, arrival.peer.clone(), deadline))
        })?;
        if was_down {
            // It expired while its registration was being written.
            let update = NodeUpdate {
                state: NodeState::Ready,
                ..Default::default()
            };
            self.writer
                .update_node(Arc::clone(&session.node_id), update);
        }
        Ok(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::Peer;

    fn manager(node_id: &str, addr: &str) -> WeightedPeer {
        WeightedPeer {
            peer: Some(Peer {
                node_id: node_id.to_owned(),
                addr: addr.to_owned(),
            }),
            weight: 10,
        }
    }

    fn caller(remote_addr: Option<&str>) -> Caller {
        Caller {
            node_id: "n1".to_owned(),
            organization: "c1".to_owned(),
            role: None,
            remote_addr: remote_addr.map(|addr| addr.parse().unwrap()),
            forwarded_by: None,
            local: remote_addr.is_none(),
        }
    }

    fn host(remote_addr: Option<&str>, managers: &[WeightedPeer]) -> Option<String> {
        Arrival::new(&caller(remote_addr), String::new(), None, managers)
            .unwrap()
            .host
    }

    #[test]
    fn the_address_of_a_node_is_where_it_calls_from() {
        let managers = [
            manager("n0", "10.0.0.9:2377"),
            manager("n1", "10.0.0.1:2377"),
        ];
        assert_eq!(host(Some("10.0.0.7:40000"), &managers).unwrap(), "10.0.0.7");
        assert_eq!(host(Some("[fd00::7]:40000"), &managers).unwrap(), "fd00::7");
        assert_eq!(
            host(Some("[::ffff:10.0.0.7]:1"), &managers).unwrap(),
            "10.0.0.7"
        );
        assert_eq!(host(None, &managers).unwrap(), "10.0.0.1");
        assert_eq!(
            host(None, &[manager("n1", "[fd00::1]:2377")]).unwrap(),
            "fd00::1"
        );
        assert_eq!(host(None, &[]), None);
    }

    #[test]
    fn an_oversized_description_is_refused() {
        let description = NodeDescription {
            hostname: "x".repeat(DESCRIPTION_BYTES_MAX),
            ..Default::default()
        };
        let refused = Arrival::new(&caller(None), String::new(), Some(description), &[]);
        assert!(matches!(refused, Err(Refusal::TooLarge { .. })));
    }
}
