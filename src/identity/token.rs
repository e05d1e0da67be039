//! Join tokens: what a node shows to become a member, and by which it recognises the right cluster.
//!
//! A token carries the digest of the root certificates, so that the joiner can check what it
//! downloads over an unverified connection, and a secret that the manager checks (spec 02 section 5).
//! Only joiners take tokens apart; a manager compares the whole text with the one it keeps.

use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use subtle::ConstantTimeEq;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

const PREFIX: &str = "SWMTKN";
/// Digits of a 256-bit number in base 36.
const DIGEST_LEN: usize = 50;
/// Digits of a 128-bit number in base 36.
const SECRET_LEN: usize = 25;
const SECRET_BYTES: usize = 16;

/// Why a text is not a join token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("invalid join token")]
    Invalid,
    #[error("invalid join token: the digest of the root certificate is out of range")]
    Digest,
    #[error("no random numbers from the operating system for a join token")]
    Random,
}

/// A join token, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// SHA-256 of the root certificate bundle.
    pub digest: Digest,
    /// True if the cluster only takes nodes in FIPS mode.
    pub fips: bool,
    text: String,
}

impl fmt::Debug for JoinToken {
    /// Leaves out the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("fips", &self.fips)
            .finish_non_exhaustive()
    }
}

impl JoinToken {
    /// A new token for the cluster whose root certificates have this digest.
    pub fn generate(digest: &Digest, fips: bool) -> Result<JoinToken, TokenError> {
        let mut secret = [0u8; SECRET_BYTES];
        SystemRandom::new()
            .fill(&mut secret)
            .map_err(|_| TokenError::Random)?;
        Ok(JoinToken::from_secret(digest, fips, secret))
    }

    fn from_secret(digest: &Digest, fips: bool, secret: [u8; SECRET_BYTES]) -> JoinToken {
        let version = if fips { "2-1" } else { "1" };
        let digest_text = to_base36(digest, DIGEST_LEN);
        let secret_text = to_base36(&secret, SECRET_LEN);
        JoinToken {
            digest: *digest,
            fips,
            text: format!("{PREFIX}-{version}-{digest_text}-{secret_text}"),
        }
    }

    /// Takes a token apart.
    pub fn parse(text: &str) -> Result<JoinToken, TokenError> {
        let parts: Vec<&str> = text.split('-').collect();
        let (fips, digest, secret) = match parts.as_slice() {
            [PREFIX, "1", digest, secret] => (false, digest, secret),
            [PREFIX, "2", "0", digest, secret] => (false, digest, secret),
            [PREFIX, "2", "1", digest, secret] => (true, digest, secret),
            _ => return Err(TokenError::Invalid),
        };
        if digest.len() != DIGEST_LEN || secret.len() != SECRET_LEN {
            return Err(TokenError::Invalid);
        }
        Ok(JoinToken {
            digest: from_base36(digest).ok_or(TokenError::Digest)?,
            fips,
            text: text.to_owned(),
        })
    }

    /// The text that a person passes on.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Whether two tokens are the same text, in time that does not depend on where they differ. An empty
/// stored token matches nothing.
pub fn same_token(given: &str, stored: &str) -> bool {
    !stored.is_empty() && bool::from(given.as_bytes().ct_eq(stored.as_bytes()))
}

/// SHA-256 of some bytes.
pub fn sha256(bytes: &[u8]) -> Digest {
    let mut out = [0u8; 32];
    out.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    out
}

/// A big-endian number in base 36, lower case, padded with zeros to `digits` digits.
fn to_base36(number: &[u8], digits: usize) -> String {
    const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut number = number.to_vec();
    let mut text = vec![b'0'; digits];
    for digit in text.iter_mut().rev() {
        let mut remainder = 0usize;
        for byte in &mut number {
            let value = remainder * 256 + usize::from(*byte);
            // The remainder was below 36, so the quotient is below 256.
            *byte = (value / 36) as u8;
            remainder = value % 36;
        }
        *digit = ALPHABET[remainder];
    }
    text.into_iter().map(char::from).collect()
}

/// The number a base-36 text stands for, or `None` if it has other characters (upper case is read
/// like lower case) or does not fit.
fn from_base36(text: &str) -> Option<Digest> {
    let mut number = [0u8; 32];
    for digit in text.chars() {
        let mut carry = digit.to_digit(36)?;
        for byte in number.iter_mut().rev() {
            let value = u32::from(*byte) * 36 + carry;
            *byte = (value & 0xff) as u8;
            carry = value >> 8;
        }
        if carry != 0 {
            return None;
        }
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> [u8; SECRET_BYTES] {
        std::array::from_fn(|at| at as u8)
    }

    // 02-A4
    #[test]
    fn known_tokens() {
        let digest = sha256(b"abc");
        let plain = JoinToken::from_secret(&digest, false, counting());
        assert_eq!(
            plain.as_str(),
            "SWMTKN-1-4nb7oofka9ml8nasnokxxc1unhmtpr1wxsuwhpd9km3vt5as31-000avh9he7dy896m08s18udxr"
        );
        let fips = JoinToken::from_secret(&digest, true, counting());
        assert!(fips.as_str().starts_with("SWMTKN-2-1-4nb7oofka9"));
        for token in [plain, fips] {
            assert_eq!(JoinToken::parse(token.as_str()), Ok(token));
        }
    }

    #[test]
    fn known_numbers() {
        assert_eq!(
            to_base36(&[0xff; 32], 50),
            "6dp5qcb22im238nr3wvp0ic7q99w035jmy2iw7i6n43d37jtof"
        );
        assert_eq!(to_base36(&[0xff; 16], 25), "f5lxx1zz5pnorynqglhzmsp33");
        assert_eq!(from_base36(&to_base36(&[0xff; 32], 50)), Some([0xff; 32]));
    }

    #[test]
    fn new_tokens_differ() {
        let digest = sha256(b"");
        let one = JoinToken::generate(&digest, false).unwrap();
        let two = JoinToken::generate(&digest, false).unwrap();
        assert_ne!(one.as_str(), two.as_str());
        assert_eq!(JoinToken::parse(one.as_str()).unwrap().digest, digest);
        assert!(!format!("{one:?}").contains(one.as_str()));
    }

    // 02-A5
    #[test]
    fn other_texts_are_refused() {
        let digest = "4nb7oofka9ml8nasnokxxc1unhmtpr1wxsuwhpd9km3vt5as31";
        let secret = "000avh9he7dy896m08s18udxr";
        for text in [
            "invalidtoken".to_owned(),
            String::new(),
            format!("SWMTKN-1-{}-{secret}", &digest[1..]),
            format!("SWMTKN-1-{digest}-{}", &secret[1..]),
            format!("SWMTKN-0-{digest}-{secret}"),
            format!("SWMTKN-3-{digest}-{secret}"),
            format!("SWMTKN-2-{digest}-{secret}"),
            format!("SWMTKN-2-2-{digest}-{secret}"),
            format!("SWMTKN-1-1-{digest}-{secret}"),
            format!("swmtkn-1-{digest}-{secret}"),
        ] {
            assert_eq!(JoinToken::parse(&text), Err(TokenError::Invalid), "{text}");
        }
        let too_large = format!("SWMTKN-1-{}-{secret}", "z".repeat(50));
        assert_eq!(JoinToken::parse(&too_large), Err(TokenError::Digest));
        assert!(JoinToken::parse(&format!("SWMTKN-2-0-{digest}-{secret}")).is_ok());
    }

    #[test]
    fn comparison() {
        assert!(same_token("SWMTKN-1-a-b", "SWMTKN-1-a-b"));
        assert!(!same_token("SWMTKN-1-a-b", "SWMTKN-1-a-c"));
        assert!(!same_token("", ""));
    }

    proptest::proptest! {
        #[test]
        fn numbers_round_trip(number: [u8; 32]) {
            proptest::prop_assert_eq!(from_base36(&to_base36(&number, DIGEST_LEN)), Some(number));
        }
    }
}
