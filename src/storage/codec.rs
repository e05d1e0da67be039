//! How this node's own local records become bytes: identity, marks, hard state, membership, headers.
//!
//! The encoding is bincode, which is no longer maintained; it is therefore pinned, named in this module
//! only, never used on the wire and never for replicated bytes. A record is one version byte followed by
//! the encoded fields. Decoding never panics: an unknown version, missing or trailing bytes and anything
//! beyond the record's own size limit are errors that name the kind of record.

use serde::{Serialize, de::DeserializeOwned};

/// No record may claim more memory than this while it is decoded, 1 MiB. Each kind has its own, smaller
/// or equal, [`Record::BYTES_MAX`].
const DECODE_BYTES_MAX: usize = 1 << 20;

/// A kind of local record.
pub trait Record: Serialize + DeserializeOwned {
    /// What the record is, for error messages.
    const KIND: &'static str;
    /// Version written into the first byte. Raise it with every change of the fields.
    const VERSION: u8;
    /// Largest encoded size in bytes, version byte included; at most 1 MiB.
    const BYTES_MAX: usize;
}

/// Why a record could not be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error(
        "the {kind} record has version {found}, this program reads version {known}; use the release that wrote it"
    )]
    Version {
        kind: &'static str,
        found: u8,
        known: u8,
    },
    #[error("the {kind} record is {bytes} bytes long, more than the {max} it may have")]
    TooLarge {
        kind: &'static str,
        bytes: usize,
        max: usize,
    },
    #[error("the {kind} record is damaged: {reason}")]
    Damaged { kind: &'static str, reason: String },
}

fn configuration() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<DECODE_BYTES_MAX>()
}

/// Encodes a record.
pub fn encode<R: Record>(record: &R) -> Result<Vec<u8>, CodecError> {
    let mut bytes = vec![R::VERSION];
    bincode::serde::encode_into_std_write(record, &mut bytes, configuration()).map_err(
        |error| CodecError::Damaged {
            kind: R::KIND,
            reason: error.to_string(),
        },
    )?;
    check_size::<R>(bytes.len())?;
    Ok(bytes)
}

/// Decodes a record that [`encode`] wrote.
pub fn decode<R: Record>(bytes: &[u8]) -> Result<R, CodecError> {
    check_size::<R>(bytes.len())?;
    let damaged = |reason: String| CodecError::Damaged {
        kind: R::KIND,
        reason,
    };
    let (&version, body) = bytes
        .split_first()
        .ok_or_else(|| damaged("it is empty".into()))?;
    if version != R::VERSION {
        return Err(CodecError::Version {
            kind: R::KIND,
            found: version,
            known: R::VERSION,
        });
    }
    let (record, used) = bincode::serde::decode_from_slice(body, configuration())
        .map_err(|error| damaged(error.to_string()))?;
    match body.len() - used {
        0 => Ok(record),
        rest => Err(damaged(format!("{rest} unexpected bytes at its end"))),
    }
}

fn check_size<R: Record>(bytes: usize) -> Result<(), CodecError> {
    let max = R::BYTES_MAX.min(DECODE_BYTES_MAX);
    if bytes > max {
        return Err(CodecError::TooLarge {
            kind: R::KIND,
            bytes,
            max,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Sample {
        term: u64,
        name: String,
        members: Vec<u64>,
    }

    impl Record for Sample {
        const KIND: &'static str = "sample";
        const VERSION: u8 = 3;
        const BYTES_MAX: usize = 4096;
    }

    fn sample() -> Sample {
        Sample {
            term: 7,
            name: "a".into(),
            members: vec![1, u64::MAX],
        }
    }

    // 01-A35
    #[test]
    fn unknown_version_trailing_bytes_and_size_are_errors() {
        let mut bytes = encode(&sample()).unwrap();
        assert_eq!(decode::<Sample>(&bytes).unwrap(), sample());

        bytes.push(0);
        assert!(matches!(
            decode::<Sample>(&bytes),
            Err(CodecError::Damaged { reason, .. }) if reason.contains("unexpected bytes")
        ));
        bytes.pop();
        bytes[0] = 4;
        assert_eq!(
            decode::<Sample>(&bytes),
            Err(CodecError::Version {
                kind: "sample",
                found: 4,
                known: 3
            })
        );
        assert!(decode::<Sample>(&[]).is_err());
        assert!(matches!(
            decode::<Sample>(&vec![3; 5000]),
            Err(CodecError::TooLarge { bytes: 5000, .. })
        ));
        let long = Sample {
            name: "x".repeat(5000),
            ..sample()
        };
        assert!(matches!(encode(&long), Err(CodecError::TooLarge { .. })));
    }

    /// A length prefix that claims gigabytes must fail before anything is allocated for it.
    #[test]
    fn claimed_length_is_bounded() {
        // version, term 7, then a string of claimed length 2^60
        let mut bytes = vec![3, 7, 253];
        bytes.extend_from_slice(&(1_u64 << 60).to_le_bytes());
        assert!(matches!(
            decode::<Sample>(&bytes),
            Err(CodecError::Damaged { .. })
        ));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Sample>(&bytes);
            let mut versioned = vec![3];
            versioned.extend_from_slice(&bytes);
            let _ = decode::<Sample>(&versioned);
        }
    }
}
