//! Tests of the store: rules, selectors, transactions, batches, the log, events, damage.

mod applied;
mod batches;
mod following;
mod measure;
mod rules;
mod selectors;
mod support;
mod transactions;
