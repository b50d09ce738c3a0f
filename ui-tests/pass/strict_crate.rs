//! A crate with strict lints.

#![forbid(unsafe_code)]
#![deny(warnings, missing_docs, unused, future_incompatible, nonstandard_style, let_underscore)]
#![deny(unused_qualifications, unused_lifetimes, unreachable_pub, trivial_casts, single_use_lifetimes, unused_results)]

use std::marker::PhantomData;

use dlock_runtime::{Error, KeyPart, distributed_lock};

/// Does nothing.
#[distributed_lock(key = "a:<id>", lease = "1s", wait = "1s", retry = 3, backoff = "1s..2s")]
pub async fn plain(id: u64, mut names: Vec<String>) -> Result<(), Error> {
    names.clear();
    {
        if id == 0 {
            return Ok(());
        }
    }
    Ok(())
}

#[distributed_lock(key = "a:<id>", on_contended = return(0))]
async fn returned((id, _): (u64, u8), _unused: u8) -> u64 {
    id
}

/// The attribute in the body applies to the arguments, too.
#[distributed_lock(key = "a:<id>", on_contended = return(0))]
async fn unchanged(mut id: u64) -> u64 {
    #![allow(unused_mut)]
    id
}

#[distributed_lock(key = "a:<id>", on_contended = skip)]
async fn skipped(id: u64) {
    drop(id.to_string());
}

#[distributed_lock(key = "a:<id.0>", on_contended = fallback(returned), on_lost = finish)]
async fn fallback(id: (u64, u8), other: u8) -> u64 {
    id.0 + u64::from(other)
}

#[derive(Clone, Copy, Debug, KeyPart)]
struct Inner<T>(T);

/// A bound of its impl contains a type that is more private than this one.
#[derive(Clone, Debug, KeyPart)]
pub struct Part<'a, T> {
    inner: Inner<T>,
    name: &'a str,
    _of: PhantomData<T>,
}

/// The derive causes no warning; only uses of the type do.
#[deprecated]
#[derive(KeyPart)]
pub struct Old(u8, #[deprecated] u8);

#[distributed_lock(key = "a:<part>")]
async fn derived(part: Part<'_, u8>) -> Result<String, Error> {
    Ok(part.name.to_owned())
}

fn main() {
    let part = Part { inner: Inner(7), name: "seven", _of: PhantomData };
    let _future = derived(part);
    let _futures = (plain(1, Vec::new()), returned((1, 1), 1), unchanged(1), skipped(1), || fallback((1, 1), 1));
}
