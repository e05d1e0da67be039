//! `swarm-db`: looks into the state directory of a stopped node, without the daemon.
//!
//! Argument parsing and printing only. Nothing is ever changed in the directory that is looked at.

mod check;
mod inspect;
mod keys;
mod objects;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  swarm-db inspect /var/lib/swarmd
  swarm-db inspect /var/lib/swarmd --limit 0 --format json
  swarm-db check /var/lib/swarmd
  swarm-db ls /var/lib/swarmd service --prefix web
  swarm-db get /var/lib/swarmd service web
  swarm-db completion bash

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
    /// Lists the objects of one table
    Ls(objects::List),
    /// Prints one object in full, as JSON; secrets stay hidden
    Get(objects::Get),
    /// Print a completion script for a shell
    Completion { shell: clap_complete::Shell },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Ls(arguments) => objects::list(&arguments),
        Command::Get(arguments) => objects::get(&arguments),
        Command::Completion { shell } => {
            let mut out = std::io::stdout();
            clap_complete::generate(shell, &mut Cli::command(), "swarm-db", &mut out);
            Ok(true)
        }
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
