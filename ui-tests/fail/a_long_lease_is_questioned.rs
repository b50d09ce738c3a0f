//! 2: more than one hour is a warning, made an error here to be seen.

#![deny(deprecated)]

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", lease = "2h")]
async fn long() -> Result<(), Error> {
    Ok(())
}

fn main() {}
