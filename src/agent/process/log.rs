//! The log of one task: what it wrote to standard output and error, sealed, bounded, rotated.
//!
//! Files `<n>.log` in the task's log directory, numbered from 1; each is a sequence of frames, a frame is
//! a 4-byte little-endian length and that many sealed bytes, and a frame opens to whole entries:
//!
//! ```text
//! time 8 (ns since 1970, LE) | stream 1 | partial 1 | length 4 (LE) | text
//! ```
//!
//! A new file is begun when the current one is full, and the oldest goes when there are too many. Frames
//! are bound to task, file and position, so that none can be moved or left out unnoticed; a frame cut off
//! at the end of a file (the writer was killed) ends that file.
//!
//! If the disk refuses a frame, its lines are lost and counted, and the next frame says so: a task must
//! not stand still because nobody can keep its log.

use crate::api::time;
use crate::api::types::LogStream;
use crate::storage::files;
use crate::storage::seal::{Dek, DekRing, SealError, Sealer};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Longest piece of a line in one entry, 16 KiB; longer lines are split.
const ENTRY_BYTES_MAX: usize = 16 << 10;
/// Largest sealed frame: what one read from a pipe can give, with entry heads, and then some.
const FRAME_BYTES_MAX: u32 = 4 << 20;
/// Time, stream, partial flag, length.
const ENTRY_HEAD_BYTES: usize = 8 + 1 + 1 + 4;

/// Where and how a task's log is kept.
#[derive(Debug, Clone)]
pub struct LogConfig {
    pub dir: PathBuf,
    pub task_id: String,
    /// Size at which the next file is begun.
    pub file_bytes_max: u64,
    /// Files kept.
    pub files_max: u64,
}

/// One line, or a piece of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Nanoseconds since 1970.
    pub time_ns: i64,
    pub stream: LogStream,
    /// The line goes on in the next entry of the same stream.
    pub partial: bool,
    /// Without the line end.
    pub text: Vec<u8>,
}

/// Which entries to read.
#[derive(Debug, Clone, Default)]
pub struct LogFilter {
    /// Empty means all.
    pub streams: Vec<LogStream>,
    /// Only entries from this time on, nanoseconds since 1970.
    pub since_ns: Option<i64>,
    /// Only the last so many entries.
    pub tail: Option<usize>,
}

/// Writes the log of a task.
pub(crate) struct LogWriter {
    config: LogConfig,
    sealer: Sealer,
    number: u64,
    frames: u64,
    bytes: u64,
    file: File,
    /// What has no line end yet, per stream.
    open_lines: [Vec<u8>; 2],
    /// Entries that the disk refused since the last frame it took.
    lost: u64,
}

impl LogWriter {
    /// Begins a new file after those that exist.
    pub(crate) fn open(config: LogConfig, key: Dek) -> io::Result<LogWriter> {
        files::create_directory(&config.dir, 0o700)?;
        let number = numbers(&config.dir)?.last().copied().unwrap_or(0) + 1;
        Ok(LogWriter {
            sealer: sealer(&config.task_id, key).map_err(io::Error::other)?,
            file: create(&config.dir, number)?,
            number,
            frames: 0,
            bytes: 0,
            open_lines: Default::default(),
            lost: 0,
            config,
        })
    }

    /// Takes what was read from a stream.
    pub(crate) fn write(&mut self, stream: LogStream, data: &[u8]) {
        let index = usize::from(stream == LogStream::Stderr);
        let mut line = std::mem::take(&mut self.open_lines[index]);
        let mut frame = Frame::new(stream);
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            let ended = line.last() == Some(&b'\n');
            if ended {
                line.pop();
            }
            while line.len() > ENTRY_BYTES_MAX {
                let rest = line.split_off(ENTRY_BYTES_MAX);
                frame.push(&line, true);
                line = rest;
            }
            if ended {
                frame.push(&line, false);
                line.clear();
            }
        }
        self.open_lines[index] = line;
        self.write_frame(frame);
    }

    /// The stream has ended: what has no line end is a line all the same.
    pub(crate) fn end(&mut self, stream: LogStream) {
        let index = usize::from(stream == LogStream::Stderr);
        let line = std::mem::take(&mut self.open_lines[index]);
        if !line.is_empty() {
            let mut frame = Frame::new(stream);
            frame.push(&line, false);
            self.write_frame(frame);
        }
    }

    fn write_frame(&mut self, mut frame: Frame) {
        if frame.entries == 0 {
            return;
        }
        let entries = frame.entries;
        if self.lost > 0 {
            let note = format!("({} lines could not be stored)", self.lost);
            frame.push(note.as_bytes(), false);
        }
        match self.append(&frame.bytes) {
            Ok(()) => self.lost = 0,
            Err(_) => self.lost += entries,
        }
    }

    fn append(&mut self, body: &[u8]) -> io::Result<()> {
        if self.bytes >= self.config.file_bytes_max {
            self.rotate()?;
        }
        let sealed = self
            .sealer
            .seal(&[&name(self.number, self.frames)], &[], body)
            .map_err(io::Error::other)?;
        let length = u32::try_from(sealed.len()).map_err(io::Error::other)?;
        let mut record = length.to_le_bytes().to_vec();
        record.extend_from_slice(&sealed);
        if let Err(error) = self.file.write_all(&record) {
            // A frame cut short would end the file for every reader.
            self.file.set_len(self.bytes)?;
            return Err(error);
        }
        self.bytes += record.len() as u64;
        self.frames += 1;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = create(&self.config.dir, self.number + 1)?;
        self.number += 1;
        self.frames = 0;
        self.bytes = 0;
        for number in numbers(&self.config.dir)? {
            if number + self.config.files_max <= self.number {
                std::fs::remove_file(file_path(&self.config.dir, number))?;
            }
        }
        Ok(())
    }
}

/// Entries of one stream on their way into the file.
struct Frame {
    time_ns: i64,
    stream: LogStream,
    entries: u64,
    bytes: Vec<u8>,
}

impl Frame {
    fn new(stream: LogStream) -> Frame {
        let now = time::timestamp_nanos(&time::now());
        Frame {
            time_ns: i64::try_from(now).unwrap_or(i64::MAX),
            stream,
            entries: 0,
            bytes: Vec::new(),
        }
    }

    fn push(&mut self, text: &[u8], partial: bool) {
        self.entries += 1;
        self.bytes.extend_from_slice(&self.time_ns.to_le_bytes());
        self.bytes.push(self.stream as i32 as u8);
        self.bytes.push(u8::from(partial));
        // At most ENTRY_BYTES_MAX.
        self.bytes
            .extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(text);
    }
}

/// Reads a task's log, oldest entry first. Runs beside a writer.
pub(crate) fn read(
    dir: &Path,
    task_id: &str,
    key: Dek,
    filter: &LogFilter,
) -> io::Result<Vec<LogEntry>> {
    let sealer = sealer(task_id, key).map_err(io::Error::other)?;
    let mut entries = std::collections::VecDeque::new();
    let numbers = match numbers(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        numbers => numbers?,
    };
    for number in numbers {
        let mut file = match File::open(file_path(dir, number)) {
            Ok(file) => file,
            // Rotated away meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut position = 0;
        while let Some(sealed) = next_frame(&mut file)? {
            let opened = sealer
                .open(&[&name(number, position)], 0, &sealed)
                .map_err(io::Error::other)?;
            position += 1;
            for entry in parse(&opened.body)? {
                let since = filter.since_ns.is_none_or(|since| entry.time_ns >= since);
                let stream = filter.streams.is_empty() || filter.streams.contains(&entry.stream);
                if since && stream {
                    entries.push_back(entry);
                    if filter.tail.is_some_and(|tail| entries.len() > tail) {
                        entries.pop_front();
                    }
                }
            }
        }
    }
    Ok(entries.into())
}

/// The next whole frame, or `None` at the end of what is written.
fn next_frame(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if let Err(error) = file.read_exact(&mut length) {
        return end_or(error);
    }
    let length = u32::from_le_bytes(length);
    if length > FRAME_BYTES_MAX {
        return Err(damaged("a frame is too long"));
    }
    let mut sealed = vec![0; length as usize];
    match file.read_exact(&mut sealed) {
        Ok(()) => Ok(Some(sealed)),
        Err(error) => end_or(error),
    }
}

fn end_or(error: io::Error) -> io::Result<Option<Vec<u8>>> {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        Ok(None)
    } else {
        Err(error)
    }
}

fn parse(mut body: &[u8]) -> io::Result<Vec<LogEntry>> {
    let mut entries = Vec::new();
    while !body.is_empty() {
        let short = || damaged("an entry is cut short");
        let (head, rest) = body.split_at_checked(ENTRY_HEAD_BYTES).ok_or_else(short)?;
        let (time, head) = head.split_first_chunk().ok_or_else(short)?;
        let (length, _) = head[2..].split_first_chunk().ok_or_else(short)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (text, rest) = rest.split_at_checked(length).ok_or_else(short)?;
        entries.push(LogEntry {
            time_ns: i64::from_le_bytes(*time),
            stream: LogStream::try_from(i32::from(head[0])).unwrap_or(LogStream::Unknown),
            partial: head[1] != 0,
            text: text.to_vec(),
        });
        body = rest;
    }
    Ok(entries)
}

fn damaged(reason: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the task's log is damaged: {reason}"),
    )
}

fn sealer(task_id: &str, key: Dek) -> Result<Sealer, SealError> {
    Sealer::new(DekRing::single(key), task_id.as_bytes(), "task log")
}

/// Names a frame by file number and position.
fn name(number: u64, position: u64) -> [u8; 16] {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&number.to_be_bytes());
    name[8..].copy_from_slice(&position.to_be_bytes());
    name
}

/// Numbers of the files there are, in order.
fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".log"));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn file_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number}.log"))
}

fn create(dir: &Path, number: u64) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file_path(dir, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Dek {
        Dek::from_bytes(&[7; 32]).unwrap()
    }

    fn config(dir: &Path) -> LogConfig {
        LogConfig {
            dir: dir.join("log"),
            task_id: "task".to_owned(),
            file_bytes_max: 10 << 20,
            files_max: 3,
        }
    }

    fn texts(entries: &[LogEntry]) -> Vec<String> {
        entries
            .iter()
            .map(|entry| {
                let stream = if entry.stream == LogStream::Stderr {
                    "err"
                } else {
                    "out"
                };
                let rest = if entry.partial { "+" } else { "" };
                format!("{stream} {}{rest}", String::from_utf8_lossy(&entry.text))
            })
            .collect()
    }

    fn read_all(config: &LogConfig, filter: &LogFilter) -> Vec<String> {
        texts(&read(&config.dir, "task", key(), filter).unwrap())
    }

    #[test]
    fn lines_come_back_per_stream() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let mut log = LogWriter::open(config.clone(), key()).unwrap();
        log.write(LogStream::Stdout, b"one\ntw");
        log.write(LogStream::Stderr, b"oops\n\n");
        log.write(LogStream::Stdout, b"o\nthree");
        assert_eq!(
            read_all(&config, &LogFilter::default()),
            ["out one", "err oops", "err ", "out two"]
        );
        log.end(LogStream::Stdout);
        log.end(LogStream::Stderr);
        let tail = LogFilter {
            tail: Some(2),
            streams: vec![LogStream::Stdout],
            since_ns: Some(0),
        };
        assert_eq!(read_all(&config, &tail), ["out two", "out three"]);
        let future = LogFilter {
            since_ns: Some(i64::MAX),
            ..Default::default()
        };
        assert!(read_all(&config, &future).is_empty());
        let raw = std::fs::read(config.dir.join("1.log")).unwrap();
        assert!(!raw.windows(5).any(|window| window == b"three"));
    }

    #[test]
    fn long_lines_are_split() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let mut log = LogWriter::open(config.clone(), key()).unwrap();
        let line = vec![b'x'; ENTRY_BYTES_MAX * 2 + 5];
        log.write(LogStream::Stdout, &line);
        log.write(LogStream::Stdout, b"\n");
        let entries = read(&config.dir, "task", key(), &LogFilter::default()).unwrap();
        let lengths: Vec<(usize, bool)> = entries
            .iter()
            .map(|entry| (entry.text.len(), entry.partial))
            .collect();
        assert_eq!(
            lengths,
            [(ENTRY_BYTES_MAX, true), (ENTRY_BYTES_MAX, true), (5, false)]
        );
    }

    #[test]
    fn only_so_many_files_of_so_much_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let config = LogConfig {
            file_bytes_max: 2000,
            ..config(dir.path())
        };
        let mut log = LogWriter::open(config.clone(), key()).unwrap();
        for n in 0..1000 {
            log.write(LogStream::Stdout, format!("line {n}\n").as_bytes());
        }
        assert_eq!(numbers(&config.dir).unwrap().len(), 3);
        for number in numbers(&config.dir).unwrap() {
            let length = std::fs::metadata(file_path(&config.dir, number))
                .unwrap()
                .len();
            assert!(length < 2200, "{length}");
        }
        let lines = read_all(&config, &LogFilter::default());
        assert_eq!(lines.last().unwrap(), "out line 999");
        let first: usize = lines[0].rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!(lines.len(), 1000 - first, "no gap");
    }

    #[test]
    fn a_frame_cut_short_ends_its_file_and_a_changed_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let mut log = LogWriter::open(config.clone(), key()).unwrap();
        log.write(LogStream::Stdout, b"one\n");
        log.write(LogStream::Stdout, b"two\n");
        drop(log);
        let path = config.dir.join("1.log");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(read_all(&config, &LogFilter::default()), ["out one"]);

        // A later writer begins a file of its own.
        let mut log = LogWriter::open(config.clone(), key()).unwrap();
        log.write(LogStream::Stdout, b"three\n");
        assert_eq!(
            read_all(&config, &LogFilter::default()),
            ["out one", "out three"]
        );

        // Leaving the first frame out is noticed.
        let first = 4 + u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
        std::fs::write(&path, &whole[first..]).unwrap();
        assert!(read(&config.dir, "task", key(), &LogFilter::default()).is_err());
    }
}
