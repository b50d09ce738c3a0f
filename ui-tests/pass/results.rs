//! Return types that satisfy the traits under any name, and values that coerce as in a plain
//! function.

use std::error::Error as StdError;
use std::fmt::Display;

use dlock_runtime::{Error, distributed_lock};

type Answer<T> = std::result::Result<T, Box<dyn StdError + Send + Sync>>;
type Whole = Answer<u8>;

mod own {
    pub type Result<T, E = dlock_runtime::Error> = std::result::Result<T, E>;
}

#[distributed_lock(key = "a")]
async fn an_alias() -> Answer<u8> {
    Ok("7".parse()?)
}

#[distributed_lock(key = "a")]
async fn an_alias_without_parameters() -> Whole {
    Err("no".into())
}

#[distributed_lock(key = "a")]
async fn an_own_result() -> own::Result<()> {
    Ok(())
}

#[distributed_lock(key = "a:<id>")]
async fn a_coercion(id: u8) -> Result<Box<dyn Display + Send>, Error> {
    if id == 0 {
        return Ok(Box::new("none"));
    }
    match id {
        1 => Ok(Box::new('1')),
        _ => Ok(Box::new(id)),
    }
}

#[distributed_lock(key = "a")]
async fn never_ends() -> Result<std::convert::Infallible, Error> {
    loop {
        std::future::pending::<()>().await;
    }
}

#[distributed_lock(key = "a")]
async fn only_panics() -> Result<(), Error> {
    todo!()
}

fn main() {}
