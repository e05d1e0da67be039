//! Decoded objects, shared by all views, within a budget of bytes.
//!
//! The cache holds the newest version of an object with the index of the entry that wrote it. A view of
//! entry S may use it if that index is at most S: then nothing has changed the object since, or the
//! cache would hold the change. A view may put in what it read only if no change of that part of the
//! cache is newer than the view. The applier puts its changes in *before* it publishes the new state, so
//! no view ever finds something older than itself.
//!
//! Tasks and all other objects have half of the budget each: a scan of tasks must not push out the few
//! objects that everything else needs all the time. Large payloads (secrets, configs) are not kept.

use super::keys::Key;
use super::object::{AnyObject, Table};
use lru::LruCache;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};

/// Independent parts of each half, so that readers seldom meet.
const SHARDS: usize = 16;
/// Objects with a larger payload are read from the database each time, 64 KiB.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Estimated bytes of a decoded object beyond its payload: the structure itself, its allocations, the
/// key and the links of the list.
const OBJECT_BYTES: usize = 1024;

struct Entry {
    object: AnyObject,
    /// The entry that wrote it.
    index: u64,
    bytes: usize,
}

struct Shard {
    entries: LruCache<Key, Entry>,
    bytes: usize,
    /// The newest entry that changed an object of this shard.
    changed: u64,
}

/// See the module's comment.
pub(super) struct ObjectCache {
    hasher: RandomState,
    /// First the shards of tasks, then those of everything else.
    shards: Vec<Mutex<Shard>>,
    shard_bytes_max: usize,
}

impl ObjectCache {
    pub fn new(bytes_max: usize) -> ObjectCache {
        let shard = || {
            Mutex::new(Shard {
                entries: LruCache::unbounded(),
                bytes: 0,
                changed: 0,
            })
        };
        ObjectCache {
            hasher: RandomState::new(),
            shards: (0..2 * SHARDS).map(|_| shard()).collect(),
            shard_bytes_max: bytes_max / (2 * SHARDS),
        }
    }

    fn shard(&self, row: &[u8]) -> &Mutex<Shard> {
        let half = match row.first() {
            Some(&table) if table == Table::Task as u8 => 0,
            _ => SHARDS,
        };
        let part = self.hasher.hash_one(row) as usize % SHARDS;
        &self.shards[half + part]
    }

    /// The object as a view of entry `applied` sees it, if it is here.
    pub fn get(&self, row: &[u8], applied: u64) -> Option<AnyObject> {
        let mut shard = self.shard(row).lock();
        let entry = shard.entries.get(row)?;
        (entry.index <= applied).then(|| entry.object.clone())
    }

    /// Keeps what a view of entry `applied` read.
    pub fn keep(
        &self,
        row: &[u8],
        object: &AnyObject,
        payload_bytes: usize,
        index: u64,
        applied: u64,
    ) {
        let mut shard = self.shard(row).lock();
        if shard.changed <= applied {
            self.insert(&mut shard, Key::from(row), object, payload_bytes, index);
        }
    }

    /// Takes a change of the entry `index` in, before it is published. `None`: the object is gone.
    pub fn change(&self, row: &Key, object: Option<(&AnyObject, usize)>, index: u64) {
        let mut shard = self.shard(row).lock();
        shard.changed = index;
        match object {
            Some((object, payload_bytes)) => {
                self.insert(&mut shard, row.clone(), object, payload_bytes, index);
            }
            None => forget(&mut shard, row),
        }
    }

    fn insert(
        &self,
        shard: &mut Shard,
        row: Key,
        object: &AnyObject,
        payload_bytes: usize,
        index: u64,
    ) {
        if payload_bytes > PAYLOAD_BYTES_MAX {
            forget(shard, &row);
            return;
        }
        // Decoded text is about as long as encoded; small fields grow.
        let bytes = OBJECT_BYTES + 2 * payload_bytes;
        let entry = Entry {
            object: object.clone(),
            index,
            bytes,
        };
        shard.bytes += bytes;
        if let Some(old) = shard.entries.put(row, entry) {
            shard.bytes -= old.bytes;
        }
        while shard.bytes > self.shard_bytes_max
            && let Some((_, old)) = shard.entries.pop_lru()
        {
            shard.bytes -= old.bytes;
        }
    }

    /// Objects and estimated bytes in the cache.
    pub fn usage(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(objects, bytes), shard| {
            let shard = shard.lock();
            (objects + shard.entries.len(), bytes + shard.bytes)
        })
    }
}

fn forget(shard: &mut Shard, row: &[u8]) {
    if let Some(old) = shard.entries.pop(row) {
        shard.bytes -= old.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::Node;
    use crate::storage::keys;
    use std::sync::Arc;

    fn node(id: &str) -> (Key, AnyObject) {
        let object = AnyObject::Node(Arc::new(Node {
            id: id.into(),
            ..Default::default()
        }));
        (keys::row(Table::Node, id).into(), object)
    }

    #[test]
    fn a_view_never_finds_what_is_newer_or_outdated() {
        let cache = ObjectCache::new(1 << 20);
        let (row, object) = node("a");
        cache.change(&row, Some((&object, 10)), 5);
        assert!(cache.get(&row, 4).is_none());
        assert_eq!(cache.get(&row, 5), Some(object.clone()));

        // A view of entry 5 that reads late must not put the removed object back.
        cache.change(&row, None, 6);
        cache.keep(&row, &object, 10, 5, 5);
        assert!(cache.get(&row, 6).is_none());
        cache.keep(&row, &object, 10, 5, 6);
        assert!(cache.get(&row, 6).is_some());
    }

    #[test]
    fn stays_within_its_budget() {
        let budget = 2 * SHARDS * 4 * OBJECT_BYTES;
        let cache = ObjectCache::new(budget);
        for number in 0..1000 {
            let (row, object) = node(&number.to_string());
            cache.change(&row, Some((&object, 100)), 1);
        }
        let (objects, bytes) = cache.usage();
        assert!(
            bytes <= budget / 2 && objects <= 4 * SHARDS,
            "{objects} {bytes}"
        );
        assert!(objects > SHARDS);

        let (row, object) = node("large");
        cache.change(&row, Some((&object, PAYLOAD_BYTES_MAX + 1)), 2);
        assert!(cache.get(&row, 2).is_none());
    }
}
