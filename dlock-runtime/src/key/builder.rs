//! [`KeyBuilder`], which builds a key from the text of a template and the values of a call.
//!
//! See `sink` for escaping, and `name` for names that are too long.

use std::cell::Cell;

use crate::key::hash::Hasher;
use crate::key::part::{KeyPart, PartWriter};
use crate::key::sink::{Form, Problem, Sink};
use crate::key::{InvalidKey, LockKey, name};

/// Builds one key, piece by piece. [`build`](Self::build) returns the first problem.
///
/// Different values never build the same key if two conditions hold, which the attribute checks for
/// its templates:
///
/// - A `:`, or another character that values cannot contain (`{` `}` `<` `>` `#`), separates each
///   two values.
/// - Neither a digit nor `~` directly follows an [`optional`](Self::optional) value.
///
/// # Examples
///
/// ```
/// use dlock_runtime::KeyBuilder;
///
/// let key = KeyBuilder::new("shop").text("order:").part("id", &7_u64).text(":").part("line", "a:b").build()?;
///
/// assert_eq!(key.as_str(), "order:7:a%3Ab");
/// assert_eq!(key.full_name(), "shop:order:7:a%3Ab");
/// # Ok::<(), dlock_runtime::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a key is made by `build`"]
pub struct KeyBuilder {
    /// The namespace and the pieces so far; after a problem, the placeholders instead of the
    /// values.
    name: String,
    start: usize,
    hashed: bool,
    /// The first value that cannot be in the key: why, and whether it is missing or empty.
    problem: Option<(String, bool)>,
}

impl Default for KeyBuilder {
    /// Starts a key that gets the namespace of the manager or of the attribute that uses it.
    fn default() -> Self {
        Self::new("")
    }
}

impl KeyBuilder {
    /// Starts a key in `namespace`.
    ///
    /// If it is empty, the key gets the namespace of the manager or of the attribute that uses it,
    /// as with [`default`](Self::default).
    #[inline]
    pub fn new(namespace: &str) -> Self {
        let mut name = ROOM.try_with(Cell::take).unwrap_or_default();
        name.reserve(64);
        if !namespace.is_empty() {
            name.push_str(namespace);
            name.push(':');
        }
        Self { start: name.len(), name, hashed: false, problem: None }
    }

    /// Adds fixed text, unescaped.
    #[inline]
    pub fn text(mut self, text: &str) -> Self {
        self.name.push_str(text);
        self
    }

    /// Adds the value of the placeholder `<place>`. An empty value, or `None`, is a problem.
    pub fn part<T: KeyPart + ?Sized>(self, place: &'static str, value: &T) -> Self {
        self.value(place, value, Form::Escaped)
    }

    /// Adds the hash of a value that is long or secret: 32 hex digits of SHA-256. An empty value is
    /// a problem.
    pub fn hashed<T: KeyPart + ?Sized>(mut self, place: &'static str, value: &T) -> Self {
        self.hashed = true;
        self.value(place, value, |name| Form::Hashed(Box::new(Hasher::new(name))))
    }

    /// Adds a value that may be missing: `None` is written as `~`, and an empty value as `~~`.
    pub fn optional<T: KeyPart + ?Sized>(self, place: &'static str, value: &T) -> Self {
        self.value(place, value, Form::Optional)
    }

    /// Adds a value **unescaped**: it can contain a separator or a hash tag. An empty value is a
    /// problem.
    pub fn raw<T: KeyPart + ?Sized>(self, place: &'static str, value: &T) -> Self {
        self.value(place, value, Form::Raw)
    }

    /// Returns the key.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the key is empty, if the value of a placeholder is missing or
    /// empty, or if the key contains `##`, which is reserved for names that are derived from keys.
    pub fn build(self) -> Result<LockKey, InvalidKey> {
        let Self { mut name, start, hashed, problem } = self;
        let key = name.get(start..).unwrap_or_default();
        if let Some((text, is_missing_value)) = problem {
            let mut invalid = InvalidKey::new(key, text);
            invalid.is_missing_value = is_missing_value;
            return Err(invalid);
        }
        if key.is_empty() {
            return Err(InvalidKey::new("", "it is empty: name what is locked, such as `order:7`"));
        }
        if name::has_marker(key) {
            return Err(InvalidKey::new(
                key,
                "`##` is reserved for names that are derived from keys: write one `#`, or `:`",
            ));
        }
        // Without a namespace the name is not final. It is cut when it gets one.
        let cut = if start > 0 { name::cut(&name, start) } else { None };
        let key = LockKey::of_name(cut.as_ref().unwrap_or(&name).as_str().into(), start, hashed);
        if name.capacity() <= MOST_ROOM {
            name.clear();
            let _ = ROOM.try_with(|room| room.set(name)); // fails if the thread is ending
        }
        Ok(key)
    }

    fn value<T: KeyPart + ?Sized>(
        mut self,
        place: &'static str,
        value: &T,
        form: impl FnOnce(String) -> Form,
    ) -> Self {
        if self.problem.is_some() {
            return self.placeholder(place);
        }
        // The name is moved through the sink and back, so that no value needs a separate string.
        let before = self.name.len();
        let mut sink = Sink::new(form(std::mem::take(&mut self.name)));
        let _written = value.write_part(PartWriter::new(&mut sink));
        let (name, problem) = sink.finish();
        self.name = name;

        if let Some(Problem { field, what, is_missing }) = problem {
            self.problem = Some((format!("`<{place}{field}>` {what}"), is_missing));
            self.name.truncate(before);
            return self.placeholder(place);
        }
        self
    }

    fn placeholder(mut self, place: &'static str) -> Self {
        self.name.push('<');
        self.name.push_str(place);
        self.name.push('>');
        self
    }
}

thread_local! {
    /// The buffer in which this thread builds its keys, so that each key allocates once: for
    /// itself.
    static ROOM: Cell<String> = const { Cell::new(String::new()) };
}

/// A larger buffer is freed.
const MOST_ROOM: usize = 1_024;
