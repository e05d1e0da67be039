//! Encryption at rest: seals single values (rows, log entries, local records) with AES-256-GCM.
//!
//! A [`DekRing`] holds this node's data-encryption keys: the current one, with which everything new is
//! written, and older ones, with which what a rotation has not reached yet is still read. A [`Sealer`]
//! turns them into the keys of one place and purpose (salt and label: the rows of this database, the
//! entries of this log), so that a value copied elsewhere does not open there.
//!
//! Every sealed value names its key and carries what it needs to be opened; it opens only under the same
//! associated data (family and row key, or group, index and term), so that swapping two values or
//! changing one bit anywhere, header included, is detected.
//!
//! ```text
//! format 1 | key ID 4 | generation 4 | caller's header n | nonce 12 | ciphertext | tag 16
//! ```
//!
//! Random 96-bit nonces limit how often one key may be used. Each sealer therefore draws a random
//! *generation* when it is made and after every 2^31 values, and seals under a key derived for that
//! generation: no counter has to survive a restart. Bodies above 1 KiB are compressed first.
//!
//! This room never writes a key anywhere and never logs one; keys are wiped when dropped.

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zeroize::Zeroizing;

#[cfg(test)]
mod tests;

/// Bytes of a data-encryption key (spec 02 section 15: the peer's `raft-dek` has the same size).
pub const DEK_BYTES: usize = 32;
/// Bytes of the random, public salt of one database or log.
pub const SALT_BYTES: usize = 16;
/// Bytes of a keyed hash in an index key (settled S3: HMAC-SHA-256 cut to 16 bytes).
pub const INDEX_HASH_BYTES: usize = 16;
/// Bytes that sealing adds to an uncompressed value, without the caller's header.
pub const SEAL_OVERHEAD_BYTES: usize = FIXED_HEADER_BYTES + NONCE_LEN + MAX_TAG_LEN;

/// Body stored as it is.
const FORMAT_PLAIN: u8 = 1;
/// Body is an LZ4 block with its plain length, little endian, in the first 4 bytes.
const FORMAT_LZ4: u8 = 2;
/// Format byte, key ID, generation.
const FIXED_HEADER_BYTES: usize = 1 + 4 + 4;
/// Shorter bodies are not worth compressing (settled S5).
const COMPRESS_ABOVE_BYTES: usize = 1024;
/// Largest body sealed or opened, 64 MiB: far above any log entry, and a bound on what a damaged or
/// hostile length can make us allocate.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Values sealed under one derived key before the next is derived: 2^31 random nonces collide with a
/// probability below 2^-34 (settled S4).
const SEALS_PER_GENERATION_MAX: u64 = 1 << 31;
/// Derived keys kept ready per sealer; one generation is in use per run of the program, so old values
/// rarely name more than these. Beyond it the cache starts anew.
const DERIVED_KEYS_MAX: usize = 1024;

/// Why a value could not be sealed or opened. The caller adds which value it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The record names a data key that this node's key file does not hold.
    #[error(
        "sealed with data key {key_id}, which the node's key file does not hold (it holds {known})"
    )]
    UnknownKey { key_id: KeyId, known: String },
    /// Changed on disk, or moved from another place.
    #[error("its seal is broken: the bytes were changed or belong to another record")]
    Broken,
    /// Not a sealed value of a known format.
    #[error("not a sealed record: {0}")]
    Format(String),
    /// Larger than 64 MiB.
    #[error("{bytes} bytes are too many for one sealed record (at most {max})")]
    TooLarge { bytes: usize, max: usize },
    /// The system's random source or the cipher failed.
    #[error("cannot {0}: the cryptographic library failed")]
    Crypto(&'static str),
    /// Not a usable key.
    #[error("a data key has {0} bytes; it must have 32")]
    KeyLength(usize),
}

/// Names a data key in records and messages; derived from the key, reveals nothing of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub [u8; 4]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A data-encryption key: 32 secret bytes, wiped when dropped, never printed.
#[derive(Clone)]
pub struct Dek(Zeroizing<[u8; DEK_BYTES]>);

impl Dek {
    /// A new random key.
    pub fn generate() -> Result<Dek, SealError> {
        let mut bytes = Zeroizing::new([0; DEK_BYTES]);
        fill_random(&mut bytes[..], "draw a data key")?;
        Ok(Dek(bytes))
    }

    /// The key with these bytes; exactly [`DEK_BYTES`] of them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Dek, SealError> {
        let bytes: [u8; DEK_BYTES] = bytes
            .try_into()
            .map_err(|_| SealError::KeyLength(bytes.len()))?;
        Ok(Dek(Zeroizing::new(bytes)))
    }

    /// The secret bytes, for the node key file.
    pub fn expose(&self) -> &[u8; DEK_BYTES] {
        &self.0
    }

    /// The name of this key.
    pub fn id(&self) -> Result<KeyId, SealError> {
        let derived = self.derive::<4>(&[], &[b"swarm-manager key id"])?;
        Ok(KeyId(*derived))
    }

    /// HKDF-SHA-256 of the key: `N` bytes for this salt and purpose.
    fn derive<const N: usize>(
        &self,
        salt: &[u8],
        info: &[&[u8]],
    ) -> Result<Zeroizing<[u8; N]>, SealError> {
        struct Length(usize);
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let mut derived = Zeroizing::new([0; N]);
        hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
            .extract(&self.0[..])
            .expand(info, Length(N))
            .and_then(|okm| okm.fill(&mut derived[..]))
            .map_err(|_| SealError::Crypto("derive a key"))?;
        Ok(derived)
    }
}

impl fmt::Debug for Dek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id() {
            Ok(id) => write!(f, "Dek({id})"),
            Err(_) => f.write_str("Dek"),
        }
    }
}

/// The data keys of this node: one to write with, and those still needed to read.
#[derive(Clone, Debug)]
pub struct DekRing {
    current: Dek,
    older: Vec<Dek>,
}

impl DekRing {
    /// `current` seals everything new; `older` (at most the few a rotation leaves) still open.
    pub fn new(current: Dek, older: Vec<Dek>) -> DekRing {
        DekRing { current, older }
    }

    /// The only key there is.
    pub fn single(current: Dek) -> DekRing {
        DekRing::new(current, Vec::new())
    }

    pub fn current(&self) -> &Dek {
        &self.current
    }

    /// The keys that are only read with.
    pub fn older(&self) -> &[Dek] {
        &self.older
    }

    fn all(&self) -> impl Iterator<Item = &Dek> {
        std::iter::once(&self.current).chain(&self.older)
    }

    /// The IDs of all keys, as text for messages.
    fn names(&self) -> String {
        let ids: Vec<String> = self
            .all()
            .filter_map(|dek| dek.id().ok())
            .map(|id| id.to_string())
            .collect();
        ids.join(", ")
    }
}

/// A random, public salt for a new database or log.
pub fn new_salt() -> Result<[u8; SALT_BYTES], SealError> {
    let mut salt = [0; SALT_BYTES];
    fill_random(&mut salt, "draw a salt")?;
    Ok(salt)
}

/// Random nonces, drawn in advance: one call of the system for many records.
struct Nonces {
    bytes: Box<[u8; NONCE_LEN * NONCES_DRAWN]>,
    used: usize,
}

/// Nonces drawn at once.
const NONCES_DRAWN: usize = 128;

impl Default for Nonces {
    fn default() -> Nonces {
        Nonces {
            bytes: Box::new([0; NONCE_LEN * NONCES_DRAWN]),
            used: NONCES_DRAWN,
        }
    }
}

impl Nonces {
    /// A nonce that was not returned before.
    fn next(&mut self) -> Result<[u8; NONCE_LEN], SealError> {
        if self.used >= NONCES_DRAWN {
            fill_random(&mut self.bytes[..], "draw nonces")?;
            self.used = 0;
        }
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&self.bytes[self.used * NONCE_LEN..][..NONCE_LEN]);
        self.used += 1;
        Ok(nonce)
    }
}

fn fill_random(target: &mut [u8], attempt: &'static str) -> Result<(), SealError> {
    SystemRandom::new()
        .fill(target)
        .map_err(|_| SealError::Crypto(attempt))
}

/// Names one derived key: the data key and the generation.
type Derived = ([u8; 4], [u8; 4]);

/// The key that new values are sealed with.
struct Writing {
    name: Derived,
    key: Arc<[LessSafeKey]>,
    /// Values sealed with it so far.
    seals: AtomicU64,
}

/// Seals and opens the values of one place and purpose. Cheap to share; all methods take `&self`.
pub struct Sealer {
    salt: Vec<u8>,
    label: String,
    ring: ArcSwap<DekRing>,
    writing: ArcSwap<Writing>,
    derived: RwLock<HashMap<Derived, Arc<[LessSafeKey]>>>,
    seals_per_generation_max: u64,
    nonces: Mutex<Nonces>,
}

/// An opened value.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The caller's header, authenticated.
    pub header: &'a [u8],
    pub body: Vec<u8>,
}

/// What a sealed value says about itself in clear. **Not authenticated** until the value is opened.
#[derive(Debug, PartialEq, Eq)]
pub struct Peek<'a> {
    pub key_id: KeyId,
    pub header: &'a [u8],
}

impl Sealer {
    /// A sealer for the values of one database or log (`salt`) and one purpose (`label`, such as `rows`).
    pub fn new(ring: DekRing, salt: &[u8], label: &str) -> Result<Sealer, SealError> {
        Sealer::with_limit(ring, salt, label, SEALS_PER_GENERATION_MAX)
    }

    fn with_limit(
        ring: DekRing,
        salt: &[u8],
        label: &str,
        seals_per_generation_max: u64,
    ) -> Result<Sealer, SealError> {
        let writing = new_generation(&ring.current, salt, label)?;
        Ok(Sealer {
            salt: salt.to_vec(),
            label: label.to_owned(),
            ring: ArcSwap::from_pointee(ring),
            writing: ArcSwap::from_pointee(writing),
            derived: RwLock::new(HashMap::new()),
            seals_per_generation_max,
            nonces: Mutex::default(),
        })
    }

    /// Replaces the data keys: what is sealed from now on is sealed with the new current one.
    pub fn set_keys(&self, ring: DekRing) -> Result<(), SealError> {
        let writing = new_generation(&ring.current, &self.salt, &self.label)?;
        self.ring.store(Arc::new(ring));
        self.writing.store(Arc::new(writing));
        self.derived.write().clear();
        Ok(())
    }

    /// The data keys in use at present. Whatever is made to take the place of what this sealer seals has
    /// to start with them.
    pub fn keys(&self) -> DekRing {
        DekRing::clone(&self.ring.load())
    }

    /// The value sealed anew with the current data key, under the same context and with the same header;
    /// `None` if it already is.
    pub fn reseal(
        &self,
        context: &[&[u8]],
        header_bytes: usize,
        sealed: &[u8],
    ) -> Result<Option<Vec<u8>>, SealError> {
        if Sealer::peek(header_bytes, sealed)?.key_id == self.current_key() {
            return Ok(None);
        }
        let opened = self.open(context, header_bytes, sealed)?;
        self.seal(context, opened.header, &opened.body).map(Some)
    }

    /// The ID of the data key that new values are sealed with.
    pub fn current_key(&self) -> KeyId {
        KeyId(self.writing.load().name.0)
    }

    /// Seals `body`. `context` says which value this is and must be repeated to open it; `header` is
    /// stored in clear, but authenticated, in front of the body.
    pub fn seal(
        &self,
        context: &[&[u8]],
        header: &[u8],
        body: &[u8],
    ) -> Result<Vec<u8>, SealError> {
        if body.len() > BODY_BYTES_MAX {
            return Err(SealError::TooLarge {
                bytes: body.len(),
                max: BODY_BYTES_MAX,
            });
        }
        let writing = self.writing_key()?;
        let compressed = compress(body);
        let (format, stored) = match &compressed {
            Some(block) => (FORMAT_LZ4, block.as_slice()),
            None => (FORMAT_PLAIN, body),
        };
        let nonce = self.nonces.lock().next()?;
        let mut sealed = Vec::with_capacity(SEAL_OVERHEAD_BYTES + header.len() + stored.len());
        sealed.push(format);
        sealed.extend_from_slice(&writing.name.0);
        sealed.extend_from_slice(&writing.name.1);
        sealed.extend_from_slice(header);
        let aad = associated_data(context, &sealed);
        sealed.extend_from_slice(&nonce);
        let body_start = sealed.len();
        sealed.extend_from_slice(stored);
        let tag = writing.key[0]
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(aad),
                &mut sealed[body_start..],
            )
            .map_err(|_| SealError::Crypto("seal a record"))?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// Opens a value that was sealed under the same `context` with a header of `header_bytes` bytes.
    pub fn open<'a>(
        &self,
        context: &[&[u8]],
        header_bytes: usize,
        sealed: &'a [u8],
    ) -> Result<Opened<'a>, SealError> {
        let parts = Parts::split(header_bytes, sealed)?;
        let aad = associated_data(context, parts.head);
        let keys = self.reading_keys(parts.name)?;
        for key in keys.iter() {
            let mut text = parts.text.to_vec();
            let nonce = Nonce::assume_unique_for_key(parts.nonce);
            if let Ok(body) = key.open_in_place(nonce, Aad::from(&aad), &mut text) {
                let body_bytes = body.len();
                text.truncate(body_bytes);
                let body = match parts.format {
                    FORMAT_LZ4 => decompress(&text)?,
                    _ => text,
                };
                return Ok(Opened {
                    header: parts.header,
                    body,
                });
            }
        }
        Err(SealError::Broken)
    }

    /// Reads the clear part of a sealed value, unauthenticated.
    pub fn peek(header_bytes: usize, sealed: &[u8]) -> Result<Peek<'_>, SealError> {
        let parts = Parts::split(header_bytes, sealed)?;
        Ok(Peek {
            key_id: KeyId(parts.name.0),
            header: parts.header,
        })
    }

    /// The key to seal with now; moves to a new generation when the old one is used up.
    fn writing_key(&self) -> Result<Arc<Writing>, SealError> {
        let writing = self.writing.load_full();
        if writing.seals.fetch_add(1, Ordering::Relaxed) < self.seals_per_generation_max {
            return Ok(writing);
        }
        // Several threads may get here at once; each installs a fresh generation, the last one stays.
        let ring = self.ring.load();
        let next = Arc::new(new_generation(&ring.current, &self.salt, &self.label)?);
        next.seals.store(1, Ordering::Relaxed);
        self.writing.store(next.clone());
        Ok(next)
    }

    /// The keys that a record may have been sealed with: one, unless two data keys share an ID.
    fn reading_keys(&self, name: Derived) -> Result<Arc<[LessSafeKey]>, SealError> {
        let writing = self.writing.load();
        if writing.name == name {
            return Ok(writing.key.clone());
        }
        if let Some(keys) = self.derived.read().get(&name) {
            return Ok(keys.clone());
        }
        let ring = self.ring.load();
        let mut keys = Vec::new();
        for dek in ring.all() {
            if dek.id()?.0 == name.0 {
                keys.push(derive_key(dek, &self.salt, &self.label, name.1)?);
            }
        }
        if keys.is_empty() {
            return Err(SealError::UnknownKey {
                key_id: KeyId(name.0),
                known: ring.names(),
            });
        }
        let keys: Arc<[LessSafeKey]> = Arc::from(keys);
        let mut derived = self.derived.write();
        if derived.len() >= DERIVED_KEYS_MAX {
            derived.clear();
        }
        derived.insert(name, keys.clone());
        Ok(keys)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({}, key {})", self.label, self.current_key())
    }
}

/// The parts of a sealed value.
struct Parts<'a> {
    format: u8,
    name: Derived,
    /// Everything in front of the nonce.
    head: &'a [u8],
    header: &'a [u8],
    nonce: [u8; NONCE_LEN],
    /// Ciphertext and tag.
    text: &'a [u8],
}

impl<'a> Parts<'a> {
    fn split(header_bytes: usize, sealed: &'a [u8]) -> Result<Parts<'a>, SealError> {
        let least = SEAL_OVERHEAD_BYTES.saturating_add(header_bytes);
        if sealed.len() < least {
            return Err(SealError::Format(format!(
                "{} bytes, at least {least} expected",
                sealed.len()
            )));
        }
        let format = sealed[0];
        if format != FORMAT_PLAIN && format != FORMAT_LZ4 {
            return Err(SealError::Format(format!(
                "unknown format {format}; it is damaged or a newer release wrote it"
            )));
        }
        let (head, rest) = sealed.split_at(FIXED_HEADER_BYTES + header_bytes);
        let (nonce, text) = rest.split_at(NONCE_LEN);
        let mut parts = Parts {
            format,
            name: ([0; 4], [0; 4]),
            head,
            header: &head[FIXED_HEADER_BYTES..],
            nonce: [0; NONCE_LEN],
            text,
        };
        parts.name.0.copy_from_slice(&head[1..5]);
        parts.name.1.copy_from_slice(&head[5..9]);
        parts.nonce.copy_from_slice(nonce);
        Ok(parts)
    }
}

fn new_generation(dek: &Dek, salt: &[u8], label: &str) -> Result<Writing, SealError> {
    let mut generation = [0; 4];
    fill_random(&mut generation, "draw a key generation")?;
    Ok(Writing {
        name: (dek.id()?.0, generation),
        key: Arc::from([derive_key(dek, salt, label, generation)?]),
        seals: AtomicU64::new(0),
    })
}

fn derive_key(
    dek: &Dek,
    salt: &[u8],
    label: &str,
    generation: [u8; 4],
) -> Result<LessSafeKey, SealError> {
    let bytes = dek.derive::<32>(
        salt,
        &[b"swarm-manager seal ", label.as_bytes(), &[0], &generation],
    )?;
    let key = UnboundKey::new(&AES_256_GCM, &bytes[..])
        .map_err(|_| SealError::Crypto("use a derived key"))?;
    Ok(LessSafeKey::new(key))
}

/// All parts, each behind its length, so that no two lists of parts give the same bytes.
fn associated_data(context: &[&[u8]], head: &[u8]) -> Vec<u8> {
    let bytes: usize = context.iter().map(|part| part.len() + 4).sum();
    let mut aad = Vec::with_capacity(bytes + head.len());
    for part in context {
        aad.extend_from_slice(&(part.len() as u32).to_be_bytes());
        aad.extend_from_slice(part);
    }
    aad.extend_from_slice(head);
    aad
}

/// The body as an LZ4 block, if it is long enough and gets smaller.
fn compress(body: &[u8]) -> Option<Vec<u8>> {
    if body.len() <= COMPRESS_ABOVE_BYTES {
        return None;
    }
    let block = lz4_flex::block::compress_prepend_size(body);
    (block.len() < body.len()).then_some(block)
}

fn decompress(block: &[u8]) -> Result<Vec<u8>, SealError> {
    let damaged = |reason: String| SealError::Format(format!("compressed body: {reason}"));
    let (plain_bytes, block) =
        lz4_flex::block::uncompressed_size(block).map_err(|error| damaged(error.to_string()))?;
    if plain_bytes > BODY_BYTES_MAX {
        return Err(SealError::TooLarge {
            bytes: plain_bytes,
            max: BODY_BYTES_MAX,
        });
    }
    lz4_flex::block::decompress(block, plain_bytes).map_err(|error| damaged(error.to_string()))
}

/// Hashes what a person wrote before it becomes part of an index key: equal inputs give equal hashes in
/// one database, and nothing can be read back or compared with another database.
pub struct IndexHasher(hmac::Key);

impl IndexHasher {
    /// Bytes of the secret key, which is kept sealed in the database.
    pub const KEY_BYTES: usize = 32;

    /// A new random key.
    pub fn generate_key() -> Result<Zeroizing<[u8; IndexHasher::KEY_BYTES]>, SealError> {
        let mut key = Zeroizing::new([0; IndexHasher::KEY_BYTES]);
        fill_random(&mut key[..], "draw an index key")?;
        Ok(key)
    }

    /// The hasher with this key.
    pub fn new(key: &[u8; IndexHasher::KEY_BYTES]) -> IndexHasher {
        IndexHasher(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// The hash of `value` within one index; `context` is that index's table and index number, so that
    /// equal values of different indexes do not show.
    pub fn hash(&self, context: &[u8], value: &[u8]) -> [u8; INDEX_HASH_BYTES] {
        let mut mac = hmac::Context::with_key(&self.0);
        mac.update(&(context.len() as u32).to_be_bytes());
        mac.update(context);
        mac.update(value);
        let tag = mac.sign();
        let mut hash = [0; INDEX_HASH_BYTES];
        hash.copy_from_slice(&tag.as_ref()[..INDEX_HASH_BYTES]);
        hash
    }
}

impl fmt::Debug for IndexHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IndexHasher")
    }
}
