//! 9: two parameters that exclude each other.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", lease = "30s", max_hold = "10s")]
async fn a_lease_over_max_hold() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "30s", renew = false, min_hold = "50s")]
async fn an_at_least_over_a_fixed_lease() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", min_hold_on = ok)]
async fn an_end_of_no_min_hold() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", keys = ["a", "b"])]
async fn a_key_and_keys() -> Result<(), Error> {
    Ok(())
}

fn main() {}
