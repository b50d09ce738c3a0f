//! A crate with modules, types, and macros whose names expansions often use.

#![allow(dead_code, non_camel_case_types, unused_macros)]

mod core {}
mod std {}
mod tracing {}
mod dlock_runtime {}

struct Ok;
struct Err;
struct Some;
struct None;
struct Option;
struct Result;
struct Box;
struct Future;
struct Call;

macro_rules! format {
    () => {};
}
macro_rules! concat {
    () => {};
}
macro_rules! module_path {
    () => {};
}
macro_rules! pin {
    () => {};
}
macro_rules! unreachable {
    () => {};
}

#[::dlock_runtime::distributed_lock(key = "a:<id>:<__dlock_call>", lease = "1s", guard = lock)]
async fn shadowed(id: u8, __dlock_call: u8, __dlock_body: u8) -> ::core::result::Result<u8, ::dlock_runtime::Error> {
    let _ = lock;
    let __dlock_result = __dlock_body;
    ::core::result::Result::Ok(id + __dlock_call + __dlock_result)
}

#[::dlock_runtime::distributed_lock(key = "a", on_contended = fallback(other), on_lost = finish)]
async fn fallback(id: u8) -> u8 {
    use self::core as __dlock_private;
    id
}

async fn other(id: u8) -> u8 {
    id
}

#[::dlock_runtime::distributed_lock(key = "a", on_contended = return(7), retry = 3, backoff = "1s..2s")]
async fn returned(id: u8) -> u8 {
    id
}

#[::dlock_runtime::distributed_lock(key = "a", on_contended = skip)]
async fn skipped() -> ::core::option::Option<u8> {
    ::core::option::Option::Some(7)
}

#[derive(::dlock_runtime::KeyPart)]
struct Part {
    id: u8,
    of: ::core::marker::PhantomData<u8>,
    __dlock_out: Named,
}

#[derive(::dlock_runtime::KeyPart)]
struct Named(u8);

struct KeyPart;
struct PartWriter;
struct Written;
struct PhantomData;

#[::dlock_runtime::distributed_lock(key = "a:<part>")]
async fn derived(part: Part) -> ::core::result::Result<Part, ::dlock_runtime::Error> {
    ::core::result::Result::Ok(part)
}

fn main() {}
