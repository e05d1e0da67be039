//! The key codec: how rows and index entries are named, in memory and on disk.
//!
//! Every key starts with its table's number. A row key is `table id`; an index key is
//! `table index value id`. Both sort, byte by byte, as what they stand for: texts inside a key are
//! escaped (`00` becomes `00 FF`, the end is `00 01`), numbers are big-endian and of fixed width. So a
//! scan of the rows of a table, of an ID prefix, of one value of an index or of a prefix of a value is
//! a scan of one range, and its order is the order the selectors promise.
//!
//! An index key has two forms. The *plain* form is used in memory: by the overlays of transactions and
//! by the ordered map that serves prefix look-ups. The *disk* form ([`IndexKey::disk`]) replaces what a
//! person wrote by a keyed hash, so that no name, custom value or kind can be read in the files; it
//! serves exact look-ups only. IDs and numbers are equal in both.
//!
//! ```text
//! row                T id
//! unique value       T I hash16(value)                 -> id        (plain: T I esc(value))
//! text, custom       T I hash16(value) id                           (plain: T I esc(value) id)
//! number             T I u32be id
//! reference          T I (01 id25 | 02 hash16) id                   (plain: T I esc(reference) id)
//! service and slot   T I esc(service id) u64be(slot) id
//! ```

use super::object::Table;
use super::seal::{INDEX_HASH_BYTES, IndexHasher};
use crate::api::ids::is_valid_id;
use std::ops::Bound;
use std::sync::Arc;

/// Any encoded key. Shared, because overlays of transactions copy their trees.
pub type Key = Arc<[u8]>;

/// An object's ID.
pub type Id = Arc<str>;

/// Bytes in front of the value in an index key: table and index number.
pub const INDEX_HEAD_BYTES: usize = 2;

const ESCAPE: u8 = 0x00;
const ESCAPED_ZERO: u8 = 0xff;
const END: u8 = 0x01;
/// In front of a reference that is an ID of ours and stays readable.
const REFERENCE_CLEAR: u8 = 1;
/// In front of the hash of any other reference.
const REFERENCE_HASHED: u8 = 2;

/// The indexes; the number is the second byte of an index key and never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Index {
    Name = 1,
    Custom = 2,
    Role = 3,
    Membership = 4,
    Kind = 5,
    Runtime = 6,
    Network = 7,
    Secret = 8,
    Config = 9,
    /// Service and slot together; a prefix of it is the service alone.
    ServiceSlot = 10,
    Node = 11,
    DesiredState = 12,
    TaskState = 13,
    Volume = 14,
    VolumeGroup = 15,
    Driver = 16,
}

/// What an index holds, which decides how its keys look on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Written by a person.
    Hashed,
    /// Usually an ID of ours, but a person may have put a name there.
    Reference,
    /// IDs and numbers only.
    Clear,
}

impl Index {
    pub const ALL: [Index; 16] = [
        Index::Name,
        Index::Custom,
        Index::Role,
        Index::Membership,
        Index::Kind,
        Index::Runtime,
        Index::Network,
        Index::Secret,
        Index::Config,
        Index::ServiceSlot,
        Index::Node,
        Index::DesiredState,
        Index::TaskState,
        Index::Volume,
        Index::VolumeGroup,
        Index::Driver,
    ];

    pub fn form(self) -> Form {
        match self {
            Index::Name
            | Index::Custom
            | Index::Kind
            | Index::Runtime
            | Index::VolumeGroup
            | Index::Driver => Form::Hashed,
            Index::Network | Index::Secret | Index::Config | Index::Volume => Form::Reference,
            Index::Role
            | Index::Membership
            | Index::ServiceSlot
            | Index::Node
            | Index::DesiredState
            | Index::TaskState => Form::Clear,
        }
    }

    /// The name of the index, for tools and reports.
    pub fn name(self) -> &'static str {
        match self {
            Index::Name => "name",
            Index::Custom => "custom",
            Index::Role => "role",
            Index::Membership => "membership",
            Index::Kind => "kind",
            Index::Runtime => "runtime",
            Index::Network => "network",
            Index::Secret => "secret",
            Index::Config => "config",
            Index::ServiceSlot => "slot",
            Index::Node => "nodeid",
            Index::DesiredState => "desiredstate",
            Index::TaskState => "taskstate",
            Index::Volume => "volumeattachment",
            Index::VolumeGroup => "volumegroup",
            Index::Driver => "driver",
        }
    }
}

/// The key of an object's row.
pub fn row(table: Table, id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + id.len());
    key.push(table as u8);
    key.extend_from_slice(id.as_bytes());
    key
}

/// One entry of an index: its plain key, and where the value ends and the ID begins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexKey {
    /// `T I value`, followed by the ID unless the index is unique.
    pub plain: Key,
    /// Length of `T I value`.
    pub value_end: u32,
}

impl IndexKey {
    /// The index this entry belongs to; `None` if the number is unknown.
    pub fn index(&self) -> Option<Index> {
        let number = self.plain.get(1)?;
        Index::ALL.into_iter().find(|i| *i as u8 == *number)
    }

    /// Whether the value belongs to one object, so that the ID is not part of the key.
    pub fn is_unique(&self) -> bool {
        self.plain.len() == self.value_end as usize
    }

    /// The same entry as it is named on disk.
    pub fn disk(&self, hasher: &IndexHasher) -> Vec<u8> {
        let (value, id) = self.plain.split_at(self.value_end as usize);
        let mut key = disk_prefix(value, hasher);
        key.extend_from_slice(id);
        key
    }
}

/// The disk form of `T I value`.
pub fn disk_prefix(plain_value: &[u8], hasher: &IndexHasher) -> Vec<u8> {
    let (head, value) = plain_value.split_at(INDEX_HEAD_BYTES.min(plain_value.len()));
    let form = head
        .get(1)
        .and_then(|number| Index::ALL.into_iter().find(|i| *i as u8 == *number))
        .map_or(Form::Hashed, Index::form);
    let mut key = Vec::with_capacity(head.len() + 1 + INDEX_HASH_BYTES + 32);
    key.extend_from_slice(head);
    match form {
        Form::Clear => key.extend_from_slice(value),
        Form::Hashed => key.extend_from_slice(&hasher.hash(head, value)),
        Form::Reference => match unescape(value).filter(|id| is_valid_id(id)) {
            Some(id) => {
                key.push(REFERENCE_CLEAR);
                key.extend_from_slice(id.as_bytes());
            }
            None => {
                key.push(REFERENCE_HASHED);
                key.extend_from_slice(&hasher.hash(head, value));
            }
        },
    }
    key
}

/// Builds the value part of index keys.
pub struct ValueBuilder(Vec<u8>);

impl ValueBuilder {
    pub fn new(table: Table, index: Index) -> ValueBuilder {
        let mut bytes = Vec::with_capacity(64);
        bytes.push(table as u8);
        bytes.push(index as u8);
        ValueBuilder(bytes)
    }

    /// A whole text.
    pub fn text(mut self, text: &str) -> ValueBuilder {
        escape(text.as_bytes(), &mut self.0);
        self.0.extend_from_slice(&[ESCAPE, END]);
        self
    }

    /// The beginning of a text; ends the key.
    pub fn text_prefix(mut self, text: &str) -> Vec<u8> {
        escape(text.as_bytes(), &mut self.0);
        self.0
    }

    pub fn number(mut self, number: i32) -> ValueBuilder {
        // Enum numbers are not negative; if one is, it sorts behind the others.
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub fn slot(mut self, slot: u64) -> ValueBuilder {
        self.0.extend_from_slice(&slot.to_be_bytes());
        self
    }

    /// `T I value` without an ID: the whole key in a unique index, a prefix in the others.
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }

    /// The entry of a unique index.
    pub fn unique(self) -> IndexKey {
        IndexKey {
            value_end: self.0.len() as u32,
            plain: self.0.into(),
        }
    }

    /// The entry of one object in any other index.
    pub fn with_id(mut self, id: &str) -> IndexKey {
        let value_end = self.0.len() as u32;
        self.0.extend_from_slice(id.as_bytes());
        IndexKey {
            plain: self.0.into(),
            value_end,
        }
    }
}

fn escape(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        out.push(byte);
        if byte == ESCAPE {
            out.push(ESCAPED_ZERO);
        }
    }
}

/// The text of an escaped and ended value, or `None` if it is not one.
pub fn unescape(value: &[u8]) -> Option<String> {
    let (text, rest) = take_text(value)?;
    rest.is_empty().then_some(text)
}

/// Splits an escaped text off the front of `bytes`.
pub fn take_text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    loop {
        match (*bytes.get(at)?, bytes.get(at + 1)) {
            (ESCAPE, Some(&END)) => {
                return Some((String::from_utf8(text).ok()?, &bytes[at + 2..]));
            }
            (ESCAPE, Some(&ESCAPED_ZERO)) => {
                text.push(ESCAPE);
                at += 2;
            }
            (ESCAPE, _) => return None,
            (byte, _) => {
                text.push(byte);
                at += 1;
            }
        }
    }
}

/// The range of all keys that begin with `prefix`.
pub fn prefix_range(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let end = match prefix_end(prefix) {
        Some(end) => Bound::Excluded(end),
        None => Bound::Unbounded,
    };
    (Bound::Included(prefix.to_vec()), end)
}

/// The smallest key behind all keys that begin with `prefix`, if there is one.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hasher() -> IndexHasher {
        IndexHasher::new(&[7; IndexHasher::KEY_BYTES])
    }

    fn name(text: &str, id: &str) -> IndexKey {
        ValueBuilder::new(Table::Node, Index::Name)
            .text(text)
            .with_id(id)
    }

    #[test]
    fn what_a_person_wrote_is_not_in_the_disk_form() {
        let key = name("secret-host", "id1");
        let disk = key.disk(&hasher());
        assert_eq!(disk.len(), 2 + 16 + 3);
        assert!(disk.ends_with(b"id1"));
        assert!(!disk.windows(6).any(|w| w == b"secret"));

        let id = "0123456789abcdefghijklmno";
        let reference = |target: &str| {
            ValueBuilder::new(Table::Service, Index::Network)
                .text(target)
                .with_id("s")
                .disk(&hasher())
        };
        assert!(reference(id).windows(25).any(|w| w == id.as_bytes()));
        assert_eq!(reference("my-network").len(), 2 + 1 + 16 + 1);
    }

    #[test]
    fn equal_values_of_different_tables_hash_differently() {
        let of = |table| {
            ValueBuilder::new(table, Index::Name)
                .text("a")
                .unique()
                .disk(&hasher())
        };
        assert_ne!(of(Table::Secret)[2..], of(Table::Config)[2..]);
    }

    #[test]
    fn prefix_ends() {
        assert_eq!(prefix_end(&[1, 2]), Some(vec![1, 3]));
        assert_eq!(prefix_end(&[1, 0xff]), Some(vec![2]));
        assert_eq!(prefix_end(&[0xff]), None);
        assert_eq!(prefix_end(&[]), None);
    }

    proptest! {
        /// Keys sort as (text, id), also with zero bytes, and come back.
        #[test]
        fn order_and_round_trip(
            a in "[\\x00\\x01a-cé\u{10ffff}]{0,6}", b in "[\\x00\\x01a-cé\u{10ffff}]{0,6}",
            x in "[a-c]{0,3}", y in "[a-c]{0,3}",
        ) {
            let (first, second) = (name(&a, &x), name(&b, &y));
            prop_assert_eq!(
                first.plain.cmp(&second.plain),
                (a.as_bytes(), x.as_bytes()).cmp(&(b.as_bytes(), y.as_bytes()))
            );
            let (text, id) = take_text(&first.plain[INDEX_HEAD_BYTES..]).unwrap();
            prop_assert_eq!(text, a.clone());
            prop_assert_eq!(id, x.as_bytes());
            let value = &first.plain[..first.value_end as usize];
            prop_assert_eq!(value == &second.plain[..second.value_end as usize], a == b);
        }

        #[test]
        fn a_prefix_of_a_text_is_a_prefix_of_its_key(text in "[\\x00a-c]{0,6}", cut in 0usize..7) {
            let cut = cut.min(text.len());
            let prefix = ValueBuilder::new(Table::Node, Index::Name).text_prefix(&text[..cut]);
            prop_assert!(name(&text, "id").plain.starts_with(&prefix));
        }
    }
}
