//! 18: values, placeholders, and parameters in the style of other libraries.

use dlock_runtime::{Error, distributed_lock};

struct Shop {
    id: u64,
}

impl Shop {
    #[distributed_lock(key = "shop:<id>")]
    async fn a_field_of_self(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[distributed_lock(key = "order:<0>")]
async fn a_counted_argument(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:${id}")]
async fn a_shell_variable(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:#{id}")]
async fn a_spring_expression(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock("order:<id>")]
async fn a_key_without_its_name(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key: "order:<id>")]
async fn a_colon(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a"; lease = "30s")]
async fn a_semicolon() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", key = "b")]
async fn two_keys() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = 30)]
async fn a_lease_without_a_unit() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "30 seconds")]
async fn a_lease_in_words() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "0s")]
async fn no_lease() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", retry = infinite)]
async fn retries_without_end() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", retry = "3")]
async fn retries_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", retry = -1)]
async fn fewer_than_no_retries() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = true)]
async fn a_wait_without_a_time() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "forever")]
async fn a_wait_without_end() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", retry = 3, backoff = "exponential")]
async fn a_backoff_by_name() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", renew = "10s")]
async fn a_renewal_interval() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_contended = "skip")]
async fn a_policy_in_quotes() -> Result<Option<()>, Error> {
    Ok(None)
}

#[distributed_lock(key = "a", guard = true)]
async fn a_guard_without_a_name() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", manager = "redis://h")]
async fn a_manager_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", owner = "web-1")]
async fn an_owner() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", timeout = "5s")]
async fn a_timeout() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", redis = "redis://h")]
async fn a_client() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a")]
struct AStruct;

#[distributed_lock(key = "a")]
fn no_async() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock]
async fn no_key(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
