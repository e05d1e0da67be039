//! `swarm-db inspect`: a summary, a verdict and the objects of every table.

use crate::keys;
use anyhow::Context as _;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use swarm_manager::cli::output::{Format, table};
use swarm_manager::storage::Table;
use swarm_manager::storage::inspect::{
    DbReport, Inspection, LogReport, ObjectLine, Part, Report, line,
};

/// Lines of one table that are laid out together.
pub const PAGE_LINES: usize = 1000;

#[derive(clap::Args)]
pub struct Arguments {
    /// State directory of a stopped node
    dir: PathBuf,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Objects listed per table; 0 lists all
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Unlock key of a locked node
    #[arg(long, env = "SWARM_UNLOCK_KEY", hide_env_values = true)]
    unlock_key: Option<String>,
}

/// Prints; true if a manager would start on the directory.
pub fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let inspection = keys::open(&arguments.dir, arguments.unlock_key.as_deref())?;
    let report = inspection.report();
    let limit = match arguments.limit {
        0 => usize::MAX,
        limit => limit,
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = match arguments.format {
        Format::Table => print_text(&mut out, &inspection, &report, limit),
        Format::Json => print_json(&mut out, &inspection, &report, limit),
    };
    match printed.and_then(|()| out.flush().map_err(anyhow::Error::from)) {
        // The reader has seen enough.
        Err(error) if is_broken_pipe(&error) => {}
        other => other.context("cannot print")?,
    }
    Ok(report.verdict.usable)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn print_text(
    out: &mut impl Write,
    inspection: &Inspection,
    report: &Report,
    limit: usize,
) -> anyhow::Result<()> {
    let mut facts = vec![("State directory", report.state_dir.clone())];
    facts.push(("Verdict", report.verdict.text.clone()));
    match &report.log {
        Part::Read(log) => facts.extend(log_facts(log)),
        Part::Unreadable(reason) => facts.push(("Log", format!("unreadable: {reason}"))),
    }
    match &report.database {
        Part::Read(db) => facts.extend(db_facts(db)),
        Part::Unreadable(reason) => facts.push(("Database", format!("unreadable: {reason}"))),
    }
    for (name, value) in facts {
        writeln!(out, "{name:<16} {value}")?;
    }
    let Part::Read(db) = &report.database else {
        return Ok(());
    };
    if !db.members.is_empty() {
        let rows = db.members.iter().map(|member| {
            vec![
                raft_id(member.raft_id),
                member.node_id.clone(),
                member.address.clone(),
                if member.voter { "voter" } else { "learner" }.into(),
            ]
        });
        let columns = ["RAFT ID", "NODE ID", "ADDRESS", "ROLE"];
        write!(out, "\nMembers\n{}", table(&columns, rows))?;
    }
    let counts: Vec<(Table, Result<u64, String>)> = Table::ALL
        .into_iter()
        .map(|kind| {
            (
                kind,
                inspection.count(kind).map_err(|error| error.to_string()),
            )
        })
        .collect();
    let rows = counts.iter().map(|(kind, count)| {
        let count = count.as_ref().map_or_else(String::clone, u64::to_string);
        vec![kind.name().to_owned(), count]
    });
    write!(out, "\n{}", table(&["TABLE", "OBJECTS"], rows))?;
    for (kind, count) in counts {
        if count != Ok(0) {
            print_table(out, inspection, kind, count.unwrap_or(0), limit)?;
        }
    }
    Ok(())
}

/// Prints the objects of a table, a page at a time.
fn print_table(
    out: &mut impl Write,
    inspection: &Inspection,
    kind: Table,
    count: u64,
    limit: usize,
) -> anyhow::Result<()> {
    writeln!(out, "\n{}", kind.name())?;
    let (mut page, mut listed, mut printed) = (Vec::new(), 0, Ok(()));
    let walked = inspection.each_object(kind, |object| {
        listed += 1;
        match object {
            Ok(object) => page.push(line(&object)),
            Err(error) => printed = writeln!(out, "unreadable: {error}"),
        }
        if page.len() == PAGE_LINES && printed.is_ok() {
            printed = print_page(out, &page);
            page.clear();
        }
        if printed.is_ok() && listed < limit {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    printed?;
    print_page(out, &page)?;
    if let Err(error) = walked {
        writeln!(out, "unreadable from here on: {error}")?;
    }
    match count.saturating_sub(listed as u64) {
        0 => Ok(()),
        more => Ok(writeln!(out, "and {more} more; --limit 0 lists all")?),
    }
}

fn print_page(out: &mut impl Write, lines: &[ObjectLine]) -> io::Result<()> {
    match lines.is_empty() {
        true => Ok(()),
        false => out.write_all(page_text(lines).as_bytes()),
    }
}

/// Lines under their titles.
pub fn page_text(lines: &[ObjectLine]) -> String {
    let rows = lines.iter().map(|line| {
        vec![
            line.id.clone(),
            line.name.clone(),
            line.detail.clone(),
            line.version.to_string(),
            line.updated.clone(),
        ]
    });
    let columns = ["ID", "NAME", "DETAIL", "VERSION", "UPDATED"];
    table(&columns, rows)
}

fn log_facts(log: &LogReport) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(member) = &log.member {
        facts.push((
            "Raft member",
            format!(
                "{} of node {}, {}, since {}",
                raft_id(member.raft_id),
                member.node_id,
                member.address,
                member.created
            ),
        ));
        facts.push(("Cluster", member.cluster_id.clone()));
    }
    let vote = match log.vote {
        0 => "no vote".into(),
        id => format!("vote for {}", raft_id(id)),
    };
    facts.push(("Term", format!("{}, {vote}", log.term)));
    facts.push(("Committed", format!("at least {}", log.commit)));
    let range = if log.last < log.first {
        format!("no entries behind {}", log.last)
    } else {
        format!("entries {} to {}", log.first, log.last)
    };
    let (files, bytes) = (log.files, log.bytes);
    facts.push(("Log", format!("{range}, {files} files, {bytes} bytes")));
    facts
}

fn db_facts(db: &DbReport) -> Vec<(&'static str, String)> {
    let removed: Vec<String> = db.removed.iter().map(|id| raft_id(*id)).collect();
    let mut facts = vec![
        (
            "Applied",
            format!("{} (term {})", db.applied, db.applied_term),
        ),
        (
            "Database",
            format!(
                "{}, layout {}, created by release {}, {} bytes",
                db.path, db.layout, db.created_by, db.bytes
            ),
        ),
    ];
    if !removed.is_empty() {
        facts.push(("Removed members", removed.join(", ")));
    }
    facts
}

/// Raft IDs are shown as the managers' logs show them.
fn raft_id(id: u64) -> String {
    format!("{id:x}")
}

/// One document, written as it is read, so that a long listing needs no memory.
fn print_json(
    out: &mut impl Write,
    inspection: &Inspection,
    report: &Report,
    limit: usize,
) -> anyhow::Result<()> {
    write!(out, "{{\"summary\":")?;
    serde_json::to_writer(&mut *out, report)?;
    write!(out, ",\"tables\":{{")?;
    for (position, kind) in Table::ALL.into_iter().enumerate() {
        let comma = if position == 0 { "" } else { "," };
        write!(out, "{comma}\"{}\":{{\"objects\":[", kind.name())?;
        let (mut listed, mut unreadable, mut failed) = (0, Vec::new(), None);
        let walked = inspection.each_object(kind, |object| {
            match object {
                Ok(object) => {
                    let comma = if listed == 0 { "" } else { "," };
                    listed += 1;
                    let written = write!(out, "{comma}")
                        .map_err(serde_json::Error::io)
                        .and_then(|()| serde_json::to_writer(&mut *out, &line(&object)));
                    failed = written.err();
                }
                Err(error) => unreadable.push(error.to_string()),
            }
            if failed.is_none() && listed + unreadable.len() < limit {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        if let Some(error) = failed {
            return Err(io::Error::from(error).into());
        }
        let count = match walked.and_then(|()| inspection.count(kind)) {
            Ok(count) => count,
            Err(error) => {
                unreadable.push(error.to_string());
                0
            }
        };
        write!(out, "],\"unreadable\":")?;
        serde_json::to_writer(&mut *out, &unreadable)?;
        write!(out, ",\"count\":{count}}}")?;
    }
    writeln!(out, "}}}}")?;
    Ok(())
}
