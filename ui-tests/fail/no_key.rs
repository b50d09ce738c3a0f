//! 14: no key is given.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(lease = "30s")]
async fn no_key() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock]
async fn no_parameters() -> Result<(), Error> {
    Ok(())
}

fn main() {}
