//! 12: an error type without `From<Error>`.

use dlock_runtime::distributed_lock;

struct OrderError;

type Answer<T> = Result<T, OrderError>;

#[distributed_lock(key = "a")]
async fn named() -> Result<u64, OrderError> {
    Err(OrderError)
}

#[distributed_lock(key = "a")]
async fn by_an_alias() -> Answer<u64> {
    Err(OrderError)
}

#[distributed_lock(key = "a", on_contended = skip)]
async fn skipped() -> Result<Option<()>, OrderError> {
    Err(OrderError)
}

#[distributed_lock(key = "a")]
async fn of_another_crate() -> Result<u64, String> {
    Err(String::new())
}

fn main() {}
