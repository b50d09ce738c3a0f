//! The types that can be part of a key.
//!
//! Floats are excluded because equal values have several texts; `Duration` and times because they
//! have no canonical text.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use crate::key::part::{KeyPart, PartWriter, Written};

macro_rules! displayed {
    ($($type:ty)*) => {$(
        impl KeyPart for $type {
            fn write_part(&self, out: PartWriter<'_>) -> Written {
                out.display(self)
            }
        }
    )*};
}

displayed! { i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize bool char uuid::Uuid }

macro_rules! numbers_that_are_not_zero {
    ($($type:ident)*) => {$(
        impl KeyPart for std::num::$type {
            fn write_part(&self, out: PartWriter<'_>) -> Written {
                out.display(self)
            }
        }
    )*};
}

numbers_that_are_not_zero! {
    NonZeroI8 NonZeroI16 NonZeroI32 NonZeroI64 NonZeroI128 NonZeroIsize
    NonZeroU8 NonZeroU16 NonZeroU32 NonZeroU64 NonZeroU128 NonZeroUsize
}

impl KeyPart for str {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        out.str(self)
    }
}

impl KeyPart for String {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        out.str(self)
    }
}

impl KeyPart for [u8] {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        out.bytes(self)
    }
}

impl<const N: usize> KeyPart for [u8; N] {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        out.bytes(self)
    }
}

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
