//! Walks the structure of the log's files before the log engine opens them.
//!
//! The engine tolerates a damaged end of the last file, because a write that was under way when the
//! machine stopped looks like that. But it takes *any* damage in that file for such an end: one flipped
//! byte in the middle makes everything behind it vanish without a word. This module tells the two apart.
//! Every batch is synced before the next one is written, so at most the very last batch can be torn: if
//! anything valid lies behind a broken place, or the broken place lies in an older file, or a file is
//! missing, durable data was damaged. Such damage is reported with file and offset, and nothing is opened.
//!
//! Format (raft-engine 0.4, versions 1 and 2): a file is a header and batches; a batch is
//!
//! ```text
//! length 7 | compression 1 | offset of the items 8 | [entries, CRC-32 4] | items, CRC-32 4
//! ```
//!
//! where the last checksum is XORed with the file's number in version 2. Nothing here ever writes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"RAFT-LOG-FILE-HEADER-9986AB3E47F320B394C8E84916EB0ED5";
const BATCH_HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 4;
/// Digits of a file's number in its name.
const NUMBER_DIGITS: usize = 16;
/// The shortest possible list of items: a count of one byte and its checksum.
const ITEMS_BYTES_MIN: usize = 1 + CHECKSUM_BYTES;

/// The two kinds of files that the engine keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// What was appended, in order.
    Append,
    /// What was still needed of purged append files.
    Rewrite,
}

impl Queue {
    fn suffix(self) -> &'static str {
        match self {
            Queue::Append => ".raftlog",
            Queue::Rewrite => ".rewrite",
        }
    }
}

/// A place in a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    pub offset: u64,
}

/// Durable data that is broken or missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub place: Place,
    pub reason: String,
}

/// What the walk found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    /// The first damage, if any.
    pub damage: Option<Damage>,
    /// Where an unfinished last write begins, if there is one.
    pub torn: Option<Place>,
    /// Highest entry index in any readable batch, also behind damage; 0 without entries.
    pub highest_index: u64,
}

/// Walks all log files of `dir`.
pub fn scan(dir: &Path) -> io::Result<Scan> {
    let mut found = Scan::default();
    for queue in [Queue::Rewrite, Queue::Append] {
        let files = list(dir, queue)?;
        for (position, file) in files.iter().enumerate() {
            if let Some(next) = files.get(position + 1)
                && next.number != file.number + 1
            {
                found.report(Damage {
                    place: Place {
                        file: dir.join(format!(
                            "{:0NUMBER_DIGITS$}{}",
                            file.number + 1,
                            queue.suffix()
                        )),
                        offset: 0,
                    },
                    reason: "the file is missing".into(),
                });
            }
            let is_last = position + 1 == files.len();
            scan_file(file, queue, is_last, &mut found)?;
        }
    }
    Ok(found)
}

impl Scan {
    /// Keeps the first damage: everything behind it is lost with it.
    fn report(&mut self, damage: Damage) {
        self.damage.get_or_insert(damage);
    }
}

fn scan_file(file: &LogFile, queue: Queue, is_last: bool, found: &mut Scan) -> io::Result<()> {
    let content = fs::read(&file.path)?;
    let mut batches = Batches::new(&content, file.number);
    let mut last_offset = batches.offset;
    let mut last_block_broken = false;
    let broken = loop {
        let offset = batches.offset;
        match batches.next() {
            Ok(None) => break None,
            Ok(Some(batch)) => {
                found.highest_index = found.highest_index.max(batch.last_index());
                last_block_broken = !batch.block_is_whole();
                last_offset = offset;
            }
            Err(reason) => break Some((offset, reason)),
        }
    };
    // The engine also drops the last batch of a file if its entries do not match their checksum.
    let (offset, reason) = match broken {
        _ if last_block_broken => (last_offset, "entries do not match their checksum".into()),
        Some(broken) => broken,
        None => return Ok(()),
    };
    let place = Place {
        file: file.path.clone(),
        offset: offset as u64,
    };
    let behind = highest_behind(&content, offset + 1, file.number, batches.version);
    if let Some(highest) = behind {
        found.highest_index = found.highest_index.max(highest);
    }
    match (queue, is_last, behind) {
        // What the engine rewrites is synced in larger steps; what is missing there shows as a missing
        // record or entry.
        (Queue::Rewrite, true, _) | (Queue::Append, true, None) => found.torn = Some(place),
        (_, true, Some(_)) => found.report(Damage {
            place,
            reason: format!("{reason}, but readable data follows"),
        }),
        (_, false, _) => found.report(Damage { place, reason }),
    }
    Ok(())
}

/// Unwritten space is skipped in pieces of this size.
const ZEROS: [u8; 4096] = [0; 4096];
/// Bytes in which a batch tells its length, which is not zero.
const LENGTH_BYTES: usize = 8;

/// Highest index of any readable batch at or behind `from`; `None` if nothing there is readable.
fn highest_behind(content: &[u8], from: usize, number: u64, version: Option<u64>) -> Option<u64> {
    let mut highest = None;
    let mut offset = from;
    while offset + BATCH_HEADER_BYTES + ITEMS_BYTES_MIN <= content.len() {
        // Space that was reserved and never written: megabytes at the end of every file in use.
        while content[offset..].starts_with(&ZEROS) {
            offset += ZEROS.len() - (LENGTH_BYTES - 1);
        }
        // A file whose own header is broken may be of either version.
        let batch = match version {
            Some(version) => Batch::parse(content, offset, signature(version, number)).ok(),
            None => [0, number as u32]
                .into_iter()
                .find_map(|signature| Batch::parse(content, offset, signature).ok()),
        };
        match batch {
            Some(batch) => {
                highest = highest.max(Some(batch.last_index()));
                offset += batch.bytes;
            }
            None => offset += 1,
        }
    }
    highest
}

/// Where the newest copy of an entry lies, for messages about it.
pub fn locate(dir: &Path, index: u64) -> Option<Place> {
    let mut place = None;
    for queue in [Queue::Rewrite, Queue::Append] {
        for file in list(dir, queue).ok()? {
            let content = fs::read(&file.path).ok()?;
            let mut batches = Batches::new(&content, file.number);
            let mut offset = batches.offset;
            while let Ok(Some(batch)) = batches.next() {
                if batch
                    .entries
                    .iter()
                    .any(|(first, last)| (*first..=*last).contains(&index))
                {
                    place = Some(Place {
                        file: file.path.clone(),
                        offset: offset as u64,
                    });
                }
                offset = batches.offset;
            }
        }
    }
    place
}

/// A log file and its number.
pub struct LogFile {
    pub number: u64,
    pub path: PathBuf,
}

/// The files of a queue in the order of their numbers.
pub fn list(dir: &Path, queue: Queue) -> io::Result<Vec<LogFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(queue.suffix()))
            .filter(|digits| digits.len() == NUMBER_DIGITS)
            .and_then(|digits| digits.parse().ok());
        if let Some(number) = number {
            files.push(LogFile { number, path });
        }
    }
    files.sort_by_key(|file| file.number);
    Ok(files)
}

/// What is XORed into the checksum of the items.
fn signature(version: u64, number: u64) -> u32 {
    if version >= 2 { number as u32 } else { 0 }
}

/// The batches of one file, in order.
struct Batches<'a> {
    content: &'a [u8],
    number: u64,
    /// `None` if the file's header is broken.
    version: Option<u64>,
    /// Where the next batch begins.
    offset: usize,
}

impl<'a> Batches<'a> {
    fn new(content: &'a [u8], number: u64) -> Batches<'a> {
        let version = content
            .strip_prefix(MAGIC)
            .and_then(|rest| rest.first_chunk::<8>())
            .map(|bytes| u64::from_be_bytes(*bytes))
            .filter(|version| (1..=2).contains(version));
        let offset = match version {
            Some(1) => MAGIC.len() + 8,
            Some(_) => MAGIC.len() + 16,
            None => 0,
        };
        Batches {
            content,
            number,
            version: version.filter(|_| offset <= content.len()),
            offset,
        }
    }

    /// The next batch; `None` at the end of the file.
    fn next(&mut self) -> Result<Option<Batch<'a>>, String> {
        let Some(version) = self.version else {
            self.offset = 0;
            return Err("the header of the file is broken".into());
        };
        if self.offset >= self.content.len() {
            return Ok(None);
        }
        let signature = signature(version, self.number);
        let batch = Batch::parse(self.content, self.offset, signature)?;
        self.offset += batch.bytes;
        Ok(Some(batch))
    }
}

/// One batch whose items match their checksum.
struct Batch<'a> {
    bytes: usize,
    /// The entries with their checksum; empty without entries.
    block: &'a [u8],
    /// First and last index of each run of entries.
    entries: Vec<(u64, u64)>,
}

impl<'a> Batch<'a> {
    fn parse(content: &'a [u8], offset: usize, signature: u32) -> Result<Batch<'a>, String> {
        let rest = content.get(offset..).unwrap_or_default();
        let header = rest
            .first_chunk::<BATCH_HEADER_BYTES>()
            .ok_or("a write is cut off")?;
        let word = |at: usize| -> u64 {
            header[at..at + 8]
                .iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        let (bytes, compression) = ((word(0) >> 8) as usize, word(0) & 0xff);
        let items_at = usize::try_from(word(8)).unwrap_or(usize::MAX);
        let plausible = compression <= 1
            && items_at >= BATCH_HEADER_BYTES
            && items_at.saturating_add(ITEMS_BYTES_MIN) <= bytes;
        if !plausible {
            return Err("a write has no valid header".into());
        }
        let batch = rest.get(..bytes).ok_or("a write is cut off")?;
        let items =
            checked(&batch[items_at..], signature).ok_or("a write does not match its checksum")?;
        Ok(Batch {
            bytes,
            block: &batch[BATCH_HEADER_BYTES..items_at],
            entries: entry_runs(items).ok_or("a write lists something unknown")?,
        })
    }

    fn block_is_whole(&self) -> bool {
        self.block.is_empty() || checked(self.block, 0).is_some()
    }

    fn last_index(&self) -> u64 {
        self.entries
            .iter()
            .map(|(_, last)| *last)
            .max()
            .unwrap_or(0)
    }
}

/// The bytes in front of a checksum, if they match it.
fn checked(bytes: &[u8], signature: u32) -> Option<&[u8]> {
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
    let matches = crc32fast::hash(body) == u32::from_le_bytes(*checksum) ^ signature;
    matches.then_some(body)
}

/// First and last index of each run of entries that a list of items names.
fn entry_runs(items: &[u8]) -> Option<Vec<(u64, u64)>> {
    let mut reader = Reader(items);
    let mut runs = Vec::new();
    for _ in 0..reader.number()? {
        reader.number()?;
        match reader.byte()? {
            // Entries: count, first index, end of each.
            1 => {
                let count = reader.number()?;
                if count > 0 {
                    let first = reader.number()?;
                    runs.push((first, first.checked_add(count - 1)?));
                }
                for _ in 0..count {
                    reader.number()?;
                }
            }
            // Commands: clean, or compact with an index.
            2 => match reader.byte()? {
                1 => {}
                2 => {
                    reader.number()?;
                }
                _ => return None,
            },
            // A key that is put with a value, or deleted.
            3 => {
                let put = reader.byte()? == 1;
                let key_bytes = reader.number()?;
                reader.skip(key_bytes)?;
                if put {
                    let value_bytes = reader.number()?;
                    reader.skip(value_bytes)?;
                }
            }
            _ => return None,
        }
    }
    Some(runs)
}

/// Reads the numbers of a list of items.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// A number in groups of 7 bits, lowest first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }
}
