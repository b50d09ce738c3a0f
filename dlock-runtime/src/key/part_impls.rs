//! The types that can be part of a key.
//!
//! Floats are excluded because equal values have several texts; `Duration` and times because they
//! have no canonical text.

use std::borrow::Cow;
use std::num::NonZero;
use std::rc::Rc;
use std::sync::Arc;

use crate::key::part::{KeyPart, PartWriter, Written};

/// Implements [`KeyPart`] for types by a method of [`PartWriter`].
macro_rules! written_by {
    ($($method:ident: $($type:ty),*;)*) => {$($(
        impl KeyPart for $type {
            fn write_part(&self, out: PartWriter<'_>) -> Written {
                out.$method(self)
            }
        }
    )*)*};
}

written_by! {
    display: i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, bool, char, uuid::Uuid;
    display: NonZero<i8>, NonZero<i16>, NonZero<i32>, NonZero<i64>, NonZero<i128>, NonZero<isize>;
    display: NonZero<u8>, NonZero<u16>, NonZero<u32>, NonZero<u64>, NonZero<u128>, NonZero<usize>;
    str: str, String;
    bytes: [u8];
}

impl<const N: usize> KeyPart for [u8; N] {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        out.bytes(self)
    }
}

// By hand: the compiler shows this `impl` to a user whose key has a `Vec` of something else.
impl KeyPart for Vec<u8> {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        out.bytes(self)
    }
}

impl<T: KeyPart> KeyPart for Option<T> {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        match self {
            Some(value) => out.some(value),
            None => out.none(),
        }
    }
}

impl<T: ToOwned + KeyPart + ?Sized> KeyPart for Cow<'_, T> {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        T::write_part(self, out)
    }
}

macro_rules! pointers {
    ($($type:ty)*) => {$(
        impl<T: KeyPart + ?Sized> KeyPart for $type {
            fn write_part(&self, out: PartWriter<'_>) -> Written {
                T::write_part(self, out)
            }
        }
    )*};
}

pointers! { &T &mut T Box<T> Rc<T> Arc<T> }

macro_rules! tuples {
    ($(($($type:ident $index:tt $name:literal),*))*) => {$(
        impl<$($type: KeyPart),*> KeyPart for ($($type),*) {
            fn write_part(&self, out: PartWriter<'_>) -> Written {
                out.fields()$(.field($name, &self.$index))*.end()
            }
        }
    )*};
}

tuples! { (A 0 "0", B 1 "1") (A 0 "0", B 1 "1", C 2 "2") }
