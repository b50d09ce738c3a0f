//! [`KeyPart`], the trait of values that can be part of a key.
//!
//! ```text
//! value  ->  KeyPart::write_part  ->  PartWriter (exactly one of str, bytes, display, none, some, fields)  ->  "a%3Ab"
//! ```
//!
//! See `part_impls` for the types that implement it, `sink` for escaping, and `builder` for whole
//! keys.

use std::fmt;

use crate::key::sink::Sink;

/// A value that can be part of a lock key, in a placeholder such as `<user_id>`.
///
/// It is implemented for integers, `bool`, `char`, strings, bytes, [`Uuid`](uuid::Uuid), for
/// `Option`, references, and smart pointers of those, and for tuples of two or three; with the
/// features `axum` and `actix` also for extractors of those. `Display` does not suffice, since text
/// for people may change or omit details. Floats do not implement it, because equal numbers have
/// several texts.
///
/// For a struct, use [`#[derive(KeyPart)]`](derive@crate::KeyPart). Implement it by hand for an
/// enum, with a fixed text for each variant that does not change when the variant is renamed.
///
/// Two values that are not equal must write different text: callers with the same key exclude each
/// other. A type must always write the same number of fields, or its first field must determine
/// which follow, as below. No implementation can forge a separator of the template, or move the key
/// to another slot of a cluster.
///
/// # Examples
///
/// ```
/// use dlock_runtime::{KeyPart, PartWriter, Written};
///
/// enum Payer { House, Customer(u64) }
///
/// impl KeyPart for Payer {
///     fn write_part(&self, out: PartWriter<'_>) -> Written {
///         match self {
///             Self::House => out.str("house"),
///             Self::Customer(id) => out.fields().field("kind", "customer").field("id", id).end(),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a lock key",
    label = "this value is in the key",
    note = "write `#[derive(dlock_runtime::KeyPart)]` above a struct of your own, or use one of its fields or getters, such as `<order.id>`: see `dlock_runtime::docs::keys`",
    note = "an extractor of axum or actix-web needs its feature: `dlock-runtime = {{ version = \"..\", features = [\"axum\"] }}`, or `actix`; a type without one canonical text, such as a float, a `Duration`, or a `Vec`, cannot be a part: use an integer, such as cents or `<time.as_secs()>`"
)]
pub trait KeyPart {
    /// Writes the value, by exactly one call to a method of `out`.
    fn write_part(&self, out: PartWriter<'_>) -> Written;
}

/// The proof that a value was written. Only [`PartWriter`] returns it, once per writer.
#[derive(Debug)]
#[must_use = "it is what `write_part` returns"]
pub struct Written(());

/// Writes one value, and escapes it.
///
/// `:` `%` `{` `}` `<` `>` `~` `#` and every byte outside printable ASCII are written as `%XX`.
#[derive(Debug)]
pub struct PartWriter<'a> {
    sink: &'a mut Sink,
    /// The number of `Some` around the value.
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
        self.sink.end();
        Written(())
    }

    /// Writes the `Display` text of `value`, without a temporary string.
    ///
    /// Use it only if that text is fixed and represents the whole value, as with numbers; not for
    /// text for people.
    pub fn display(self, value: impl fmt::Display) -> Written {
        use fmt::Write as _;
        // A `Display` that fails has written a part of the value, which could be all of another
        // one.
        if write!(self.sink, "{value}").is_err() {
            self.sink.refuse("could not be written");
        }
        self.sink.end();
        Written(())
    }

    /// Writes that there is no value, as `None` does. Only a placeholder with `|opt` accepts it.
    pub fn none(self) -> Written {
        self.sink.none(self.depth);
        Written(())
    }

    /// Writes the inner value of a type that could also write [`none`](Self::none), as `Some` does.
    pub fn some(self, value: &(impl KeyPart + ?Sized)) -> Written {
        let Self { sink, depth } = self;
        value.write_part(PartWriter { sink, depth: depth + 1 })
    }

    /// Starts a value of several fields, such as a struct. They are written in order, separated by
    /// `:`.
    ///
    /// # Examples
    ///
    /// ```
    /// use dlock_runtime::{KeyBuilder, KeyPart, PartWriter, Written};
    ///
    /// struct LineId { order: u64, article: String }
    ///
    /// impl KeyPart for LineId {
    ///     fn write_part(&self, out: PartWriter<'_>) -> Written {
    ///         out.fields().field("order", &self.order).field("article", &self.article).end()
    ///     }
    /// }
    ///
    /// let line = LineId { order: 7, article: "lamp:red".to_owned() };
    /// let key = KeyBuilder::new("").text("line:").part("line", &line).build()?;
    ///
    /// assert_eq!(key.as_str(), "line:7:lamp%3Ared");
    /// # Ok::<(), dlock_runtime::Error>(())
    /// ```
    pub fn fields(self) -> FieldWriter<'a> {
        FieldWriter { out: self, first: true }
    }
}

/// Writes the fields of one value. See [`PartWriter::fields`].
#[derive(Debug)]
#[must_use = "the value is written by `end`"]
pub struct FieldWriter<'a> {
    out: PartWriter<'a>,
    first: bool,
}

impl FieldWriter<'_> {
    /// Writes a field. Errors contain `name`; the key does not, so that a field can be renamed.
    pub fn field(self, name: &str, value: &(impl KeyPart + ?Sized)) -> Self {
        let Self { out: PartWriter { sink, depth }, first } = self;
        // The first problem is reported, and later values are ignored.
        if sink.problem().is_none() {
            if !first {
                sink.separate();
            }
            let _written = value.write_part(PartWriter { sink, depth });
            if let Some(problem) = sink.problem() {
                problem.field.insert_str(0, &format!(".{name}"));
            }
        }
        Self { out: PartWriter { sink, depth }, first: false }
    }

    /// Ends the value. Without fields, the value is empty.
    pub fn end(self) -> Written {
        if self.first {
            self.out.sink.end();
        }
        Written(())
    }
}
