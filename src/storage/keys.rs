//! The key codec: how rows and index entries are named, in memory and on disk.
//!
//! Every key starts with its table's number. A row key is `table id`; an index key is
//! `table index value id`. Both sort, byte by byte, as what they stand for: texts inside a key are
//! escaped (`00` becomes `00 FF`, the end is `00 01`), numbers are big-endian and of fixed width. So a
//! scan of the rows of a table, of an ID prefix, of one value of an index or of a prefix of a value is
//! a scan of one range, and its order is the order the selectors promise.
//!
//! An index key has two forms. The *plain* form is used in memory: by the overlays of transactions and
//! by the ordered map that serves prefix look-ups. The *disk* form (`disk`) replaces what a
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
use crate::api::ids::{ID_LEN, is_valid_id};
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexKey {
    /// `T I value`, followed by the ID unless the index is unique.
    pub plain: Key,
    /// Length of `T I value`.
    pub value_end: u32,
}

impl IndexKey {
    pub fn as_ref(&self) -> KeyRef<'_> {
        KeyRef {
            plain: &self.plain,
            value_end: self.value_end,
        }
    }
}

/// An [`IndexKey`] that borrows its bytes. Ordered by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRef<'a> {
    pub plain: &'a [u8],
    pub value_end: u32,
}

impl KeyRef<'_> {
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

    pub fn to_owned(&self) -> IndexKey {
        IndexKey {
            plain: self.plain.into(),
            value_end: self.value_end,
        }
    }
}

/// All index entries of one object, sorted, each once. One allocation for all of their bytes: most are
/// only compared with those of the object's last version, and found unchanged.
#[derive(Debug, Default)]
pub struct KeyList {
    bytes: Vec<u8>,
    /// Start, end of the value, end.
    spans: Vec<(u32, u32, u32)>,
}

impl KeyList {
    pub fn with_room(keys: usize) -> KeyList {
        KeyList {
            bytes: Vec::with_capacity(keys * 64),
            spans: Vec::with_capacity(keys),
        }
    }

    /// Adds an entry: `value` writes its value; `id` is left out of keys of unique indexes.
    pub fn add(
        &mut self,
        table: Table,
        index: Index,
        id: Option<&str>,
        value: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&[table as u8, index as u8]);
        value(&mut self.bytes);
        let value_end = self.bytes.len() as u32 - start;
        self.bytes
            .extend_from_slice(id.unwrap_or_default().as_bytes());
        self.spans.push((start, value_end, self.bytes.len() as u32));
    }

    /// Brings the entries in order, and drops repeated ones.
    pub fn sort(&mut self) {
        let bytes = &self.bytes;
        let plain = |(start, _, end): &(u32, u32, u32)| &bytes[*start as usize..*end as usize];
        self.spans.sort_unstable_by(|a, b| plain(a).cmp(plain(b)));
        self.spans.dedup_by(|a, b| plain(a) == plain(b));
    }

    pub fn iter(&self) -> impl Iterator<Item = KeyRef<'_>> {
        self.spans.iter().map(|&(start, value_end, end)| KeyRef {
            plain: &self.bytes[start as usize..end as usize],
            value_end,
        })
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

/// Bytes of the reference at the front of a disk key's value.
pub fn reference_bytes(value: &[u8]) -> usize {
    match value.first() {
        Some(&REFERENCE_CLEAR) => 1 + ID_LEN,
        _ => 1 + INDEX_HASH_BYTES,
    }
}

/// Builds `T I value` for look-ups.
pub struct ValueBuilder(Vec<u8>);

impl ValueBuilder {
    pub fn new(table: Table, index: Index) -> ValueBuilder {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&[table as u8, index as u8]);
        ValueBuilder(bytes)
    }

    /// A whole text.
    pub fn text(mut self, text: &str) -> ValueBuilder {
        put_text(&mut self.0, text);
        self
    }

    /// The beginning of a text; ends the key.
    pub fn text_prefix(mut self, text: &str) -> Vec<u8> {
        escape(text.as_bytes(), &mut self.0);
        self.0
    }

    pub fn number(mut self, number: i32) -> ValueBuilder {
        put_number(&mut self.0, number);
        self
    }

    pub fn slot(mut self, slot: u64) -> ValueBuilder {
        put_slot(&mut self.0, slot);
        self
    }

    /// The whole key in a unique index, a prefix in the others.
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }

    /// The plain key of one object in an index that is not unique.
    pub fn with_id(mut self, id: &str) -> Key {
        self.0.extend_from_slice(id.as_bytes());
        self.0.into()
    }
}

/// Writes a whole text as part of a value.
pub fn put_text(value: &mut Vec<u8>, text: &str) {
    escape(text.as_bytes(), value);
    value.extend_from_slice(&[ESCAPE, END]);
}

/// Writes an enum number. They are not negative; if one is, it sorts behind the others.
pub fn put_number(value: &mut Vec<u8>, number: i32) {
    value.extend_from_slice(&number.to_be_bytes());
}

pub fn put_slot(value: &mut Vec<u8>, slot: u64) {
    value.extend_from_slice(&slot.to_be_bytes());
}

fn escape(text: &[u8], out: &mut Vec<u8>) {
    for (number, part) in text.split(|byte| *byte == ESCAPE).enumerate() {
        if number > 0 {
            out.extend_from_slice(&[ESCAPE, ESCAPED_ZERO]);
        }
        out.extend_from_slice(part);
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

    fn key(table: Table, index: Index, text: &str, id: Option<&str>) -> IndexKey {
        let mut list = KeyList::default();
        list.add(table, index, id, |value| put_text(value, text));
        list.iter().next().unwrap().to_owned()
    }

    fn name(text: &str, id: &str) -> IndexKey {
        key(Table::Node, Index::Name, text, Some(id))
    }

    #[test]
    fn what_a_person_wrote_is_not_in_the_disk_form() {
        let disk = name("secret-host", "id1").as_ref().disk(&hasher());
        assert_eq!(disk.len(), 2 + 16 + 3);
        assert!(disk.ends_with(b"id1"));
        assert!(!disk.windows(6).any(|w| w == b"secret"));

        let id = "0123456789abcdefghijklmno";
        let reference = |target: &str| {
            let key = key(Table::Service, Index::Network, target, Some("s"));
            key.as_ref().disk(&hasher())
        };
        assert!(reference(id).windows(25).any(|w| w == id.as_bytes()));
        assert_eq!(reference("my-network").len(), 2 + 1 + 16 + 1);
        for target in [id, "my-network"] {
            assert_eq!(
                reference(target).len(),
                2 + reference_bytes(&reference(target)[2..]) + 1
            );
        }
    }

    #[test]
    fn equal_values_of_different_tables_hash_differently() {
        let of = |table| key(table, Index::Name, "a", None).as_ref().disk(&hasher());
        assert_ne!(of(Table::Secret)[2..], of(Table::Config)[2..]);
    }

    #[test]
    fn lists_are_sorted_and_hold_each_entry_once() {
        let mut list = KeyList::default();
        for text in ["b", "a", "b", "ab"] {
            list.add(Table::Task, Index::Node, Some("t"), |value| {
                put_text(value, text)
            });
        }
        list.sort();
        let texts: Vec<_> = list
            .iter()
            .map(|key| take_text(&key.plain[2..]).unwrap().0)
            .collect();
        assert_eq!(texts, ["a", "ab", "b"]);
        assert!(list.iter().all(|key| !key.is_unique()));
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
