//! The keys of locks, and how values become parts of them. [`LockKey`] is a complete key.
//!
//! ```text
//! part, part_impls   the trait of values, and the types that implement it
//! sink               escapes, copies, or hashes a value's bytes
//! builder            builds a key from text and values
//! into_key           other types that can be a whole key
//! invalid_key        the error of text or values that make no key
//! name               the namespace, and the form of a name that is too long
//! hash               the hash of keys
//! ```

mod builder;
mod hash;
mod into_key;
mod invalid_key;
mod name;
mod part;
mod part_impls;
#[cfg(test)]
mod properties;
mod sink;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

pub use builder::KeyBuilder;
pub(crate) use into_key::AsLockKey;
pub use into_key::IntoLockKey;
pub use invalid_key::InvalidKey;
pub(crate) use name::{MARKER, Name};
pub use part::{FieldWriter, KeyPart, PartWriter, Written};

use crate::printable::Escaped;

/// The key of a lock, such as `order:7`.
///
/// It stores its full name in Redis, `namespace:key`, in one allocation. [`as_str`](Self::as_str)
/// and `Display` return only the key. Two keys are equal if their full names are.
#[derive(Clone)]
pub struct LockKey {
    name: Name,
    /// Where the key starts, after its namespace. A `u32` to save space, since every hold has a
    /// key.
    start: u32,
    hashed: bool,
}

impl LockKey {
    /// Returns a key without a namespace. A manager adds its own.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the key is empty or contains `##`.
    pub fn new(key: impl AsRef<str>) -> Result<Self, InvalidKey> {
        KeyBuilder::new("").text(key.as_ref()).build()
    }

    /// Returns the key of a job or a leader, such as `job:report`.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the name is empty or contains the [`MARKER`].
    pub(crate) fn named(kind: &str, name: &str, namespace: &str) -> Result<Self, InvalidKey> {
        let problem = match name {
            "" => "is empty",
            name if name.contains(MARKER) => "cannot contain `##`",
            name => return format!("{kind}:{name}").into_lock_key(namespace),
        };
        Err(InvalidKey::new(name, format!("the name of a {kind} {problem}")))
    }

    /// Returns the key with this displayed text, for operators who inspect and release locks.
    ///
    /// A long name is displayed cut, and a cut name is otherwise not a valid key. Characters that
    /// are displayed escaped, such as `\u{200b}`, are not converted back: pass the characters
    /// themselves.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    ///
    /// # Examples
    ///
    /// ```
    /// # use dlock_runtime::LockKey;
    /// let shown = format!("order:{}##0123456789abcdef0123456789abcdef", "x".repeat(400));
    ///
    /// assert_eq!(LockKey::from_shown(&shown)?.as_str(), shown);
    /// assert!(LockKey::new(&shown).is_err());
    /// # Ok::<(), dlock_runtime::Error>(())
    /// ```
    pub fn from_shown(text: &str) -> Result<Self, InvalidKey> {
        if name::is_cut(text) { Ok(Self::of_name(text.into(), 0, false)) } else { Self::new(text) }
    }

    /// Returns the key without its namespace.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.name.get(self.start()..).unwrap_or_default()
    }

    /// Returns the name of the key in Redis: `namespace:key`.
    #[must_use]
    pub fn full_name(&self) -> &str {
        &self.name
    }

    /// Returns the namespace, which is empty if the key has none.
    pub(crate) fn namespace(&self) -> &str {
        self.name.get(..self.start().saturating_sub(1)).unwrap_or_default()
    }

    /// Returns `true` if the key contains a value marked `|hash`. Spans and events omit such a key.
    #[must_use]
    pub fn is_hashed(&self) -> bool {
        self.hashed
    }

    /// Returns the key of a full name in which the key starts at `start`.
    fn of_name(name: Name, start: usize, hashed: bool) -> Self {
        let start = u32::try_from(start).expect("no namespace has four billion letters");
        Self { name, start, hashed }
    }

    fn start(&self) -> usize {
        usize::try_from(self.start).unwrap_or(usize::MAX)
    }

    /// Returns the key with another full name in the same namespace.
    pub(crate) fn sibling(&self, name: &Name) -> Self {
        Self { name: Name::clone(name), start: self.start, hashed: self.hashed }
    }

    /// Returns the shared full name, for maps that are keyed by it.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }
}

impl PartialEq for LockKey {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for LockKey {}

impl Hash for LockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl PartialOrd for LockKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl fmt::Display for LockKey {
    /// Writes the key with unprintable characters escaped, so that no key can forge a line of a log
    /// or send commands to a terminal.
    ///
    /// They are control characters, line separators, and characters that reorder text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped(self.as_str()).fmt(f)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockKey({self})")
    }
}
