//! The Control API: what people and tools ask of a cluster (spec 05).
//!
//! One file per kind of object. Each call goes through the same layers: pure checks of the request;
//! one transaction or one view, in which existence, uniqueness and state rules are checked; shaping of
//! the response (secrets are taken out, what the raft group knows is put in). Bad input changes
//! nothing and gets an error that names the field; the codes are chosen in [`error`].
//!
//! Reads answered by the leader are current, those of a follower may be old; the response metadata
//! [`METADATA_APPLIED_INDEX`] and [`METADATA_READ`] say which. Writes succeed on the leader only.
//! A write that has begun runs to its end even if the caller goes away.
//!
//! This room never decides who may call: the authorization layer has done that before.

mod cluster;
mod cluster_check;
mod config;
mod container_check;
pub mod error;
mod filter;
mod ingress;
mod members;
mod node;
mod orphans;
mod other;
mod ports;
mod rpc;
mod secret;
mod service;
mod service_check;
mod service_status;
mod service_update;
mod task;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::Response;
use tonic::metadata::MetadataValue;

use crate::api::types::Version;
use crate::api::types::control_server::ControlServer;
use crate::storage::{ReadTx, Store, StoreObject, Tx};

pub use error::{Answer, ControlError};
pub use members::{Member, MembershipView, ReadFrom, Shortage, check_removal};
pub use orphans::OrphanSweep;

/// Response metadata of reads: index of the log entry that the answer shows.
pub const METADATA_APPLIED_INDEX: &str = "swarm-applied-index";
/// Response metadata of reads: `leader` or `local`, see [`ReadFrom`].
pub const METADATA_READ: &str = "swarm-read";

/// Limits of the Control API.
#[derive(Debug, Clone, Copy)]
pub struct ControlOptions {
    /// Largest response of a List call, encoded. Larger ones are refused with a hint to filter: a
    /// response is built in memory as a whole.
    pub list_bytes_max: usize,
    /// List calls that run at the same time; others wait for their turn.
    pub lists_max: usize,
}

impl Default for ControlOptions {
    /// 256 MiB are some 200,000 tasks of usual size.
    fn default() -> Self {
        ControlOptions {
            list_bytes_max: 256 * 1_048_576,
            lists_max: 4,
        }
    }
}

/// The Control service of one manager. Cheap to clone.
#[derive(Clone)]
pub struct ControlService {
    store: Store,
    members: Arc<dyn MembershipView>,
    options: ControlOptions,
    lists: Arc<Semaphore>,
    ports: ports::PortIndex,
}

impl ControlService {
    pub fn new(
        store: Store,
        members: Arc<dyn MembershipView>,
        options: ControlOptions,
    ) -> ControlService {
        ControlService {
            lists: Arc::new(Semaphore::new(options.lists_max)),
            ports: ports::PortIndex::new(store.clone()),
            store,
            members,
            options,
        }
    }

    /// The gRPC service. Responses may be as large as they are; requests have tonic's limit, 4 MiB.
    pub fn into_server(self) -> ControlServer<ControlService> {
        ControlServer::new(self).max_encoding_message_size(usize::MAX)
    }

    /// Answers from one view. For a few look-ups; a list belongs into [`ControlService::list`].
    async fn read<R>(&self, f: impl FnOnce(&ReadTx) -> Answer<R>) -> Answer<Response<R>> {
        let from = self.members.read_authority().await?;
        let (applied, answer) = self.store.view(|tx| (tx.applied(), f(tx)));
        Ok(stamped(answer?, applied, from))
    }

    /// Answers from one view on a thread that may block, with a bound on how many do so at a time.
    async fn list<R: Send + 'static>(
        &self,
        f: impl FnOnce(&ReadTx) -> Answer<R> + Send + 'static,
    ) -> Answer<Response<R>> {
        let stopping = |_| ControlError::Internal("the list was interrupted".into());
        let permit = self.lists.clone().acquire_owned().await;
        let permit =
            permit.map_err(|_| ControlError::Internal("the manager is stopping".into()))?;
        let from = self.members.read_authority().await?;
        let store = self.store.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            store.view(|tx| (tx.applied(), f(tx)))
        });
        let (applied, answer) = task.await.map_err(stopping)?;
        Ok(stamped(answer?, applied, from))
    }

    /// A collector for the objects of one List response.
    fn collector<T>(&self) -> Collector<T> {
        Collector {
            objects: Vec::new(),
            bytes: 0,
            bytes_max: self.options.list_bytes_max,
        }
    }
}

/// Runs a write to its end, even if the caller stops waiting for it.
async fn detached<R: Send + 'static>(
    write: impl Future<Output = Answer<R>> + Send + 'static,
) -> Answer<R> {
    let task = tokio::spawn(write);
    let interrupted =
        |_| ControlError::Internal("the write was interrupted; its outcome is unknown".into());
    task.await.map_err(interrupted)?
}

fn stamped<R>(answer: R, applied: u64, from: ReadFrom) -> Response<R> {
    let mut response = Response::new(answer);
    let metadata = response.metadata_mut();
    metadata.insert(METADATA_APPLIED_INDEX, applied.into());
    metadata.insert(METADATA_READ, MetadataValue::from_static(from.as_str()));
    response
}

/// Collects the objects of a List response and stops when it gets too large.
struct Collector<T> {
    objects: Vec<T>,
    bytes: usize,
    bytes_max: usize,
}

impl<T: prost::Message> Collector<T> {
    fn push(&mut self, object: T) -> Answer<()> {
        self.bytes += object.encoded_len();
        if self.bytes > self.bytes_max {
            return Err(ControlError::ResourceExhausted(format!(
                "the list is larger than {} bytes; use a filter to ask for fewer objects",
                self.bytes_max
            )));
        }
        self.objects.push(object);
        Ok(())
    }
}

/// A request field that must not be empty.
fn required(id: &str) -> Answer<&str> {
    if id.is_empty() {
        return Err(ControlError::Incomplete);
    }
    Ok(id)
}

/// A request part that must be present.
fn present<T>(part: Option<T>) -> Answer<T> {
    part.ok_or(ControlError::Incomplete)
}

/// The object with this ID, or an error that names it.
fn fetch<T: StoreObject>(tx: &ReadTx, kind: &'static str, id: &str) -> Answer<T> {
    let object = tx.get::<T>(id)?;
    let object = object.ok_or_else(|| ControlError::not_found(kind, id))?;
    Ok(Arc::unwrap_or_clone(object))
}

/// The object with this ID for a write, or an error that names it.
fn fetch_mut<T: StoreObject>(tx: &Tx, kind: &'static str, id: &str) -> Answer<T> {
    let object = tx.get::<T>(id)?;
    let object = object.ok_or_else(|| ControlError::not_found(kind, id))?;
    Ok(Arc::unwrap_or_clone(object))
}

/// Puts the version that the caller last saw into an object, for the store to compare.
fn set_version<T: StoreObject>(object: &mut T, version: Version) {
    object.meta_mut().get_or_insert_default().version = Some(version);
}

/// Checks that a number is one of the enum's values; `field` names it in the message.
fn known_enum<E: TryFrom<i32>>(field: &str, number: i32) -> Answer<E> {
    E::try_from(number)
        .map_err(|_| ControlError::InvalidArgument(format!("{field}: unknown value {number}")))
}

#[cfg(test)]
mod tests;
