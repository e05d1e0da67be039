//! Tests of the store: rules, selectors, transactions, batches, the log, events, damage.

mod applied;
mod batches;
mod damage;
mod following;
mod measure;
mod model;
mod rules;
mod selectors;
mod support;
mod transactions;
