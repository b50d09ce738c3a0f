//! 15: templates that cannot be parsed, or are ambiguous.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "order:<id")]
async fn unclosed(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:id>")]
async fn unopened(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<a>-<b>")]
async fn a_letter_that_values_have(a: String, b: String) -> Result<String, Error> {
    Ok(a + &b)
}

#[distributed_lock(key = "order:<a><b>")]
async fn nothing_between(a: String, b: String) -> Result<String, Error> {
    Ok(a + &b)
}

#[distributed_lock(key = "order of <id>")]
async fn white_space(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:< id >")]
async fn white_space_in_a_hole(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<a|opt>1:<b>")]
async fn a_digit_behind_an_option(a: Option<(u8, u8)>, b: u8) -> Result<u8, Error> {
    drop(a);
    Ok(b)
}

const SHARD: u8 = 1;

#[distributed_lock(key = "order:<a|opt><SHARD>:<b>")]
async fn a_constant_behind_an_option(a: Option<(u8, u8)>, b: u8) -> Result<u8, Error> {
    drop(a);
    Ok(b)
}

#[distributed_lock(key = "order:<id>##token")]
async fn a_derived_name(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
