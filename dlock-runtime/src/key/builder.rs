//! Puts the text of a template and the values of a call together to a key.
//!
//! Not here: how a value is escaped (`sink`), and the form of a key that is too long (`name`).

use std::cell::Cell;
use std::sync::Arc;

use crate::error::Error;
use crate::key::hash::Hasher;
use crate::key::part::{KeyPart, PartWriter};
use crate::key::sink::{Form, Problem, Sink};
use crate::key::{LockKey, name};

/// Builds one key, piece by piece; the first problem is kept and given by [`build`](Self::build).
///
/// Different values never give one key as long as a `:` (or another letter that values cannot contain: `{` `}` `<` `>` `#`)
/// stands between two of them, and neither a digit nor `~` right behind an [`optional`](Self::optional) one; the attribute checks
/// that of its templates.
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
    /// The namespace and the pieces so far; after a problem, the places instead of the values.
    name: String,
    start: usize,
    hashed: bool,
    problem: Option<Arc<str>>,
}

impl Default for KeyBuilder {
    /// Starts a key that gets the namespace of the manager, or of the attribute, which it is given to.
    fn default() -> Self {
        Self::new("")
    }
}

impl KeyBuilder {
    /// Starts a key in `namespace`. With an empty one the key gets that of the manager, or of the attribute, which it is given to;
    /// [`default`](Self::default) is that.
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

    /// Adds fixed text, as it is.
    #[inline]
    pub fn text(mut self, text: &str) -> Self {
        self.name.push_str(text);
        self
    }

    /// Adds the value of the hole `<place>`. An empty value, and `None`, is a problem.
    pub fn part<T: KeyPart + ?Sized>(self, place: &'static str, value: &T) -> Self {
        self.value(place, value, Form::Escaped)
    }

    /// Adds the hash of a value, for values that are long or secret: 32 hex digits of SHA-256. An empty value is a problem.
    pub fn hashed<T: KeyPart + ?Sized>(mut self, place: &'static str, value: &T) -> Self {
        self.hashed = true;
        self.value(place, value, |name| Form::Hashed(Box::new(Hasher::new(name))))
    }

    /// Adds a value that may be missing: `None` writes `~`, an empty value `~~`.
    pub fn optional<T: KeyPart + ?Sized>(self, place: &'static str, value: &T) -> Self {
        self.value(place, value, Form::Optional)
    }

    /// Adds a value **as it is**: it can contain a separator or a hash tag. An empty value is a problem.
    pub fn raw<T: KeyPart + ?Sized>(self, place: &'static str, value: &T) -> Self {
        self.value(place, value, Form::Raw)
    }

    /// Returns the key.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] for an empty key, for a hole whose value is missing or empty, and for `##` in the key, which is reserved for
    /// names that are derived from keys.
    pub fn build(self) -> Result<LockKey, Error> {
        let Self { mut name, start, hashed, problem } = self;
        let key = name.get(start..).unwrap_or_default();
        if let Some(problem) = problem {
            return Err(Error::InvalidKey { template: key.into(), problem });
        }
        if key.is_empty() {
            return Err(Error::InvalidKey {
                template: "".into(),
                problem: "it is empty: add what is locked, such as `.text(\"order:\")`".into(),
            });
        }
        if name::has_marker(key) {
            return Err(Error::InvalidKey {
                template: key.into(),
                problem: "`##` is reserved for names that are derived from keys: write one `#`, or `:`"
                    .into(),
            });
        }
        // Without a namespace the name is not final: it is cut when it gets one.
        let cut = if start > 0 { name::cut(&name, start) } else { None };
        let key = LockKey::of_name(cut.as_ref().unwrap_or(&name).as_str().into(), start, hashed);
        if name.capacity() <= MOST_ROOM {
            name.clear();
            let _ = ROOM.try_with(|room| room.set(name)); // there is none any more where the thread ends
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
        // The name is moved through the sink and back, so that no value needs a string of its own.
        let before = self.name.len();
        let mut sink = Sink::new(form(std::mem::take(&mut self.name)));
        let _written = value.write_part(PartWriter::new(&mut sink));
        let (name, problem) = sink.finish();
        self.name = name;

        if let Some(Problem { field, what }) = problem {
            self.problem = Some(format!("`<{place}{field}>` {what}").into());
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
    /// Where the keys of this thread are put together, one after the other, so that a key takes memory once: for itself.
    static ROOM: Cell<String> = const { Cell::new(String::new()) };
}

/// What a longer key has used is given back.
const MOST_ROOM: usize = 1_024;
