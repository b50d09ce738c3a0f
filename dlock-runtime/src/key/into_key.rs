//! What can stand for a whole key: strings, numbers, a finished key, a builder.
//!
//! Not here: templates with holes (`builder`).

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::Error;
use crate::key::{KeyBuilder, LockKey, name};

/// What can stand for a whole key: a string, an integer, a UUID, a [`LockKey`] or a [`KeyBuilder`], and references to them.
///
/// A string is taken as it is: it is not escaped, and braces in it are a hash tag.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot stand for a whole lock key",
    label = "this gives no key",
    note = "give a string, as in `key = format!(\"order:{{tenant}}:{{id}}\")`, or write a template: `key = \"order:<tenant>:<id>\"`"
)]
pub trait IntoLockKey {
    /// Makes the key, in `namespace` unless it has one already.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] when it is no valid key.
    fn into_lock_key(self, namespace: &str) -> Result<LockKey, Error>;
}

/// The same by reference, so that one rule serves a reference to a reference, which a key expression often is.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot stand for a whole lock key",
    label = "this gives no key",
    note = "give a string, as in `key = format!(\"order:{{tenant}}:{{id}}\")`, or write a template: `key = \"order:<tenant>:<id>\"`"
)]
pub trait AsLockKey {
    /// Makes the key. See [`IntoLockKey::into_lock_key`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] when it is no valid key.
    fn as_lock_key(&self, namespace: &str) -> Result<LockKey, Error>;
}

impl<T: AsLockKey + ?Sized> IntoLockKey for &T {
    fn into_lock_key(self, namespace: &str) -> Result<LockKey, Error> {
        self.as_lock_key(namespace)
    }
}

impl IntoLockKey for KeyBuilder {
    fn into_lock_key(self, namespace: &str) -> Result<LockKey, Error> {
        Ok(name::place(self.build()?, namespace))
    }
}

impl AsLockKey for LockKey {
    fn as_lock_key(&self, namespace: &str) -> Result<LockKey, Error> {
        Ok(name::place(self.clone(), namespace))
    }
}

impl<T: AsLockKey + ?Sized> AsLockKey for &T {
    fn as_lock_key(&self, namespace: &str) -> Result<LockKey, Error> {
        T::as_lock_key(self, namespace)
    }
}

macro_rules! strings {
    ($($type:ty)*) => {$(
        impl AsLockKey for $type {
            fn as_lock_key(&self, namespace: &str) -> Result<LockKey, Error> {
                KeyBuilder::new(namespace).text(self).into_lock_key(namespace)
            }
        }
    )*};
}

strings! { str String Cow<'_, str> Box<str> Arc<str> }

macro_rules! displayed {
    ($($type:ty)*) => {$(
        impl AsLockKey for $type {
            fn as_lock_key(&self, namespace: &str) -> Result<LockKey, Error> {
                KeyBuilder::new(namespace).part("key", self).into_lock_key(namespace)
            }
        }
    )*};
}

displayed! { i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize uuid::Uuid }

macro_rules! by_value {
    ($($type:ty)*) => {$(
        impl IntoLockKey for $type {
            fn into_lock_key(self, namespace: &str) -> Result<LockKey, Error> {
                self.as_lock_key(namespace)
            }
        }
    )*};
}

by_value! {
    String Cow<'_, str> Box<str> Arc<str> LockKey
    i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize uuid::Uuid
}
