//! Who may do what: CA, certificates, join tokens, TLS, the node key file, caller authorization.
//!
//! A node is its certificate: the common name is its ID, the organization is the cluster, the
//! organizational unit is its role. From the bottom up:
//!
//! - [`clock`], [`files`], [`pem`]: time, atomic files, PEM with headers
//! - [`private_key`], [`key_cipher`], [`record`], [`dek`]: keys, and keys that encrypt keys
//! - [`cert`], [`issue`], [`root_ca`], [`token`]: certificates, their issue, the CA, join tokens
//! - [`key_file`], [`security`], [`tls`]: the node's own pair on disk and in use
//! - [`start`], [`join`], [`renewal`]: how a node gets its identity and keeps it
//! - [`connect`]: dialling managers
//! - [`connection`], [`forwarded`], [`authorize`], [`caller`]: who is behind a request, and may it pass
//!
//! Guarantees: key material is wiped when dropped and never printed or logged; files are replaced
//! atomically; a value that exists has been checked. This room never looks into the store.

pub mod authorize;
pub mod caller;
pub mod cert;
pub mod clock;
pub mod connect;
pub mod connection;
pub mod dek;
pub mod files;
pub mod forwarded;
pub mod issue;
pub mod join;
pub mod key_cipher;
pub mod key_file;
pub mod pem;
pub mod private_key;
pub mod record;
pub mod renewal;
pub mod root_ca;
mod rotation;
pub mod security;
pub mod start;
#[cfg(test)]
pub mod testing;
pub mod tls;
pub mod token;

pub use caller::Caller;
pub use clock::Clock;
pub use dek::{Dek, DekHeaders};
pub use key_file::{Kek, KeyFile, NodePair};
pub use private_key::PrivateKey;
pub use root_ca::{RootCa, RootCaParts};
pub use security::{Credentials, SecurityConfig};
pub use token::JoinToken;
