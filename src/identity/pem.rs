//! PEM text with headers, exactly as both sides of a cluster write and read it (spec 02 section 3.2).
//!
//! The node key file carries its key-encryption version and the raft data key in PEM headers, which
//! general PEM readers either refuse or lose. Writing is canonical: line feeds, 64 characters per
//! line, headers in a fixed order. Reading is lenient in the same places as the peer's: text before
//! a block is skipped and a damaged block is passed over. Nothing here fails on bad input; what is
//! not a block is simply not found.

use data_encoding::BASE64;
use zeroize::Zeroizing;

/// Characters of base64 per line.
const LINE_LEN: usize = 64;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// Label of a certificate.
pub const CERTIFICATE: &str = "CERTIFICATE";

/// The header that must come first.
const PROC_TYPE: &str = "Proc-Type";

/// One PEM block. Its content is wiped from memory when dropped, since it may be a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The text between `BEGIN` and the dashes.
    pub label: String,
    /// Header names and values, in the order they were read.
    pub headers: Vec<(String, String)>,
    /// The decoded content.
    pub der: Zeroizing<Vec<u8>>,
}

impl Block {
    /// A block without headers.
    pub fn new(label: &str, der: impl Into<Vec<u8>>) -> Block {
        Block {
            label: label.to_owned(),
            headers: Vec::new(),
            der: Zeroizing::new(der.into()),
        }
    }

    /// The value of a header; names are compared exactly.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name)?;
        Some(&found.1)
    }

    /// The canonical text: `Proc-Type` first, other headers in ascending byte order.
    pub fn encode(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(
            self.der.len() / 3 * 4 + self.der.len() / 48 + 256,
        ));
        text.push_str(&format!("{BEGIN}{}{DASHES}\n", self.label));
        if !self.headers.is_empty() {
            let mut headers: Vec<&(String, String)> = self.headers.iter().collect();
            headers.sort_by_key(|(name, _)| (name != PROC_TYPE, name.as_bytes()));
            for (name, value) in headers {
                text.push_str(&format!("{name}: {value}\n"));
            }
            text.push('\n');
        }
        let body = Zeroizing::new(BASE64.encode(&self.der));
        for line in body.as_bytes().chunks(LINE_LEN) {
            text.extend(line.iter().copied().map(char::from));
            text.push('\n');
        }
        text.push_str(&format!("{END}{}{DASHES}\n", self.label));
        text
    }
}

/// All blocks of a text, in order. Damaged ones are passed over.
pub fn blocks(text: &[u8]) -> Blocks<'_> {
    Blocks { rest: text }
}

/// The first block of a text.
pub fn first(text: &[u8]) -> Option<Block> {
    blocks(text).next()
}

/// A certificate bundle in canonical form: every block re-encoded without headers. Empty for input
/// without any block. Two CA certificates are equal if and only if their normalised bundles are.
pub fn normalize_bundle(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for block in blocks(text) {
        let bare = Block {
            headers: Vec::new(),
            ..block
        };
        out.extend_from_slice(bare.encode().as_bytes());
    }
    out
}

/// A bundle of certificates as one text.
pub fn encode_certificates<'a>(ders: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for der in ders {
        out.extend_from_slice(Block::new(CERTIFICATE, der).encode().as_bytes());
    }
    out
}

/// See [`blocks`].
pub struct Blocks<'a> {
    rest: &'a [u8],
}

impl Blocks<'_> {
    /// What follows the last block that was returned.
    pub fn rest(&self) -> &[u8] {
        self.rest
    }
}

impl Iterator for Blocks<'_> {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        loop {
            let start = find_line_start(self.rest, BEGIN.as_bytes())?;
            let after_begin = &self.rest[start + BEGIN.len()..];
            match read_block(after_begin) {
                Some((block, rest)) => {
                    self.rest = rest;
                    return Some(block);
                }
                None => self.rest = after_begin,
            }
        }
    }
}

/// Reads a block whose `BEGIN ` has been consumed; `None` if it is damaged.
fn read_block(text: &[u8]) -> Option<(Block, &[u8])> {
    let (line, mut rest) = split_line(text);
    let label = std::str::from_utf8(line).ok()?.trim_end();
    let label = label.strip_suffix(DASHES)?;

    let mut headers = Vec::new();
    loop {
        let (line, after) = split_line(rest);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            break;
        };
        if rest.is_empty() {
            return None;
        }
        let name = std::str::from_utf8(&line[..colon]).ok()?.trim();
        let value = std::str::from_utf8(&line[colon + 1..]).ok()?.trim();
        headers.push((name.to_owned(), value.to_owned()));
        rest = after;
    }

    let end = find_line_start(rest, END.as_bytes())?;
    let (end_line, after) = split_line(&rest[end + END.len()..]);
    let end_label = std::str::from_utf8(end_line).ok()?.trim_end();
    if end_label.strip_suffix(DASHES)? != label {
        return None;
    }
    let mut body = Zeroizing::new(Vec::with_capacity(end));
    body.extend(
        rest[..end]
            .iter()
            .filter(|byte| !byte.is_ascii_whitespace()),
    );
    let der = Zeroizing::new(BASE64.decode(&body).ok()?);
    let block = Block {
        label: label.to_owned(),
        headers,
        der,
    };
    Some((block, after))
}

/// The first line and what follows its line feed.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[]),
    }
}

/// Position of `wanted` at the start of a line.
fn find_line_start(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let window = text.get(from..)?;
        if window.starts_with(wanted) {
            return Some(from);
        }
        from += window.iter().position(|byte| *byte == b'\n')? + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_ordered_and_lines_are_64_long() {
        let block = Block {
            label: "PRIVATE KEY".into(),
            headers: vec![
                ("raft-dek".into(), "x".repeat(100)),
                ("kek-version".into(), "0".into()),
                ("Proc-Type".into(), "4,ENCRYPTED".into()),
                ("DEK-Info".into(), "AES-256-CBC,00".into()),
            ],
            der: Zeroizing::new(vec![7; 60]),
        };
        let text = block.encode();
        let lines: Vec<&str> = text.split('\n').collect();
        assert_eq!(lines[0], "-----BEGIN PRIVATE KEY-----");
        assert_eq!(lines[1], "Proc-Type: 4,ENCRYPTED");
        assert_eq!(lines[2], "DEK-Info: AES-256-CBC,00");
        assert_eq!(lines[3], "kek-version: 0");
        assert!(lines[4].starts_with("raft-dek: xxx"));
        assert_eq!(lines[5], "");
        assert_eq!(lines[6].len(), 64);
        assert_eq!(lines[7].len(), 16);
        assert_eq!(lines[8], "-----END PRIVATE KEY-----");
        assert_eq!(lines[9..], [""]);

        let read = first(text.as_bytes()).unwrap();
        assert_eq!(read.der, block.der);
        assert_eq!(read.header("kek-version"), Some("0"));
        assert_eq!(read.header("KEK-version"), None);
        assert_eq!(read.headers.len(), 4);
    }

    #[test]
    fn garbage_and_damaged_blocks_are_passed_over() {
        let good = Block::new(CERTIFICATE, vec![1, 2, 3]).encode();
        let text = format!(
            "  \r\nhello\n-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n\
             -----BEGIN OPEN-----\nAAAA\n{}\n\n{}trailing",
            good.as_str(),
            good.replace('\n', "\r\n"),
        );
        let found: Vec<Block> = blocks(text.as_bytes()).collect();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|block| block.der.as_slice() == [1, 2, 3]));
        let twice = format!("{}{}", good.as_str(), good.as_str());
        assert_eq!(normalize_bundle(text.as_bytes()), twice.as_bytes());
        for nothing in [
            "",
            "garbage",
            "-----BEGIN X-----",
            "-----BEGIN X\n-----END X-----\n",
        ] {
            assert!(normalize_bundle(nothing.as_bytes()).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn an_empty_block_is_a_block() {
        let block = Block::new("X", vec![]);
        assert_eq!(
            block.encode().as_str(),
            "-----BEGIN X-----\n-----END X-----\n"
        );
        assert_eq!(first(block.encode().as_bytes()), Some(block));
    }
}
