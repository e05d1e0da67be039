//! The worker: session, assignments, task state machine, executors.
