//! Aligned tables for people, JSON for programs.

use crate::api;
use comfy_table::{ContentArrangement, Table, presets};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use std::io::{self, Write};

/// How a list or an object is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// Aligned columns.
    #[default]
    Table,
    /// One JSON document.
    Json,
}

/// A line of a list: what the table shows, and what a program gets.
pub trait Row: serde::Serialize {
    /// Column titles, upper case.
    const COLUMNS: &'static [&'static str];
    /// One cell per column.
    fn cells(&self) -> Vec<String>;
}

/// Prints rows in the wanted format. A broken pipe is not an error: the reader has seen enough.
pub fn print_rows<R: Row>(format: Format, rows: &[R]) -> io::Result<()> {
    match format {
        Format::Table => print_text(&table(R::COLUMNS, rows.iter().map(Row::cells))),
        Format::Json => print_json(&rows),
    }
}

/// Aligned columns without borders, as one text that ends in a line break.
pub fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(columns);
    for row in rows {
        table.add_row(row.iter().map(|cell| clean(cell)).collect::<Vec<_>>());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Control characters in names or messages must not reach a terminal, nor break a line of a table.
fn clean(cell: &str) -> String {
    cell.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Prints a serialisable value as indented JSON.
pub fn print_json<T: serde::Serialize>(value: &T) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    text.push('\n');
    print_text(&text)
}

/// Writes to standard output.
pub fn print_text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// The canonical JSON form of a message of the wire interface (`docker.swarmkit.v1.Service`, ...):
/// camel-case names, enum values by name, bytes in base64, times in RFC 3339.
pub fn message_json<M: Message>(full_name: &str, message: &M) -> anyhow::Result<serde_json::Value> {
    let pool = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET)?;
    let descriptor = pool
        .get_message_by_name(full_name)
        .ok_or_else(|| anyhow::anyhow!("the wire interface has no message {full_name}"))?;
    let dynamic = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())?;
    let options = SerializeOptions::new().stringify_64_bit_integers(false);
    Ok(dynamic.serialize_with_options(serde_json::value::Serializer, &options)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{Annotations, Service, ServiceSpec};

    #[test]
    fn columns_are_aligned_and_control_characters_are_harmless() {
        let text = table(
            &["ID", "NAME"],
            [
                vec!["a".to_string(), "long name\u{1b}[31m".to_string()],
                vec!["abcdef".to_string(), "x\ny".to_string()],
            ]
            .into_iter(),
        );
        assert_eq!(text, "ID      NAME\na       long name [31m\nabcdef  x y\n");
    }

    #[test]
    fn messages_become_canonical_json() {
        let service = Service {
            id: "s1".into(),
            spec: Some(ServiceSpec {
                annotations: Some(Annotations {
                    name: "web".into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let json = message_json("docker.swarmkit.v1.Service", &service).unwrap();
        assert_eq!(json["spec"]["annotations"]["name"], "web");
        assert!(message_json("docker.swarmkit.v1.Nothing", &service).is_err());
    }
}
