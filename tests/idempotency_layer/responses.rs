//! Responses that are stored, replayed, and sent as they are.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::{MethodFilter, on, post};
use bytes::Bytes;
use dlock_tests::RedisServer;
use dlock_tests::world::World;
use futures_util::{StreamExt, stream};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use crate::shop::{Counters, Shop, ShopLayer, Truncated, answer, counted, post_body};

async fn with_headers(State(counters): State<Counters>) -> Response {
    let run = counters.run();
    let headers = AppendHeaders([
        ("location", "/orders/1"),
        ("content-type", "application/json"),
        ("content-language", "de"),
        ("etag", "\"1\""),
        ("last-modified", "Thu, 26 Nov 2026 00:00:00 GMT"),
        ("link", "</a>; rel=next"),
        ("link", "</b>, </c>; rel=prev"),
        ("set-cookie", "session=1"),
        ("set-cookie", "theme=dark"),
        ("date", "Thu, 26 Nov 2026 00:00:00 GMT"),
        ("www-authenticate", "Basic"),
        ("x-order", "1"),
        ("x-request-id", "7"),
    ]);
    (StatusCode::CREATED, headers, format!("{{\"run\":{run}}}")).into_response()
}

fn all<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().expect("ASCII")).collect()
}

#[tokio::test]
async fn a_replay_keeps_listed_headers_and_their_values() {
    let redis = RedisServer::start();
    let more = [HeaderName::from_static("x-order"), HeaderName::from_static("set-cookie")];
    for url in [World::in_memory().url(), &redis.url()] {
        let shop =
            Shop::with_handler(url, post(with_headers), |layer| layer.replay_headers(more.clone())).await;

        let first = shop.send(post_body("k", "")).await;
        let replay = shop.send(post_body("k", "")).await;

        assert_eq!(all(&first.headers, "set-cookie"), ["session=1", "theme=dark"], "the first is unchanged");
        assert_eq!((replay.status, &replay.body), (201, &first.body));
        for kept in
            ["location", "content-type", "content-language", "etag", "last-modified", "link", "x-order"]
        {
            assert_eq!(all(&replay.headers, kept), all(&first.headers, kept), "{kept}");
            assert!(replay.headers.contains_key(kept), "{kept}");
        }
        for dropped in ["set-cookie", "date", "www-authenticate", "x-request-id"] {
            assert!(!replay.headers.contains_key(dropped), "{dropped}");
        }
    }
}

#[tokio::test]
async fn the_user_decides_what_is_stored() {
    let world = World::in_memory();
    let shop = Shop::with_handler(world.url(), post(counted), |layer| {
        layer.store(|parts| parts.headers.contains_key("x-final"))
    })
    .await;

    let _ = shop.send(post_body("k", "")).await;
    let again = shop.send(post_body("k", "")).await;

    assert!(!again.is_replayed());
    assert_eq!(shop.counters.runs(), 2);
}

#[tokio::test]
async fn a_response_over_the_limit_is_sent_and_never_repeated() {
    for (size, is_stored) in [(1000, true), (1001, false)] {
        let redis = RedisServer::start();
        for url in [World::in_memory().url(), &redis.url()] {
            let handler = async move |State(counters): State<Counters>| {
                counters.run();
                // Without a length that is known in advance.
                let chunks = stream::iter(vec![b'x'; size]).chunks(7);
                Body::from_stream(chunks.map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk))))
            };
            let shop = Shop::with_handler(url, post(handler), |layer| layer.max_response(1000)).await;

            let first = shop.send(post_body("k", "")).await;
            let again = shop.send(post_body("k", "")).await;

            assert_eq!((first.status, first.body.len()), (200, size), "{url}");
            assert_eq!(again.is_replayed(), is_stored, "{url}: {size}");
            if !is_stored {
                assert_eq!(
                    (again.status, again.code().as_deref()),
                    (500, Some("result_not_stored")),
                    "{url}"
                );
            }
            assert_eq!(shop.counters.runs(), 1, "{url}");
        }
    }
}

/// The limit of the status and the headers of a stored response, in bytes.
const HEADERS: usize = 64 << 10;

#[tokio::test]
async fn the_largest_response_is_replayed_with_its_headers() {
    // One byte of the version, two of the status, two of the count; 6 and the name for each header.
    let overhead = 5 + (6 + "content-type".len() + "application/octet-stream".len()) + 6 + "x-order".len();
    let redis = RedisServer::start();
    for (value, is_stored) in [(HEADERS - overhead, true), (HEADERS - overhead + 1, false)] {
        for url in [World::in_memory().url(), &redis.url()] {
            let handler = async move |State(counters): State<Counters>| {
                counters.run();
                ([("x-order", "v".repeat(value))], vec![b'x'; 3 << 20])
            };
            let shop = Shop::with_handler(url, post(handler), |layer| {
                layer.max_response(usize::MAX).replay_headers([HeaderName::from_static("x-order")])
            })
            .await;
            let key = format!("k-{value}");

            let first = shop.send(post_body(&key, "")).await;
            let again = shop.send(post_body(&key, "")).await;

            assert_eq!((first.body.len(), shop.counters.runs()), (3 << 20, 1), "{url}");
            assert_eq!(again.is_replayed(), is_stored, "{url}: {value}: {}", again.status);
            if is_stored {
                assert!(again.body == first.body, "{url}");
                assert_eq!(again.headers["x-order"], first.headers["x-order"], "{url}");
            } else {
                assert_eq!(again.code().as_deref(), Some("result_not_stored"), "{url}");
            }
        }
    }
}

#[tokio::test]
async fn a_large_response_within_the_limit_is_replayed() {
    let redis = RedisServer::start();
    for (size, limit) in [(256 << 10, None), (3 << 20, Some(usize::MAX))] {
        for url in [World::in_memory().url(), &redis.url()] {
            let handler = async move |State(counters): State<Counters>| {
                counters.run();
                vec![b'x'; size]
            };
            let of_limit = |layer: ShopLayer| match limit {
                Some(limit) => layer.max_response(limit),
                None => layer,
            };
            let shop = Shop::with_handler(url, post(handler), of_limit).await;
            let key = format!("k-{size}");

            let first = shop.send(post_body(&key, "")).await;
            let again = shop.send(post_body(&key, "")).await;

            assert!(again.is_replayed() && again.body == first.body, "{url}: {size}");
            assert_eq!((first.body.len(), shop.counters.runs()), (size, 1), "{url}");
        }
    }
}

#[tokio::test]
async fn a_response_with_a_known_length_is_not_collected() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>| {
        counters.run();
        vec![b'x'; 2000]
    };
    let shop = Shop::with_handler(world.url(), post(handler), |layer| layer.max_response(1000)).await;

    let first = shop.send(post_body("k", "")).await;
    let again = shop.send(post_body("k", "")).await;

    assert_eq!((first.status, first.body.len()), (200, 2000));
    assert_eq!((again.code().as_deref(), shop.counters.runs()), (Some("result_not_stored"), 1));
}

#[tokio::test]
async fn events_are_sent_as_they_come() {
    let world = World::in_memory();
    let more = Arc::new(Notify::new());
    let handler = {
        let more = Arc::clone(&more);
        async move |State(counters): State<Counters>| {
            counters.run();
            let second = async move {
                more.notified().await;
                "data: 2\n\n"
            };
            let events = stream::once(ready("data: 1\n\n")).chain(stream::once(second));
            let body = Body::from_stream(events.map(Ok::<_, Infallible>));
            ([("content-type", "text/event-stream; charset=utf-8")], body)
        }
    };
    let shop = Shop::with_handler(world.url(), post(handler), |layer| layer).await;

    let mut first = shop.respond(post_body("k", "")).await;
    let event = first.body_mut().frame().await.expect("a frame").expect("no error");
    let again = shop.send(post_body("k", "")).await;
    more.notify_one();
    let rest = answer(first).await;

    assert_eq!(event.into_data().expect("data"), "data: 1\n\n");
    assert_eq!(rest.body, "data: 2\n\n");
    assert_eq!((again.status, again.code().as_deref()), (500, Some("result_not_stored")));
    assert_eq!(shop.counters.runs(), 1);
}

#[tokio::test]
async fn an_upgrade_leaves_a_tombstone() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>| {
        counters.run();
        StatusCode::SWITCHING_PROTOCOLS
    };
    let shop = Shop::with_handler(world.url(), post(handler), |layer| layer).await;

    let first = shop.send(post_body("k", "")).await;
    let again = shop.send(post_body("k", "")).await;

    assert_eq!(first.status, 101);
    assert_eq!((again.code().as_deref(), shop.counters.runs()), (Some("result_not_stored"), 1));
}

#[tokio::test]
async fn trailers_are_sent_and_not_stored() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>| {
        counters.run();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("1"));
        let frames = [Frame::data(Bytes::from("text")), Frame::trailers(trailers)];
        Response::new(Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)))))
    };
    let shop = Shop::with_handler(world.url(), post(handler), |layer| layer).await;

    let first = shop.respond(post_body("k", "")).await.into_body().collect().await.expect("it is complete");
    let again = shop.send(post_body("k", "")).await;

    assert_eq!(first.trailers().map(|trailers| all(trailers, "x-checksum")), Some(vec!["1"]));
    assert_eq!(first.to_bytes(), "text");
    assert_eq!((again.code().as_deref(), shop.counters.runs()), (Some("result_not_stored"), 1));
}

#[tokio::test]
async fn a_body_that_fails_is_never_repeated() {
    let failing = || {
        let frames = [Ok(Bytes::from("beg")), Err(std::io::Error::other("this error is part of the test"))];
        Body::from_stream(stream::iter(frames))
    };
    let truncated = || Body::new(Truncated::default());
    for new_body in [failing as fn() -> Body, truncated] {
        let world = World::in_memory();
        let handler = async move |State(counters): State<Counters>| {
            counters.run();
            Response::new(new_body())
        };
        let shop = Shop::with_handler(world.url(), post(handler), |layer| layer).await;

        let mut body = shop.respond(post_body("k", "")).await.into_body();
        let begin = body.frame().await.expect("a frame").expect("no error").into_data().expect("data");
        let failed = body.frame().await.expect("a frame");
        let again = shop.send(post_body("k", "")).await;

        assert_eq!(begin, "beg");
        assert!(failed.is_err() && body.frame().await.is_none(), "the client sees that it is incomplete");
        assert_eq!((again.code().as_deref(), shop.counters.runs()), (Some("result_not_stored"), 1));
    }
}

/// As the handler of a proxy, whose upstream has promised a length and sends another one.
#[tokio::test]
async fn a_response_of_another_length_is_never_repeated() {
    for chunks in [&["begin"][..], &[], &["begin", " and end"]] {
        let world = World::in_memory();
        let handler = async move |State(counters): State<Counters>| {
            counters.run();
            let upstream = stream::iter(chunks.iter().copied().map(Ok::<_, Infallible>));
            ([(CONTENT_LENGTH, "10")], Body::from_stream(upstream))
        };
        let shop = Shop::with_handler(world.url(), post(handler), |layer| layer).await;

        let first = shop.respond(post_body("k", "")).await;
        assert_eq!(first.headers()[CONTENT_LENGTH], "10");
        let read = first.into_body().collect().await;
        let again = shop.send(post_body("k", "")).await;

        assert!(read.is_err(), "{chunks:?}");
        assert_eq!((again.status, again.code().as_deref()), (500, Some("result_not_stored")), "{chunks:?}");
        assert_eq!(shop.counters.runs(), 1, "{chunks:?}");
    }
}

/// A client that got the length of the whole with a part of it would take the start of the next
/// response for the rest.
#[tokio::test]
async fn a_response_that_ends_early_ends_its_connection() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>| {
        counters.run();
        let upstream = stream::iter(["begin"].map(Ok::<_, Infallible>));
        ([(CONTENT_LENGTH, "10")], Body::from_stream(upstream))
    };
    let shop = Shop::with_handler(world.url(), post(handler), |layer| layer).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    tokio::spawn(axum::serve(listener, shop.routes.clone()).into_future());
    let mut client = tokio::net::TcpStream::connect(address).await.expect("the service accepts");
    let request =
        "POST / HTTP/1.1\r\nhost: a\r\nx-user: 7\r\nidempotency-key: k\r\ncontent-length: 0\r\n\r\n";
    client.write_all(request.as_bytes()).await.expect("the request is sent");

    let mut response = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), client.read_to_end(&mut response)).await;

    let response = String::from_utf8_lossy(&response);
    assert!(ended.is_ok(), "the connection stays open after: {response}");
    let again = shop.send(post_body("k", "")).await;
    assert_eq!((again.code().as_deref(), shop.counters.runs()), (Some("result_not_stored"), 1));
}

/// The header is the length that a `GET` would have.
#[tokio::test]
async fn a_response_to_head_has_the_length_of_another_one() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>| {
        counters.run();
        ([(CONTENT_LENGTH, "10")], Body::from_stream(stream::empty::<Result<Bytes, Infallible>>()))
    };
    let covered = |layer: ShopLayer| layer.methods([Method::HEAD]);
    let shop = Shop::with_handler(world.url(), on(MethodFilter::HEAD, handler), covered).await;

    for is_again in [false, true] {
        let mut request = post_body("k", "");
        *request.method_mut() = Method::HEAD;
        let answer = shop.send(request).await;
        assert_eq!((answer.status, answer.is_replayed()), (200, is_again), "{answer:?}");
    }
    assert_eq!(shop.counters.runs(), 1);
}

#[tokio::test]
async fn a_response_is_stored_before_its_first_byte() {
    let redis = RedisServer::start();
    for url in [World::in_memory().url(), &redis.url()] {
        let shop = Shop::with_handler(url, post(counted), |layer| layer).await;

        // The client has the head, and has read nothing of the body.
        let first = shop.respond(post_body("k", "")).await;
        let again = shop.send(post_body("k", "")).await;

        assert!(again.is_replayed(), "{url}: {again:?}");
        assert_eq!(answer(first).await.body, again.body, "{url}");
    }
}
