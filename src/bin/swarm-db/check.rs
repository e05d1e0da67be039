//! `swarm-db check`: recounts the indexes.

use crate::keys;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use swarm_manager::storage::Table;
use swarm_manager::storage::check::Report;

#[derive(clap::Args)]
pub struct Arguments {
    /// State directory of a stopped node
    dir: PathBuf,
    /// Unlock key of a locked node
    #[arg(long, env = "SWARM_UNLOCK_KEY", hide_env_values = true)]
    unlock_key: Option<String>,
}

/// Prints; true if everything adds up.
pub fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let inspection = keys::open(&arguments.dir, arguments.unlock_key.as_deref())?;
    let report = inspection.check()?;
    // A reader that has seen enough is no failure; the exit status says the rest.
    let _ = io::stdout().lock().write_all(text(&report).as_bytes());
    Ok(report.is_clean())
}

fn text(report: &Report) -> String {
    let objects: u64 = Table::ALL
        .map(|table| report.objects.of(table))
        .iter()
        .sum();
    let entries = report.index_entries;
    let mut text = format!("{objects} objects, {entries} index entries\n");
    for fault in &report.faults {
        let _ = writeln!(text, "{fault}");
    }
    let named = report.faults.len() as u64;
    let _ = match (report.fault_count, report.fault_count - named) {
        (0, _) => writeln!(text, "everything adds up"),
        (faults, 0) => writeln!(text, "{faults} faults"),
        (faults, more) => writeln!(text, "{faults} faults, {more} of them not listed"),
    };
    text
}
