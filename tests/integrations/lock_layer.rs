//! `LockLayer` around the services of axum, hyper, and tonic, over memory and over Redis.
//!
//! | route | handler |
//! |---|---|
//! | `POST /orders/{id}` | runs until the test ends it |
//! | `POST /stream/{id}` | returns at once, and its body ends when the test ends it |
//!
//! The key is `order:<x-order>`, a header. Requests to `/short` have a lease of 600 ms.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use dlock_runtime::tower::LockLayer;
use dlock_runtime::{Error, KeyBuilder, LockManager, Options};
use dlock_tests::RedisServer;
use dlock_tests::world::World;
use futures_util::StreamExt;
use http::request::Parts;
use http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower::{Layer, ServiceExt, service_fn};

use crate::http::{Service, answer, send};
use crate::visit::{Door, Visits, door};
use crate::{Shop, assert_free_at_once};

/// Generates the tests of the suite for one server.
macro_rules! suite {
    ($module:ident: $serve:path) => {
        mod $module {
            #[tokio::test]
            async fn a_handler_runs_while_its_lock_is_free() {
                let redis = dlock_tests::RedisServer::start();
                for url in ["memory://", &redis.url()] {
                    super::a_handler_runs_while_its_lock_is_free(url, $serve).await;
                }
            }

            #[tokio::test]
            async fn contended_request_gets_a_problem_document() {
                let redis = dlock_tests::RedisServer::start();
                for url in ["memory://", &redis.url()] {
                    super::contended_request_gets_a_problem_document(url, $serve).await;
                }
            }

            #[tokio::test]
            async fn request_during_an_outage_gets_retry_after() {
                super::request_during_an_outage_gets_retry_after($serve).await;
            }

            #[tokio::test]
            async fn lost_lock_drops_the_handler() {
                super::lost_lock_drops_the_handler($serve).await;
            }

            #[tokio::test]
            async fn request_without_a_key_is_a_bad_request() {
                super::request_without_a_key_is_a_bad_request($serve).await;
            }

            #[tokio::test]
            async fn a_client_that_hangs_up_frees_the_lock_at_once() {
                super::a_client_that_hangs_up_frees_the_lock_at_once($serve).await;
            }

            #[tokio::test]
            async fn a_stream_holds_the_lock_to_its_end() {
                super::a_stream_holds_the_lock_to_its_end($serve).await;
            }

            #[tokio::test]
            async fn a_loss_ends_the_stream_with_an_error() {
                super::a_loss_ends_the_stream_with_an_error($serve).await;
            }
        }
    };
}

suite!(on_axum: super::serve_axum);
suite!(on_hyper: super::serve_hyper);

type Serve = fn(std::net::TcpListener, Shop);

async fn a_handler_runs_while_its_lock_is_free(url: &str, serve: Serve) {
    let mut service = Service::start(url, serve).await;

    for _ in 0..2 {
        let response = send(service.post("/orders/7").header("x-order", "7"));
        service.visits.next().await.end();

        assert_eq!(answer(response).await, (200, None, "done".to_owned()));
    }
}

async fn contended_request_gets_a_problem_document(url: &str, serve: Serve) {
    let mut service = Service::start(url, serve).await;
    let first = send(service.post("/orders/7").header("x-order", "7"));
    let visit = service.visits.next().await;

    let second = service.post("/orders/7").header("x-order", "7").send().await.expect("the service responds");
    visit.end();

    assert_eq!(second.headers()["content-type"], "application/problem+json");
    let problem: serde_json::Value = {
        let (status, after, text) = answer(tokio::spawn(async { second })).await;
        assert_eq!((status, after.as_deref()), (409, Some("1")));
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!((&problem["status"], &problem["code"]), (&409.into(), &"contended".into()), "{problem}");
    assert_eq!(answer(first).await.0, 200);
}

async fn request_during_an_outage_gets_retry_after(serve: Serve) {
    let mut redis = RedisServer::start();
    let service = Service::start(&redis.url(), serve).await;
    redis.kill();

    let (status, after, text) = answer(send(service.post("/orders/7").header("x-order", "7"))).await;

    assert_eq!((status, after.as_deref()), (503, Some("1")));
    assert!(text.contains("\"code\":\"unavailable\""), "{text}");
}

async fn lost_lock_drops_the_handler(serve: Serve) {
    let world = World::in_memory();
    let mut service = Service::start(world.url(), serve).await;
    let response = send(service.post("/short/7").header("x-order", "7"));
    let visit = service.visits.next().await;

    world.delete("order:7").await;

    visit.until_dropped().await;
    let (status, after, text) = answer(response).await;
    assert_eq!((status, after), (500, None));
    assert!(text.contains("\"code\":\"lost\""), "{text}");
}

async fn request_without_a_key_is_a_bad_request(serve: Serve) {
    let service = Service::start("memory://", serve).await;

    let (status, _, text) = answer(send(service.post("/orders/7"))).await;

    assert_eq!(status, 400);
    assert!(text.contains("\"code\":\"invalid_key\""), "{text}");
}

async fn a_client_that_hangs_up_frees_the_lock_at_once(serve: Serve) {
    let world = World::in_memory();
    let mut service = Service::start(world.url(), serve).await;
    let client = send(service.post("/orders/7").header("x-order", "7"));
    let visit = service.visits.next().await;

    client.abort();

    visit.until_dropped().await;
    assert_free_at_once(&world, "order:7").await;
}

async fn a_stream_holds_the_lock_to_its_end(serve: Serve) {
    let world = World::in_memory();
    let mut service = Service::start(world.url(), serve).await;
    let response =
        service.post("/stream/7").header("x-order", "7").send().await.expect("the service responds");
    let visit = service.visits.next().await;
    assert_eq!(response.status(), 200);

    let held = world.manager().await.lock("order:7").try_acquire().await;
    assert!(matches!(held, Ok(None)), "the response has begun and its body has not ended: {held:?}");
    visit.end();

    assert_eq!(response.text().await.expect("the stream ends"), "begin end");
    assert_free_at_once(&world, "order:7").await;
}

async fn a_loss_ends_the_stream_with_an_error(serve: Serve) {
    let world = World::in_memory();
    let mut service = Service::start(world.url(), serve).await;
    let response =
        service.post("/short-stream/7").header("x-order", "7").send().await.expect("the service responds");
    let visit = service.visits.next().await;

    world.delete("order:7").await;

    visit.until_dropped().await;
    assert!(response.text().await.is_err(), "the stream does not end like a complete one");
}

fn key(parts: &Parts) -> KeyBuilder {
    let order = parts.headers.get("x-order").map(|order| order.as_bytes().to_vec());
    KeyBuilder::default().text("order:").part("x-order", &order)
}

/// The handlers, by path.
async fn handle(State(door): State<Door>, request: Request<Body>) -> Response<Body> {
    if !request.uri().path().contains("stream") {
        door.visit().await;
        return Response::new(Body::from("done"));
    }
    let frames = futures_util::stream::once(ready("begin ")).chain(futures_util::stream::once(async move {
        door.visit().await;
        "end"
    }));
    Response::new(Body::from_stream(frames.map(|text| Ok::<_, Infallible>(Bytes::from(text)))))
}

const SHORT: Duration = Duration::from_millis(600);

fn serve_axum(listener: std::net::TcpListener, shop: Shop) {
    let locked = LockLayer::new(shop.locks, key);
    let routes = Router::new()
        .route("/orders/{id}", post(handle).route_layer(locked.clone()))
        .route("/short/{id}", post(handle).route_layer(locked.clone().lease(SHORT)))
        .route("/stream/{id}", post(handle).route_layer(locked.clone().until_body_end(true)))
        .route("/short-stream/{id}", post(handle).route_layer(locked.lease(SHORT).until_body_end(true)))
        .with_state(shop.door);
    let listener = tokio::net::TcpListener::from_std(listener).expect("it is in a runtime");
    tokio::spawn(async move { axum::serve(listener, routes).await });
}

fn serve_hyper(listener: std::net::TcpListener, shop: Shop) {
    let Shop { locks, door } = shop;
    let handler = move |request: Request<hyper::body::Incoming>| {
        let door = door.clone();
        async move { Ok::<_, Infallible>(handle(State(door), request.map(Body::new)).await) }
    };
    let locked = LockLayer::new(locks, key);
    let (plain, stream) = (locked.clone(), locked.clone().until_body_end(true));
    let (short, short_stream) = (locked.clone().lease(SHORT), locked.lease(SHORT).until_body_end(true));
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let layer = match request.uri().path() {
            path if path.starts_with("/stream") => &stream,
            path if path.starts_with("/short-stream") => &short_stream,
            path if path.starts_with("/short") => &short,
            _ => &plain,
        };
        layer.layer(service_fn(handler.clone())).oneshot(request)
    });
    let listener = tokio::net::TcpListener::from_std(listener).expect("it is in a runtime");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await
            });
        }
    });
}

#[tokio::test]
async fn a_call_of_tonic_gets_the_status_of_the_error() {
    let mut health = HealthOverGrpc::start("memory://").await;
    let first = tokio::spawn(health.check("7"));
    let visit = health.visits.next().await;

    let contended = health.check("7").await.expect_err("the lock is held");
    let invalid = health.check("").await.expect_err("there is no key");
    visit.end();

    let pushback = contended.metadata().get("grpc-retry-pushback-ms").map(|value| value.as_bytes().to_vec());
    assert_eq!((contended.code(), pushback), (Code::Aborted, Some(b"1000".to_vec())));
    assert_eq!(contended.message(), "another request is working on this: try again in a moment");
    assert_eq!(invalid.code(), Code::InvalidArgument);
    assert!(first.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn a_stream_of_tonic_holds_the_lock_to_its_end() {
    let world = World::in_memory();
    let mut health = HealthOverGrpc::start(world.url()).await;
    let request = HealthOverGrpc::request("7");
    let mut stream = health.client().watch(request).await.expect("the lock is free").into_inner();
    let visit = health.visits.next().await;

    let held = world.manager().await.lock("order:7").try_acquire().await;
    assert!(matches!(held, Ok(None)), "the stream has begun: {held:?}");
    visit.end();

    assert!(stream.message().await.expect("a message").is_some());
    assert!(stream.message().await.expect("the end").is_none());
    assert_free_at_once(&world, "order:7").await;
}

/// A server of tonic with the layer around all of its services.
struct HealthOverGrpc {
    url: String,
    visits: Visits,
}

impl HealthOverGrpc {
    async fn start(url: &str) -> Self {
        let locks = LockManager::connect(url).await.expect("the lock server is reachable");
        let port = "127.0.0.1:0".parse().expect("an address");
        let incoming = TcpIncoming::bind(port).expect("there is a free port");
        let url = format!("http://{}", incoming.local_addr().expect("a bound socket has an address"));
        let (door, visits) = door();
        let server = Server::builder()
            .layer(LockLayer::new(locks, key).until_body_end(true))
            .add_service(HealthServer::new(VisitedHealth(door)));
        tokio::spawn(server.serve_with_incoming(incoming));
        Self { url, visits }
    }

    /// Creates a client with its own connection.
    fn client(&self) -> HealthClient<Channel> {
        HealthClient::new(Endpoint::from_shared(self.url.clone()).expect("a URL").connect_lazy())
    }

    fn request(order: &str) -> tonic::Request<HealthCheckRequest> {
        let mut request = tonic::Request::new(HealthCheckRequest { service: String::new() });
        if !order.is_empty() {
            request.metadata_mut().insert("x-order", order.parse().expect("a metadata value"));
        }
        request
    }

    fn check(&self, order: &str) -> impl Future<Output = Result<HealthCheckResponse, Status>> + use<> {
        let (mut client, request) = (self.client(), Self::request(order));
        async move { client.check(request).await.map(tonic::Response::into_inner) }
    }
}

struct VisitedHealth(Door);

#[tonic::async_trait]
impl Health for VisitedHealth {
    type WatchStream = futures_util::stream::BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        _: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        self.0.visit().await;
        Ok(tonic::Response::new(HealthCheckResponse { status: 1 }))
    }

    async fn watch(
        &self,
        _: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let door = self.0.clone();
        let stream = futures_util::stream::once(async move {
            door.visit().await;
            Ok(HealthCheckResponse { status: 1 })
        });
        Ok(tonic::Response::new(stream.boxed()))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let locks = LockManager::connect("memory://").await.expect("the in-memory backend connects");
    let mut service = LockLayer::new(locks, |_: &Parts| "order:7").layer(ReadyOnce { is_ready: false });

    for _ in 0..2 {
        let ready = service.ready().await.expect("it becomes ready");
        let response = tower::Service::call(ready, Request::new(())).await.expect("it was ready");
        assert_eq!(response.status(), 200);
    }
}

/// A service that must be polled before each call, and whose clones are not ready.
struct ReadyOnce {
    is_ready: bool,
}

impl Clone for ReadyOnce {
    fn clone(&self) -> Self {
        Self { is_ready: false }
    }
}

impl tower::Service<Request<()>> for ReadyOnce {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "it is called without being ready");
        ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test]
async fn an_outer_layer_finds_the_error_in_the_response() {
    let locks = LockManager::connect("memory://").await.expect("the in-memory backend connects");
    let _held = locks.lock("order:7").acquire().await.expect("the lock is free");
    let service = LockLayer::new(locks, |_: &Parts| "order:7").layer(ReadyOnce { is_ready: false });

    let refused = service.oneshot(Request::new(())).await.expect("a response");

    assert!(matches!(refused.extensions().get(), Some(Error::Contended { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_layer_with_options_out_of_bounds_does_not_start() {
    let locks = LockManager::connect("memory://").await.expect("the in-memory backend connects");
    let layer = || LockLayer::new(locks.clone(), |_: &Parts| "order:7");
    let (short, long) = (Duration::from_millis(99), Duration::from_secs(366 * 24 * 3600));
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let refused = [
        (Options::new().lease(short), "lease"),
        (Options::new().lease(long), "lease"),
        (Options::new().max_hold(short), "max_hold"),
        (Options::new().min_hold(long), "min_hold"),
        (Options::new().lease(minute).max_hold(second), "`lease` is longer than `max_hold`"),
        // Longer than the lease of the manager, 30 s.
        (Options::new().renew(false).min_hold(minute), "min_hold"),
    ];
    for (options, part) in refused {
        let build = AssertUnwindSafe(|| drop(layer().options(options).layer(())));
        let panic = catch_unwind(build).expect_err("the options are refused");
        let message = panic.downcast::<String>().expect("it has a message");
        assert!(message.contains(part), "{part}: {message}");
    }
    for lease in [short, long] {
        assert!(catch_unwind(AssertUnwindSafe(|| drop(layer().lease(lease)))).is_err(), "{lease:?}");
    }
    drop(layer().options(Options::new().max_hold(minute)).lease(second).layer(()));
}
