//! What is locked: keys, and how argument values become parts of them.
//!
//! [`LockKey`] is the finished key.
//!
//! ```text
//! part, part_impls   the trait by which values enter, and the types that have it
//! sink               what becomes of a value's bytes: escaped, raw, hashed
//! builder            puts text and values together
//! into_key           what else can stand for a whole key
//! name               the namespace before it, and the form of a name that is too long
//! hash               the one hash of keys
//! ```

mod builder;
mod hash;
mod into_key;
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
pub(crate) use name::{MARKER, Name};
pub use part::{FieldWriter, KeyPart, PartWriter, Written};

use crate::error::Error;
use crate::printable::Escaped;

/// The key of a lock: what is locked, such as `order:7`.
///
/// It carries its full name in Redis, `namespace:key`, in one allocation; [`as_str`](Self::as_str) and `Display` give the key
/// alone. Two keys are equal when their full names are.
#[derive(Clone)]
pub struct LockKey {
    name: Name,
    /// Where the key begins behind its namespace. Small, since every hold has a key.
    start: u32,
    hashed: bool,
}

impl LockKey {
    /// Makes a ready-made key, without a namespace until a manager gives it its own.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] when the key is empty, or has two `#` in a row.
    pub fn new(key: impl AsRef<str>) -> Result<Self, Error> {
        KeyBuilder::new("").text(key.as_ref()).build()
    }

    /// Makes a key from the text that it is shown as, for operators who inspect and release locks: a long name is shown cut, and a cut
    /// name is no valid key otherwise.
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
    pub fn from_shown(text: &str) -> Result<Self, Error> {
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

    /// Returns the namespace, which is empty where the key has none.
    pub(crate) fn namespace(&self) -> &str {
        self.name.get(..self.start().saturating_sub(1)).unwrap_or_default()
    }

    /// Returns whether a part of the key stands for a value that was marked `|hash`: spans and events leave such a key out.
    #[must_use]
    pub fn is_hashed(&self) -> bool {
        self.hashed
    }

    /// Makes the key of a full name that begins at `start` in it.
    fn of_name(name: Name, start: usize, hashed: bool) -> Self {
        let start = u32::try_from(start).expect("no namespace has four billion letters");
        Self { name, start, hashed }
    }

    fn start(&self) -> usize {
        usize::try_from(self.start).unwrap_or(usize::MAX)
    }

    /// Returns the key of another full name in the same namespace.
    pub(crate) fn sibling(&self, name: &Name) -> Self {
        Self { name: Name::clone(name), start: self.start, hashed: self.hashed }
    }

    /// Shares the full name, for maps that are keyed by it.
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
    /// Writes the key with unprintable characters escaped (control characters, line separators, and characters that reorder text), so
    /// that no key can forge a line of a log or command a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped(self.as_str()).fmt(f)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockKey({self})")
    }
}
