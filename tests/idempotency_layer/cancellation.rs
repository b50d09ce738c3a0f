//! Clients that disconnect, handlers that panic, and outages of the store.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::routing::post;
use bytes::Bytes;
use dlock_runtime::Error;
use dlock_runtime::idempotent::{IdempotentRecord, OnCrash, OnUnavailable};
use dlock_tests::world::World;
use dlock_tests::{RedisServer, until, within};
use futures_util::{FutureExt, StreamExt, stream};
use http::StatusCode;
use tokio::task::yield_now;
use tower::ServiceExt;

use crate::shop::{Answer, Counters, Shop, answer, counted, post_body};

const LIMIT: Duration = Duration::from_secs(20);

/// A body that is pending before each of its chunks.
fn slow_body() -> Body {
    Body::from_stream(stream::iter(["a", "b", "c"]).then(|chunk| async move {
        yield_now().await;
        Ok::<_, Infallible>(Bytes::from(chunk))
    }))
}

/// A handler that is pending before and after its effect.
async fn slow(State(counters): State<Counters>) -> String {
    yield_now().await;
    let run = counters.run();
    for _ in 0..5 {
        yield_now().await;
    }
    format!("run {run}")
}

/// Drops a request after each possible number of polls, then repeats it.
async fn hang_up_everywhere(url: &str) {
    for polls in 0.. {
        let separator = if url.contains('?') { '&' } else { '?' };
        let namespaced = format!("{url}{separator}namespace=polls{polls}");
        let shop = Shop::with_handler(&namespaced, post(slow), |layer| layer.wait(LIMIT)).await;

        let is_complete = {
            let mut request = pin!(shop.respond(post_body("k", slow_body())));
            let mut polled = 0;
            loop {
                if polled == polls {
                    break false;
                }
                if request.as_mut().now_or_never().is_some() {
                    break true;
                }
                polled += 1;
                yield_now().await;
            }
        };
        let retry = within(LIMIT, "the retry is answered", shop.send(post_body("k", slow_body()))).await;

        assert_eq!((retry.status, shop.counters.runs()), (200, 1), "{url}: dropped after {polls} polls");
        assert_eq!(retry.body, "run 1", "{url}: dropped after {polls} polls");
        if is_complete {
            assert!(polls > 5 && retry.is_replayed(), "{url}: {polls} polls");
            return;
        }
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_anywhere_gets_one_run() {
    hang_up_everywhere(World::in_memory().url()).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_anywhere_gets_one_run_over_redis() {
    let redis = RedisServer::start();
    hang_up_everywhere(&redis.url()).await;
}

#[tokio::test]
async fn a_handler_that_is_not_detached_is_dropped_with_its_client() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>| -> String {
        counters.run();
        counters.entered.notify_one();
        std::future::pending().await
    };
    let settings = |layer: crate::shop::ShopLayer| layer.detached(false).lease(Duration::from_secs(1));
    let shop = Shop::with_handler(world.url(), post(handler), settings).await;
    let first = tokio::spawn({
        let shop = shop.clone();
        async move { shop.send(post_body("k", "")).await }
    });
    shop.counters.entered.notified().await;
    first.abort();
    let _ = first.await;

    let running = shop.send(post_body("k", "")).await;
    let crashed = until_crashed(&shop).await;

    assert_eq!(running.code().as_deref(), Some("in_progress"), "until the lease ends");
    assert_eq!((crashed.status, shop.counters.runs()), (500, 1));
}

/// Repeats the request until the lease of the first one is over.
async fn until_crashed(shop: &Shop) -> Answer {
    until("the lease ends", async || {
        shop.send(post_body("k", "")).await.code().as_deref() != Some("in_progress")
    })
    .await;
    let answer = shop.send(post_body("k", "")).await;
    assert_eq!(answer.code().as_deref(), Some("outcome_unknown"));
    answer
}

/// Sends a request whose handler panics.
async fn assert_panics(shop: &Shop) {
    let shop = shop.clone();
    let sent = tokio::spawn(async move { shop.send(post_body("k", "")).await });
    assert!(sent.await.is_err_and(|failed| failed.is_panic()));
}

#[tokio::test]
async fn a_panic_is_repeated_only_with_rerun() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>| {
        let run = counters.run();
        assert!(run > 1, "this panic is part of the test");
        format!("run {run}")
    };
    let settings = |layer: crate::shop::ShopLayer| layer.on_crash(OnCrash::Rerun).wait(LIMIT);
    let shop = Shop::with_handler(world.url(), post(handler), settings).await;
    assert_panics(&shop).await;

    let second = shop.send(post_body("k", "")).await;
    let third = shop.send(post_body("k", "")).await;

    assert_eq!((second.body, shop.counters.runs()), (Bytes::from("run 2"), 2));
    assert!(third.is_replayed());
}

#[tokio::test]
async fn an_outage_at_the_start_gets_retry_after() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let shop = Shop::with_handler(&url, post(counted), |layer| layer).await;
    let open =
        Shop::with_handler(&url, post(counted), |layer| layer.on_unavailable(OnUnavailable::Run)).await;
    redis.kill();

    let refused = shop.send(post_body("k", "")).await;
    let ran = open.send(post_body("k", "")).await;

    assert_eq!((refused.status, refused.code().as_deref()), (503, Some("unavailable")));
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!((ran.status, shop.counters.runs(), open.counters.runs()), (200, 0, 1));
}

#[tokio::test]
async fn an_outage_at_the_end_still_answers_the_caller() {
    let mut redis = RedisServer::start();
    let shop = Shop::start(&redis.url(), |layer| layer).await;
    let first = tokio::spawn({
        let request = crate::shop::post("/gate/1", "k").body(Body::empty()).expect("a request");
        let shop = shop.clone();
        async move { shop.send(request).await }
    });
    shop.counters.entered.notified().await;

    redis.kill();
    shop.counters.gate.open();
    let first = within(LIMIT, "the caller is answered", first).await.expect("no panic");
    let retry = crate::shop::post("/gate/1", "k").body(Body::empty()).expect("a request");
    let retry = shop.send(retry).await;

    assert_eq!((first.status, &first.body), (201, &Bytes::from("order 1, run 1")));
    assert_eq!((retry.status, shop.counters.runs()), (503, 1), "it does not run again");
}

#[tokio::test]
async fn the_handler_finds_its_record() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>, request: Request| {
        let record = request.extensions().get::<IdempotentRecord>().expect("the layer puts it there").clone();
        let charged = record.step("charge", async || Ok::<_, Error>(counters.run())).await;
        let attempt = record.attempt();
        assert!(attempt > 1, "this panic is part of the test");
        format!("attempt {attempt}, charge {}", charged.expect("the step runs"))
    };
    let settings = |layer: crate::shop::ShopLayer| layer.on_crash(OnCrash::Resume).wait(LIMIT);
    let shop = Shop::with_handler(world.url(), post(handler), settings).await;
    assert_panics(&shop).await;

    let second = shop.send(post_body("k", "")).await;

    assert_eq!((second.body, shop.counters.runs()), (Bytes::from("attempt 2, charge 1"), 1));
}

/// The handler has not judged the request: its charge was made, and its result is not known.
#[tokio::test]
async fn a_refusal_after_a_refused_step_is_not_stored() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>, request: Request| {
        let record = request.extensions().get::<IdempotentRecord>().expect("the layer puts it there").clone();
        let too_long = async || Ok::<_, Error>(format!("{}{}", "x".repeat(70_000), counters.run()));
        let charged = record.step("charge", too_long).await;
        assert!(record.attempt() > 1, "this panic is part of the test");
        if charged.is_err() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK }
    };
    let settings = |layer: crate::shop::ShopLayer| layer.on_crash(OnCrash::Resume).wait(LIMIT);
    let shop = Shop::with_handler(world.url(), post(handler), settings).await;
    assert_panics(&shop).await;

    let second = shop.send(post_body("k", "")).await;
    let third = shop.send(post_body("k", "")).await;

    assert_eq!((second.status, third.status, shop.counters.runs()), (422, 422, 1));
    assert!(!third.is_replayed());
}

#[tokio::test]
async fn waiting_duplicates_get_one_result() {
    let redis = RedisServer::start();
    for url in [World::in_memory().url(), &redis.url()] {
        let shop = Shop::start(url, |layer| layer.wait(LIMIT)).await;
        let request = || crate::shop::post("/gate/1", "k").body(Body::empty()).expect("a request");
        let callers: Vec<_> = (0..50).map(|_| tokio::spawn(shop.routes.clone().oneshot(request()))).collect();
        shop.counters.entered.notified().await;
        shop.counters.gate.open();

        let mut replayed = 0;
        for caller in callers {
            let answer = answer(caller.await.expect("no panic").expect("a response")).await;
            assert_eq!((answer.status, &answer.body), (201, &Bytes::from("order 1, run 1")), "{url}");
            replayed += usize::from(answer.is_replayed());
        }
        assert_eq!((replayed, shop.counters.runs()), (49, 1), "{url}");
    }
}
