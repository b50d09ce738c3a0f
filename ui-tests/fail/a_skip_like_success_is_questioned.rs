//! 10: a skipped call that looks like success is a warning, made an error here to be seen.

#![deny(deprecated)]

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", on_contended = skip)]
async fn without_a_difference() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_contended = skip)]
async fn with_a_difference() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[distributed_lock(key = "a", on_contended = return(Ok(())))]
async fn on_purpose() -> Result<(), Error> {
    Ok(())
}

fn main() {}
