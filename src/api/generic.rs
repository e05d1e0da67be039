//! Generic resources: things a node has and a task may reserve that the manager knows only by name,
//! such as GPUs.
//!
//! A *discrete* resource is a kind and an amount; a *named* one is a kind and one of its members. A
//! node may describe either. A task reserves an amount of a kind and is given that amount, or that
//! many of the node's members (spec 05 section 15, spec 07 section 13).
//!
//! The functions work on plain lists, in list order, and touch nothing else: the scheduler keeps a
//! list of what is left on each node and moves entries to and from tasks.

use std::collections::BTreeSet;

use super::types::generic_resource::Resource;
use super::types::{DiscreteGenericResource, GenericResource, NamedGenericResource};
use super::validate::Invalid;

/// What cannot be done with generic resources.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenericError {
    /// A task reserves members by name, which is not possible.
    #[error(
        "a generic resource can only be reserved as an amount, not as a named member of a kind"
    )]
    NotDiscrete,
    /// The node has nothing of a reserved kind.
    #[error("not enough resources available for task reservations: {kind}={value}")]
    NotEnough { kind: String, value: i64 },
    /// A text that is not a list of `kind=value`.
    #[error("could not parse GenericResource: {0}")]
    Parse(String),
}

/// A discrete resource.
pub fn discrete(kind: impl Into<String>, value: i64) -> GenericResource {
    let kind = kind.into();
    GenericResource {
        resource: Some(Resource::DiscreteResourceSpec(DiscreteGenericResource {
            kind,
            value,
        })),
    }
}

/// A named resource.
pub fn named(kind: impl Into<String>, value: impl Into<String>) -> GenericResource {
    let (kind, value) = (kind.into(), value.into());
    GenericResource {
        resource: Some(Resource::NamedResourceSpec(NamedGenericResource {
            kind,
            value,
        })),
    }
}

/// The kind of an entry; empty for an entry without content.
pub fn kind(entry: &GenericResource) -> &str {
    match &entry.resource {
        Some(Resource::DiscreteResourceSpec(discrete)) => &discrete.kind,
        Some(Resource::NamedResourceSpec(named)) => &named.kind,
        None => "",
    }
}

/// Checks what a task limits or reserves: amounts only.
pub fn validate_task(entries: &[GenericResource]) -> Result<(), Invalid> {
    if entries.iter().all(|entry| as_discrete(entry).is_some()) {
        return Ok(());
    }
    Err(Invalid(format!("resources: {}", GenericError::NotDiscrete)))
}

/// Whether a node's entries can serve one reservation.
pub fn has_enough(
    available: &[GenericResource],
    reservation: &GenericResource,
) -> Result<bool, GenericError> {
    let wanted = as_discrete(reservation).ok_or(GenericError::NotDiscrete)?;
    Ok(match of_kind(available, &wanted.kind).next() {
        None => false,
        Some(first) => match as_discrete(first) {
            Some(have) => wanted.value <= have.value,
            None => {
                let members = of_kind(available, &wanted.kind).filter(|e| as_named(e).is_some());
                wanted.value <= i64::try_from(members.count()).unwrap_or(i64::MAX)
            }
        },
    })
}

/// Whether a node has an entry that a task was given. The first entry of the kind decides whether the
/// kind is discrete or named.
pub fn has_resource(described: &[GenericResource], assigned: &GenericResource) -> bool {
    let mut candidates = of_kind(described, kind(assigned));
    match &assigned.resource {
        Some(Resource::DiscreteResourceSpec(assigned)) => candidates
            .next()
            .and_then(as_discrete)
            .is_some_and(|have| assigned.value <= have.value),
        Some(Resource::NamedResourceSpec(_)) => {
            let mut candidates = candidates.peekable();
            candidates
                .peek()
                .is_some_and(|first| as_named(first).is_some())
                && candidates.any(|have| have == assigned)
        }
        None => false,
    }
}

/// Moves what a task reserves from a node's list to the task's.
///
/// Sufficiency is not checked here, [`has_enough`] is for that: an amount that is too large yields
/// nothing of a discrete kind and all that is left of a named one. On an error nothing has moved.
pub fn claim(
    available: &mut Vec<GenericResource>,
    assigned: &mut Vec<GenericResource>,
    reservations: &[GenericResource],
) -> Result<(), GenericError> {
    let mut left = available.clone();
    let mut taken = Vec::new();
    for reservation in reservations {
        let wanted = as_discrete(reservation).ok_or(GenericError::NotDiscrete)?;
        if of_kind(available, &wanted.kind).next().is_none() {
            return Err(GenericError::NotEnough {
                kind: wanted.kind.clone(),
                value: wanted.value,
            });
        }
        let chosen = choose(&left, wanted);
        consume(&mut left, &chosen);
        taken.extend(chosen);
    }
    *available = left;
    assigned.extend(taken);
    Ok(())
}

/// Entries that satisfy one reservation as far as possible.
fn choose(available: &[GenericResource], wanted: &DiscreteGenericResource) -> Vec<GenericResource> {
    let mut candidates = of_kind(available, &wanted.kind).peekable();
    match candidates.peek().and_then(|first| as_discrete(first)) {
        Some(have) if have.value >= wanted.value && wanted.value != 0 => {
            vec![discrete(wanted.kind.clone(), wanted.value)]
        }
        Some(_) => Vec::new(),
        None => candidates
            .filter(|entry| as_named(entry).is_some())
            .take(usize::try_from(wanted.value).unwrap_or(0))
            .cloned()
            .collect(),
    }
}

/// Removes what a task has been given from a node's list. What the node does not have, or has as the
/// other type, is passed over.
pub fn consume(available: &mut Vec<GenericResource>, taken: &[GenericResource]) {
    for entry in taken {
        match &entry.resource {
            Some(Resource::DiscreteResourceSpec(taken)) => {
                for have in available.iter_mut().filter_map(as_discrete_mut) {
                    if have.kind == taken.kind {
                        have.value = have.value.saturating_sub(taken.value);
                    }
                }
                available.retain(|have| {
                    as_discrete(have).is_none_or(|have| have.kind != taken.kind || have.value > 0)
                });
            }
            Some(Resource::NamedResourceSpec(_)) => available.retain(|have| have != entry),
            None => {}
        }
    }
}

/// Gives back what a task had, then makes the list agree with what the node describes now.
pub fn reclaim(
    available: &mut Vec<GenericResource>,
    returned: &[GenericResource],
    described: &[GenericResource],
) {
    for entry in returned {
        match &entry.resource {
            Some(Resource::DiscreteResourceSpec(returned)) => give_back(available, returned),
            Some(Resource::NamedResourceSpec(_)) => available.push(entry.clone()),
            None => {}
        }
    }
    sanitize(available, described);
}

fn give_back(available: &mut Vec<GenericResource>, returned: &DiscreteGenericResource) {
    match of_kind(available, &returned.kind).count() {
        0 => available.push(discrete(returned.kind.clone(), returned.value)),
        1 => {
            let mut entries = available.iter_mut().filter_map(as_discrete_mut);
            if let Some(have) = entries.find(|have| have.kind == returned.kind) {
                have.value = have.value.saturating_add(returned.value);
            }
        }
        // The node has named members of that kind now.
        _ => {}
    }
}

/// Makes a node's list of what is left agree with what the node describes, for instance after the
/// node came back with other hardware. Kinds that do not fit any more are replaced, once each, by all
/// that is described of them; replacements come last.
pub fn sanitize(available: &mut Vec<GenericResource>, described: &[GenericResource]) {
    let mut replaced = BTreeSet::new();
    let mut replacements = Vec::new();
    available.retain(|entry| {
        let kind = kind(entry);
        match fit(entry, described) {
            Fit::Keep => !replaced.contains(kind),
            Fit::Drop => false,
            Fit::Replace => {
                if replaced.insert(kind.to_owned()) {
                    replacements.extend(of_kind(described, kind).cloned());
                }
                false
            }
        }
    });
    available.append(&mut replacements);
}

/// What is to become of one entry when the node's description is compared.
enum Fit {
    Keep,
    Drop,
    Replace,
}

fn fit(entry: &GenericResource, described: &[GenericResource]) -> Fit {
    let mut same_kind = of_kind(described, kind(entry));
    match (&entry.resource, same_kind.next(), same_kind.next()) {
        (Some(Resource::DiscreteResourceSpec(entry)), Some(only), None) => {
            match as_discrete(only) {
                Some(described) if entry.value <= described.value => Fit::Keep,
                _ => Fit::Replace,
            }
        }
        (Some(Resource::DiscreteResourceSpec(_)), _, _) => Fit::Replace,
        (Some(Resource::NamedResourceSpec(_)), Some(first), _) => {
            if as_discrete(first).is_some() {
                Fit::Replace
            } else if described.contains(entry) {
                Fit::Keep
            } else {
                Fit::Drop
            }
        }
        _ => Fit::Drop,
    }
}

/// Parses `kind=value,kind=value`: a kind with one integer is discrete, a kind whose values are all
/// no integers is named.
pub fn parse(text: &str) -> Result<Vec<GenericResource>, GenericError> {
    let fail = |reason: String| Err(GenericError::Parse(reason));
    if text.contains(['\n', '\r', '"']) {
        return fail("expected one line of kind=value,kind=value without quotes".to_owned());
    }
    let mut terms = Vec::new();
    for term in text.split(',') {
        match term.split('=').collect::<Vec<_>>()[..] {
            [kind, value] if !kind.trim().is_empty() => terms.push((kind.trim(), value.trim())),
            _ => return fail(format!("'{term}' is not of the form kind=value")),
        }
    }
    let mut entries = Vec::with_capacity(terms.len());
    for (kind, value) in &terms {
        let Ok(amount) = value.parse::<i64>() else {
            entries.push(named(*kind, *value));
            continue;
        };
        if amount < 0 {
            return fail(format!("the amount of '{kind}' is negative"));
        }
        if terms.iter().filter(|(other, _)| other == kind).count() > 1 {
            return fail(format!(
                "'{kind}' is given more than once, and with an amount"
            ));
        }
        entries.push(discrete(*kind, amount));
    }
    Ok(entries)
}

/// What a container learns of the resources it was given: `<PREFIX>_<KIND>=v1,v2`, one text per kind,
/// in the order in which the kinds first occur.
pub fn environment(entries: &[GenericResource], prefix: &str) -> Vec<String> {
    let mut variables: Vec<(&str, Vec<String>)> = Vec::new();
    for entry in entries {
        let value = match &entry.resource {
            Some(Resource::DiscreteResourceSpec(discrete)) => discrete.value.to_string(),
            Some(Resource::NamedResourceSpec(named)) => named.value.clone(),
            None => continue,
        };
        match variables
            .iter_mut()
            .find(|(known, _)| *known == kind(entry))
        {
            Some((_, values)) => values.push(value),
            None => variables.push((kind(entry), vec![value])),
        }
    }
    variables
        .into_iter()
        .map(|(kind, values)| {
            let name = format!("{prefix}_{kind}").to_uppercase();
            format!("{name}={}", values.join(","))
        })
        .collect()
}

fn of_kind<'a>(
    entries: &'a [GenericResource],
    wanted: &'a str,
) -> impl Iterator<Item = &'a GenericResource> {
    entries.iter().filter(move |entry| kind(entry) == wanted)
}

fn as_discrete(entry: &GenericResource) -> Option<&DiscreteGenericResource> {
    match &entry.resource {
        Some(Resource::DiscreteResourceSpec(discrete)) => Some(discrete),
        _ => None,
    }
}

fn as_discrete_mut(entry: &mut GenericResource) -> Option<&mut DiscreteGenericResource> {
    match &mut entry.resource {
        Some(Resource::DiscreteResourceSpec(discrete)) => Some(discrete),
        _ => None,
    }
}

fn as_named(entry: &GenericResource) -> Option<&NamedGenericResource> {
    match &entry.resource {
        Some(Resource::NamedResourceSpec(named)) => Some(named),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
