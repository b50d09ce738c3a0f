//! Attribute parameters that need a real server: the behavior during an outage, and key names.
//!
//! See also: `ui-tests` for code that must compile, and `contract` for behavior that `Lock` shares.

use std::time::Duration;

use dlock_runtime::testing::errors;
use dlock_runtime::{Error, FencingToken, LockManager, distributed_lock};
use dlock_tests::RedisServer;
use dlock_tests::resp::Reply;

/// A manager whose server has just been killed.
async fn without_a_server() -> LockManager {
    let mut server = RedisServer::start();
    let locks = connected(&server).await;
    server.kill();
    locks
}

async fn connected(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server is up")
}

#[distributed_lock(key = "order:<id>", manager = locks)]
async fn carries(locks: &LockManager, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<id>", manager = locks, on_unavailable = skip)]
async fn skips(locks: &LockManager, id: u64) -> Result<Option<u64>, Error> {
    Ok(Some(id))
}

#[distributed_lock(key = "order:<id>", manager = locks, on_unavailable = skip, on_contended = return(Ok(Some(0))))]
async fn skips_or_returns(locks: &LockManager, id: u64) -> Result<Option<u64>, Error> {
    Ok(Some(id))
}

#[distributed_lock(key = "order:<id>", manager = locks, on_unavailable = skip, on_contended = fallback(other))]
async fn skips_or_falls_back(locks: &LockManager, id: u64) -> Result<Option<u64>, Error> {
    Ok(Some(id))
}

async fn other(_locks: &LockManager, id: u64) -> Result<Option<u64>, Error> {
    std::future::ready(Ok(Some(id + 100))).await
}

#[distributed_lock(key = "order:<id>", manager = locks, on_unavailable = run)]
async fn runs(locks: &LockManager, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<id>", manager = locks, on_unavailable = run, on_contended = fallback(other_text))]
async fn runs_or_falls_back(locks: &LockManager, id: String) -> Result<String, Error> {
    Ok(id)
}

async fn other_text(_locks: &LockManager, id: String) -> Result<String, Error> {
    std::future::ready(Ok(format!("instead of {id}"))).await
}

/// The results that a body can read from its guard.
type Seen = (Result<(), Error>, Result<FencingToken, Error>, Result<(), Error>, Duration, String);

#[distributed_lock(key = "order:<id>", manager = locks, on_unavailable = run, guard = lock)]
async fn looks(locks: &LockManager, id: u64) -> Result<Seen, Error> {
    let extended = lock.extend(Duration::from_secs(9)).await;
    Ok((lock.check(), lock.fencing_token().await, extended, lock.remaining(), lock.key().to_string()))
}

#[tokio::test]
async fn unreachable_server_stops_the_body_unless_run_is_set() {
    let locks = without_a_server().await;

    assert!(matches!(carries(&locks, 7).await, Err(Error::Unavailable { .. })));
    assert!(matches!(skips(&locks, 7).await, Ok(None)));
    assert!(matches!(skips_or_returns(&locks, 7).await, Ok(None)));
    assert!(matches!(skips_or_falls_back(&locks, 7).await, Ok(None)));
    assert!(matches!(runs(&locks, 7).await, Ok(7)));
    assert!(matches!(runs_or_falls_back(&locks, "7".to_owned()).await.as_deref(), Ok("7")));
}

#[tokio::test]
async fn contention_is_not_unavailability() {
    let server = RedisServer::start();
    let locks = connected(&server).await;
    let _held = connected(&server).await.lock("order:7").acquire().await.expect("it is free");

    assert!(matches!(skips(&locks, 7).await, Err(Error::Contended { .. })));
    assert!(matches!(skips_or_returns(&locks, 7).await, Ok(Some(0))));
    assert!(matches!(skips_or_falls_back(&locks, 7).await, Ok(Some(107))));
    assert!(matches!(runs(&locks, 7).await, Err(Error::Contended { .. })));
    assert!(matches!(runs_or_falls_back(&locks, "7".to_owned()).await.as_deref(), Ok("instead of 7")));
}

#[tokio::test]
async fn guard_reports_that_its_body_runs_without_the_lock() {
    let locks = without_a_server().await;

    let seen = looks(&locks, 7).await;

    let Ok((
        Err(Error::Unavailable { .. }),
        Err(Error::Unavailable { .. }),
        Err(Error::Unavailable { .. }),
        left,
        key,
    )) = seen
    else {
        panic!("{seen:?}")
    };
    assert_eq!((left, &*key), (Duration::ZERO, "order:7"));
}

#[tokio::test]
async fn run_on_unavailable_still_locks_if_the_server_is_up() {
    let server = RedisServer::start();
    let locks = connected(&server).await;

    let seen = looks(&locks, 7).await;

    assert!(matches!(seen, Ok((Ok(()), Ok(_), Ok(()), ..))), "{seen:?}");
}

const SHOP: &str = "shop";

#[distributed_lock(key = "order:<id>", manager = locks, namespace = SHOP, guard = lock)]
async fn of_the_shop(locks: &LockManager, id: u64, server: &RedisServer) -> Result<(String, Reply), Error> {
    Ok((lock.key().full_name().to_owned(), server.call(&["EXISTS", "shop:order:7"])))
}

#[distributed_lock(key = id, manager = locks, namespace = "", guard = lock)]
async fn without_namespace(
    locks: &LockManager,
    id: &str,
    server: &RedisServer,
) -> Result<(String, Reply), Error> {
    Ok((lock.key().full_name().to_owned(), server.call(&["EXISTS", id])))
}

#[tokio::test]
async fn a_function_can_have_a_namespace_of_its_own_or_none() {
    let server = RedisServer::start();
    server.allow_keys(&["shop:*", "order:*"]);
    let locks = connected(&server).await;

    let shop = of_the_shop(&locks, 7, &server).await;
    let none = without_namespace(&locks, "order:8", &server).await;

    assert!(matches!(&shop, Ok((name, Reply::Integer(1))) if name == "shop:order:7"), "{shop:?}");
    assert!(matches!(&none, Ok((name, Reply::Integer(1))) if name == "order:8"), "{none:?}");
}

const NO_TEMPLATE: &str = "order:<id>";

#[distributed_lock(key = NO_TEMPLATE, manager = locks)]
async fn of_a_constant(locks: &LockManager, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = whole, manager = locks)]
async fn of_a_value(locks: &LockManager, whole: &str) -> Result<(), Error> {
    Ok(())
}

#[tokio::test]
async fn template_is_rejected_in_a_constant_but_not_in_a_value() {
    let locks = LockManager::connect("memory://").await.expect("the in-memory backend connects");

    let constant = of_a_constant(&locks, 7).await;
    let value = of_a_value(&locks, "<b>").await;

    assert!(
        matches!(&constant, Err(Error::InvalidKey { problem, .. }) if problem.contains("<id>")),
        "{constant:?}"
    );
    assert!(value.is_ok(), "{value:?}");
}

#[distributed_lock(key = "job:<id>", min_hold = "1h", min_hold_on = ok, manager = locks)]
async fn job(locks: &LockManager, id: u64, fails: bool) -> Result<u64, Error> {
    if fails { Err(errors::config("job", "it failed")) } else { Ok(id) }
}

#[distributed_lock(key = "count:<id>", min_hold = "1h", min_hold_on = ok, on_contended = return(0), manager = locks)]
async fn count(locks: &LockManager, id: u64) -> u64 {
    assert_ne!(id, 3, "this panic is part of the test");
    id
}

#[tokio::test]
async fn min_hold_on_ok_keeps_the_lock_of_a_body_without_error() {
    let locks = LockManager::connect("memory://").await.expect("no server is needed");

    let failed = job(&locks, 1, true).await;
    let succeeded = job(&locks, 2, false).await;
    let same = locks.clone();
    let panicked = tokio::spawn(async move { count(&same, 3).await }).await;
    let counted = count(&locks, 4).await;

    assert!(failed.is_err() && panicked.is_err(), "{failed:?} {panicked:?}");
    assert_eq!((succeeded.ok(), counted), (Some(2), 4));
    for (key, kept) in [("job:1", false), ("job:2", true), ("count:3", false), ("count:4", true)] {
        let info = locks.inspect(key).await.expect("memory replies");
        assert_eq!(info.is_some_and(|info| info.is_kept_here()), kept, "{key}");
    }
}
