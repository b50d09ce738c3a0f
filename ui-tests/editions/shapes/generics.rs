//! Type parameters, lifetimes, `where`, const generics, `impl Trait`.

use std::borrow::Cow;
use std::fmt::{Debug, Display};
use std::future::{Future, ready};

use dlock_runtime::{Error, KeyPart, distributed_lock};

use crate::under;

#[distributed_lock(key = "bounds:<id>")]
async fn bounds<I: KeyPart + Clone + Send + Sync, E>(id: I, ids: &[I]) -> Result<Vec<I>, E>
where
    E: From<Error> + Debug,
{
    let mut all = ids.to_vec();
    tokio::task::yield_now().await;
    all.push(id);
    Ok(all)
}

#[distributed_lock(key = "lifetimes:<name>:<N>")]
async fn lifetimes<'a, 'b: 'a, const N: usize>(
    name: &'a str,
    other: &'b [u8; N],
) -> Result<(&'a str, &'b [u8; N]), Error> {
    tokio::task::yield_now().await;
    Ok((name, other))
}

#[distributed_lock(key = "elided:<name>")]
async fn elided(name: &str) -> Result<Cow<'_, str>, Error> {
    tokio::task::yield_now().await;
    Ok(name.into())
}

struct Borrowed<'a>(&'a str);

impl<'a> Borrowed<'a> {
    #[distributed_lock(key = "borrowed:<self.0>:<other.0>")]
    async fn either(&self, other: &Borrowed<'_>) -> Result<&'a str, Error> {
        tokio::task::yield_now().await;
        Ok(if other.0.is_empty() { self.0 } else { "" })
    }
}

#[distributed_lock(key = "argument:<id>")]
async fn impl_argument(
    id: impl KeyPart + Send + Sync,
    then: impl FnOnce() -> u8 + Send,
    mut more: impl Iterator<Item = u8> + Send,
) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(then() + more.next().unwrap_or_default())
}

#[distributed_lock(key = "inside:<id>")]
async fn impl_inside_a_result(id: u8) -> Result<impl Display, Error> {
    tokio::task::yield_now().await;
    if id == 0 {
        return Ok("none".to_owned());
    }
    Ok(id.to_string())
}

#[distributed_lock(key = "alone:<id>", on_contended = return("busy".to_owned()))]
async fn impl_alone(id: u8) -> impl Display {
    tokio::task::yield_now().await;
    id.to_string()
}

#[distributed_lock(key = "future")]
async fn a_future<F: Future<Output = T> + Send, T: Send>(given: F) -> Result<T, Error> {
    Ok(given.await)
}

#[distributed_lock(key = "function:<value>")]
async fn pointers(
    value: &(dyn KeyPart + Send + Sync),
    function: for<'a> fn(&'a str) -> &'a str,
) -> Result<String, Error> {
    tokio::task::yield_now().await;
    Ok(function(" a ").to_owned())
}

#[distributed_lock(key = "default:<N>")]
async fn array<T: Default + Copy + Send, const N: usize>() -> Result<[T; N], Error> {
    tokio::task::yield_now().await;
    Ok([T::default(); N])
}

#[tokio::test]
async fn generic_functions_stay_generic() {
    assert_eq!(under("bounds:7", bounds::<_, Error>(7, &[1])).await.ok(), Some(vec![1, 7]));
    assert_eq!(under("bounds:a", bounds::<_, Error>("a", &["b"])).await.ok(), Some(vec!["b", "a"]));
    assert_eq!(under("lifetimes:a:2", lifetimes("a", &[1, 2])).await.ok(), Some(("a", &[1, 2])));
    assert_eq!(under("default:3", array::<u8, 3>()).await.ok(), Some([0; 3]));
    assert_eq!(under("future", a_future(ready(7))).await.ok(), Some(7));
}

#[tokio::test]
async fn borrows_live_as_long_as_they_are_written_to() {
    let name = String::from("a");
    let elided = under("elided:a", elided(&name)).await.ok();
    assert_eq!(elided.as_deref(), Some("a"));

    let borrowed = Borrowed(&name);
    let outlives = under("borrowed:a:b", async {
        let other = "b".to_owned();
        borrowed.either(&Borrowed(&other)).await
    });
    assert_eq!(outlives.await.ok(), Some(""));
}

#[tokio::test]
async fn types_without_a_name_come_and_go() {
    let impl_argument = impl_argument(7_u8, || 1, vec![2].into_iter());
    assert_eq!(under("argument:7", impl_argument).await.ok(), Some(3));
    let inside = under("inside:7", impl_inside_a_result(7)).await.ok();
    assert_eq!(inside.map(|inside| format!("{inside}")).as_deref(), Some("7"));
    assert_eq!(format!("{}", under("alone:7", impl_alone(7)).await), "7");
    assert_eq!(under("function:7", pointers(&7_u8, str::trim)).await.ok().as_deref(), Some("a"));
}
