//! What the store knows of each kind of object: its schema.
//!
//! [`index_keys`] is the only place that knows what an index contains. Creating, updating,
//! deleting, applying, restoring, checking and the tools all use it, so they cannot disagree.

mod cluster;
mod config;
mod extension;
mod network;
mod node;
mod resource;
mod secret;
mod service;
mod task;
mod volume;

pub use task::service_name;

use super::keys::{self, Index, KeyList};
use super::object::{AnyObject, StoreObject, Table};
use super::{By, StoreError};
use crate::api::naming::lower;
use crate::api::types::{Annotations, TaskSpec, task_spec::Runtime};
use std::borrow::Cow;

/// How many objects may carry one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// One; another one with the same lower-cased name is refused.
    Unique,
    /// Any number.
    Shared,
}

/// One kind of object: its names and indexes.
pub trait Schema {
    const NAMES: NameRule;

    /// The name people know the object by, as they wrote it; `None` if it has none to be found by.
    fn name(&self) -> Option<Cow<'_, str>>;

    fn annotations(&self) -> Option<&Annotations>;

    /// The kind of a resource; `None` for all other objects.
    fn kind(&self) -> Option<&str> {
        None
    }

    /// Adds the entries of all indexes but name and custom.
    fn own_keys(&self, keys: &mut KeySink) -> Result<(), StoreError>;

    /// Whether the table answers this selector, beyond those that every table answers.
    fn answers(by: &By) -> bool;
}

/// Index entries that an object usually has.
const KEYS_USUAL: usize = 12;

/// All index entries of an object.
fn index_keys<T: StoreObject>(object: &T) -> Result<KeyList, StoreError> {
    let mut sink = KeySink {
        table: T::TABLE,
        id: object.id(),
        keys: KeyList::with_room(KEYS_USUAL),
    };
    if let Some(name) = object.name() {
        let id = match T::NAMES {
            NameRule::Unique => None,
            NameRule::Shared => Some(object.id()),
        };
        sink.keys.add(T::TABLE, Index::Name, id, |value| {
            keys::put_text(value, &lower(&name));
        });
    }
    for entry in object.annotations().iter().flat_map(|a| &a.indices) {
        sink.add(Index::Custom, |value| {
            keys::put_text(value, &entry.key);
            keys::put_text(value, &entry.val);
        });
    }
    object.own_keys(&mut sink)?;
    sink.keys.sort();
    Ok(sink.keys)
}

/// Collects the index entries of one object.
pub struct KeySink<'a> {
    table: Table,
    id: &'a str,
    keys: KeyList,
}

impl KeySink<'_> {
    fn add(&mut self, index: Index, value: impl FnOnce(&mut Vec<u8>)) {
        self.keys.add(self.table, index, Some(self.id), value);
    }

    pub fn text(&mut self, index: Index, text: &str) {
        self.add(index, |value| keys::put_text(value, text));
    }

    pub fn number(&mut self, index: Index, number: i32) {
        self.add(index, |value| keys::put_number(value, number));
    }

    pub fn service_slot(&mut self, service_id: &str, slot: u64) {
        self.add(Index::ServiceSlot, |value| {
            keys::put_text(value, service_id);
            keys::put_slot(value, slot);
        });
    }

    /// Runtime, secrets and configs of a task template.
    fn template(&mut self, spec: &TaskSpec) {
        match &spec.runtime {
            Some(Runtime::Attachment(_)) => self.text(Index::Runtime, "attachment"),
            Some(Runtime::Container(container)) => {
                self.text(Index::Runtime, "container");
                for secret in &container.secrets {
                    self.text(Index::Secret, &secret.secret_id);
                }
                for config in &container.configs {
                    self.text(Index::Config, &config.config_id);
                }
            }
            Some(Runtime::Generic(generic)) => self.text(Index::Runtime, &lower(&generic.kind)),
            None => {}
        }
    }
}

/// Calls a generic expression with the concrete object inside an [`AnyObject`].
macro_rules! with_object {
    ($any:expr, $object:ident => $body:expr) => {
        match $any {
            AnyObject::Cluster($object) => $body,
            AnyObject::Config($object) => $body,
            AnyObject::Extension($object) => $body,
            AnyObject::Network($object) => $body,
            AnyObject::Node($object) => $body,
            AnyObject::Resource($object) => $body,
            AnyObject::Secret($object) => $body,
            AnyObject::Service($object) => $body,
            AnyObject::Task($object) => $body,
            AnyObject::Volume($object) => $body,
        }
    };
}

/// Calls a generic expression with the type of a table's objects.
macro_rules! with_table {
    ($table:expr, $kind:ident => $body:expr) => {{
        use crate::api::types;
        match $table {
            Table::Cluster => {
                type $kind = types::Cluster;
                $body
            }
            Table::Config => {
                type $kind = types::Config;
                $body
            }
            Table::Extension => {
                type $kind = types::Extension;
                $body
            }
            Table::Network => {
                type $kind = types::Network;
                $body
            }
            Table::Node => {
                type $kind = types::Node;
                $body
            }
            Table::Resource => {
                type $kind = types::Resource;
                $body
            }
            Table::Secret => {
                type $kind = types::Secret;
                $body
            }
            Table::Service => {
                type $kind = types::Service;
                $body
            }
            Table::Task => {
                type $kind = types::Task;
                $body
            }
            Table::Volume => {
                type $kind = types::Volume;
                $body
            }
        }
    }};
}

impl AnyObject {
    /// All index entries of this object.
    pub fn index_keys(&self) -> Result<KeyList, StoreError> {
        with_object!(self, object => index_keys(object.as_ref()))
    }

    /// The name people know it by, as they wrote it.
    pub fn name(&self) -> Option<Cow<'_, str>> {
        with_object!(self, object => object.name())
    }

    /// Its name as it is compared, if it has one.
    pub fn lower_name(&self) -> Option<String> {
        self.name().map(|name| lower(&name))
    }

    /// The kind of a resource; `None` for all other objects.
    pub fn kind(&self) -> Option<&str> {
        with_object!(self, object => object.kind())
    }

    /// Decodes an object of a table.
    pub fn decode(table: Table, bytes: &[u8]) -> Result<AnyObject, prost::DecodeError> {
        with_table!(table, Kind => {
            let object = <Kind as prost::Message>::decode(bytes)?;
            Ok(Kind::into_any(std::sync::Arc::new(object)))
        })
    }

    /// Encodes the object.
    pub fn encode(&self) -> Vec<u8> {
        with_object!(self, object => prost::Message::encode_to_vec(object.as_ref()))
    }
}

/// Whether names of this table belong to one object each.
pub fn names(table: Table) -> NameRule {
    with_table!(table, Kind => Kind::NAMES)
}

/// Refuses selectors that the table does not answer, also inside `Or`.
pub fn check_selector(table: Table, by: &By) -> Result<(), StoreError> {
    let answered = match by {
        By::All | By::IdPrefix(_) | By::Name(_) => true,
        By::Custom { .. } | By::CustomPrefix { .. } => true,
        By::NamePrefix(_) => table != Table::Extension,
        By::Or(members) => {
            return members
                .iter()
                .try_for_each(|member| check_selector(table, member));
        }
        other => with_table!(table, Kind => Kind::answers(other)),
    };
    answered.then_some(()).ok_or(StoreError::InvalidFindBy)
}
