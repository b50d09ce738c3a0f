//! How the hold of a `LockLayer` ends: success, a loss in the last poll, and enclosing layers.
//!
//! Time is paused, and the locks are in memory.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use dlock_runtime::tower::{LayerBody, LockLayer};
use dlock_runtime::{Error, LockManager, MinHoldOn, OnLost, Options};
use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);
const KEY: &str = "order:7";

async fn in_memory() -> LockManager {
    LockManager::connect("memory://").await.expect("the in-memory backend connects")
}

/// The result of a handler.
type Answer = Result<Response<Body>, &'static str>;

/// Sends one request to `handler` behind a layer with `options`.
async fn send<F>(
    locks: &LockManager,
    options: Options,
    until_body_end: bool,
    handler: impl Fn() -> F + Clone + Send + 'static,
) -> Result<Response<LayerBody<Body>>, &'static str>
where
    F: Future<Output = Answer> + Send + 'static,
{
    let layer = LockLayer::new(locks.clone(), |_: &Parts| KEY).options(options);
    let service = service_fn(move |_: Request<()>| handler());
    layer.until_body_end(until_body_end).layer(service).oneshot(Request::new(())).await
}

/// Lets `time` pass within the current poll, as if the process were frozen.
fn freeze(time: Duration) {
    let _ = tokio::time::advance(time).now_or_never();
}

/// A body of one frame, whose last poll takes `frozen`.
struct OneFrame {
    frame: Option<Frame<Bytes>>,
    frozen: Duration,
    ends_with: LastPoll,
}

/// The result of the last poll of a body.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LastPoll {
    /// The frame, and the body knows that it is the last one.
    Frame,
    /// The frame. If the response has a length, the body is not polled again.
    UnknownFrame,
    /// The end.
    End,
}

impl OneFrame {
    fn boxed(frozen: Duration, ends_with: LastPoll) -> Body {
        Body::new(Self { frame: Some(Frame::data("done".into())), frozen, ends_with })
    }
}

impl HttpBody for OneFrame {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.frame.is_none() || self.ends_with != LastPoll::End {
            freeze(self.frozen);
        }
        Poll::Ready(self.frame.take().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.frame.is_none() && self.ends_with == LastPoll::Frame
    }
}

/// Returns a response of gRPC whose status is in its trailers.
fn with_trailers(code: i32) -> Response<Body> {
    let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), code.into())]);
    let frames = [Frame::data(Bytes::from("done")), Frame::trailers(trailers)].map(Ok::<_, Infallible>);
    Response::new(Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames))))
}

fn with_status(status: u16) -> Response<Body> {
    let mut response = Response::new(Body::from("done"));
    *response.status_mut() = status.try_into().expect("a status");
    response
}

/// Returns a response of gRPC that consists of trailers only.
fn of_grpc(code: i32) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    response.headers_mut().insert("grpc-status", code.into());
    response
}

fn with_broken_body() -> Response<Body> {
    let frames = [Ok(Bytes::from("begin")), Err(std::io::Error::other("this error is part of the test"))];
    Response::new(Body::from_stream(futures_util::stream::iter(frames)))
}

/// Reads a body until it says that nothing follows, as hyper does.
async fn read_as_a_server(mut body: impl HttpBody<Data = Bytes> + Unpin) {
    while !body.is_end_stream()
        && let Some(Ok(frame)) = body.frame().await
        && !frame.is_trailers()
    {}
}

#[tokio::test(start_paused = true)]
async fn min_hold_on_success_depends_on_the_response() {
    type Case = (&'static str, fn() -> Answer, [bool; 2]);
    // Whether the lock is kept: if it is released with the head, and at the end of the body.
    let cases: [Case; 10] = [
        ("200", || Ok(with_status(200)), [true, true]),
        ("303", || Ok(with_status(303)), [true, true]),
        ("400", || Ok(with_status(400)), [false, false]),
        ("503", || Ok(with_status(503)), [false, false]),
        ("error", || Err("this error is part of the test"), [false, false]),
        ("grpc-status 0", || Ok(of_grpc(0)), [true, true]),
        ("grpc-status 13", || Ok(of_grpc(13)), [false, false]),
        ("trailer 0", || Ok(with_trailers(0)), [true, true]),
        ("trailer 13", || Ok(with_trailers(13)), [true, false]),
        ("broken body", || Ok(with_broken_body()), [true, false]),
    ];
    for (name, respond, kept) in cases {
        for (until_body_end, is_kept) in [false, true].into_iter().zip(kept) {
            let locks = in_memory().await;
            let options = Options::new().min_hold(10 * SECOND).min_hold_on(MinHoldOn::Ok);

            if let Ok(response) = send(&locks, options, until_body_end, move || ready(respond())).await {
                read_as_a_server(response.into_body()).await;
            }

            let next = locks.lock(KEY).try_acquire().await.expect("memory replies");
            assert_eq!(next.is_none(), is_kept, "{name}, until_body_end: {until_body_end}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_body_that_is_dropped_is_no_success() {
    let locks = in_memory().await;
    let options = Options::new().min_hold(10 * SECOND).min_hold_on(MinHoldOn::Ok);

    drop(send(&locks, options, true, || ready(Ok(with_status(200)))).await.expect("a response"));

    assert!(locks.lock(KEY).try_acquire().await.expect("memory replies").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_loss_in_the_last_poll_ends_the_stream_with_an_error() {
    for ends_with in [LastPoll::Frame, LastPoll::UnknownFrame, LastPoll::End] {
        for on_lost in [OnLost::Abort, OnLost::Finish] {
            let locks = in_memory().await;
            let options = Options::new().lease(SECOND).renew(false).on_lost(on_lost);
            let handler = move || ready(Ok(Response::new(OneFrame::boxed(2 * SECOND, ends_with))));
            let response = send(&locks, options, true, handler).await;
            let mut body = response.expect("a response").into_body();
            if ends_with == LastPoll::End {
                body.frame().await.expect("a frame").expect("the lock is held");
            }

            let last = body.frame().await;

            if on_lost == OnLost::Finish {
                assert!(last.is_none_or(|frame| frame.is_ok()), "{ends_with:?}");
                continue;
            }
            let error = last.expect("no complete end").expect_err("the lock was lost");
            let error = error.downcast::<Error>().expect("an error of the lock");
            let is_last = ends_with != LastPoll::UnknownFrame;
            assert!(matches!(*error, Error::Lost { completed, .. } if completed == is_last), "{error:?}");
            assert!(body.frame().await.is_none() && body.is_end_stream(), "{ends_with:?}");
        }
    }
}

/// A body that another thread ends.
#[derive(Clone, Default)]
struct EndedElsewhere(Arc<AtomicBool>);

impl HttpBody for EndedElsewhere {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_end_stream() { Poll::Ready(None) } else { Poll::Pending }
    }

    fn is_end_stream(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A server does not poll a body that says that it has ended.
#[tokio::test(start_paused = true)]
async fn a_stream_ends_only_in_a_poll_under_the_lock() {
    let locks = in_memory().await;
    let source = EndedElsewhere::default();
    let end = source.clone();
    let handler = move || ready(Ok(Response::new(Body::new(source.clone()))));
    let options = Options::new().lease(SECOND).renew(false);
    let mut body = send(&locks, options, true, handler).await.expect("a response").into_body();
    assert!(body.frame().now_or_never().is_none(), "it has not ended");

    end.0.store(true, Ordering::Relaxed);
    freeze(2 * SECOND);

    assert!(!body.is_end_stream());
    assert!(matches!(body.frame().await, Some(Err(_))), "the lock was lost");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_outlives_only_max_hold_is_complete() {
    let locks = in_memory().await;
    let options = Options::new().lease(SECOND).max_hold(SECOND);
    let handler = || async {
        // A renewal while the handler runs, so that the lease ends after `max_hold`.
        tokio::time::sleep(SECOND / 2).await;
        Ok(Response::new(OneFrame::boxed(SECOND * 6 / 10, LastPoll::Frame)))
    };

    let response = send(&locks, options, true, handler).await.expect("a response");

    let body = response.into_body().collect().await;
    assert_eq!(body.expect("the lock stayed with its body").to_bytes(), "done");
}

#[tokio::test(start_paused = true)]
async fn an_error_response_is_not_replaced_by_a_loss() {
    for until_body_end in [false, true] {
        let locks = in_memory().await;
        let options = Options::new().lease(SECOND).renew(false);
        let respond = |response: fn() -> Answer| {
            let handler = move || async move {
                freeze(2 * SECOND);
                response()
            };
            send(&locks, options, until_body_end, handler)
        };

        let unprocessable = respond(|| Ok(with_status(422))).await.expect("a response");
        let of_grpc = respond(|| Ok(of_grpc(13))).await.expect("a response");
        let failed = respond(|| Err("this error is part of the test")).await;
        let redirect = respond(|| {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = http::StatusCode::SEE_OTHER;
            Ok(response)
        });

        assert_eq!(unprocessable.status(), 422);
        assert_eq!(unprocessable.into_body().collect().await.is_err(), until_body_end);
        assert_eq!(of_grpc.headers()["grpc-status"], "13");
        assert!(failed.is_err(), "{failed:?}");
        let lost = redirect.await.expect("a response");
        assert!(matches!(lost.extensions().get(), Some(Error::Lost { completed: true, .. })), "{lost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_error_response_is_not_replaced_by_a_loss() {
    let locks = in_memory().await;
    let options = Options::new().lease(SECOND).renew(false);
    let handler = || ready(Ok(with_status(422).map(|_| OneFrame::boxed(2 * SECOND, LastPoll::Frame))));

    let response = send(&locks, options, true, handler).await.expect("a response");

    let body = response.into_body().collect().await;
    assert_eq!(body.expect("it is sent unchanged").to_bytes(), "done");
}

/// A stream must see the locks that are held while it is polled, and no others.
#[tokio::test(start_paused = true)]
async fn a_stream_is_nested_in_an_outer_layer_while_that_holds_its_lock() {
    for outer_until_body_end in [false, true] {
        let locks = in_memory().await;
        let same = locks.clone();
        let outer = LockLayer::new(locks.clone(), |_: &Parts| "outer").until_body_end(outer_until_body_end);
        let service = service_fn(move |_: Request<()>| {
            let locks = same.clone();
            let stream = futures_util::stream::once(async move {
                let ran = locks.lock("outer").run(async |_| ()).await;
                tokio::task::yield_now().await;
                let acquired = locks.lock("outer").acquire().await.map(drop);
                Ok::<_, Infallible>(Bytes::from(format!("{ran:?} {acquired:?}")))
            });
            ready(Ok::<_, Infallible>(Response::new(Body::from_stream(stream))))
        });
        let inner = LockLayer::new(locks.clone(), |_: &Parts| KEY).until_body_end(true);
        let service = outer.layer(inner.layer(service));

        let response = service.oneshot(Request::new(())).await.expect("a response");
        let body = response.into_body().collect().await.expect("the stream ends").to_bytes();

        let text = String::from_utf8_lossy(&body);
        if outer_until_body_end {
            assert!(text.starts_with("Ok(()) Err(Reentrant"), "{text}");
        } else {
            assert_eq!(text, "Ok(()) Ok(())");
        }
    }
}
