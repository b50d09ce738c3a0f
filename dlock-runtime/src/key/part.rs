//! How a value enters a key: by a trait of its own, escaped as it is written.
//!
//! ```text
//! value  ->  KeyPart::write_part  ->  PartWriter (exactly one of str, bytes, display, none)  ->  "a%3Ab"
//! ```
//!
//! Not here: the types that are parts (`part_impls`), and where in a key a value stands (`builder`).

use std::fmt;

use crate::key::hash::Hasher;

/// A value that can be part of a lock key, in a hole such as `<user_id>`.
///
/// It is implemented for integers, `bool`, `char`, strings, bytes, [`Uuid`](uuid::Uuid), and for `Option`, references and smart
/// pointers to those; with the features `axum` and `actix` for extractors of those, too. It is not `Display`, since a text for people may change or leave things out; and not for floats, where
/// equal numbers have several texts.
///
/// Implement it for an own id by handing the writer on:
///
/// ```
/// use dlock_runtime::{KeyPart, PartWriter, Written};
///
/// struct UserId(u64);
///
/// impl KeyPart for UserId {
///     fn write_part(&self, out: PartWriter<'_>) -> Written {
///         self.0.write_part(out)
///     }
/// }
/// ```
///
/// Two values that are not equal must write different text: callers with the same key exclude each other. Nothing that an
/// implementation writes can forge a separator of the template, or move the key to another slot of a cluster.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a lock key",
    label = "this value is in the key",
    note = "use one of its fields or getters, such as `<order.id>`, or implement `dlock_runtime::KeyPart` for its type",
    note = "a float has several texts for equal numbers: use an integer, such as the amount in cents"
)]
pub trait KeyPart {
    /// Writes the value, by exactly one call to a method of `out`.
    fn write_part(&self, out: PartWriter<'_>) -> Written;
}

/// The proof that a value was written: only a [`PartWriter`] gives it, and each gives it once.
#[derive(Debug)]
#[must_use = "it is what `write_part` returns"]
pub struct Written(());

/// Takes one value, escaping it as it comes.
///
/// `:` `%` `{` `}` `<` `>` `~` `#` and every byte outside printable ASCII become `%XX`.
#[derive(Debug)]
pub struct PartWriter<'a> {
    sink: &'a mut Sink,
    depth: u32,
}

impl<'a> PartWriter<'a> {
    pub(crate) fn new(sink: &'a mut Sink) -> Self {
        Self { sink, depth: 0 }
    }

    /// Writes a string.
    pub fn str(self, value: &str) -> Written {
        self.bytes(value.as_bytes())
    }

    /// Writes bytes.
    pub fn bytes(self, value: &[u8]) -> Written {
        self.sink.push(value);
        Written(())
    }

    /// Writes what `value` displays, without a string in between.
    ///
    /// Use it where that text is fixed and says all of the value, as with numbers; not for text made for people.
    pub fn display(self, value: impl fmt::Display) -> Written {
        use fmt::Write as _;
        // A `Display` that fails has written a part of the value, which could be the whole of another.
        if write!(self.sink, "{value}").is_err() {
            self.sink.failed = true;
        }
        Written(())
    }

    /// Writes that there is no value, as `None` does. A hole takes it with `|opt` only.
    pub fn none(self) -> Written {
        self.sink.none = Some(self.depth);
        Written(())
    }

    /// Writes the value that is inside of another which could also be [`none`](Self::none), as `Some` does.
    pub fn some(self, value: &(impl KeyPart + ?Sized)) -> Written {
        let Self { sink, depth } = self;
        value.write_part(PartWriter { sink, depth: depth + 1 })
    }
}

/// Where the bytes of a value go, and what is known of it.
#[derive(Debug)]
pub(crate) struct Sink {
    form: Form,
    /// At which depth of `Option` there was no value.
    pub(crate) none: Option<u32>,
    /// Whether the value wrote no byte.
    pub(crate) empty: bool,
    /// Whether the value could not be written whole.
    pub(crate) failed: bool,
}

#[derive(Debug)]
enum Form {
    Escaped(String),
    Raw(Vec<u8>),
    Hashed(Hasher),
}

impl Sink {
    /// Escapes the value and adds it to `name`.
    pub(crate) fn escaped(name: String) -> Self {
        Self::of(Form::Escaped(name))
    }

    /// Adds the value to `name` as it is.
    pub(crate) fn raw(name: String) -> Self {
        Self::of(Form::Raw(name.into_bytes()))
    }

    /// Adds the hash of the value to `name`.
    pub(crate) fn hashed(name: String) -> Self {
        Self::of(Form::Hashed(Hasher::new(name)))
    }

    fn of(form: Form) -> Self {
        Self { form, none: None, empty: true, failed: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.empty &= bytes.is_empty();
        match &mut self.form {
            Form::Escaped(name) => escape(bytes, name),
            Form::Raw(name) => name.extend_from_slice(bytes),
            Form::Hashed(hash) => hash.update(bytes),
        }
    }

    /// Gives the name with the value, or `None` where a raw value is no UTF-8.
    pub(crate) fn finish(self) -> Option<String> {
        match self.form {
            Form::Escaped(name) => Some(name),
            Form::Raw(name) => String::from_utf8(name).ok(),
            Form::Hashed(hash) => Some(hash.finish()),
        }
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
