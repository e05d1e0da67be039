//! `swarm-db`: looks into the state directory of a stopped node, without the daemon.
//!
//! Argument parsing and printing only. Nothing is ever changed in the directory that is looked at.

mod check;
mod inspect;
mod keys;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  swarm-db inspect /var/lib/swarmd
  swarm-db inspect /var/lib/swarmd --limit 0 --format json
  swarm-db check /var/lib/swarmd

Exit status: 0 if a manager would start (check: if everything adds up), 2 if it would refuse (check: if
something is wrong), 1 if the directory cannot be read.";

#[derive(Parser)]
#[command(name = "swarm-db", version, about = "Looks into the state directory of a stopped node", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What the directory holds, and whether a manager would start on it
    Inspect(inspect::Arguments),
    /// Recounts all indexes from the objects and reports every difference
    Check(check::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
