//! Return types that satisfy the traits under any name, and values that coerce as in a plain
//! function.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt::Display;

use dlock_runtime::{Error, distributed_lock};

use crate::under;

type Answer<T> = Result<T, Box<dyn StdError + Send + Sync>>;
type Whole = Answer<u8>;

mod own {
    pub(super) type Result<T, E = dlock_runtime::Error> = std::result::Result<T, E>;
}

#[distributed_lock(key = "alias")]
async fn alias() -> Answer<u8> {
    tokio::task::yield_now().await;
    Ok("7".parse()?)
}

#[distributed_lock(key = "whole")]
async fn alias_without_parameters() -> Whole {
    tokio::task::yield_now().await;
    Err("no".into())
}

#[distributed_lock(key = "own")]
async fn own_result() -> own::Result<()> {
    tokio::task::yield_now().await;
    Ok(())
}

#[distributed_lock(key = "coercion:<id>")]
async fn coercion(id: u8) -> Result<Box<dyn Display + Send>, Error> {
    tokio::task::yield_now().await;
    if id == 0 {
        return Ok(Box::new("none"));
    }
    match id {
        1 => Ok(Box::new('1')),
        _ => Ok(Box::new(id)),
    }
}

#[distributed_lock(key = "tail:<id>")]
async fn coercion_at_the_tail(id: u8) -> Result<Box<dyn Fn(u8) -> u8 + Send>, Error> {
    tokio::task::yield_now().await;
    Ok(Box::new(move |other| id + other))
}

#[distributed_lock(key = "references")]
async fn coerced_references(id: &[u8; 2]) -> Result<&[u8], Error> {
    tokio::task::yield_now().await;
    Ok(id)
}

#[distributed_lock(key = "function")]
async fn functions(up: bool) -> Result<fn(u8) -> u8, Error> {
    tokio::task::yield_now().await;
    if up {
        return Ok(|id| id + 1);
    }
    Ok(|id| id - 1)
}

#[distributed_lock(key = "never")]
async fn never_ends() -> Result<Infallible, Error> {
    loop {
        std::future::pending::<()>().await;
    }
}

#[distributed_lock(key = "panics")]
async fn only_panics() -> Result<(), Error> {
    todo!()
}

#[distributed_lock(key = "unit", on_contended = skip)]
async fn unit() {
    tokio::task::yield_now().await;
}

#[tokio::test]
async fn aliases_of_result_carry_errors() {
    assert_eq!(under("alias", alias()).await.ok(), Some(7));
    assert!(under("whole", alias_without_parameters()).await.is_err());
    assert!(under("own", own_result()).await.is_ok());
    under("unit", unit()).await;
}

#[tokio::test]
async fn values_coerce_to_the_return_type() {
    let shown = under("coercion:0", coercion(0)).await.ok();
    assert_eq!(shown.map(|shown| shown.to_string()).as_deref(), Some("none"));
    assert_eq!(under("tail:1", coercion_at_the_tail(1)).await.ok().map(|add| add(2)), Some(3));
    assert_eq!(under("references", coerced_references(&[1, 2])).await.ok(), Some(&[1, 2][..]));
    assert_eq!(under("function", functions(true)).await.ok().map(|function| function(1)), Some(2));
    assert_eq!(under("function", functions(false)).await.ok().map(|function| function(1)), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_returns_is_cancelled_from_outside() {
    let never = tokio::time::timeout(std::time::Duration::from_millis(1), never_ends());

    assert!(under("never", never).await.is_err());
}

#[tokio::test]
#[should_panic(expected = "not yet implemented")]
async fn a_body_that_only_panics_panics() {
    drop(under("panics", only_panics()).await);
}
