//! Sizes, fractions of CPUs and durations as people write them.

use std::time::Duration;

/// One CPU in the unit of the API.
pub const NANO_CPUS_PER_CPU: i64 = 1_000_000_000;

/// Parses `64m`, `1.5GiB`, `1048576`: a number and a binary suffix (k, m, g, t; `b` and `ib` ignored).
pub fn parse_bytes(text: &str) -> Result<i64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits_end = lower
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(lower.len());
    let (number, suffix) = lower.split_at(digits_end);
    let shift = match suffix.trim().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => {
            return Err(format!(
                "{text:?} is not a size: write a number with k, m, g or t, such as 64m"
            ));
        }
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a size: write for example 64m or 1.5g"))?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes > i64::MAX as f64 {
        return Err(format!("{text:?} is larger than any machine's memory"));
    }
    Ok(bytes as i64)
}

/// Parses CPUs with up to nine decimals, such as `0.5`, into billionths.
pub fn parse_cpus(text: &str) -> Result<i64, String> {
    let wrong = || {
        format!("{text:?} is not a number of CPUs: write for example 0.5, with up to nine decimals")
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.chars().all(|c| c.is_ascii_digit());
    if fraction.len() > 9 || !digits(whole) || !digits(fraction) || text.is_empty() || text == "." {
        return Err(wrong());
    }
    let whole: i64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| wrong())?
    };
    let fraction: i64 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
    whole
        .checked_mul(NANO_CPUS_PER_CPU)
        .and_then(|nanos| nanos.checked_add(fraction))
        .ok_or_else(wrong)
}

/// Parses `500ms`, `1m30s`, `2160h` into the API's duration.
pub fn parse_duration(text: &str) -> Result<prost_types::Duration, String> {
    let duration: Duration = if text == "0" {
        Duration::ZERO
    } else {
        humantime::parse_duration(text).map_err(|error| {
            format!("{text:?} is not a duration ({error}): write for example 10s or 1m30s")
        })?
    };
    Ok(crate::api::time::from_std(duration))
}

/// `3s ago`, `2 hours ago`: the coarse age of a timestamp.
pub fn age(stamp: Option<&prost_types::Timestamp>, now: &prost_types::Timestamp) -> String {
    let Some(stamp) = stamp else {
        return String::new();
    };
    let seconds = now.seconds.saturating_sub(stamp.seconds).max(0);
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3_600 => (seconds / 60, "minute"),
        3_600..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural} ago")
}

/// A duration as people write it, such as `5s` or `1m 30s`; empty when absent.
pub fn show_duration(duration: Option<&prost_types::Duration>) -> String {
    match duration {
        None => String::new(),
        Some(duration) => {
            humantime::format_duration(crate::api::time::to_std_or_zero(Some(duration))).to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("64m"), Ok(64 << 20));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("10kb"), Ok(10 << 10));
        for wrong in ["", "m", "ten", "5x", "1.2.3m", "9999999999t"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cpus() {
        assert_eq!(parse_cpus("0.5"), Ok(500_000_000));
        assert_eq!(parse_cpus(".25"), Ok(250_000_000));
        assert_eq!(parse_cpus("2"), Ok(2_000_000_000));
        assert_eq!(parse_cpus("0.000000001"), Ok(1));
        for wrong in ["", ".", "-1", "0.0000000001", "half", "99999999999"] {
            assert!(parse_cpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("1m30s").map(|d| d.seconds), Ok(90));
        assert_eq!(parse_duration("0").map(|d| d.seconds), Ok(0));
        assert!(parse_duration("soon").is_err());
        assert_eq!(
            show_duration(Some(&prost_types::Duration {
                seconds: 90,
                nanos: 0
            })),
            "1m 30s"
        );
    }

    #[test]
    fn ages() {
        let at = |seconds| prost_types::Timestamp { seconds, nanos: 0 };
        assert_eq!(age(Some(&at(99)), &at(100)), "1 second ago");
        assert_eq!(age(Some(&at(0)), &at(7_200)), "2 hours ago");
        assert_eq!(age(Some(&at(200)), &at(100)), "0 seconds ago");
        assert_eq!(age(None, &at(100)), "");
    }
}
