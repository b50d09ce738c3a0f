//! 13: `skip` for a type without a value for "did not run".

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", on_contended = skip)]
async fn in_a_result() -> Result<u64, Error> {
    Ok(7)
}

#[distributed_lock(key = "a", on_contended = skip)]
async fn alone() -> u64 {
    7
}

fn main() {}
