//! Values that are parsed and have the wrong type.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", on_contended = return("x"))]
async fn returned() -> Result<String, Error> {
    Ok(String::new())
}

#[distributed_lock(key = "a", manager = 7)]
async fn manager() -> Result<(), Error> {
    Ok(())
}

fn main() {}
