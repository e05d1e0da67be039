//! The disk's own speed, measured in the same minute as anything that is compared with it.
//!
//! F is the number of 4 KiB appends, each followed by `fdatasync`, that one thread completes per second.
//! Durable writes cannot be faster than F one by one, only by sharing a sync.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of one append: a page, and more than a typical log entry.
const APPEND_BYTES: usize = 4096;

/// What a calibration run found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Appends with `fdatasync` per second.
    pub syncs_per_second: f64,
    /// Median time of one append with its sync.
    pub median: Duration,
    /// 99 of 100 are faster than this.
    pub p99: Duration,
}

/// Measures F on the file system of `dir` for about `length`. The file is removed again.
pub fn sync_rate(dir: &Path, length: Duration) -> io::Result<Calibration> {
    let mut file: File = tempfile::tempfile_in(dir)?;
    let page = [0x5a_u8; APPEND_BYTES];
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < length || times.is_empty() {
        let one = Instant::now();
        file.write_all(&page)?;
        file.sync_data()?;
        times.push(one.elapsed());
    }
    let total = begin.elapsed();
    let count = times.len();
    times.sort_unstable();
    Ok(Calibration {
        syncs_per_second: count as f64 / total.as_secs_f64(),
        median: times[count / 2],
        p99: times[(count * 99 / 100).min(count - 1)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_found_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let found = sync_rate(dir.path(), Duration::from_millis(20)).unwrap();
        assert!(found.syncs_per_second > 0.0 && found.median <= found.p99);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(sync_rate(Path::new("/nonexistent"), Duration::ZERO).is_err());
    }
}
