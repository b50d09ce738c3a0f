//! Bodies: every way to return, recursion, closures, inner items, and values that are not `Send`.

use std::future::Future;
use std::num::{IntErrorKind, ParseIntError};
use std::pin::Pin;
use std::rc::Rc;

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, distributed_lock};

use crate::under;

#[derive(Debug)]
enum Problem {
    Lock(Error),
    Number(ParseIntError),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<ParseIntError> for Problem {
    fn from(error: ParseIntError) -> Self {
        Self::Number(error)
    }
}

#[distributed_lock(key = "ways:<text>")]
async fn ways_out(text: &str) -> Result<u64, Problem> {
    if text == "early" {
        return Ok(1);
    }
    let number: u64 = text.parse()?;
    let found = 'outer: loop {
        for round in 0.. {
            tokio::task::yield_now().await;
            if round == number {
                break 'outer round;
            }
            if round > 3 {
                continue 'outer;
            }
        }
    };
    Ok(found)
}

fn countdown(from: u64) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>> {
    Box::pin(step(from))
}

#[distributed_lock(key = "countdown:<from>")]
async fn step(from: u64) -> Result<u64, Error> {
    match from.checked_sub(1) {
        Some(next) => Ok(countdown(next).await? + 1),
        None => Ok(0),
    }
}

#[distributed_lock(key = "direct:<from>")]
async fn recursive(from: u64) -> Result<u64, Error> {
    if from == 0 {
        return Ok(0);
    }
    Ok(Box::pin(recursive(from - 1)).await? + 1)
}

#[distributed_lock(key = "closures:<id>")]
async fn closures(id: u64, names: Vec<String>) -> Result<u64, Error> {
    use std::convert::TryFrom as _;
    const MORE: u64 = 1;
    struct Inner(u64);
    fn twice(inner: &Inner) -> u64 {
        inner.0 * 2
    }
    let longest = names.iter().map(String::len).max().and_then(|most| u64::try_from(most).ok());
    let later = async move { longest.ok_or("empty").unwrap_or_default() };
    Ok(twice(&Inner(later.await)) + id + MORE)
}

#[expect(clippy::future_not_send, reason = "it is not `Send` without the attribute either")]
#[distributed_lock(key = "local:<id>")]
async fn on_one_thread(id: Rc<str>) -> Result<Rc<str>, Error> {
    let other = Rc::clone(&id);
    tokio::task::yield_now().await;
    Ok(other)
}

#[distributed_lock(key = "question", on_contended = skip)]
async fn question(names: &[&str]) -> Option<usize> {
    let first = names.first()?;
    tokio::task::yield_now().await;
    Some(first.len())
}

#[distributed_lock(key = "blocks")]
async fn blocks(flag: bool) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    if flag { Ok(1) } else { Ok(2) }
}

#[distributed_lock(key = "expression")]
async fn only_an_expression(flag: u8) -> Result<u8, Error> {
    std::future::ready(Ok(flag)).await
}

#[distributed_lock(key = "empty", on_contended = skip)]
async fn empty() {}

#[tokio::test]
async fn every_way_out_leads_through_the_release() {
    assert_eq!(under("ways:early", ways_out("early")).await.ok(), Some(1));
    assert_eq!(under("ways:2", ways_out("2")).await.ok(), Some(2));
    let refused = under("ways:x", ways_out("x")).await;
    assert!(matches!(refused, Err(Problem::Number(error)) if error.kind() == &IntErrorKind::InvalidDigit));
    assert_eq!(under("question", question(&["a"])).await, Some(1));
    assert_eq!(under("question", question(&[])).await, None);
    under("empty", empty()).await;
}

#[tokio::test]
async fn bodies_may_hold_whatever_a_body_holds() {
    assert_eq!(under("closures:7", closures(7, vec!["ab".to_owned()])).await.ok(), Some(12));
    assert_eq!(under("blocks", blocks(true)).await.ok(), Some(1));
    assert_eq!(under("expression", only_an_expression(7)).await.ok(), Some(7));
}

#[tokio::test]
async fn a_function_may_call_itself() {
    assert_eq!(under("countdown:3", countdown(3)).await.ok(), Some(3));
    assert_eq!(under("direct:3", recursive(3)).await.ok(), Some(3));
}

#[tokio::test]
async fn a_body_that_is_bound_to_its_thread_runs_in_a_local_set() {
    let locks = TestLocks::new();
    let inside = locks.clone();

    let set = tokio::task::LocalSet::new();
    let task =
        set.run_until(async move { tokio::task::spawn_local(inside.run(on_one_thread("a".into()))).await });

    assert_eq!(task.await.ok().and_then(Result::ok).as_deref(), Some("a"));
    assert_eq!(locks.acquisitions("local:a"), 1);
}

#[test]
fn a_lock_error_reaches_an_error_of_the_users() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();

    let unset = runtime.map(|runtime| runtime.block_on(ways_out("1")));

    assert!(matches!(unset, Ok(Err(Problem::Lock(Error::NotInstalled { .. })))));
}
