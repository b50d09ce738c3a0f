//! Type parameters, lifetimes, `where`, const generics, `impl Trait`.

use std::fmt::{Debug, Display};
use std::future::Future;

use dlock_runtime::{Error, KeyPart, distributed_lock};

#[distributed_lock(key = "a:<id>")]
async fn bounds<I: KeyPart + Clone, E>(id: I, ids: &[I]) -> Result<Vec<I>, E>
where
    E: From<Error> + Debug,
{
    let mut all = ids.to_vec();
    all.push(id);
    Ok(all)
}

#[distributed_lock(key = "a:<name>:<N>")]
async fn lifetimes<'a, 'b: 'a, const N: usize>(name: &'a str, other: &'b [u8; N]) -> Result<(&'a str, &'b u8), Error> {
    Ok((name, &other[0]))
}

#[distributed_lock(key = "a:<name>")]
async fn elided(name: &str) -> Result<std::borrow::Cow<'_, str>, Error> {
    Ok(name.into())
}

#[distributed_lock(key = "a:<id>")]
async fn impl_argument(id: impl KeyPart + Send, then: impl AsyncFn() -> u8) -> Result<u8, Error> {
    let _ = id;
    Ok(then().await)
}

#[distributed_lock(key = "a:<id>")]
async fn impl_inside_a_result(id: u8) -> Result<impl Display, Error> {
    if id == 0 {
        return Ok("none".to_owned());
    }
    Ok(id.to_string())
}

#[distributed_lock(key = "a:<id>", on_contended = return("busy".to_owned()))]
async fn impl_alone(id: u8) -> impl Display {
    id.to_string()
}

#[distributed_lock(key = "a:<id>", on_contended = fallback(busy), on_lost = finish)]
async fn impl_alone_with_fallback(id: u8) -> impl Display {
    id.to_string()
}

async fn busy(id: u8) -> String {
    format!("{id} is busy")
}

#[distributed_lock(key = "a")]
async fn a_future_in_a_result<F: Future>(given: F) -> Result<F::Output, Error> {
    Ok(given.await)
}

fn main() {}
