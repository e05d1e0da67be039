//! Object IDs: 25 lower-case base-36 characters with about 129 bits of randomness.
//!
//! IDs are drawn from the operating system's seeded generator and never checked for collisions. The
//! store compares them byte by byte and accepts any string, so nothing here is needed to read an
//! ID; [`is_valid_id`] is for input that must look like one of ours.

use rand::RngCore;

/// Characters in an ID.
pub const ID_LEN: usize = 25;

/// Random bytes that go into one ID.
const RANDOM_BYTES: usize = 17;

/// Base-36 digits of a 136-bit number whose top bit is set: 36^26 < 2^135 and 2^136 < 36^27.
const DIGITS: usize = 27;

const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// A new random ID.
pub fn new_id() -> String {
    let mut bytes = [0u8; RANDOM_BYTES];
    rand::rng().fill_bytes(&mut bytes);
    id_from_bytes(bytes)
}

/// The ID that a given draw of random bytes stands for.
///
/// The bytes are one big-endian number. Its top bit is forced to one so that it always has the same
/// count of digits; the first digit carries little randomness for that reason and is dropped, and
/// of the rest the first [`ID_LEN`] are kept.
fn id_from_bytes(mut bytes: [u8; RANDOM_BYTES]) -> String {
    bytes[0] |= 0x80;
    let mut digits = [0u8; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[divide_by_36(&mut bytes)];
    }
    digits[1..=ID_LEN].iter().copied().map(char::from).collect()
}

/// Divides a big-endian number in place and returns the remainder, which is below 36.
fn divide_by_36(number: &mut [u8]) -> usize {
    let mut remainder = 0usize;
    for byte in number {
        let value = remainder * 256 + usize::from(*byte);
        // The remainder was below 36, so the quotient is below 256.
        *byte = (value / 36) as u8;
        remainder = value % 36;
    }
    remainder
}

/// Whether a string has the form of an ID made by [`new_id`].
pub fn is_valid_id(id: &str) -> bool {
    id.len() == ID_LEN
        && id
            .bytes()
            .all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    // 2^135 and 2^136 - 1 in base 36, without the first and the last digit.
    const LOWEST: &str = "hvy0lj3x0b883f8e30fyp2172";
    const HIGHEST: &str = "zrw1727u0mgg6ugs60vxe42e4";

    #[test]
    fn known_draws() {
        assert_eq!(id_from_bytes([0; RANDOM_BYTES]), LOWEST);
        assert_eq!(id_from_bytes([0xff; RANDOM_BYTES]), HIGHEST);
    }

    #[test]
    fn new_ids_are_valid_and_differ() {
        let ids: std::collections::BTreeSet<String> = (0..1000).map(|_| new_id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| is_valid_id(id)));
    }

    #[test]
    fn other_forms_are_refused() {
        for id in [
            "",
            "abc",
            "0123456789ABCDEFGHIJKLMNO",
            "0123456789abcdefghijklmn-",
            "0123456789abcdefghijklmnop",
        ] {
            assert!(!is_valid_id(id), "{id}");
        }
    }
}
