//! Filters of the List calls.
//!
//! Within one filter the values are alternatives. Different filters of nodes, tasks, services,
//! networks, clusters and volumes must all hold; the first one that is set chooses the index, which
//! also decides the order of the result. Names, name prefixes and ID prefixes of secrets, configs and
//! resources are one union instead, and ignore case (spec 05 section 2.1).

use std::collections::{BTreeMap, HashSet};

use super::error::{Answer, ControlError};
use crate::storage::By;

/// Most values in one filter; each costs a look-up, and a prefix also a comparison per object.
pub(super) const FILTER_VALUES_MAX: usize = 10_000;

/// The values of one filter. An empty filter lets everything through.
pub(super) struct Values<'a> {
    values: &'a [String],
    set: HashSet<&'a str>,
}

impl<'a> Values<'a> {
    pub fn new(values: &'a [String]) -> Answer<Values<'a>> {
        check_count(values.len())?;
        Ok(Values {
            values,
            set: values.iter().map(String::as_str).collect(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Whether a value is among these.
    pub fn contain(&self, value: &str) -> bool {
        self.is_empty() || self.set.contains(value)
    }

    /// Whether a value begins with one of these.
    pub fn begin(&self, value: &str) -> bool {
        self.is_empty() || self.values.iter().any(|prefix| value.starts_with(prefix))
    }

    /// A selector for objects that match any of the values.
    pub fn by(&self, selector: impl Fn(String) -> By) -> Option<By> {
        any_of(self.values.iter().cloned().map(selector))
    }
}

fn check_count(count: usize) -> Answer<()> {
    if count > FILTER_VALUES_MAX {
        return Err(ControlError::invalid(format!(
            "a filter has {count} values; at most {FILTER_VALUES_MAX} are allowed"
        )));
    }
    Ok(())
}

/// The alternatives as one selector; `None` if there are none.
pub(super) fn any_of(alternatives: impl Iterator<Item = By>) -> Option<By> {
    let mut alternatives: Vec<By> = alternatives.collect();
    match alternatives.len() {
        0 => None,
        1 => alternatives.pop(),
        _ => Some(By::Or(alternatives)),
    }
}

/// The filter that chooses the index: the first one that is set.
pub(super) fn first_of<const N: usize>(selectors: [Option<By>; N]) -> By {
    selectors.into_iter().flatten().next().unwrap_or(By::All)
}

/// Enum values of a filter, which arrive as plain numbers. Unknown numbers match nothing.
pub(super) fn enum_matches(wanted: &[i32], value: i32) -> bool {
    wanted.is_empty() || wanted.contains(&value)
}

/// Every wanted label must exist, with the wanted value unless that is empty.
pub(super) fn labels_match(
    wanted: &BTreeMap<String, String>,
    actual: Option<&BTreeMap<String, String>>,
) -> bool {
    wanted.iter().all(|(key, value)| {
        let found = actual.and_then(|labels| labels.get(key));
        found.is_some_and(|found| value.is_empty() || found == value)
    })
}

/// The three name filters that nearly all kinds have.
pub(super) struct NameFilters<'a> {
    pub names: Values<'a>,
    pub name_prefixes: Values<'a>,
    pub id_prefixes: Values<'a>,
}

impl<'a> NameFilters<'a> {
    pub fn new(
        names: &'a [String],
        name_prefixes: &'a [String],
        id_prefixes: &'a [String],
    ) -> Answer<NameFilters<'a>> {
        Ok(NameFilters {
            names: Values::new(names)?,
            name_prefixes: Values::new(name_prefixes)?,
            id_prefixes: Values::new(id_prefixes)?,
        })
    }

    /// Whether all three hold. Case matters here, although it does not in the index.
    pub fn all_match(&self, id: &str, name: &str) -> bool {
        self.names.contain(name) && self.name_prefixes.begin(name) && self.id_prefixes.begin(id)
    }

    /// Selectors in the order in which they choose the index.
    pub fn selectors(&self) -> [Option<By>; 3] {
        [
            self.names.by(By::Name),
            self.name_prefixes.by(By::NamePrefix),
            self.id_prefixes.by(By::IdPrefix),
        ]
    }

    /// The union of the three, or all objects if none is set; the index ignores the case of names.
    pub fn union(&self) -> By {
        any_of(self.selectors().into_iter().flatten()).unwrap_or(By::All)
    }
}
