//! Receives the bytes of values: escapes, copies, or hashes them, and marks missing values.
//!
//! ```text
//!             "a:b"     ""      None   Some(None)   ("a:b", "c")
//! plain       a%3Ab     -       -      -            a%3Ab:c
//! `|opt`      a%3Ab     ~~      ~      ~1           a%3Ab:c
//! `|raw`      a:b       -       -      -            a:b:c
//! `|hash`     H(a%3Ab)  -       -      -            H(a%3Ab:c)          -: refused
//! ```
//!
//! See `part` for the writers of values, and `builder` for values that are refused.

use std::fmt;

use crate::key::hash::Hasher;

/// Receives the value of one placeholder, or its fields.
#[derive(Debug)]
pub(crate) struct Sink {
    form: Form,
    /// Whether the current value has no bytes so far.
    empty: bool,
    problem: Option<Problem>,
}

/// Why a value cannot be in the key.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The field of the placeholder, as in `.order.id`; empty for the placeholder itself.
    pub(crate) field: String,
    pub(crate) what: &'static str,
    /// Whether there is no value, or an empty one.
    pub(crate) is_missing: bool,
}

/// How bytes are written. Each variant holds the name so far, so that no value needs a separate
/// string.
#[derive(Debug)]
pub(crate) enum Form {
    /// `<a>`
    Escaped(String),
    /// `<a|opt>`
    Optional(String),
    /// `<a|raw>`
    Raw(String),
    /// `<a|hash>`: boxed, as it is large and rare
    Hashed(Box<Hasher>),
}

impl Sink {
    pub(crate) fn new(form: Form) -> Self {
        Self { form, empty: true, problem: None }
    }

    /// Adds bytes of the current value.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.empty &= bytes.is_empty();
        match &mut self.form {
            Form::Escaped(name) | Form::Optional(name) => escape(bytes, name),
            Form::Raw(name) => match std::str::from_utf8(bytes) {
                Ok(text) => name.push_str(text),
                Err(_) => self.refuse("is not UTF-8: write `|hash`, or leave out `|raw`"),
            },
            // The escaped text is hashed: a `:` in a value differs from the `:` between two fields,
            // so values whose plain texts differ have different hashes.
            Form::Hashed(hash) => {
                let mut text = String::new();
                escape(bytes, &mut text);
                hash.update(text.as_bytes());
            }
        }
    }

    /// Ends the current value.
    pub(crate) fn end(&mut self) {
        if std::mem::replace(&mut self.empty, true) {
            self.nothing(
                "~~",
                "is empty: write `|opt` in the placeholder if calls without it may share one key",
            );
        }
    }

    /// Records that there is no value at this `depth` of `Option`: `Some(None)` is not `None`.
    pub(crate) fn none(&mut self, depth: u32) {
        let mark = if depth > 0 { format!("~{depth}") } else { "~".to_owned() };
        self.nothing(
            &mark,
            "has no value: write `|opt` in the placeholder if calls without it may share one key",
        );
    }

    fn nothing(&mut self, mark: &str, problem: &'static str) {
        match &mut self.form {
            Form::Optional(name) => name.push_str(mark),
            _ => self.refuse_because(problem, true),
        }
    }

    /// Adds the separator between two fields.
    pub(crate) fn separate(&mut self) {
        match &mut self.form {
            Form::Escaped(name) | Form::Optional(name) | Form::Raw(name) => name.push(':'),
            Form::Hashed(hash) => hash.update(b":"),
        }
    }

    /// Keeps the first problem.
    pub(crate) fn refuse(&mut self, what: &'static str) {
        self.refuse_because(what, false);
    }

    fn refuse_because(&mut self, what: &'static str, is_missing: bool) {
        self.problem.get_or_insert(Problem { field: String::new(), what, is_missing });
    }

    /// Returns the problem, so that the caller can add details or stop.
    pub(crate) fn problem(&mut self) -> Option<&mut Problem> {
        self.problem.as_mut()
    }

    /// Returns the name with the values. If there is a problem, the name has no meaning.
    pub(crate) fn finish(self) -> (String, Option<Problem>) {
        let name = match self.form {
            Form::Escaped(name) | Form::Optional(name) | Form::Raw(name) => name,
            Form::Hashed(hash) => hash.finish(),
        };
        (name, self.problem)
    }
}

impl fmt::Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Appends `bytes` to `out`, with `%XX` for characters that have a meaning in keys and all but
/// printable ASCII.
fn escape(bytes: &[u8], out: &mut String) {
    out.reserve(bytes.len());
    for &byte in bytes {
        match byte {
            b':' | b'%' | b'{' | b'}' | b'<' | b'>' | b'~' | b'#' => hex(byte, out),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => hex(byte, out),
        }
    }
}

fn hex(byte: u8, out: &mut String) {
    let digit = |four: u8| char::from(if four < 10 { b'0' + four } else { b'A' + four - 10 });
    out.push('%');
    out.push(digit(byte >> 4));
    out.push(digit(byte & 15));
}
