//! Published ports that would clash.
//!
//! A port that a service publishes through the ingress network belongs to the whole cluster; one in
//! host mode belongs to the nodes that run the service, and only the scheduler can tell whether two of
//! those meet. So ingress clashes with both, and host with ingress only (spec 05 section 6.4).
//!
//! Looking through all services at every create would make creating many of them quadratic. The index
//! here knows who *may* have a port; each transaction looks at those few services itself. The index is
//! therefore allowed to know too much, but never too little: a service that is being written is entered
//! before its transaction begins, and what others write arrives as events before anyone is told of it.
//! Two concurrent creates with the same port thus see each other, whichever comes first.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::{Answer, ControlError};
use super::ingress::is_ingress_port;
use crate::api::types::{PortConfig, Service};
use crate::storage::{By, Change, Interest, Store, StoreError, Subscription, Table, Tx};

/// A published port: protocol, number, and whether it is an ingress port.
type Key = (i32, u32, bool);

/// Who may have which port. Cheap to clone.
#[derive(Clone)]
pub(super) struct PortIndex {
    store: Store,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Filled at the first use, and again after this reader fell behind.
    stored: Option<Stored>,
    /// Ports of services that are being written.
    pending: HashMap<Key, Vec<Arc<str>>>,
}

/// Ports of stored services.
struct Stored {
    owners: HashMap<Key, BTreeSet<Arc<str>>>,
    events: Subscription,
}

/// The ports that one service is about to publish; they count as its own while this lives.
pub(super) struct PortClaim {
    index: PortIndex,
    service_id: Arc<str>,
    ports: Vec<PortConfig>,
}

impl PortIndex {
    pub fn new(store: Store) -> PortIndex {
        PortIndex {
            store,
            state: Arc::default(),
        }
    }

    /// Enters the ports of a service that is about to be written. Reads the disk when it is called for
    /// the first time.
    pub fn claim(&self, service_id: &str, ports: &[PortConfig]) -> Answer<PortClaim> {
        let mut ports = ports.to_vec();
        ports.retain(|port| port.published_port != 0);
        let service_id: Arc<str> = service_id.into();
        let mut state = self.state.lock();
        if !ports.is_empty() {
            state.stored(&self.store)?;
        }
        for port in &ports {
            let owners = state.pending.entry(key(port)).or_default();
            owners.push(service_id.clone());
        }
        Ok(PortClaim {
            index: self.clone(),
            service_id,
            ports,
        })
    }

    /// Takes in what has happened, so that events do not pile up.
    pub fn catch_up(&self) {
        let mut state = self.state.lock();
        if state
            .stored
            .as_mut()
            .is_some_and(|stored| stored.catch_up().is_err())
        {
            state.stored = None;
        }
    }
}

impl State {
    /// The ports of stored services, up to date.
    fn stored(&mut self, store: &Store) -> Result<&Stored, StoreError> {
        if self
            .stored
            .as_mut()
            .is_some_and(|stored| stored.catch_up().is_err())
        {
            self.stored = None;
        }
        match &mut self.stored {
            Some(stored) => Ok(stored),
            empty => Ok(empty.insert(Stored::load(store)?)),
        }
    }
}

impl Stored {
    fn load(store: &Store) -> Result<Stored, StoreError> {
        let interests = [Interest::Table(Table::Service)];
        let (services, events) = store.view_and_watch(&interests, |tx| tx.find::<Service>(By::All));
        let mut stored = Stored {
            owners: HashMap::new(),
            events,
        };
        for service in services? {
            stored.enter(&service);
        }
        Ok(stored)
    }

    fn catch_up(&mut self) -> Result<(), crate::storage::RecvError> {
        while let Some(batch) = self.events.try_recv()? {
            batch.changes.iter().for_each(|change| self.take(change));
        }
        Ok(())
    }

    fn take(&mut self, change: &Change) {
        if let Some(old) = change.old::<Service>() {
            self.leave(old);
        }
        let Some(service) = change.get::<Service>() else {
            return;
        };
        if change.action == crate::storage::Action::Remove {
            self.leave(service);
        } else {
            self.enter(service);
        }
    }

    fn enter(&mut self, service: &Service) {
        let mut owner: Option<Arc<str>> = None;
        for key in published(service).map(key) {
            let owner = owner.get_or_insert_with(|| service.id.as_str().into());
            self.owners.entry(key).or_default().insert(owner.clone());
        }
    }

    fn leave(&mut self, service: &Service) {
        for key in published(service).map(key) {
            if let Some(owners) = self.owners.get_mut(&key) {
                owners.remove(service.id.as_str());
                if owners.is_empty() {
                    self.owners.remove(&key);
                }
            }
        }
    }
}

impl PortClaim {
    /// Fails if another service has one of the ports, as far as this transaction can see.
    pub fn check(&self, tx: &Tx) -> Answer<()> {
        for rival in self.rivals()? {
            let Some(rival) = tx.get::<Service>(&rival)? else {
                continue;
            };
            for port in &self.ports {
                if let Some(taken) = published(&rival).find(|other| clash(port, other)) {
                    return Err(in_use(taken, &rival));
                }
            }
        }
        Ok(())
    }

    /// Services that may have one of the ports. Whoever wrote before this transaction is among them: it
    /// has entered its ports before, and takes them out only when its event has been published.
    fn rivals(&self) -> Result<BTreeSet<Arc<str>>, StoreError> {
        let mut rivals = BTreeSet::new();
        if self.ports.is_empty() {
            return Ok(rivals);
        }
        let mut state = self.index.state.lock();
        for key in self.ports.iter().flat_map(rival_keys) {
            rivals.extend(state.pending.get(&key).into_iter().flatten().cloned());
        }
        let stored = state.stored(&self.index.store)?;
        for key in self.ports.iter().flat_map(rival_keys) {
            rivals.extend(stored.owners.get(&key).into_iter().flatten().cloned());
        }
        rivals.remove(&self.service_id);
        Ok(rivals)
    }
}

impl Drop for PortClaim {
    fn drop(&mut self) {
        let mut state = self.index.state.lock();
        for port in &self.ports {
            let key = key(port);
            if let Some(owners) = state.pending.get_mut(&key) {
                if let Some(at) = owners.iter().position(|owner| *owner == self.service_id) {
                    owners.swap_remove(at);
                }
                if owners.is_empty() {
                    state.pending.remove(&key);
                }
            }
        }
    }
}

fn key(port: &PortConfig) -> Key {
    (port.protocol, port.published_port, is_ingress_port(port))
}

/// Keys of the ports that clash with this one.
fn rival_keys(port: &PortConfig) -> impl Iterator<Item = Key> + use<> {
    let (protocol, number, is_ingress) = key(port);
    let host = is_ingress.then_some((protocol, number, false));
    [(protocol, number, true)].into_iter().chain(host)
}

fn clash(one: &PortConfig, other: &PortConfig) -> bool {
    rival_keys(one).any(|rival| rival == key(other))
}

/// The published ports of a service: those of its spec and those allocated to it.
fn published(service: &Service) -> impl Iterator<Item = &PortConfig> {
    let wanted = service
        .spec
        .iter()
        .flat_map(|spec| &spec.endpoint)
        .flat_map(|e| &e.ports);
    let allocated = service.endpoint.iter().flat_map(|endpoint| &endpoint.ports);
    wanted
        .chain(allocated)
        .filter(|port| port.published_port != 0)
}

fn in_use(port: &PortConfig, service: &Service) -> ControlError {
    let annotations = service
        .spec
        .as_ref()
        .and_then(|spec| spec.annotations.as_ref());
    ControlError::InvalidArgument(format!(
        "port '{}' is already in use by service '{}' ({}) as {} port",
        port.published_port,
        annotations.map_or("", |annotations| &annotations.name),
        service.id,
        if is_ingress_port(port) {
            "an ingress"
        } else {
            "a host-published"
        },
    ))
}
