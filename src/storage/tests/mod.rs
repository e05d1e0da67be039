//! Tests of the store: rules, selectors, transactions, events.

mod rules;
mod support;
mod transactions;
