//! Who may do what: CA, certificates, join tokens, TLS, the node key file, caller authorization.

pub mod caller;

pub use caller::Caller;
