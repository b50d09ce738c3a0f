//! `#[derive(KeyPart)]` on a struct that would write nothing.

use std::marker::PhantomData;

use dlock_runtime::KeyPart;

#[derive(KeyPart)]
struct Nightly;

#[derive(KeyPart)]
struct Empty {}

#[derive(KeyPart)]
struct Marker<T>(PhantomData<T>);

fn main() {}
