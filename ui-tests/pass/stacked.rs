//! The attributes that users combine with it, in the orders that work.

use axum::extract::{Path, State};
use dlock_runtime::{Error, distributed_lock};

#[tracing::instrument(skip(name), fields(id = %id))]
#[distributed_lock(key = "a:<id>")]
async fn under_instrument(id: u64, name: String) -> Result<usize, Error> {
    let _ = id;
    Ok(name.len())
}

#[distributed_lock(key = "a:<id>")]
#[tracing::instrument(err)]
async fn above_instrument(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "job", on_contended = skip)]
#[tokio::main(flavor = "current_thread")]
async fn above_main() {
    std::future::ready(()).await;
}

#[distributed_lock(key = "job")]
#[tokio::test]
async fn above_test() -> Result<(), Error> {
    Ok(())
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<id>", wait = "5s", on_contended = return("busy".to_owned()))]
async fn handler(Path(id): Path<u64>, State(name): State<String>, body: String) -> String {
    format!("{id} {name} {body}")
}

/// Documented.
#[must_use]
#[inline]
#[distributed_lock(key = "order:<id>", on_contended = return(0))]
pub(crate) async fn attributes(#[allow(unused_variables)] id: u64) -> u64 {
    #![allow(unused_mut)]
    let mut one = 1;
    one
}

#[distributed_lock(key = "a:<id>", on_contended = fallback(configured_instead))]
async fn configured(id: u32, #[cfg(windows)] gone: u32, #[cfg(not(windows))] (here, _): (u32, u32)) -> Result<u32, Error> {
    Ok(id + here)
}

async fn configured_instead(id: u32, _: (u32, u32)) -> Result<u32, Error> {
    Ok(id)
}

#[distributed_lock(key = "outer:<a>")]
#[distributed_lock(key = "inner:<b>")]
async fn two_locks(a: u8, b: u8) -> Result<u8, Error> {
    Ok(a + b)
}

fn main() {
    let _ = (|| above_main, attributes(1));
}
