//! Parameters that are patterns.

use dlock_runtime::{Error, distributed_lock};

use crate::under;

struct Path<T>(T);
struct State<T>(T);

struct Order {
    id: u64,
    lines: Vec<u64>,
}

#[distributed_lock(key = "order:<id>", guard = lock)]
async fn wrapped(Path(id): Path<u64>, State(_): State<String>, _: Vec<u8>) -> Result<String, Error> {
    Ok(format!("{} {}", id, lock.key()))
}

#[distributed_lock(key = "order:<id>:<b>:<name>")]
async fn deep(
    Order { id, lines: mut rest }: Order,
    (a, (b, ..)): (String, (u8, u8)),
    Path((ref name, _)): Path<(String, String)>,
) -> Result<usize, Error> {
    rest.push(id);
    tokio::task::yield_now().await;
    Ok(rest.len() + a.len() + usize::from(b) + name.len())
}

#[expect(
    clippy::needless_borrowed_reference,
    reason = "the pattern is what is shown, and fires when plain as well"
)]
#[distributed_lock(key = "refs:<id>:<text>:<first>")]
async fn references(
    &id: &u64,
    &(ref text, _): &(String, u8),
    [first, .., last]: [u8; 4],
) -> Result<u64, Error> {
    tokio::task::yield_now().await;
    Ok(id + u64::from(first) + u64::from(last) + u64::from(text.len() == 1))
}

#[distributed_lock(key = "whole:<whole.0>")]
async fn whole(whole @ Path(_): Path<u64>, ref other: String, mut count: u8) -> Result<u64, Error> {
    count += 1;
    tokio::task::yield_now().await;
    Ok(whole.0 + u64::from(other.is_empty()) + u64::from(count))
}

#[distributed_lock(key = "raw:<type>:<order.lines.0>")]
async fn r#fn(r#type: u8, order: &Lines) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(r#type + order.lines.0)
}

struct Lines {
    lines: (u8,),
}

#[distributed_lock(key = key(*id, name))]
async fn expression((id, name): (u8, &str), mut _unused: String) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(id + u8::from(name.is_empty()))
}

fn key(id: u8, name: &str) -> String {
    format!("expression:{id}:{name}")
}

#[distributed_lock(key = "configured:<here>")]
async fn configured(
    #[cfg(windows)] gone: u32,
    #[cfg(not(windows))] (here, _): (u32, u32),
    #[allow(unused_variables)] there: u32,
) -> Result<u32, Error> {
    tokio::task::yield_now().await;
    Ok(here)
}

#[tokio::test]
async fn patterns_bind_for_the_key_and_for_the_body() {
    let wrapped = wrapped(Path(7), State("state".to_owned()), vec![1]);
    assert_eq!(under("order:7", wrapped).await.ok().as_deref(), Some("7 order:7"));

    let order = Order { id: 7, lines: vec![1] };
    let deep = deep(order, ("ab".to_owned(), (3, 4)), Path(("n".to_owned(), String::new())));
    assert_eq!(under("order:7:3:n", deep).await.ok(), Some(8));

    assert_eq!(under("refs:7:t:1", references(&7, &("t".to_owned(), 0), [1, 2, 3, 4])).await.ok(), Some(13));
    assert_eq!(under("whole:7", whole(Path(7), String::new(), 1)).await.ok(), Some(10));
}

#[tokio::test]
async fn raw_names_expressions_and_conditions_are_accepted() {
    assert_eq!(under("raw:7:1", r#fn(7, &Lines { lines: (1,) })).await.ok(), Some(8));
    assert_eq!(under("expression:7:n", expression((7, "n"), String::new())).await.ok(), Some(7));
    assert_eq!(under("configured:7", configured((7, 8), 9)).await.ok(), Some(7));
}
