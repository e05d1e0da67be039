//! Tests of the store: rules, selectors, transactions, events.

mod measure;
mod rules;
mod support;
mod transactions;
