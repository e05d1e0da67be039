//! Image references: the names by which container images are pulled.
//!
//! [`ImageRef::parse`] accepts what users write (`busybox`, `team/app:1`, `host:5000/app@sha256:…`)
//! and completes it: a missing registry is the default one, and a bare name there lives under
//! `library/`. It never asks a registry whether the image exists (spec 05 section 17).

use std::fmt;

/// The registry of references that name none.
pub const DEFAULT_DOMAIN: &str = "docker.io";

/// An older name of [`DEFAULT_DOMAIN`], still written by some tools.
const LEGACY_DEFAULT_DOMAIN: &str = "index.docker.io";

/// Path component under which the default registry keeps images with a bare name.
const OFFICIAL_PREFIX: &str = "library/";

/// Longest `domain/path`, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Longest tag, in bytes.
const TAG_BYTES_MAX: usize = 128;

/// Digest algorithms and the count of hex digits in each one's digests.
const DIGEST_HEX_LENGTHS: [(&str, usize); 3] = [("sha256", 64), ("sha384", 96), ("sha512", 128)];

/// Why a text is not an image reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImageRefError {
    /// 64 hex digits would be taken for an image ID.
    #[error("a repository name cannot be 64 hex digits")]
    LooksLikeId,
    #[error("the repository name must be lower-case")]
    UpperCase,
    #[error("the registry's host name is invalid")]
    Domain,
    #[error("the repository name is invalid")]
    Path,
    #[error("the tag is invalid")]
    Tag,
    #[error("the digest is invalid or of an unknown algorithm")]
    Digest,
    #[error("the repository name is longer than 255 characters")]
    TooLong,
}

/// A complete image reference. `Display` gives it in full: `docker.io/library/busybox:latest` for
/// `busybox:latest`; no tag is made up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageRef {
    /// Host of the registry, with its port if one was given.
    pub domain: String,
    /// Repository within the registry.
    pub path: String,
    pub tag: Option<String>,
    /// `algorithm:hex`.
    pub digest: Option<String>,
}

impl ImageRef {
    /// Parses and completes a reference.
    pub fn parse(text: &str) -> Result<ImageRef, ImageRefError> {
        if text.len() == 64 && is_lower_hex(text) {
            return Err(ImageRefError::LooksLikeId);
        }
        let (domain, rest) = split_domain(text);
        let repository = rest.split(':').next().unwrap_or(rest);
        if repository.chars().any(char::is_uppercase) {
            return Err(ImageRefError::UpperCase);
        }
        let (name, digest) = split_optional(rest.split_once('@'), rest);
        let (path, tag) = split_optional(name.split_once(':'), name);
        let path = if domain.is_none() && !path.contains('/') {
            format!("{OFFICIAL_PREFIX}{path}")
        } else {
            path.to_owned()
        };
        let reference = ImageRef {
            domain: domain.unwrap_or(DEFAULT_DOMAIN).to_owned(),
            path,
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        };
        reference.check()?;
        Ok(reference)
    }

    fn check(&self) -> Result<(), ImageRefError> {
        if !is_domain(&self.domain) {
            return Err(ImageRefError::Domain);
        }
        if !self.path.split('/').all(is_path_component) {
            return Err(ImageRefError::Path);
        }
        if self.tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return Err(ImageRefError::Tag);
        }
        if self.digest.as_deref().is_some_and(|d| !is_digest(d)) {
            return Err(ImageRefError::Digest);
        }
        if self.domain.len() + 1 + self.path.len() > NAME_BYTES_MAX {
            return Err(ImageRefError::TooLong);
        }
        Ok(())
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// The registry a reference names, if any, and what follows it. What stands before the first slash
/// is a registry if it could not be part of a repository's name.
fn split_domain(text: &str) -> (Option<&str>, &str) {
    match text.split_once('/') {
        Some((LEGACY_DEFAULT_DOMAIN | DEFAULT_DOMAIN, rest)) => (None, rest),
        Some((left, rest))
            if left.contains(['.', ':'])
                || left == "localhost"
                || left.chars().any(char::is_uppercase) =>
        {
            (Some(left), rest)
        }
        _ => (None, text),
    }
}

fn split_optional<'a>(
    split: Option<(&'a str, &'a str)>,
    whole: &'a str,
) -> (&'a str, Option<&'a str>) {
    match split {
        Some((left, right)) => (left, Some(right)),
        None => (whole, None),
    }
}

/// `host`, `host:port` or `[ipv6]:port`.
fn is_domain(domain: &str) -> bool {
    let (host, port) = if let Some(bracketed) = domain.strip_prefix('[') {
        let Some((address, rest)) = bracketed.split_once(']') else {
            return false;
        };
        let is_address =
            !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
        return is_address && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port));
    } else {
        split_optional(domain.split_once(':'), domain)
    };
    host.split('.').all(is_host_label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
}

/// Letters, digits and inner dashes.
fn is_host_label(label: &str) -> bool {
    !label.is_empty()
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Runs of lower-case letters and digits, joined by `.`, `_`, `__` or any count of dashes.
fn is_path_component(component: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    component.starts_with(is_word)
        && component.ends_with(is_word)
        && component.split(is_word).all(|separator| {
            matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
        })
}

fn is_tag(tag: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= TAG_BYTES_MAX
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|b| is_word(b) || matches!(b, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        DIGEST_HEX_LENGTHS.contains(&(algorithm, hex.len())) && is_lower_hex(hex)
    })
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digits: usize) -> String {
        "0123456789abcdef".chars().cycle().take(digits).collect()
    }

    // 05-A10
    #[test]
    fn completed() {
        let sha256 = format!("sha256:{}", hex(64));
        for (text, full) in [
            ("image", "docker.io/library/image".to_owned()),
            ("busybox", "docker.io/library/busybox".to_owned()),
            ("busybox:1.36", "docker.io/library/busybox:1.36".to_owned()),
            ("team/app", "docker.io/team/app".to_owned()),
            ("index.docker.io/app", "docker.io/library/app".to_owned()),
            ("docker.io/app", "docker.io/library/app".to_owned()),
            ("localhost/app", "localhost/app".to_owned()),
            ("Host/app", "Host/app".to_owned()),
            (
                "host:5000/a/b_c__d---e.f:T",
                "host:5000/a/b_c__d---e.f:T".to_owned(),
            ),
            ("[fd00::1]:5000/app", "[fd00::1]:5000/app".to_owned()),
            ("a.b/c", "a.b/c".to_owned()),
            (
                &format!("x@{sha256}"),
                format!("docker.io/library/x@{sha256}"),
            ),
            (
                &format!("x:1@{sha256}"),
                format!("docker.io/library/x:1@{sha256}"),
            ),
            (&hex(63), format!("docker.io/library/{}", hex(63))),
        ] {
            assert_eq!(
                ImageRef::parse(text).map(|r| r.to_string()),
                Ok(full),
                "{text}"
            );
        }
        assert!(ImageRef::parse(&format!("x@sha384:{}", hex(96))).is_ok());
        assert!(ImageRef::parse(&format!("x@sha512:{}", hex(128))).is_ok());
    }

    // 05-A10
    #[test]
    fn refused() {
        use ImageRefError::*;
        let long = format!(
            "a/{}",
            "b".repeat(NAME_BYTES_MAX - DEFAULT_DOMAIN.len() - 2)
        );
        for (text, error) in [
            ("", Path),
            ("busybox###", Path),
            ("A B", UpperCase),
            ("a b", Path),
            (&*hex(64), LooksLikeId),
            ("Busybox", UpperCase),
            ("host.com/App", UpperCase),
            ("a//b", Path),
            ("a/", Path),
            ("a___b", Path),
            ("a..b", Path),
            ("-a", Path),
            ("a_", Path),
            ("x:", Tag),
            ("x:.1", Tag),
            ("x:a:b", Tag),
            (&format!("x:{}", "t".repeat(129)), Tag),
            ("x@sha256:abc", Digest),
            (&format!("x@sha256:{}", hex(64).to_uppercase()), Digest),
            (&format!("x@md5:{}", hex(64)), Digest),
            (&format!("x@sha512:{}", hex(64)), Digest),
            ("host-.com/x", Domain),
            ("host.com:/x", Domain),
            ("host.com:port/x", Domain),
            ("my_host.com/x", Domain),
            ("[fd00::1/x", Domain),
            (&long, TooLong),
        ] {
            assert_eq!(ImageRef::parse(text), Err(error), "{text:?}");
        }
        assert!(ImageRef::parse(&long[..long.len() - 1]).is_ok());
        assert!(ImageRef::parse(&format!("x:{}", "t".repeat(128))).is_ok());
    }
}
