//! The ten kinds of stored objects and what the store needs to know of each.

use super::tables::Schema;
use crate::api::types::{
    Cluster, Config, Extension, Meta, Network, Node, Resource, Secret, Service, Task, Volume,
};
use std::sync::Arc;

/// A table, numbered in the peer's registration order (spec 04 section 3.1). The number is also the
/// first byte of every row and index key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    Cluster = 1,
    Config = 2,
    Extension = 3,
    Network = 4,
    Node = 5,
    Resource = 6,
    Secret = 7,
    Service = 8,
    Task = 9,
    Volume = 10,
}

impl Table {
    /// All tables in registration order.
    pub const ALL: [Table; 10] = [
        Table::Cluster,
        Table::Config,
        Table::Extension,
        Table::Network,
        Table::Node,
        Table::Resource,
        Table::Secret,
        Table::Service,
        Table::Task,
        Table::Volume,
    ];

    /// The table's name, as used by the Watch API and the tools.
    pub fn name(self) -> &'static str {
        match self {
            Table::Cluster => "cluster",
            Table::Config => "config",
            Table::Extension => "extension",
            Table::Network => "network",
            Table::Node => "node",
            Table::Resource => "resource",
            Table::Secret => "secret",
            Table::Service => "service",
            Table::Task => "task",
            Table::Volume => "volume",
        }
    }

    /// The table of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|table| table.name() == name)
    }
}

/// What a change does to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Create,
    Update,
    Remove,
}

/// An object that the store can hold. What its table indexes is said by its [`Schema`].
pub trait StoreObject:
    Schema + prost::Message + Default + Clone + PartialEq + Send + Sync + 'static
{
    const TABLE: Table;

    fn id(&self) -> &str;
    fn meta(&self) -> Option<&Meta>;
    fn meta_mut(&mut self) -> &mut Option<Meta>;
    fn into_any(object: Arc<Self>) -> AnyObject;
    fn from_any(any: &AnyObject) -> Option<&Arc<Self>>;

    /// The optimistic-concurrency stamp, 0 when the object was never stored.
    fn version(&self) -> u64 {
        self.meta()
            .and_then(|meta| meta.version.as_ref())
            .map_or(0, |version| version.index)
    }
}

macro_rules! store_objects {
    ($($kind:ident),+) => {
        /// A shared, immutable object of any kind.
        #[derive(Debug, Clone, PartialEq)]
        pub enum AnyObject { $($kind(Arc<$kind>)),+ }

        impl AnyObject {
            pub fn table(&self) -> Table {
                match self { $(AnyObject::$kind(_) => Table::$kind),+ }
            }
            pub fn id(&self) -> &str {
                match self { $(AnyObject::$kind(object) => &object.id),+ }
            }
            pub fn meta(&self) -> Option<&Meta> {
                match self { $(AnyObject::$kind(object) => object.meta.as_ref()),+ }
            }
        }

        $(impl StoreObject for $kind {
            const TABLE: Table = Table::$kind;
            fn id(&self) -> &str { &self.id }
            fn meta(&self) -> Option<&Meta> { self.meta.as_ref() }
            fn meta_mut(&mut self) -> &mut Option<Meta> { &mut self.meta }
            fn into_any(object: Arc<Self>) -> AnyObject { AnyObject::$kind(object) }
            fn from_any(any: &AnyObject) -> Option<&Arc<Self>> {
                match any { AnyObject::$kind(object) => Some(object), _ => None }
            }
        })+
    };
}

store_objects!(
    Cluster, Config, Extension, Network, Node, Resource, Secret, Service, Task, Volume
);
