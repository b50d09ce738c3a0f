//! 13: `on_unavailable = skip` for a type without a value for "did not run".

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", on_unavailable = skip)]
async fn a_number() -> Result<u64, Error> {
    Ok(7)
}

#[distributed_lock(key = "a", on_contended = return(std::future::ready(1)), on_unavailable = skip)]
async fn unnamed() -> impl std::future::Future<Output = u8> {
    std::future::ready(0)
}

fn main() {}
