//! 16: values of `retry` that are not a number of retries.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", retry = -1)]
async fn negative() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", retry = "3")]
async fn a_string() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", retry = "5s")]
async fn a_duration() -> Result<(), Error> {
    Ok(())
}

fn main() {}
