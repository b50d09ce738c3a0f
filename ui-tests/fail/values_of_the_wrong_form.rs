//! 10: valid names with invalid values.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", renew = "no")]
async fn renew() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_contended = ignore)]
async fn on_contended() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_contended = return)]
async fn on_contended_return() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_contended = fallback)]
async fn on_contended_fallback() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_lost = panic)]
async fn on_lost() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", min_hold = "1m", min_hold_on = success)]
async fn min_hold_on() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_unavailable = "run")]
async fn on_unavailable() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", release = later)]
async fn release() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", release = Background)]
async fn release_by_the_name_of_the_variant() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", reentrant = no)]
async fn reentrant() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", kind = read)]
async fn a_kind_that_comes_later() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", kind = "exclusive")]
async fn a_kind_that_is_none() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", name = "")]
async fn an_empty_name() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", namespace = "tenant:<id>")]
async fn a_namespace_with_a_hole(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a", namespace = "my shop")]
async fn a_namespace_with_white_space() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", namespace = 7)]
async fn a_namespace_that_is_no_text() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", guard = "lock")]
async fn guard() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", crate = dlock_runtime)]
async fn relative() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock("a", lease = "30s")]
async fn without_a_name() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a" lease = "30s")]
async fn without_a_comma() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", guard)]
async fn without_a_value() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(skip, key = "a")]
async fn an_outcome_alone() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key("a"))]
async fn in_parentheses() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key: "a")]
async fn with_a_colon() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", manager = "redis://localhost")]
async fn a_url_as_manager() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", manager = LockManager::connect("memory://").await?)]
async fn a_manager_for_each_call() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_contended = wait("5s"))]
async fn a_wait_as_outcome() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_contended = Err(Error::from(7)))]
async fn a_value_as_outcome() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", backoff = "1s")]
async fn a_backoff_without_tries() -> Result<(), Error> {
    Ok(())
}

struct Service;

impl Service {
    #[distributed_lock(key = "a", on_contended = fallback(self.other))]
    async fn a_method_as_fallback(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[distributed_lock(key = "a", name = "place order")]
async fn a_name_with_a_space() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", name = "orders;place")]
async fn a_name_with_a_semicolon() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", name = "orders:")]
async fn a_name_with_a_final_colon() -> Result<(), Error> {
    Ok(())
}

fn main() {}
