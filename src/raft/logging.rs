//! The consensus library logs through slog; this passes its records on to tracing.
//!
//! Records below "info" are dropped before they are formatted: the library writes one per message.

use slog::{Drain, KV, Level, Never, OwnedKVList, Record, Serializer};
use std::fmt::{self, Write as _};

/// The logger to give to the library.
pub fn logger() -> slog::Logger {
    slog::Logger::root(Bridge, slog::o!())
}

struct Bridge;

impl Drain for Bridge {
    type Ok = ();
    type Err = Never;

    fn is_enabled(&self, level: Level) -> bool {
        level.is_at_least(Level::Info)
    }

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        if !self.is_enabled(record.level()) {
            return Ok(());
        }
        let mut text = Text(record.msg().to_string());
        // The list is printed as far as it can be: a record is not worth an error.
        let _ = record.kv().serialize(record, &mut text);
        let _ = values.serialize(record, &mut text);
        match record.level() {
            Level::Critical | Level::Error => tracing::error!(target: "raft", "{}", text.0),
            Level::Warning => tracing::warn!(target: "raft", "{}", text.0),
            Level::Info | Level::Debug | Level::Trace => {
                tracing::info!(target: "raft", "{}", text.0);
            }
        }
        Ok(())
    }
}

/// A message followed by its ` key=value` pairs.
struct Text(String);

impl Serializer for Text {
    fn emit_arguments(&mut self, key: slog::Key, value: &fmt::Arguments<'_>) -> slog::Result {
        write!(self.0, " {key}={value}").map_err(slog::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn records_from_info_up_arrive_with_their_values() {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let logger = logger().new(slog::o!("raft_id" => 7));
            slog::debug!(logger, "not this one");
            slog::info!(logger, "became leader"; "term" => 3);
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert!(
            text.contains("INFO raft: became leader term=3 raft_id=7"),
            "{text}"
        );
        assert!(!text.contains("not this one"), "{text}");
    }
}
