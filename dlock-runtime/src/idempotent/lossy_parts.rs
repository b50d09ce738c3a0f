//! [`LossyParts`], what JSON may lose of a value.

use std::cell::Cell;
use std::fmt::Display;

use serde::Serialize;
use serde::de::value::Error;
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// The parts of a value that its JSON may not preserve.
///
/// If the value that is read from the JSON has other parts than the original, the JSON has lost
/// some of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LossyParts {
    /// Each `None`, which JSON writes as `null`.
    none: usize,
    /// Each unit, which JSON writes as `null`.
    unit: usize,
    /// Each `NaN` and infinity, which JSON writes as `null`.
    non_finite: usize,
    /// Each `Some` that JSON writes as `null`: `Some(())`, `Some(None)`, and `Some(f64::NAN)`.
    hidden: usize,
    /// The sum of the bits of each `f32`. In a flattened field or an untagged enum, serde reads it
    /// as an `f64` first, and rounding twice can change its last bit.
    f32_bits: u64,
}

impl LossyParts {
    /// Counts the parts of `value`.
    ///
    /// # Errors
    ///
    /// The value cannot be serialized.
    pub(super) fn of(value: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let parts = Cell::default();
        value.serialize(PartCounter(&parts))?;
        Ok(parts.get())
    }
}

/// A serializer that writes nothing. It returns whether JSON writes the value as `null`.
#[derive(Clone, Copy)]
struct PartCounter<'a>(&'a Cell<LossyParts>);

impl PartCounter<'_> {
    fn count(self, count: impl FnOnce(&mut LossyParts)) {
        let mut parts = self.0.get();
        count(&mut parts);
        self.0.set(parts);
    }

    /// Counts a number, which is `null` if it is not finite.
    fn count_float(self, is_finite: bool) -> bool {
        self.count(|parts| parts.non_finite += usize::from(!is_finite));
        !is_finite
    }
}

type Checked = Result<bool, Error>;

macro_rules! never_null {
    ($($method:ident: $value:ty),+ $(,)?) => {
        $(fn $method(self, _: $value) -> Checked {
            Ok(false)
        })+
    };
}

macro_rules! begin_parts {
    ($($method:ident($($argument:ty),+)),+ $(,)?) => {
        $(fn $method(self, $(_: $argument),+) -> Result<Self, Error> {
            Ok(self)
        })+
    };
}

impl Serializer for PartCounter<'_> {
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
        if value.is_finite() {
            self.count(|parts| parts.f32_bits = parts.f32_bits.wrapping_add(value.to_bits().into()));
        }
        Ok(self.count_float(value.is_finite()))
    }

    fn serialize_f64(self, value: f64) -> Checked {
        Ok(self.count_float(value.is_finite()))
    }

    fn collect_str<T: Display + ?Sized>(self, _: &T) -> Checked {
        Ok(false)
    }

    fn serialize_none(self) -> Checked {
        self.count(|parts| parts.none += 1);
        Ok(true)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Checked {
        let is_null = value.serialize(self)?;
        self.count(|parts| parts.hidden += usize::from(is_null));
        Ok(is_null)
    }

    fn serialize_unit(self) -> Checked {
        self.count(|parts| parts.unit += 1);
        Ok(true)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Checked {
        self.serialize_unit()
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

    begin_parts! {
        serialize_seq(Option<usize>), serialize_map(Option<usize>), serialize_tuple(usize),
        serialize_tuple_struct(&'static str, usize), serialize_struct(&'static str, usize),
        serialize_tuple_variant(&'static str, u32, &'static str, usize),
        serialize_struct_variant(&'static str, u32, &'static str, usize),
    }
}

/// Implements a trait for the parts of a value: each is counted, and the whole is not `null`.
macro_rules! count_parts {
    ($($part:ident: $method:ident($($name:ty)?)),+ $(,)?) => {
        $(impl $part for PartCounter<'_> {
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

impl SerializeMap for PartCounter<'_> {
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
