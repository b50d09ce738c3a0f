//! Mistakes in the body are reported once, in their place, as in a function without the attribute.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a:<id>")]
async fn a_wrong_type(id: u8) -> Result<u8, Error> {
    if id == 0 {
        return Ok("none");
    }
    Ok(id)
}

#[distributed_lock(key = "a:<id>")]
async fn a_missing_name(id: u8) -> Result<u8, Error> {
    Ok(idd)
}

#[distributed_lock(key = "a:<id>")]
async fn not_mutable(id: String) -> Result<String, Error> {
    id.push('x');
    Ok(id)
}

fn main() {}
