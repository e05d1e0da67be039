//! Points in time and spans of time: between the wire, the standard library and text.
//!
//! The wire keeps a timestamp as seconds since 1970 plus nanoseconds in `0..1_000_000_000`, and a
//! duration as seconds plus nanoseconds of the same sign. Durations on the wire may be negative;
//! those of the standard library may not, and the functions here say what happens then. Nothing in
//! this file panics, whatever a peer sends.

use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use prost_types::{Duration, Timestamp};

const NANOS_PER_SECOND: i128 = 1_000_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// The current time of the system clock.
pub fn now() -> Timestamp {
    from_system(SystemTime::now())
}

/// A system time as a timestamp. Times out of the wire's range (±292 billion years) saturate.
pub fn from_system(time: SystemTime) -> Timestamp {
    let nanos = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i128::try_from(after.as_nanos()).unwrap_or(i128::MAX),
        Err(before) => -i128::try_from(before.duration().as_nanos()).unwrap_or(i128::MAX),
    };
    timestamp_from_nanos(nanos)
}

/// A timestamp as a system time, or `None` if the platform cannot represent it.
pub fn to_system(time: &Timestamp) -> Option<SystemTime> {
    let nanos = timestamp_nanos(time);
    let distance = nanos_to_std(nanos.unsigned_abs())?;
    if nanos < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    }
}

/// Nanoseconds since 1970, negative before.
pub fn timestamp_nanos(time: &Timestamp) -> i128 {
    i128::from(time.seconds) * NANOS_PER_SECOND + i128::from(time.nanos)
}

/// The timestamp a number of nanoseconds after 1970, saturating at the ends of the wire's range.
pub fn timestamp_from_nanos(nanos: i128) -> Timestamp {
    let seconds = nanos.div_euclid(NANOS_PER_SECOND);
    let fraction = nanos.rem_euclid(NANOS_PER_SECOND);
    Timestamp {
        seconds: saturate(seconds),
        nanos: fraction as i32,
    }
}

/// The timestamp a span after (or, if the span is negative, before) another.
pub fn add(time: &Timestamp, span: &Duration) -> Timestamp {
    timestamp_from_nanos(timestamp_nanos(time) + duration_nanos(span))
}

/// The span from `earlier` to `later`, negative if they are the other way round.
pub fn between(earlier: &Timestamp, later: &Timestamp) -> Duration {
    duration_from_nanos(timestamp_nanos(later) - timestamp_nanos(earlier))
}

/// Nanoseconds in a span, with its sign.
pub fn duration_nanos(span: &Duration) -> i128 {
    i128::from(span.seconds) * NANOS_PER_SECOND + i128::from(span.nanos)
}

/// The span of a number of nanoseconds, saturating at the ends of the wire's range. Seconds and
/// nanoseconds have the same sign, as the wire demands.
pub fn duration_from_nanos(nanos: i128) -> Duration {
    Duration {
        seconds: saturate(nanos / NANOS_PER_SECOND),
        nanos: (nanos % NANOS_PER_SECOND) as i32,
    }
}

/// A standard duration as a span; beyond 292 billion years it saturates.
pub fn from_std(span: StdDuration) -> Duration {
    Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: span.subsec_nanos() as i32,
    }
}

/// A span as a standard duration, or `None` if it is negative.
pub fn to_std(span: &Duration) -> Option<StdDuration> {
    let nanos = duration_nanos(span);
    if nanos < 0 {
        None
    } else {
        nanos_to_std(nanos.unsigned_abs())
    }
}

/// A span as a standard duration, with zero for an absent or negative one.
pub fn to_std_or_zero(span: Option<&Duration>) -> StdDuration {
    span.and_then(to_std).unwrap_or_default()
}

/// A timestamp as RFC 3339 text in UTC with as many fractional digits as needed and no more, such
/// as `2024-02-29T12:00:00.5Z`. Years outside of 0 to 9999 are written with all their digits.
pub fn rfc3339_nano(time: &Timestamp) -> String {
    let time = timestamp_from_nanos(timestamp_nanos(time));
    let days = time.seconds.div_euclid(SECONDS_PER_DAY);
    let second_of_day = time.seconds.rem_euclid(SECONDS_PER_DAY);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (
        second_of_day / 3600,
        second_of_day / 60 % 60,
        second_of_day % 60,
    );
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if time.nanos != 0 {
        text.push_str(format!(".{:09}", time.nanos).trim_end_matches('0'));
    }
    text.push('Z');
    text
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// The calendar repeats every 400 years, which are 146,097 days. Years are counted from March, so
/// that a leap day is the last day of its year and the lengths of the months follow one pattern.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468; // days from 0000-03-01 to 1970-01-01
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

fn nanos_to_std(nanos: u128) -> Option<StdDuration> {
    let per_second = NANOS_PER_SECOND.unsigned_abs();
    let seconds = u64::try_from(nanos / per_second).ok()?;
    Some(StdDuration::new(seconds, (nanos % per_second) as u32))
}

fn saturate(seconds: i128) -> i64 {
    i64::try_from(seconds).unwrap_or(if seconds < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanos: i32) -> Timestamp {
        Timestamp { seconds, nanos }
    }

    fn span(seconds: i64, nanos: i32) -> Duration {
        Duration { seconds, nanos }
    }

    #[test]
    fn text() {
        assert_eq!(rfc3339_nano(&at(0, 0)), "1970-01-01T00:00:00Z");
        assert_eq!(
            rfc3339_nano(&at(1_709_208_000, 500_000_000)),
            "2024-02-29T12:00:00.5Z"
        );
        assert_eq!(
            rfc3339_nano(&at(1_709_208_000, 1)),
            "2024-02-29T12:00:00.000000001Z"
        );
        assert_eq!(
            rfc3339_nano(&at(-1, 999_000_000)),
            "1969-12-31T23:59:59.999Z"
        );
        assert_eq!(
            rfc3339_nano(&at(-62_135_596_800, 0)),
            "0001-01-01T00:00:00Z"
        );
        assert_eq!(
            rfc3339_nano(&at(253_402_300_799, 0)),
            "9999-12-31T23:59:59Z"
        );
        for extreme in [at(i64::MIN, i32::MIN), at(i64::MAX, i32::MAX)] {
            assert!(rfc3339_nano(&extreme).ends_with('Z'));
        }
    }

    #[test]
    fn system_time_round_trip() {
        for nanos in [-1_500_000_000, -1, 0, 1, 1_709_208_000_123_456_789] {
            let time = timestamp_from_nanos(nanos);
            assert!((0..1_000_000_000).contains(&time.nanos));
            assert_eq!(from_system(to_system(&time).unwrap()), time);
        }
        assert!(timestamp_nanos(&now()) > 0);
    }

    #[test]
    fn negative_spans() {
        assert_eq!(to_std(&span(-1, 0)), None);
        assert_eq!(to_std(&span(0, -1)), None);
        assert_eq!(
            to_std(&span(1, -500_000_000)),
            Some(StdDuration::from_millis(500))
        );
        assert_eq!(to_std_or_zero(Some(&span(-5, 0))), StdDuration::ZERO);
        assert_eq!(to_std_or_zero(None), StdDuration::ZERO);
        assert_eq!(duration_from_nanos(-1_500_000_000), span(-1, -500_000_000));
        assert_eq!(to_std(&span(i64::MIN, i32::MIN)), None);
    }

    #[test]
    fn standard_spans_round_trip() {
        for std in [
            StdDuration::ZERO,
            StdDuration::new(5, 7),
            StdDuration::from_secs(1 << 40),
        ] {
            assert_eq!(to_std(&from_std(std)), Some(std));
        }
        assert_eq!(from_std(StdDuration::MAX).seconds, i64::MAX);
    }

    #[test]
    fn arithmetic() {
        let start = at(10, 900_000_000);
        let end = add(&start, &span(0, 200_000_000));
        assert_eq!(end, at(11, 100_000_000));
        assert_eq!(between(&start, &end), span(0, 200_000_000));
        assert_eq!(between(&end, &start), span(0, -200_000_000));
        assert_eq!(add(&end, &between(&end, &start)), start);
        assert_eq!(add(&at(i64::MAX, 0), &span(i64::MAX, 0)).seconds, i64::MAX);
    }
}
