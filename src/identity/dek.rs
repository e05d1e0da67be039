//! The raft data keys (DEK) of a manager, as they travel in the headers of the node key file.
//!
//! The current key encrypts everything the manager keeps on disk. Each header value is a record that
//! is sealed with the key-encryption key (KEK) of the node, or plain if there is none. The seal is
//! authenticated, which makes these headers the final judge of a KEK (spec 02 section 15.2).

use super::record::{self, RecordError};
use data_encoding::BASE64;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use zeroize::Zeroizing;

/// Length of a new data key.
pub const DEK_BYTES: usize = 32;

const CURRENT: &str = "raft-dek";
const PENDING: &str = "raft-dek-pending";
const NEEDS_ROTATION: &str = "raft-dek-needs-rotation";

/// Why the headers do not give data keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DekError {
    /// The KEK is wrong or missing.
    #[error("invalid KEK: {0}")]
    InvalidKek(RecordError),
    #[error("there is a pending DEK, but no current DEK")]
    PendingWithoutCurrent,
    #[error("header {0} is not base64")]
    NotBase64(&'static str),
    #[error("no random numbers from the operating system for a data key")]
    Random,
}

/// A data key. Wiped from memory when dropped, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Dek(Zeroizing<Vec<u8>>);

impl Dek {
    /// A new random key of [`DEK_BYTES`].
    pub fn generate() -> Result<Dek, DekError> {
        let mut key = Zeroizing::new(vec![0u8; DEK_BYTES]);
        SystemRandom::new()
            .fill(&mut key)
            .map_err(|_| DekError::Random)?;
        Ok(Dek(key))
    }

    /// A key with these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Dek {
        Dek(Zeroizing::new(bytes.to_vec()))
    }

    /// The key's bytes, normally [`DEK_BYTES`] of them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Dek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dek(..)")
    }
}

/// The data keys of a node. Empty on a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DekHeaders {
    /// The key in use.
    pub current: Option<Dek>,
    /// The key that is replacing it, while a rotation runs.
    pub pending: Option<Dek>,
    /// One more rotation is due.
    pub needs_rotation: bool,
}

impl DekHeaders {
    /// Reads the keys from PEM headers; other headers are ignored.
    pub fn from_headers(
        headers: &[(String, String)],
        kek: Option<&[u8]>,
    ) -> Result<DekHeaders, DekError> {
        let find = |wanted: &'static str| {
            let found = headers.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| open_header(wanted, value, kek))
        };
        let read = DekHeaders {
            current: find(CURRENT).transpose()?,
            pending: find(PENDING).transpose()?,
            needs_rotation: headers.iter().any(|(name, _)| name == NEEDS_ROTATION),
        };
        if read.pending.is_some() && read.current.is_none() {
            return Err(DekError::PendingWithoutCurrent);
        }
        Ok(read)
    }

    /// The headers that carry these keys, sealed with the KEK if there is one.
    pub fn to_headers(&self, kek: Option<&[u8]>) -> Result<Vec<(String, String)>, DekError> {
        let mut headers = Vec::new();
        for (name, key) in [(CURRENT, &self.current), (PENDING, &self.pending)] {
            if let Some(key) = key {
                let sealed = record::seal(key.as_bytes(), kek).map_err(|_| DekError::Random)?;
                headers.push((name.to_owned(), BASE64.encode(&sealed)));
            }
        }
        if self.needs_rotation {
            headers.push((NEEDS_ROTATION.to_owned(), "true".to_owned()));
        }
        Ok(headers)
    }

    /// A rotation begins: makes a pending key, unless one is there. The mark of a due rotation goes with
    /// the making; one that finds a pending key stands for yet another rotation (spec 02 section 15.3).
    pub fn begin_rotation(&mut self) -> Result<(), DekError> {
        if self.pending.is_none() {
            self.pending = Some(Dek::generate()?);
            self.needs_rotation = false;
        }
        Ok(())
    }

    /// The pending key becomes the current one.
    pub fn finish_rotation(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.current = Some(pending);
        }
    }

    /// Whether a rotation runs or is due.
    pub fn rotation_due(&self) -> bool {
        self.needs_rotation || self.pending.is_some()
    }
}

fn open_header(name: &'static str, value: &str, kek: Option<&[u8]>) -> Result<Dek, DekError> {
    let sealed = BASE64
        .decode(value.as_bytes())
        .map_err(|_| DekError::NotBase64(name))?;
    let key = record::open(&sealed, kek).map_err(DekError::InvalidKek)?;
    Ok(Dek(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> DekHeaders {
        DekHeaders {
            current: Some(Dek::generate().unwrap()),
            pending: Some(Dek::generate().unwrap()),
            needs_rotation: true,
        }
    }

    #[test]
    fn round_trip_with_and_without_kek() {
        for kek in [None, Some(b"kek".as_slice())] {
            let headers = keys().to_headers(kek).unwrap();
            let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, [CURRENT, PENDING, NEEDS_ROTATION]);
            let read = DekHeaders::from_headers(&headers, kek).unwrap();
            assert_eq!(DekHeaders::from_headers(&headers, kek).unwrap(), read);
            assert!(read.rotation_due());
        }
        assert_eq!(DekHeaders::default().to_headers(None).unwrap(), []);
        assert!(!DekHeaders::from_headers(&[], None).unwrap().rotation_due());
    }

    #[test]
    fn a_wrong_kek_is_found_out() {
        let sealed = keys().to_headers(Some(b"right")).unwrap();
        let plain = keys().to_headers(None).unwrap();
        for (headers, kek) in [
            (&sealed, Some(b"wrong".as_slice())),
            (&sealed, None),
            (&plain, Some(b"right")),
        ] {
            let read = DekHeaders::from_headers(headers, kek);
            assert!(matches!(read, Err(DekError::InvalidKek(_))), "{read:?}");
        }
    }

    #[test]
    fn a_rotation_ends_with_one_key() {
        let mut deks = DekHeaders {
            pending: None,
            ..keys()
        };
        let old = deks.current.clone();
        deks.begin_rotation().unwrap();
        assert!(!deks.needs_rotation);
        let pending = deks.pending.clone();
        assert!(pending.is_some() && deks.current == old);
        // Asked for again while it runs: that is for later.
        deks.needs_rotation = true;
        deks.begin_rotation().unwrap();
        assert_eq!(deks.pending, pending);
        deks.finish_rotation();
        assert_eq!((&deks.current, &deks.pending), (&pending, &None));
        assert!(deks.needs_rotation);
        deks.finish_rotation();
        assert_eq!(deks.current, pending);
    }

    #[test]
    fn bad_headers() {
        let pending_only: Vec<_> = keys().to_headers(None).unwrap().split_off(1);
        assert_eq!(
            DekHeaders::from_headers(&pending_only, None),
            Err(DekError::PendingWithoutCurrent)
        );
        let garbage = [(CURRENT.to_owned(), "***".to_owned())];
        assert_eq!(
            DekHeaders::from_headers(&garbage, None),
            Err(DekError::NotBase64(CURRENT))
        );
    }
}
