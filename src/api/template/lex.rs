//! Splits a template into literal text and actions, and an action into tokens.

use super::TemplateError;

pub(super) const LEFT: &str = "{{";
const RIGHT: &str = "}}";

/// White space that trim markers remove and that separates tokens.
const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// A piece of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Text(String),
    /// The tokens between one pair of delimiters; never a comment.
    Action(Vec<Token>),
}

/// A token inside an action.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// `.` alone.
    Dot,
    /// `.Name`.
    Field(String),
    /// `$` or `$name`, without the dollar sign.
    Variable(String),
    /// A keyword or the name of a function.
    Word(String),
    Str(String),
    Int(i64),
    /// A floating, imaginary or character constant: not evaluated here.
    OtherConstant,
    Declare,
    Assign,
    Pipe,
    Comma,
    Open,
    Close,
    /// White space; it tells `.A .B` from `.A.B`.
    Space,
}

/// Splits a template into its pieces, with trim markers applied.
pub(super) fn split(template: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut pieces = Vec::new();
    let mut rest = template;
    let mut trim_start = false;
    while let Some((text, after)) = rest.split_once(LEFT) {
        let (after, trim_end) = strip_left_marker(after);
        push_text(&mut pieces, text, trim_start, trim_end);
        let (action, next, trim_next) = if after.starts_with("/*") {
            let (next, trim_next) = skip_comment(after)?;
            (None, next, trim_next)
        } else {
            let (tokens, next, trim_next) = tokens(after)?;
            (Some(tokens), next, trim_next)
        };
        pieces.extend(action.map(Piece::Action));
        rest = next;
        trim_start = trim_next;
    }
    push_text(&mut pieces, rest, trim_start, false);
    Ok(pieces)
}

fn push_text(pieces: &mut Vec<Piece>, text: &str, trim_start: bool, trim_end: bool) {
    let text = if trim_start {
        text.trim_start_matches(SPACE)
    } else {
        text
    };
    let text = if trim_end {
        text.trim_end_matches(SPACE)
    } else {
        text
    };
    if !text.is_empty() {
        pieces.push(Piece::Text(text.to_owned()));
    }
}

/// Removes a `- ` right after the left delimiter and says whether it was there.
fn strip_left_marker(action: &str) -> (&str, bool) {
    match action.strip_prefix('-') {
        Some(rest) if rest.starts_with(SPACE) => (rest.trim_start_matches(SPACE), true),
        _ => (action, false),
    }
}

/// What follows a right delimiter, if the text starts with one, and whether it trims.
fn right_delimiter(text: &str) -> Option<(&str, bool)> {
    if let Some(rest) = text.strip_prefix(RIGHT) {
        return Some((rest, false));
    }
    let marker = text.strip_prefix(SPACE)?.strip_prefix('-')?;
    Some((marker.strip_prefix(RIGHT)?, true))
}

fn skip_comment(text: &str) -> Result<(&str, bool), TemplateError> {
    let (_, after) = text
        .split_once("*/")
        .ok_or_else(|| TemplateError("unclosed comment".into()))?;
    right_delimiter(after)
        .ok_or_else(|| TemplateError("comment ends before closing delimiter".into()))
}

/// The tokens of an action, what follows its right delimiter, and whether that one trims.
fn tokens(action: &str) -> Result<(Vec<Token>, &str, bool), TemplateError> {
    let mut tokens = Vec::new();
    let mut rest = action;
    loop {
        if let Some((next, trim)) = right_delimiter(rest) {
            return Ok((tokens, next, trim));
        }
        let (token, next) = token(rest)?;
        tokens.push(token);
        rest = next;
    }
}

fn token(text: &str) -> Result<(Token, &str), TemplateError> {
    for (mark, token) in [
        (":=", Token::Declare),
        ("=", Token::Assign),
        ("|", Token::Pipe),
        (",", Token::Comma),
        ("(", Token::Open),
        (")", Token::Close),
    ] {
        if let Some(rest) = text.strip_prefix(mark) {
            return Ok((token, rest));
        }
    }
    let Some(first) = text.chars().next() else {
        return Err(TemplateError("unclosed action".into()));
    };
    let after_first = &text[first.len_utf8()..];
    match first {
        c if SPACE.contains(&c) => Ok((Token::Space, blanks(text))),
        '"' => quoted(after_first),
        '`' => match after_first.split_once('`') {
            Some((raw, rest)) => Ok((Token::Str(raw.to_owned()), rest)),
            None => Err(TemplateError("unterminated raw quoted string".into())),
        },
        '\'' => character(after_first),
        '.' if !after_first.starts_with(|c: char| c.is_ascii_digit()) => {
            let (name, rest) = word(after_first);
            let token = if name.is_empty() {
                Token::Dot
            } else {
                Token::Field(name.to_owned())
            };
            terminated(token, rest)
        }
        '$' => {
            let (name, rest) = word(after_first);
            terminated(Token::Variable(name.to_owned()), rest)
        }
        '+' | '-' | '.' | '0'..='9' => number(text),
        c if is_word_char(c) => {
            let (name, rest) = word(text);
            terminated(Token::Word(name.to_owned()), rest)
        }
        c => Err(unexpected(c)),
    }
}

/// Skips blanks, but leaves one that belongs to a trimming right delimiter.
fn blanks(text: &str) -> &str {
    let rest = text.trim_start_matches(SPACE);
    let skipped = text.len() - rest.len();
    if rest.starts_with("-}}") && skipped > 1 {
        return &text[skipped - 1..];
    }
    rest
}

fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c| !is_word_char(c)).unwrap_or(text.len());
    text.split_at(end)
}

/// Names must be followed by something that can follow a name.
fn terminated(token: Token, rest: &str) -> Result<(Token, &str), TemplateError> {
    match rest.chars().next() {
        None => Err(TemplateError("unclosed action".into())),
        Some(c) if SPACE.contains(&c) || ".,|:)(=".contains(c) || rest.starts_with(RIGHT) => {
            Ok((token, rest))
        }
        Some(c) => Err(unexpected(c)),
    }
}

fn unexpected(c: char) -> TemplateError {
    TemplateError(format!("unexpected character {c:?} in an action"))
}

fn number(text: &str) -> Result<(Token, &str), TemplateError> {
    let body = text.trim_start_matches(['+', '-']);
    let sign_len = text.len() - body.len();
    let end = body
        .find(|c| !is_word_char(c) && c != '.')
        .unwrap_or(body.len());
    let (number, rest) = text.split_at(sign_len + end);
    let bad = || TemplateError(format!("bad number syntax: {number:?}"));
    if sign_len > 1 {
        return Err(bad());
    }
    let plain = number.replace('_', "").to_ascii_lowercase();
    if let Some(value) = integer(&plain) {
        return Ok((Token::Int(value), rest));
    }
    let real = plain.strip_suffix('i').unwrap_or(&plain);
    if real.parse::<f64>().is_ok_and(f64::is_finite) || real.contains("0x") {
        return Ok((Token::OtherConstant, rest));
    }
    Err(bad())
}

fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.trim_start_matches('+')),
    };
    let (radix, digits) = match digits.get(..2) {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(two) if two.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = i128::from_str_radix(digits, radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// A character constant, which begins after its opening quote.
fn character(text: &str) -> Result<(Token, &str), TemplateError> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '\n' => break,
            '\'' if !escaped => return Ok((Token::OtherConstant, &text[at + 1..])),
            _ => escaped = c == '\\' && !escaped,
        }
    }
    Err(TemplateError("unterminated character constant".into()))
}

/// A quoted string, which begins after its opening quote.
fn quoted(text: &str) -> Result<(Token, &str), TemplateError> {
    let unterminated = || TemplateError("unterminated quoted string".into());
    let mut value = String::new();
    let mut rest = text;
    loop {
        let c = rest.chars().next().ok_or_else(unterminated)?;
        rest = &rest[c.len_utf8()..];
        match c {
            '"' => return Ok((Token::Str(value), rest)),
            '\n' => return Err(unterminated()),
            '\\' => {
                let (c, next) = escape(rest)?;
                value.push(c);
                rest = next;
            }
            c => value.push(c),
        }
    }
}

/// The character that an escape sequence stands for; the sequence begins after its backslash.
fn escape(text: &str) -> Result<(char, &str), TemplateError> {
    let bad = || TemplateError("invalid escape sequence in a quoted string".into());
    let kind = text.chars().next().ok_or_else(bad)?;
    let rest = &text[kind.len_utf8()..];
    let simple = |c| Ok((c, rest));
    let digits = match kind {
        'a' => return simple('\x07'),
        'b' => return simple('\x08'),
        'f' => return simple('\x0c'),
        'n' => return simple('\n'),
        'r' => return simple('\r'),
        't' => return simple('\t'),
        'v' => return simple('\x0b'),
        '\\' | '"' => return simple(kind),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => return Err(bad()),
    };
    let hex = rest.get(..digits).ok_or_else(bad)?;
    let c = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
    c.map(|c| (c, &rest[digits..])).ok_or_else(bad)
}
