//! Other layers around and inside, and hyper without axum.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use dlock_runtime::idempotent::OnCrash;
use dlock_runtime::tower::{IDEMPOTENT_REPLAYED, IdempotencyLayer, LockLayer, RequestScope};
use dlock_runtime::{LockManager, Options};
use dlock_tests::world::World;
use futures_util::FutureExt as _;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, ORIGIN};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::cors::{Any, CorsLayer};
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;

use crate::shop::{Counters, answer, counted, post as post_to, post_body};

async fn layer() -> IdempotencyLayer<impl Fn(&Parts) -> Result<RequestScope, StatusCode> + Clone> {
    let manager = LockManager::connect(World::in_memory().url()).await.expect("the store is reachable");
    IdempotencyLayer::new(manager, |_: &Parts| Ok(RequestScope::everyone()))
}

#[tokio::test(start_paused = true)]
async fn a_timeout_inside_runs_the_handler_again() {
    let counters = Counters::default();
    let handler = async |State(counters): State<Counters>| {
        if counters.run() == 1 {
            std::future::pending::<()>().await;
        }
        "in time"
    };
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(1));
    let routes = Router::new()
        .route("/", post(handler).route_layer(timeout).route_layer(layer().await))
        .with_state(counters.clone());

    let first = answer(routes.clone().oneshot(post_body("k", "")).await.expect("a response")).await;
    let second = answer(routes.clone().oneshot(post_body("k", "")).await.expect("a response")).await;
    let third = answer(routes.oneshot(post_body("k", "")).await.expect("a response")).await;

    assert_eq!((first.status, second.status, third.status), (408, 200, 200));
    assert!(!second.is_replayed() && third.is_replayed());
}

/// The handler may have had its effects, so the loss of its lock is no end that is forgotten. Its
/// error may come from the loss, such as a refused fencing token, so it is not stored.
#[tokio::test(start_paused = true)]
async fn a_lock_lost_inside_counts_as_a_crash() {
    const LEASE: Duration = Duration::from_secs(1);
    for (returns, status) in [(Some(200), 500), (None, 500), (Some(422), 422)] {
        for (on_crash, runs) in [(OnCrash::Fail, 1), (OnCrash::Rerun, 2)] {
            let counters = Counters::default();
            let handler = async move |State(counters): State<Counters>| {
                if counters.run() > 1 {
                    return (StatusCode::OK, "charged");
                }
                // As in a frozen process: the lease passes within one poll.
                let _ = tokio::time::advance(2 * LEASE).now_or_never();
                match returns {
                    Some(code) => (StatusCode::from_u16(code).expect("a status"), "charged"),
                    None => std::future::pending().await,
                }
            };
            let locks = LockManager::connect("memory://").await.expect("it connects");
            let lock = LockLayer::new(locks, |_: &Parts| "account:7");
            let lock = lock.options(Options::new().lease(LEASE).renew(false));
            let routes = Router::new()
                .route("/", post(handler).route_layer(lock).route_layer(layer().await.on_crash(on_crash)))
                .with_state(counters.clone());

            let first = answer(routes.clone().oneshot(post_body("k", "")).await.expect("a response")).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            let second = answer(routes.oneshot(post_body("k", "")).await.expect("a response")).await;

            assert_eq!(first.status, status, "{returns:?}, {on_crash:?}: {first:?}");
            assert_eq!(counters.runs(), runs, "{returns:?}, {on_crash:?}: {second:?}");
            let expected = if on_crash == OnCrash::Rerun { 200 } else { 500 };
            assert_eq!(second.status, expected, "{returns:?}, {on_crash:?}: {second:?}");
        }
    }
}

/// A temporary error, such as 14, has status 200.
#[tokio::test]
async fn an_error_of_grpc_runs_the_handler_again() {
    for (code, runs) in [("14", 2), ("0", 1)] {
        let counters = Counters::default();
        let handler = async move |State(counters): State<Counters>| {
            counters.run();
            [("grpc-status", code)]
        };
        let routes =
            Router::new().route("/", post(handler).route_layer(layer().await)).with_state(counters.clone());

        for _ in 0..2 {
            let sent = answer(routes.clone().oneshot(post_body("k", "")).await.expect("a response")).await;
            assert_eq!(sent.status, 200);
        }
        assert_eq!(counters.runs(), runs, "{code}");
    }
}

#[tokio::test]
async fn inside_of_nest_the_whole_path_counts() {
    let pay = post(async |State(counters): State<Counters>| counters.run().to_string());
    let inner = Router::new().route("/pay", pay).route_layer(layer().await);
    let routes = Router::new().nest("/accounts/{id}", inner).with_state(Counters::default());
    let send = async |path: &str| {
        let request = post_to(path, "k").body(Body::empty()).expect("a request");
        answer(routes.clone().oneshot(request).await.expect("a response")).await
    };

    let first = send("/accounts/1/pay").await;
    let other = send("/accounts/2/pay").await;
    let again = send("/accounts/1/pay").await;

    assert_eq!((first.status, again.status, again.is_replayed()), (200, 200, true));
    assert_eq!(other.status, 422, "{other:?}");
}

#[tokio::test]
async fn compression_outside_compresses_replays_too() {
    let handler = async |State(counters): State<Counters>| format!("{} {}", counters.run(), "x".repeat(1000));
    let routes = Router::new()
        .route("/", post(handler).route_layer(layer().await))
        .layer(CompressionLayer::new())
        .with_state(Counters::default());
    let send = async |encoding: Option<&str>| {
        let mut request = post_body("k", "");
        if let Some(encoding) = encoding {
            request.headers_mut().insert(ACCEPT_ENCODING, encoding.parse().expect("a value"));
        }
        answer(routes.clone().oneshot(request).await.expect("a response")).await
    };

    let first = send(Some("gzip")).await;
    let replay = send(Some("gzip")).await;
    let plain = send(None).await;

    assert_eq!(
        (&first.headers[CONTENT_ENCODING], &replay.headers[CONTENT_ENCODING]),
        (&"gzip".parse().expect("a value"), &"gzip".parse().expect("a value"))
    );
    assert!(replay.is_replayed() && first.body == replay.body && first.body.len() < 200);
    assert!(plain.is_replayed() && !plain.headers.contains_key(CONTENT_ENCODING));
    assert_eq!(plain.body, format!("1 {}", "x".repeat(1000)));
}

#[tokio::test]
async fn cors_outside_exposes_the_replay() {
    let cors = CorsLayer::new().allow_origin(Any).expose_headers([IDEMPOTENT_REPLAYED]);
    let routes = Router::new()
        .route("/", post(counted).route_layer(layer().await))
        .layer(cors)
        .with_state(Counters::default());
    let mut replays = Vec::new();
    for _ in 0..2 {
        let mut request = post_body("k", "");
        request.headers_mut().insert(ORIGIN, "https://shop.example".parse().expect("a value"));
        let answer = answer(routes.clone().oneshot(request).await.expect("a response")).await;
        assert_eq!(answer.headers["access-control-allow-origin"], "*");
        assert_eq!(answer.headers["access-control-expose-headers"], "idempotent-replayed");
        replays.push(answer.is_replayed());
    }

    assert_eq!(replays, [false, true]);
}

/// Inside a timeout, CORS, and compression.
#[tokio::test(start_paused = true)]
async fn the_usual_stack_of_layers_replays() {
    let counters = Counters::default();
    let handler = async |State(counters): State<Counters>| {
        let run = counters.run();
        tokio::time::sleep(Duration::from_secs(3)).await;
        (StatusCode::CREATED, [("location", "/orders/1")], format!("{run} {}", "x".repeat(1000)))
    };
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(1));
    let routes = Router::new()
        .route("/", post(handler).route_layer(layer().await).route_layer(timeout))
        .layer(CompressionLayer::new())
        .layer(CorsLayer::new().allow_origin(Any).expose_headers([IDEMPOTENT_REPLAYED]))
        .with_state(counters.clone());
    let mut answers = Vec::new();
    for pause in [0, 1, 5, 0] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let mut request = post_body("k", "");
        request.headers_mut().insert(ORIGIN, "https://shop.example".parse().expect("a value"));
        request.headers_mut().insert(ACCEPT_ENCODING, "gzip".parse().expect("a value"));
        answers.push(answer(routes.clone().oneshot(request).await.expect("a response")).await);
    }

    let [late, running, first, replay] = &answers[..] else { unreachable!("four requests were sent") };
    assert_eq!([late, running, first, replay].map(|answer| answer.status), [408, 409, 201, 201]);
    assert_eq!(counters.runs(), 1, "the handler ran on after the timeout");
    assert!(first.is_replayed() && replay.is_replayed() && first.body == replay.body);
    for header in ["location", "content-encoding", "access-control-expose-headers"] {
        assert!(first.headers.contains_key(header), "{header}");
        assert_eq!(first.headers[header], replay.headers[header], "{header}");
    }
    assert_eq!(replay.headers["access-control-expose-headers"], "idempotent-replayed");
}

/// A service that must be polled before each call, and whose clones are not ready.
struct ReadyOnce(bool);

impl Clone for ReadyOnce {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl<B> Service<Request<B>> for ReadyOnce {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0 = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.0), "it is called without being ready");
        ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let mut service = layer().await.layer(ReadyOnce(false));
    for key in ["a", "b", ""] {
        let mut request = post_body(key, "");
        if key.is_empty() {
            request.headers_mut().remove("idempotency-key");
        }

        let ready = ServiceExt::<Request<Body>>::ready(&mut service).await.expect("it becomes ready");
        let response = Service::call(ready, request).await.expect("it was ready");

        assert_eq!(response.status(), 200, "{key}");
    }
}

#[tokio::test]
async fn a_server_of_hyper_replays_byte_for_byte() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = service_fn(move |request: Request<_>| {
        let counted = Arc::clone(&counted);
        async move {
            let body: dlock_runtime::tower::RequestBody<hyper::body::Incoming> = request.into_body();
            let body = body.collect().await.expect("the body is complete").to_bytes();
            let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(format!("{body:?}, run {run}")))))
        }
    });
    let service = layer().await.layer(handler);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await
            });
        }
    });

    let mut texts = Vec::new();
    for _ in 0..2 {
        let request = reqwest::Client::new().post(format!("http://{address}/orders/1"));
        let request = request.header("idempotency-key", "\"k\"").body("a");
        let response = request.send().await.expect("the service responds");
        assert_eq!(response.headers().contains_key("idempotent-replayed"), !texts.is_empty());
        texts.push(response.text().await.expect("a text"));
    }

    assert_eq!(texts, ["b\"a\", run 1", "b\"a\", run 1"]);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// A request without a key passes through with its body, which is not read.
#[tokio::test]
async fn a_request_without_a_key_keeps_its_body() {
    let handler = async |body: String| body;
    let routes: Router = Router::new().route("/", post(handler).route_layer(layer().await));
    let request = Request::post("/").body(Body::from("as it is")).expect("a request");

    let passed = answer(routes.oneshot(request).await.expect("a response")).await;

    assert_eq!(passed.body, "as it is");
}

#[tokio::test]
async fn a_body_limit_outside_is_reported_as_one() {
    let routes = Router::new()
        .route("/", post(counted))
        .route_layer(layer().await)
        .layer(RequestBodyLimitLayer::new(4))
        .with_state(Counters::default());
    // Without a length that is known in advance, so that the limit ends the body.
    let chunked = Body::from_stream(futures_util::stream::iter(["long", " body"].map(Ok::<_, Infallible>)));

    let refused = answer(routes.oneshot(post_body("k", chunked)).await.expect("a response")).await;

    assert_eq!((refused.status, refused.code().as_deref()), (413, Some("body_too_large")));
}
