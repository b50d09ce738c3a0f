//! Every shape of struct that can be a part of a key.

use std::borrow::Cow;
use std::marker::PhantomData;

use dlock_runtime::{Error, KeyBuilder, KeyPart, distributed_lock};

#[derive(KeyPart)]
struct UserId(u64);

#[derive(KeyPart)]
struct LineId {
    order: u64,
    line: u32,
}

#[derive(KeyPart)]
struct Nested {
    user: UserId,
    lines: (LineId, LineId),
    note: Option<Box<LineId>>,
}

/// Its type parameter needs no bound, and is not written.
#[derive(KeyPart)]
struct Id<T: ?Sized> {
    raw: u64,
    of: PhantomData<fn() -> T>,
}

struct NoPart;

#[derive(KeyPart)]
struct Borrowed<'a, 'b: 'a>(&'a str, Cow<'b, str>);

#[derive(KeyPart)]
struct Generic<'a, T: Clone, const N: usize = 4>
where
    T: Send,
{
    id: &'a T,
    bytes: [u8; N],
    more: Option<T>,
}

trait Entity {
    type Id;
}

impl Entity for NoPart {
    type Id = UserId;
}

#[derive(KeyPart)]
struct Of<E: Entity>(E::Id, u8);

#[derive(KeyPart)]
struct Unsized<T: ?Sized> {
    id: u8,
    name: T,
}

#[derive(KeyPart)]
struct r#Struct {
    r#type: u8,
    r#final: u8,
}

mod reexports {
    pub mod dlock {
        pub use dlock_runtime::{KeyPart, PartWriter, Written};
    }
}

#[derive(KeyPart)]
#[key_part(crate = crate::reexports::dlock)]
struct Reexported(u8, u8);

macro_rules! id {
    ($name:ident, $inner:ty, $($field:ident: $field_type:ty),*) => {
        #[derive(KeyPart)]
        struct $name {
            inner: $inner,
            $($field: $field_type,)*
        }
    };
}

id! { Made, u64, order: Option<u64>, line: LineId }

#[distributed_lock(key = "a:<user>:<made|opt>:<nested|hash>:<id>:<line|raw>:<other>:<pair>")]
async fn used(
    user: UserId,
    made: Option<Made>,
    nested: Nested,
    id: Id<NoPart>,
    line: LineId,
    other: Reexported,
    pair: (u8, UserId),
) -> Result<(), Error> {
    Ok(())
}

fn written(value: &(impl KeyPart + ?Sized)) -> String {
    KeyBuilder::new("").optional("value", value).build().map_or_else(|error| error.to_string(), |key| key.to_string())
}

fn main() {
    let line = |order, line| LineId { order, line };
    let nested = Nested { user: UserId(1), lines: (line(2, 3), line(4, 5)), note: Some(Box::new(line(6, 7))) };
    let id = Id::<str> { raw: 7, of: PhantomData };
    let generic = Generic { id: &"x", bytes: *b"ab:d", more: None };
    let of: Of<NoPart> = Of(UserId(7), 8);
    let unsized_name: &Unsized<[u8]> = &Unsized { id: 7, name: *b"a:b" };

    assert_eq!(written(&nested), "1:2:3:4:5:6:7");
    assert_eq!(written(&id), "7");
    assert_eq!(written(&generic), "x:ab%3Ad:~");
    assert_eq!(written(&of), "7:8");
    assert_eq!(written(unsized_name), "7:a%3Ab");
    assert_eq!(written(&Borrowed("", "b".into())), "~~:b");
    assert_eq!(written(&r#Struct { r#type: 1, r#final: 2 }), "1:2");
    assert_eq!(written(&Made { inner: 1, order: None, line: LineId { order: 2, line: 3 } }), "1:~:2:3");
}
