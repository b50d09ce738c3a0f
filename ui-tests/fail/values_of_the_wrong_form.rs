//! 10: names that are right and values that are not.

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

fn main() {}
