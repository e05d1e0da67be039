//! The same calls of the Control API get the same answers from our manager and from a Docker Engine that
//! is a manager, except where a difference is listed with its reason.
//!
//! Both sides are fresh one-node clusters and get the same calls in the same order. Compared are the code
//! and, of an answer, everything that does not depend on random IDs, times and addresses.
//!
//! Calls that end the Engine's process are left out: `UpdateSecret` and `UpdateConfig` without a spec.

#[path = "compare/calls.rs"]
mod calls;
#[path = "compare/cluster.rs"]
mod cluster;
#[path = "compare/create_service.rs"]
mod create_service;
#[path = "compare/differences.rs"]
mod differences;
#[path = "compare/objects.rs"]
mod objects;
#[path = "compare/services.rs"]
mod services;
#[path = "compare/specs.rs"]
mod specs;
#[path = "compare/summary.rs"]
mod summary;

use crate::harness::engine::Engine;
use crate::harness::swarmd::Swarmd;
use crate::harness::{engine_available, free_port};
use calls::{Row, Side};
use differences::DIFFERENCES;
use std::collections::HashSet;
use swarm_manager::identity::Clock;
use swarm_manager::identity::connect::{Address, Protection, connect};
use tonic::{Code, Status};

/// Fewest calls that make this a comparison.
const CALLS_MIN: usize = 40;

fn rows() -> Vec<Row> {
    let mut rows = objects::first_rows();
    rows.extend(create_service::rows());
    rows.extend(services::rows());
    rows.extend(cluster::rows());
    rows.extend(objects::last_rows());
    rows
}

fn code(result: &Result<String, Status>) -> Code {
    result.as_ref().err().map_or(Code::Ok, Status::code)
}

/// The summary of an answer, or the text of an error.
fn message(result: &Result<String, Status>) -> &str {
    match result {
        Ok(summary) => summary,
        Err(status) => status.message(),
    }
}

async fn engine_side(engine: &Engine) -> Side {
    let address = Address::Unix(engine.control_socket());
    let protection = Protection::unverified(&Clock::system()).expect("a TLS configuration");
    let channel = connect(&address, protection).await;
    Side::new(channel.expect("the Engine's control socket answers"))
}

/// Makes one call on both sides; returns what is wrong with the outcome, if anything.
async fn compare(row: &Row, engine: &Side, ours: &Side) -> Option<String> {
    let (theirs, ours) = (row.run(engine).await, row.run(ours).await);
    let seen = (code(&theirs), code(&ours));
    let texts = [message(&theirs), message(&ours)].map(str::to_owned);
    let both = format!(
        "\n    Engine: {:?} {:?}\n    ours:   {:?} {:?}",
        seen.0, texts[0], seen.1, texts[1]
    );
    assert!(
        seen.0 != Code::Unavailable && seen.1 != Code::Unavailable,
        "{}: one side is gone:{both}",
        row.name
    );
    let listed = DIFFERENCES
        .iter()
        .find(|difference| difference.row == row.name);
    if let Some(difference) = listed {
        let as_listed = seen == (difference.engine, difference.ours);
        let reason = difference.reason;
        return (!as_listed).then(|| format!("{}: not as listed, {reason}:{both}", row.name));
    }
    if seen.0 != seen.1 || (theirs.is_ok() && theirs.ok() != ours.ok()) {
        return Some(format!("{}: differs:{both}", row.name));
    }
    let text = row.text?;
    let both_say = texts.iter().all(|message| message.contains(text));
    (!both_say).then(|| format!("{}: not both say {text:?}:{both}", row.name))
}

#[tokio::test]
async fn the_control_api_answers_like_a_docker_engine() {
    // Against the real peer: 05-A2 05-A9 05-A10 05-A11 05-A12 05-A13 05-A14 05-A15 05-A16 05-A17 05-A18
    // 05-A19 05-A24 05-A25 05-A26 05-A30 05-A31 05-A32 05-A33
    if !engine_available("the_control_api_answers_like_a_docker_engine") {
        return;
    }
    let node = Swarmd::start(&["--executor", "none"]);
    let engine = Engine::start();
    let listen = format!("127.0.0.1:{}", free_port());
    engine.docker(&[
        "swarm",
        "init",
        "--advertise-addr",
        "127.0.0.1",
        "--listen-addr",
        &listen,
    ]);
    let theirs = engine_side(&engine).await;
    let ours = Side::new(node.channel().await);

    let rows = rows();
    assert!(rows.len() >= CALLS_MIN);
    let names: HashSet<&str> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len(), "two rows have the same name");
    for difference in DIFFERENCES {
        assert!(names.contains(difference.row), "no row {}", difference.row);
    }
    let mut wrong = Vec::new();
    for row in &rows {
        wrong.extend(compare(row, &theirs, &ours).await);
    }
    assert!(
        wrong.is_empty(),
        "{} of {} calls:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}
