//! The service of the tests: an axum router with the layer, called without a socket.
//!
//! | route | handler |
//! |---|---|
//! | `/orders/{id}`, `/carts/{id}` | 201 with `Location` and the number of the run |
//! | `/status/{code}` | that status, with the number of the run |
//! | `/gate/{id}` | as `/orders`, after the test has opened the gate |
//! | `/panic/{id}` | panics |

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any};
use axum::{Extension, Router};
use bytes::Bytes;
use dlock_runtime::LockManager;
use dlock_runtime::tower::{IdempotencyLayer, RequestScope};
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{Notify, Semaphore};
use tower::ServiceExt;

/// The state that the handlers and the test share.
#[derive(Clone, Default)]
pub(crate) struct Counters {
    runs: Arc<AtomicUsize>,
    pub(crate) entered: Arc<Notify>,
    pub(crate) gate: Arc<Gate>,
}

/// A gate that is closed until the test opens it.
pub(crate) struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Gate {
    /// Lets one handler pass.
    pub(crate) fn open(&self) {
        self.0.add_permits(1);
    }

    async fn pass(&self) {
        self.0.acquire().await.expect("the gate exists").forget();
    }
}

impl Counters {
    /// Counts a run, and returns its number.
    pub(crate) fn run(&self) -> usize {
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// The scope of a request: the header `x-user`, instead of authentication.
pub(crate) type Scope = fn(&Parts) -> Result<RequestScope, StatusCode>;

pub(crate) fn user(parts: &Parts) -> Result<RequestScope, StatusCode> {
    let user = parts.headers.get("x-user").ok_or(StatusCode::UNAUTHORIZED)?;
    Ok(RequestScope::of(user.as_bytes().to_vec()))
}

pub(crate) type ShopLayer = IdempotencyLayer<Scope>;

/// The service, with its counters.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) routes: Router,
    pub(crate) counters: Counters,
}

impl Shop {
    /// Starts a service whose records are at `url`.
    pub(crate) async fn start(url: &str, configure: impl FnOnce(ShopLayer) -> ShopLayer) -> Self {
        let manager = LockManager::connect(url).await.expect("the store is reachable");
        let layer = configure(IdempotencyLayer::new(manager, user as Scope));
        let counters = Counters::default();
        let routes = Router::new()
            .route("/orders/{id}", any(order))
            .route("/carts/{id}", any(order))
            .route("/status/{code}", any(status))
            .route("/gate/{id}", any(behind_gate))
            .route("/panic/{id}", any(panics))
            .route_layer(layer)
            .layer(Extension(counters.clone()));
        Self { routes, counters }
    }

    /// Starts a service with one handler for `POST /`.
    pub(crate) async fn with_handler(
        url: &str,
        handler: MethodRouter<Counters>,
        configure: impl FnOnce(ShopLayer) -> ShopLayer,
    ) -> Self {
        let manager = LockManager::connect(url).await.expect("the store is reachable");
        let layer = configure(IdempotencyLayer::new(manager, user as Scope));
        let counters = Counters::default();
        let routes = Router::new().route("/", handler.route_layer(layer)).with_state(counters.clone());
        Self { routes, counters }
    }

    /// Sends a request, and reads its response.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        answer(self.respond(request).await).await
    }

    /// Sends a request, and does not read the body of the response.
    pub(crate) async fn respond(&self, request: Request<Body>) -> Response {
        match self.routes.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// A response that was read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn is_replayed(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    /// Returns the code of the problem document, which must be one for the status.
    pub(crate) fn code(&self) -> Option<String> {
        if self.headers.get("content-type").is_none_or(|value| value != "application/problem+json") {
            return None;
        }
        let document: serde_json::Value = serde_json::from_slice(&self.body).expect("it is JSON");
        assert_eq!(document["status"], self.status, "{document}");
        assert!(document["title"].is_string() && document["detail"].is_string(), "{document}");
        Some(document["code"].as_str().expect("it has a code").to_owned())
    }
}

pub(crate) async fn answer(response: Response) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("the body is complete").to_bytes();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// Returns a `POST` request of user 7 with a key.
pub(crate) fn post(path: &str, key: &str) -> http::request::Builder {
    Request::post(path).header("x-user", "7").header("idempotency-key", key)
}

/// Returns a `POST` request of user 7 for `/` with a body.
pub(crate) fn post_body(key: &str, body: impl Into<Body>) -> Request<Body> {
    post("/", key).body(body.into()).expect("a request")
}

/// A body that announces 5 bytes, and ends after 3 of them without an error. One of hyper does so
/// after an `RST_STREAM` with `NO_ERROR`.
#[derive(Default)]
pub(crate) struct Truncated {
    is_read: bool,
}

impl http_body::Body for Truncated {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let is_first = !std::mem::replace(&mut self.is_read, true);
        Poll::Ready(is_first.then(|| Ok(Frame::data(Bytes::from("beg")))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_read
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(if self.is_read { 2 } else { 5 })
    }
}

async fn order(Extension(counters): Extension<Counters>, Path(id): Path<String>) -> Response {
    let run = counters.run();
    (StatusCode::CREATED, [("location", format!("/orders/{id}"))], format!("order {id}, run {run}"))
        .into_response()
}

async fn status(Extension(counters): Extension<Counters>, Path(code): Path<u16>) -> Response {
    let run = counters.run();
    let status = StatusCode::from_u16(code).expect("a status");
    let body = if code == 204 || code == 304 { String::new() } else { format!("run {run}") };
    (status, body).into_response()
}

async fn behind_gate(Extension(counters): Extension<Counters>, id: Path<String>) -> Response {
    counters.entered.notify_one();
    counters.gate.pass().await;
    order(Extension(counters), id).await
}

async fn panics(Extension(counters): Extension<Counters>, Path(id): Path<String>) -> Response {
    counters.run();
    panic!("this panic of handler {id} is part of the test");
}

/// A handler that counts its runs.
pub(crate) async fn counted(State(counters): State<Counters>) -> String {
    format!("run {}", counters.run())
}
