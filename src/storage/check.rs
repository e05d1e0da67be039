//! Recounts everything that is derived from objects: indexes, digests, names, counts.
//!
//! All objects are read once and all derived entries once, and both are added up per index into a count
//! and a sum of keyed hashes. Equal sums mean equal sets, whatever their size, so the memory needed does
//! not grow with the number of tasks. Only an index whose sums differ is gone through again, to name the
//! objects concerned. A row that cannot be read is a fault of its own and does not end the check.
//!
//! The check only reads. It works on a running store's view and on a database opened read-only.

use super::StoreError;
use super::digest::{ServiceTasks, TableCounts};
use super::engine::{Family, View};
use super::keys::Index;
use super::object::{AnyObject, Table};
use super::{records, rows, summary};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

mod detail;

/// Faults that are named; more are only counted.
pub const FAULTS_NAMED_MAX: usize = 100;

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Readable objects by table, in table order.
    pub objects: TableCounts,
    /// Entries of all indexes.
    pub index_entries: u64,
    /// The first faults.
    pub faults: Vec<Fault>,
    /// Number of all faults.
    pub fault_count: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.fault_count == 0
    }

    fn add(&mut self, table: Table, id: &str, place: &str, kind: FaultKind) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_NAMED_MAX {
            self.faults.push(Fault {
                table,
                id: id.to_owned(),
                place: place.to_owned(),
                kind,
            });
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub table: Table,
    /// The object's ID; empty if the fault concerns the table as a whole.
    pub id: String,
    /// Which index or record.
    pub place: String,
    pub kind: FaultKind,
}

/// What is wrong with a row, an index entry or a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// It should be there.
    Missing,
    /// It should not be there.
    Unexpected,
    /// It says something else than the objects.
    Wrong,
    /// It cannot be read, and why.
    Unreadable(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault {
            table,
            id,
            place,
            kind,
        } = self;
        write!(f, "{} {id}: {place} ", table.name())?;
        match kind {
            FaultKind::Missing => f.write_str("is missing"),
            FaultKind::Unexpected => f.write_str("should not be there"),
            FaultKind::Wrong => f.write_str("is wrong"),
            FaultKind::Unreadable(why) => write!(f, "is unreadable: {why}"),
        }
    }
}

/// The entries of one index or record kind, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    count: u64,
    hashes: u128,
}

/// Family, table number, number of the index or record kind.
type Place = (Family, u8, u8);

fn place_of(family: Family, key: &[u8]) -> Place {
    let at = |index: usize| key.get(index).copied().unwrap_or_default();
    (family, at(0), at(1))
}

/// The unique names of resources. The peer does not compare names when it updates a resource, so two may
/// come to share one, of which any may be the recorded owner, or none.
const RESOURCE_NAMES: Place = (Family::Uniq, Table::Resource as u8, Index::Name as u8);

/// Adds up entries by place.
struct Tally<'a> {
    hashers: &'a [RandomState; 2],
    sums: HashMap<Place, Sum>,
}

impl<'a> Tally<'a> {
    fn new(hashers: &'a [RandomState; 2]) -> Tally<'a> {
        Tally {
            hashers,
            sums: HashMap::new(),
        }
    }

    fn add(&mut self, family: Family, key: &[u8], value: &[u8]) {
        let [low, high] = self
            .hashers
            .each_ref()
            .map(|hasher| u128::from(hasher.hash_one((key, value))));
        let sum = self.sums.entry(place_of(family, key)).or_default();
        sum.count += 1;
        sum.hashes = sum.hashes.wrapping_add(high << 64 | low);
    }
}

/// What is known of everything derived, from one side.
struct Side<'a> {
    tally: Tally<'a>,
    service_tasks: BTreeMap<String, ServiceTasks>,
    /// Owners by name.
    resource_names: BTreeMap<Vec<u8>, Vec<String>>,
    objects: TableCounts,
}

/// Checks one consistent state of a store.
pub fn check(view: &View) -> Result<Report, StoreError> {
    let hashers = [RandomState::new(), RandomState::new()];
    let mut report = Report::default();
    let expected = read_objects(view, &hashers, &mut report)?;
    let actual = read_entries(view, &hashers, &mut report)?;
    compare_counts(&expected, &actual, &mut report);
    compare_service_tasks(&expected, &actual, &mut report);
    compare_resource_names(&expected, &actual, &mut report);

    let places: HashSet<&Place> = expected
        .tally
        .sums
        .keys()
        .chain(actual.tally.sums.keys())
        .collect();
    for place in places {
        if expected.tally.sums.get(place) != actual.tally.sums.get(place) {
            detail::explain(view, *place, &mut report)?;
        }
    }
    report.objects = expected.objects;
    Ok(report)
}

/// Reads all objects and adds up what follows from them.
fn read_objects<'a>(
    view: &View,
    hashers: &'a [RandomState; 2],
    report: &mut Report,
) -> Result<Side<'a>, StoreError> {
    let mut side = Side::new(hashers);
    for table in Table::ALL {
        let mut stored = view.rows_with_prefix(rows::family_of(table), &[table as u8])?;
        while let Some((key, sealed)) = stored.next_row()? {
            let outcome = rows::open(view.db(), key, sealed)
                .and_then(|row| row.decode(key))
                .and_then(|object| side.take(view, key, &object));
            if let Err(error) = outcome {
                let id = String::from_utf8_lossy(&key[1..]);
                let kind = FaultKind::Unreadable(error.to_string());
                report.add(table, &id, "row", kind);
            }
        }
    }
    Ok(side)
}

/// Reads all derived entries and adds them up.
fn read_entries<'a>(
    view: &View,
    hashers: &'a [RandomState; 2],
    report: &mut Report,
) -> Result<Side<'a>, StoreError> {
    let mut side = Side::new(hashers);
    side.objects = records::table_counts(view)?;
    for family in [Family::Uniq, Family::Idx] {
        let mut entries = view.rows_with_prefix(family, &[])?;
        while let Some((key, value)) = entries.next_row()? {
            report.index_entries += u64::from(!records::is_record(key));
            if place_of(family, key) == RESOURCE_NAMES {
                let owner = String::from_utf8_lossy(value).into_owned();
                side.resource_names
                    .entry(key.to_vec())
                    .or_default()
                    .push(owner);
            } else if records::is_service_tasks(key) {
                let id = String::from_utf8_lossy(&key[2..]).into_owned();
                match records::open_service_tasks(view.db(), key, value) {
                    Ok(tasks) => drop(side.service_tasks.insert(id, tasks)),
                    Err(error) => {
                        let kind = FaultKind::Unreadable(error.to_string());
                        report.add(Table::Task, "", "service tasks", kind);
                    }
                }
            } else if records::is_names(key) {
                // An unreadable record differs from any readable one.
                let names = records::open_names(view.db(), key, value);
                side.tally.add(
                    family,
                    key,
                    &records::encode_names(&names.unwrap_or_default()),
                );
            } else {
                side.tally.add(family, key, value);
            }
        }
    }
    Ok(side)
}

impl<'a> Side<'a> {
    fn new(hashers: &'a [RandomState; 2]) -> Side<'a> {
        Side {
            tally: Tally::new(hashers),
            service_tasks: BTreeMap::new(),
            resource_names: BTreeMap::new(),
            objects: TableCounts::default(),
        }
    }

    /// Takes in what follows from an object.
    fn take(&mut self, view: &View, row: &[u8], object: &AnyObject) -> Result<(), StoreError> {
        for (family, key, value) in derived(view, row, object)? {
            if place_of(family, &key) == RESOURCE_NAMES {
                let owners = self.resource_names.entry(key).or_default();
                owners.push(object.id().to_owned());
            } else {
                self.tally.add(family, &key, &value);
            }
        }
        if let AnyObject::Task(task) = object {
            let service = task.service_id.clone();
            summary::add_task(self.service_tasks.entry(service).or_default(), task);
        }
        self.objects.0[object.table() as usize - 1] += 1;
        Ok(())
    }
}

/// Family, key and value of an entry; of sealed records the plain form.
type Entry = (Family, Vec<u8>, Vec<u8>);

/// Every entry that should exist because of an object.
fn derived(view: &View, row: &[u8], object: &AnyObject) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::new();
    for key in object.index_keys()?.iter() {
        let disk = key.disk(view.db().hasher());
        entries.push(match key.is_unique() {
            true => (Family::Uniq, disk, object.id().into()),
            false => (Family::Idx, disk, Vec::new()),
        });
    }
    let names = summary::prefix_keys(object);
    if !names.is_empty() {
        entries.push((
            Family::Idx,
            records::names_key(row),
            records::encode_names(&names),
        ));
    }
    if let AnyObject::Task(task) = object
        && let Some(digest) = records::encode_digest(task)
    {
        entries.push((Family::Idx, records::digest_key(row), digest));
    }
    Ok(entries)
}

fn compare_counts(expected: &Side<'_>, actual: &Side<'_>, report: &mut Report) {
    for table in Table::ALL {
        let at = table as usize - 1;
        if expected.objects.0[at] != actual.objects.0[at] {
            report.add(table, "", "count", FaultKind::Wrong);
        }
    }
}

fn compare_service_tasks(expected: &Side<'_>, actual: &Side<'_>, report: &mut Report) {
    let mut fault = |id: &str, kind| report.add(Table::Service, id, "summary of its tasks", kind);
    for (id, tasks) in &expected.service_tasks {
        match actual.service_tasks.get(id) {
            None => fault(id, FaultKind::Missing),
            // Names that are no longer in use may still be there.
            Some(stored)
                if stored.counts == tasks.counts
                    && (stored.any_name
                        || tasks.names.iter().all(|name| stored.names.contains(name))) => {}
            Some(_) => fault(id, FaultKind::Wrong),
        }
    }
    for id in actual.service_tasks.keys() {
        if !expected.service_tasks.contains_key(id) {
            fault(id, FaultKind::Unexpected);
        }
    }
}

fn compare_resource_names(expected: &Side<'_>, actual: &Side<'_>, report: &mut Report) {
    for (name, owners) in &expected.resource_names {
        if owners.len() == 1 && !actual.resource_names.contains_key(name) {
            report.add(Table::Resource, &owners[0], "name", FaultKind::Missing);
        }
    }
    for (name, recorded) in &actual.resource_names {
        let owners = expected.resource_names.get(name);
        for id in recorded {
            if !owners.is_some_and(|owners| owners.contains(id)) {
                report.add(Table::Resource, id, "name", FaultKind::Unexpected);
            }
        }
    }
}
