//! [`NullCounter`], which finds values that JSON writes as the `null` of another value.

use std::cell::Cell;
use std::fmt::Display;

use serde::Serialize;
use serde::de::value::Error;
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Counts the parts of a value that are a `Some` which JSON writes as `null`, and so as a `None`:
/// `Some(())`, `Some(None)`, and `Some(f64::NAN)`.
///
/// # Errors
///
/// The value cannot be serialized.
pub(super) fn count_hidden(value: &(impl Serialize + ?Sized)) -> Result<usize, Error> {
    let hidden = Cell::new(0);
    value.serialize(NullCounter(&hidden))?;
    Ok(hidden.get())
}

/// A serializer that writes nothing. It returns whether JSON writes the value as `null`.
#[derive(Clone, Copy)]
struct NullCounter<'a>(&'a Cell<usize>);

type Checked = Result<bool, Error>;

macro_rules! never_null {
    ($($method:ident: $value:ty),+ $(,)?) => {
        $(fn $method(self, _: $value) -> Checked {
            Ok(false)
        })+
    };
}

impl Serializer for NullCounter<'_> {
    type Ok = bool;
    type Error = Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    never_null! {
        serialize_bool: bool, serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128,
    }

    fn serialize_f32(self, value: f32) -> Checked {
        Ok(!value.is_finite())
    }

    fn serialize_f64(self, value: f64) -> Checked {
        Ok(!value.is_finite())
    }

    fn collect_str<T: Display + ?Sized>(self, _: &T) -> Checked {
        Ok(false)
    }

    fn serialize_none(self) -> Checked {
        Ok(true)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Checked {
        let is_null = value.serialize(self)?;
        self.0.set(self.0.get() + usize::from(is_null));
        Ok(is_null)
    }

    fn serialize_unit(self) -> Checked {
        Ok(true)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Checked {
        Ok(true)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Checked {
        Ok(false)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Checked {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Checked {
        value.serialize(self).map(|_| false)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Error> {
        Ok(self)
    }
}

/// Implements a trait for the parts of a value: each is counted, and the whole is not `null`.
macro_rules! count_parts {
    ($($part:ident: $method:ident($($name:ty)?)),+ $(,)?) => {
        $(impl $part for NullCounter<'_> {
            type Ok = bool;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Result<(), Error> {
                value.serialize(*self).map(drop)
            }

            fn end(self) -> Checked {
                Ok(false)
            }
        })+
    };
}

count_parts! {
    SerializeSeq: serialize_element(),
    SerializeTuple: serialize_element(),
    SerializeTupleStruct: serialize_field(),
    SerializeTupleVariant: serialize_field(),
    SerializeStruct: serialize_field(&'static str),
    SerializeStructVariant: serialize_field(&'static str),
}

impl SerializeMap for NullCounter<'_> {
    type Ok = bool;
    type Error = Error;

    /// JSON writes each key as a text.
    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), Error> {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(*self).map(drop)
    }

    fn end(self) -> Checked {
        Ok(false)
    }
}
