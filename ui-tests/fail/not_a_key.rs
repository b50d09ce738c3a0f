//! 11: an expression that is not a key.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = (tenant, id))]
async fn a_tuple(tenant: u64, id: u64) -> Result<u64, Error> {
    Ok(tenant + id)
}

#[distributed_lock(key = id)]
async fn an_argument(id: f32) -> Result<f32, Error> {
    Ok(id)
}

fn a_tuple_for_a_method(locks: &dlock_runtime::LockManager) {
    drop(locks.lock(("order", 7)));
}

fn main() {}
