//! The types that can be a whole key: strings, numbers, a [`LockKey`], a [`KeyBuilder`].

use std::borrow::Cow;
use std::sync::Arc;

use crate::key::{InvalidKey, KeyBuilder, LockKey, name};

/// A value that can be a whole key: a string, an integer, a UUID, a [`LockKey`], a [`KeyBuilder`],
/// or a reference to one.
///
/// A string is used unescaped, and braces in it are a hash tag.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a whole lock key",
    label = "this is not a key",
    note = "in the attribute, write a template, `key = \"order:<tenant>:<id>\"`, or a string, `key = format!(\"order:{{tenant}}:{{id}}\")`",
    note = "for a method, give a string, `manager.lock(format!(\"order:{{tenant}}:{{id}}\"))`, or a `KeyBuilder`, which escapes values"
)]
pub trait IntoLockKey {
    /// Returns the key, in `namespace` unless it already has one.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the key is invalid.
    fn into_lock_key(self, namespace: &str) -> Result<LockKey, InvalidKey>;
}

/// The same by reference: one rule serves references to references, which key expressions often
/// are.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a whole lock key",
    label = "this is not a key",
    note = "in the attribute, write a template, `key = \"order:<tenant>:<id>\"`, or a string, `key = format!(\"order:{{tenant}}:{{id}}\")`",
    note = "for a method, give a string, `manager.lock(format!(\"order:{{tenant}}:{{id}}\"))`, or a `KeyBuilder`, which escapes values"
)]
pub trait AsLockKey {
    /// Returns the key. See [`IntoLockKey::into_lock_key`].
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the key is invalid.
    fn as_lock_key(&self, namespace: &str) -> Result<LockKey, InvalidKey>;
}

impl<T: AsLockKey + ?Sized> IntoLockKey for &T {
    fn into_lock_key(self, namespace: &str) -> Result<LockKey, InvalidKey> {
        self.as_lock_key(namespace)
    }
}

impl IntoLockKey for KeyBuilder {
    fn into_lock_key(self, namespace: &str) -> Result<LockKey, InvalidKey> {
        Ok(name::place(self.build()?, namespace))
    }
}

impl AsLockKey for LockKey {
    fn as_lock_key(&self, namespace: &str) -> Result<LockKey, InvalidKey> {
        Ok(name::place(self.clone(), namespace))
    }
}

impl<T: AsLockKey + ?Sized> AsLockKey for &T {
    fn as_lock_key(&self, namespace: &str) -> Result<LockKey, InvalidKey> {
        T::as_lock_key(self, namespace)
    }
}

macro_rules! strings {
    ($($type:ty)*) => {$(
        impl AsLockKey for $type {
            fn as_lock_key(&self, namespace: &str) -> Result<LockKey, InvalidKey> {
                KeyBuilder::new(namespace).text(self).into_lock_key(namespace)
            }
        }
    )*};
}

strings! { str String Cow<'_, str> Box<str> Arc<str> }

macro_rules! displayed {
    ($($type:ty)*) => {$(
        impl AsLockKey for $type {
            fn as_lock_key(&self, namespace: &str) -> Result<LockKey, InvalidKey> {
                KeyBuilder::new(namespace).part("key", self).into_lock_key(namespace)
            }
        }
    )*};
}

displayed! { i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize uuid::Uuid }

macro_rules! by_value {
    ($($type:ty)*) => {$(
        impl IntoLockKey for $type {
            fn into_lock_key(self, namespace: &str) -> Result<LockKey, InvalidKey> {
                self.as_lock_key(namespace)
            }
        }
    )*};
}

by_value! {
    String Cow<'_, str> Box<str> Arc<str> LockKey
    i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize uuid::Uuid
}
