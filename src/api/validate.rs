//! Rules for names and spans of time that several kinds of objects share.
//!
//! Pure functions: they look at a value and say what is wrong with it (spec 05 sections 3 and 20).

use prost_types::Duration;

/// What is wrong with a value: one clear sentence, already naming the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl Invalid {
    pub fn new(reason: impl Into<String>) -> Invalid {
        Invalid(reason.into())
    }
}

/// Longest DNS label, in bytes: services and networks are found by name through DNS.
pub const DNS_NAME_BYTES_MAX: usize = 63;

/// Longest name of a secret or config, in bytes.
pub const SECRET_NAME_BYTES_MAX: usize = 64;

/// Largest span of time either way: 10,000 years, in seconds.
const SPAN_SECONDS_MAX: i64 = 315_576_000_000;

/// Largest count of nanoseconds beside full seconds.
const SPAN_NANOS_MAX: i32 = 999_999_999;

/// The name of a service or network: letters and digits, with `-` and `_` inside.
pub fn dns_name(name: &str) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::new("meta: name must be provided"));
    }
    if !is_joined_alphanumeric(name, b"-_") {
        return Err(Invalid::new("name must be valid as a DNS name component"));
    }
    if name.len() > DNS_NAME_BYTES_MAX {
        return Err(Invalid::new("name must be 63 characters or fewer"));
    }
    Ok(())
}

/// The name of a secret or config: letters and digits, with `-`, `_` and `.` inside.
pub fn secret_name(name: &str) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::new("name must be provided"));
    }
    if name.len() > SECRET_NAME_BYTES_MAX || !is_joined_alphanumeric(name, b"-_.") {
        return Err(Invalid::new(
            "invalid name, only 64 [a-zA-Z0-9-_.] characters allowed, \
             and the start and end character must be [a-zA-Z0-9]",
        ));
    }
    Ok(())
}

/// The nanoseconds of a span, if it is well-formed: within 10,000 years, and seconds and nanoseconds
/// with the same sign. `field` names the span in the message.
pub fn span_nanos(field: &str, span: &Duration) -> Result<i128, Invalid> {
    let in_range = (-SPAN_SECONDS_MAX..=SPAN_SECONDS_MAX).contains(&span.seconds)
        && (-SPAN_NANOS_MAX..=SPAN_NANOS_MAX).contains(&span.nanos);
    let same_sign = span.seconds == 0 || span.nanos == 0 || (span.seconds < 0) == (span.nanos < 0);
    if !in_range || !same_sign {
        return Err(Invalid(format!(
            "{field}: {} s {} ns is not a valid duration",
            span.seconds, span.nanos
        )));
    }
    Ok(super::time::duration_nanos(span))
}

/// The nanoseconds of a span that may be absent (zero) but not negative.
pub fn span_not_negative(field: &str, span: Option<&Duration>) -> Result<i128, Invalid> {
    let nanos = span.map_or(Ok(0), |span| span_nanos(field, span))?;
    if nanos < 0 {
        return Err(Invalid(format!("{field} cannot be negative")));
    }
    Ok(nanos)
}

/// Letters and digits at both ends, and between them also the given separators.
fn is_joined_alphanumeric(text: &str, separators: &[u8]) -> bool {
    let is_end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    is_end(bytes.first())
        && is_end(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || separators.contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    // 05-A3
    #[test]
    fn dns_names() {
        for good in [
            "name",
            "n-me",
            "n_me",
            "n-m-e",
            "n--d",
            "9",
            "A",
            &"a".repeat(63),
        ] {
            assert_eq!(dns_name(good), Ok(()), "{good}");
        }
        assert_eq!(
            dns_name(""),
            Err(Invalid::new("meta: name must be provided"))
        );
        for bad in [
            "_nam", ".nam", "-nam", "nam-", "nam_", "n/me", "n&me", "////", "n.me", "nam\n", "nàme",
        ] {
            let error = dns_name(bad).unwrap_err();
            assert_eq!(
                error.0, "name must be valid as a DNS name component",
                "{bad:?}"
            );
        }
        let error = dns_name(&"a".repeat(64)).unwrap_err();
        assert_eq!(error.0, "name must be 63 characters or fewer");
    }

    // 05-A3
    #[test]
    fn secret_names() {
        for good in [
            "0",
            "a",
            "A",
            "name-with--dashes",
            "name.with..dots",
            "name_with__underscores",
            "name.with-all_special",
            "02624name035with1699numbers015125",
            &"a".repeat(64),
        ] {
            assert_eq!(secret_name(good), Ok(()), "{good}");
        }
        assert_eq!(secret_name(""), Err(Invalid::new("name must be provided")));
        for bad in [
            ".",
            "-",
            "_",
            ".name",
            "name.",
            "-name",
            "name-",
            "_name",
            "name_",
            "/",
            "a/b",
            "..",
            "../name",
            "na!me",
            "na me",
            "name\n",
            "\nname",
            "na@me",
            "na:me",
            "na;me",
            "ünïcode",
            &"a".repeat(65),
        ] {
            assert!(secret_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn spans() {
        let span = |seconds, nanos| Duration { seconds, nanos };
        assert_eq!(span_nanos("delay", &span(1, 5)), Ok(1_000_000_005));
        assert_eq!(span_nanos("delay", &span(-1, -5)), Ok(-1_000_000_005));
        assert_eq!(span_nanos("delay", &span(0, -5)), Ok(-5));
        for malformed in [
            span(1, -5),
            span(-1, 5),
            span(0, 1_000_000_000),
            span(0, i32::MIN),
            span(315_576_000_001, 0),
            span(i64::MIN, 0),
        ] {
            let error = span_nanos("delay", &malformed).unwrap_err();
            assert!(error.0.starts_with("delay: "), "{error}");
        }
        assert_eq!(span_not_negative("delay", None), Ok(0));
        assert_eq!(
            span_not_negative("delay", Some(&span(0, -1))),
            Err(Invalid::new("delay cannot be negative"))
        );
    }
}
