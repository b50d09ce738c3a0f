//! Where the bytes of a value go: escaped, raw or hashed, and what stands for a value that has none.
//!
//! ```text
//!             "a:b"     ""      None   Some(None)   ("a:b", "c")
//! plain       a%3Ab     -       -      -            a%3Ab:c
//! `|opt`      a%3Ab     ~~      ~      ~1           a%3Ab:c
//! `|raw`      a:b       -       -      -            a:b:c
//! `|hash`     H(a%3Ab)  -       -      -            H(a%3Ab:c)          -: refused
//! ```
//!
//! Not here: who writes values (`part`), and what happens to one that is refused (`builder`).

use std::fmt;

use crate::key::hash::Hasher;

/// Takes what one hole writes, which is one value or several.
#[derive(Debug)]
pub(crate) struct Sink {
    form: Form,
    /// Whether the value that is being written has no byte so far.
    empty: bool,
    problem: Option<Problem>,
}

/// Why a value cannot be in the key.
#[derive(Debug)]
pub(crate) struct Problem {
    /// Which field of the hole it is about, as in `.order.id`; empty for the hole itself.
    pub(crate) field: String,
    pub(crate) what: &'static str,
}

/// What becomes of the bytes. Each holds the name so far, so that no value needs a string of its own.
#[derive(Debug)]
pub(crate) enum Form {
    /// `<a>`
    Escaped(String),
    /// `<a|opt>`
    Optional(String),
    /// `<a|raw>`
    Raw(String),
    /// `<a|hash>`: large, and seldom
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
                Err(_) => self.refuse("is no UTF-8: write `|hash`, or leave out `|raw`"),
            },
            // The escaped text: a `:` in one value is never the `:` between two fields, so values whose plain texts differ have
            // different hashes.
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
            self.nothing("~~", "is empty: write `|opt` in the hole where that is meant");
        }
    }

    /// Notes that there is no value at this `depth` of `Option`: `Some(None)` is another value than `None`.
    pub(crate) fn none(&mut self, depth: u32) {
        let mark = if depth > 0 { format!("~{depth}") } else { "~".to_owned() };
        self.nothing(&mark, "has no value: write `|opt` in the hole where that is meant");
    }

    fn nothing(&mut self, mark: &str, problem: &'static str) {
        match &mut self.form {
            Form::Optional(name) => name.push_str(mark),
            _ => self.refuse(problem),
        }
    }

    /// Adds what stands between two fields.
    pub(crate) fn separate(&mut self) {
        match &mut self.form {
            Form::Escaped(name) | Form::Optional(name) | Form::Raw(name) => name.push(':'),
            Form::Hashed(hash) => hash.update(b":"),
        }
    }

    /// Keeps the first problem.
    pub(crate) fn refuse(&mut self, what: &'static str) {
        self.problem.get_or_insert(Problem { field: String::new(), what });
    }

    /// Gives the problem, to be told more of, or to stop at.
    pub(crate) fn problem(&mut self) -> Option<&mut Problem> {
        self.problem.as_mut()
    }

    /// Gives the name with the values, of which nothing can be said when there is a problem.
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

/// Adds `bytes` to `out`, with `%XX` for what a key gives a meaning to and for what is no printable ASCII.
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
