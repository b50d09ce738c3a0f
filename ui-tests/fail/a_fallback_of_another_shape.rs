//! 5, for `fallback`: other arguments, another type, not an `async fn`.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a:<id>", on_contended = fallback(other_arguments))]
async fn arguments(id: u64, name: String) -> Result<u64, Error> {
    drop(name);
    Ok(id)
}

async fn other_arguments(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a:<id>", on_contended = fallback(not_async))]
async fn asynchronous(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn not_async(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
