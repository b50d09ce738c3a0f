//! How a value enters a key: by a trait of its own.
//!
//! ```text
//! value  ->  KeyPart::write_part  ->  PartWriter (exactly one of str, bytes, display, none, some, fields)  ->  "a%3Ab"
//! ```
//!
//! Not here: the types that are parts (`part_impls`), what becomes of the bytes (`sink`), and where in a key a value stands
//! (`builder`).

use std::fmt;

use crate::key::sink::Sink;

/// A value that can be part of a lock key, in a hole such as `<user_id>`.
///
/// It is implemented for integers, `bool`, `char`, strings, bytes, [`Uuid`](uuid::Uuid), for `Option`, references and smart
/// pointers to those, and for tuples of two or three; with the features `axum` and `actix` for extractors of those, too. It is not
/// `Display`, since a text for people may change or leave things out; and not for floats, where equal numbers have several texts.
///
/// A struct of your own gets it by [`#[derive(KeyPart)]`](derive@crate::KeyPart). An enum is implemented by hand, with a text for
/// each variant that stays when the variant is renamed:
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
///
/// Two values that are not equal must write different text: callers with the same key exclude each other. A type writes the
/// same number of fields each time, or says by the first which come, as above. Nothing that an implementation writes can forge
/// a separator of the template, or move the key to another slot of a cluster.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a lock key",
    label = "this value is in the key",
    note = "write `#[derive(dlock_runtime::KeyPart)]` above a struct of your own, or use one of its fields or getters, such as `<order.id>`: see `dlock_runtime::docs::keys`",
    note = "an extractor of axum or actix-web is a part with that feature of `dlock-runtime`; what has no one text of its own, such as a float, a `Duration` or a `Vec`, is none: use an integer of it, such as cents or `<time.as_secs()>`"
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
    /// How many `Some` there are around the value.
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

    /// Writes what `value` displays, without a string in between.
    ///
    /// Use it where that text is fixed and says all of the value, as with numbers; not for text made for people.
    pub fn display(self, value: impl fmt::Display) -> Written {
        use fmt::Write as _;
        // A `Display` that fails has written a part of the value, which could be the whole of another.
        if write!(self.sink, "{value}").is_err() {
            self.sink.refuse("could not be written");
        }
        self.sink.end();
        Written(())
    }

    /// Writes that there is no value, as `None` does. A hole takes it with `|opt` only.
    pub fn none(self) -> Written {
        self.sink.none(self.depth);
        Written(())
    }

    /// Writes the value that is inside of another which could also be [`none`](Self::none), as `Some` does.
    pub fn some(self, value: &(impl KeyPart + ?Sized)) -> Written {
        let Self { sink, depth } = self;
        value.write_part(PartWriter { sink, depth: depth + 1 })
    }

    /// Starts a value that is made of several, as a struct is: they stand in order, with `:` between them.
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

/// Takes the fields of one value. See [`PartWriter::fields`].
#[derive(Debug)]
#[must_use = "the value is written by `end`"]
pub struct FieldWriter<'a> {
    out: PartWriter<'a>,
    first: bool,
}

impl FieldWriter<'_> {
    /// Writes a field. An error says `name`; the key does not, so that a field can be renamed.
    pub fn field(self, name: &str, value: &(impl KeyPart + ?Sized)) -> Self {
        let Self { out: PartWriter { sink, depth }, first } = self;
        // The first problem is the one that is told, and nothing after it counts.
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

    /// Ends the value. Without any field it is an empty one.
    pub fn end(self) -> Written {
        if self.first {
            self.out.sink.end();
        }
        Written(())
    }
}
