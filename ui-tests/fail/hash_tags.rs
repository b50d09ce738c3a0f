//! 7: braces that are not a hash tag.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "order:{<id>")]
async fn never_closed(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<id>}")]
async fn never_opened(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "{order}:{<id>}")]
async fn twice(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "{order:{<id>}}")]
async fn nested(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
