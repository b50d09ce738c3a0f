//! Bodies that are too long, end early, or never end.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::routing::post;
use bytes::Bytes;
use dlock_runtime::tower::RequestFingerprint;
use dlock_tests::world::World;
use futures_util::{StreamExt, stream};
use http::HeaderValue;
use http::header::CONTENT_LENGTH;
use http_body::{Frame, SizeHint};

use crate::shop::{Counters, Shop, ShopLayer, Truncated, counted, post_body};

const CHUNK: usize = 64 * 1024;

/// A body of `chunks` chunks of 64 KiB, which counts those that were read.
fn long_body(chunks: usize, read: &Arc<AtomicUsize>) -> Body {
    let read = Arc::clone(read);
    let chunk = Bytes::from(vec![b'x'; CHUNK]);
    Body::from_stream(stream::iter(0..chunks).map(move |_| {
        read.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Infallible>(chunk.clone())
    }))
}

async fn echoed_length(State(counters): State<Counters>, request: Request) -> String {
    counters.run();
    let body = to_bytes(request.into_body(), usize::MAX).await.expect("the body is complete");
    body.len().to_string()
}

#[tokio::test]
async fn the_handler_gets_the_body() {
    let world = World::in_memory();
    let shop = Shop::with_handler(world.url(), post(echoed_length), |layer| layer).await;
    let read = Arc::default();

    // 256 KiB, in chunks.
    let answer = shop.send(post_body("k", long_body(4, &read))).await;

    assert_eq!(answer.body, (256 * 1024).to_string());
}

#[tokio::test]
async fn a_huge_body_is_read_to_the_limit_only() {
    let world = World::in_memory();
    let shop = Shop::with_handler(world.url(), post(counted), |layer| layer).await;
    let read = Arc::default();

    // 1 GiB. More than the limit is never in memory.
    let refused = shop.send(post_body("k", long_body(16 * 1024, &read))).await;
    let later = shop.send(post_body("k", "short")).await;

    assert_eq!((refused.status, refused.code().as_deref()), (413, Some("body_too_large")));
    assert!(read.load(Ordering::SeqCst) <= 256 * 1024 / CHUNK + 1, "{read:?} chunks");
    assert_eq!((later.status, shop.counters.runs()), (200, 1), "the refused request left no record");
}

#[tokio::test]
async fn a_body_that_announces_its_length_is_not_read() {
    let world = World::in_memory();
    let shop = Shop::with_handler(world.url(), post(counted), |layer| layer.max_body(10)).await;
    let read = Arc::new(AtomicUsize::new(0));
    let body = |length| Body::new(Announced { length, read: Arc::clone(&read) });

    let beyond = shop.send(post_body("k1", body(11))).await;
    assert_eq!((beyond.status, read.load(Ordering::SeqCst)), (413, 0));
    let within = shop.send(post_body("k1", body(10))).await;
    assert_eq!((within.status, read.load(Ordering::SeqCst)), (200, 10));
}

/// A body whose length is known in advance. It counts the bytes that were read.
struct Announced {
    length: usize,
    read: Arc<AtomicUsize>,
}

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = std::mem::take(&mut self.length);
        self.read.fetch_add(length, Ordering::SeqCst);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(Bytes::from(vec![b'x'; length])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length as u64)
    }
}

#[tokio::test]
async fn a_body_that_ends_early_runs_nothing() {
    let world = World::in_memory();
    let shop = Shop::with_handler(world.url(), post(counted), |layer| layer).await;
    let frames = [Ok(Bytes::from("begin")), Err(std::io::Error::other("this error is part of the test"))];

    let refused = shop.send(post_body("k", Body::from_stream(stream::iter(frames)))).await;
    let later = shop.send(post_body("k", "begin and end")).await;

    assert_eq!((refused.status, refused.code().as_deref()), (400, Some("incomplete_body")));
    assert_eq!((later.status, shop.counters.runs()), (200, 1), "the refused request left no record");
}

#[tokio::test]
async fn without_the_body_in_the_fingerprint_any_size_passes() {
    let world = World::in_memory();
    let route = |layer: crate::shop::ShopLayer| layer.fingerprint(RequestFingerprint::ROUTE).max_body(10);
    let shop = Shop::with_handler(world.url(), post(echoed_length), route).await;
    let read = Arc::default();

    let first = shop.send(post_body("k", long_body(16, &read))).await;
    let other_body = shop.send(post_body("k", "other")).await;

    assert_eq!(first.body, (16 * CHUNK).to_string());
    assert!(other_body.is_replayed(), "only the route is compared");
}

#[tokio::test]
async fn a_broken_upload_is_not_answered_for_ever() {
    let world = World::in_memory();
    let handler = async |State(counters): State<Counters>, body: Bytes| {
        counters.run();
        body.len().to_string()
    };
    let route = |layer: ShopLayer| layer.fingerprint(RequestFingerprint::ROUTE);
    let shop = Shop::with_handler(world.url(), post(handler), route).await;
    let frames = [Ok(Bytes::from("beg")), Err(std::io::Error::other("this error is part of the test"))];
    let failing = Body::from_stream(stream::iter(frames));

    for (key, body) in [("failing", failing), ("truncated", Body::new(Truncated::default()))] {
        let before = shop.counters.runs();
        let broken = shop.send(post_body(key, body)).await;
        let whole = shop.send(post_body(key, "whole")).await;
        let again = shop.send(post_body(key, "whole")).await;

        assert_eq!((broken.status, whole.status, &whole.body[..]), (400, 200, &b"5"[..]), "{key}");
        assert!(again.is_replayed() && shop.counters.runs() == before + 1, "{key}");
    }
}

#[tokio::test]
async fn a_truncated_body_runs_nothing() {
    let world = World::in_memory();
    let shop = Shop::with_handler(world.url(), post(counted), |layer| layer).await;

    let refused = shop.send(post_body("k", Body::new(Truncated::default()))).await;
    let later = shop.send(post_body("k", "whole")).await;

    assert_eq!((refused.status, refused.code().as_deref()), (400, Some("incomplete_body")));
    assert_eq!((later.status, shop.counters.runs()), (200, 1), "the refused request left no record");
}

/// As behind a layer whose body has no size hint, such as one for timeouts.
#[tokio::test]
async fn a_body_of_another_length_than_its_header_runs_nothing() {
    let world = World::in_memory();
    let route = |layer: ShopLayer| layer.fingerprint(RequestFingerprint::ROUTE);
    for configure in [(|layer| layer) as fn(ShopLayer) -> ShopLayer, route] {
        let handler = async |State(counters): State<Counters>, body: Bytes| {
            counters.run();
            body.len().to_string()
        };
        let shop = Shop::with_handler(world.url(), post(handler), configure).await;
        for chunks in [&["begin"][..], &[], &["begin", " and the end"]] {
            let chunked = Body::from_stream(stream::iter(chunks.iter().copied().map(Ok::<_, Infallible>)));
            let mut request = post_body("k", chunked);
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("10"));

            let refused = shop.send(request).await;

            assert_eq!((refused.status, shop.counters.runs()), (400, 0), "{chunks:?}: {refused:?}");
        }
        let later = shop.send(post_body("k", "begin, end")).await;
        assert_eq!((later.status, shop.counters.runs()), (200, 1), "a refused request leaves no record");
        assert!(!later.is_replayed());
    }
}

/// A layer outside has replaced the body, and has left the header of the original.
#[tokio::test]
async fn a_body_that_knows_its_length_needs_no_header() {
    let world = World::in_memory();
    let shop = Shop::with_handler(world.url(), post(echoed_length), |layer| layer).await;
    let mut request = post_body("k", "replaced");
    request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("10"));

    let answer = shop.send(request).await;

    assert_eq!((answer.status, &answer.body[..]), (200, &b"8"[..]));
}
