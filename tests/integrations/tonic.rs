//! tonic: the methods of a service. The health service needs no code generator.
//!
//! `check` holds `order:<service>` for 30 s, `watch` for 600 ms.

use std::error::Error as _;

use dlock_runtime::{Error, LockManager, distributed_lock};
use dlock_tests::world::World;
use dlock_tests::{RedisServer, within};
use tokio::task::JoinHandle;
use tonic::codegen::tokio_stream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::visit::{Visits, door};
use crate::{PROMPT, Shop, assert_free_at_once};

#[tokio::test]
async fn a_method_runs_while_its_lock_is_free() {
    let mut service = Service::start("memory://").await;

    for _ in 0..2 {
        let call = service.check("7");
        service.visits.next().await.end();

        let response = answer(call).await.expect("the lock is free");
        assert_eq!(response.into_inner().status, 1);
    }
}

#[tokio::test]
async fn contended_call_gets_pushback() {
    let mut service = Service::start("memory://").await;
    let first = service.check("7");
    let visit = service.visits.next().await;

    let second = answer(service.check("7")).await.expect_err("the lock is held");
    visit.end();

    let reported = (second.code(), second.message(), pushback(&second));
    let text = "another request is working on this: try again in a moment";
    assert_eq!(reported, (Code::Aborted, text, Some("1000")));
    assert!(answer(first).await.is_ok());
}

#[tokio::test]
async fn call_during_an_outage_gets_pushback() {
    let mut redis = RedisServer::start();
    let service = Service::start(&redis.url()).await;
    redis.kill();

    let refused = answer(service.check("7")).await.expect_err("there are no locks");

    let reported = (refused.code(), refused.message(), pushback(&refused));
    let text = "the service cannot do this right now: try again in a moment";
    assert_eq!(reported, (Code::Unavailable, text, Some("1000")));
}

#[tokio::test]
async fn lost_lock_stops_the_method_without_pushback() {
    let world = World::in_memory();
    let mut service = Service::start(world.url()).await;
    let call = service.watch("7");
    let visit = service.visits.next().await;

    world.delete("order:7").await;

    visit.until_dropped().await;
    let lost = answer(call).await.expect_err("the lock is lost");
    let reported = (lost.code(), lost.message(), pushback(&lost));
    assert_eq!(reported, (Code::Internal, "the request could not be completed", None));
}

#[tokio::test]
async fn invalid_key_value_is_an_invalid_argument() {
    let service = Service::start("memory://").await;

    let refused = answer(service.check("")).await.expect_err("there is no value");

    let reported = (refused.code(), refused.message(), pushback(&refused));
    assert_eq!(reported, (Code::InvalidArgument, "a value in the request is empty or cannot be used", None));
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_the_lock_at_once() {
    let world = World::in_memory();
    let mut service = Service::start(world.url()).await;
    let call = service.check("7");
    let visit = service.visits.next().await;

    call.abort();

    visit.until_dropped().await;
    assert_free_at_once(&world, "order:7").await;
}

#[tokio::test]
async fn the_error_is_the_source_of_the_status() {
    let (door, _visits) = door();
    let locks = LockManager::connect("memory://").await.expect("the in-memory backend connects");

    let request = Request::new(HealthCheckRequest { service: String::new() });
    let refused = Orders(Shop { locks, door }).check(request).await.expect_err("there is no value");

    let source = refused.source().and_then(|source| source.downcast_ref());
    assert!(matches!(source, Some(Error::InvalidKey { .. })), "{source:?}");
}

/// The service of the tests.
struct Orders(Shop);

#[tonic::async_trait]
impl Health for Orders {
    type WatchStream = tokio_stream::Empty<Result<HealthCheckResponse, Status>>;

    #[distributed_lock(key = "order:<request.get_ref().service>", lease = "30s", manager = self.0.locks)]
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.0.door.visit().await;
        Ok(Response::new(HealthCheckResponse { status: 1 }))
    }

    #[distributed_lock(key = "order:<request.get_ref().service>", lease = "600ms", manager = self.0.locks)]
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.0.door.visit().await;
        Ok(Response::new(tokio_stream::empty()))
    }
}

/// A server on its own port, which ends with the runtime of its test.
struct Service {
    url: String,
    visits: Visits,
}

type Call<T> = JoinHandle<Result<Response<T>, Status>>;

impl Service {
    async fn start(url: &str) -> Self {
        let locks = LockManager::connect(url).await.expect("the lock server is reachable");
        let port = "127.0.0.1:0".parse().expect("an address");
        let incoming = TcpIncoming::bind(port).expect("there is a free port");
        let url = format!("http://{}", incoming.local_addr().expect("a bound socket has an address"));
        let (door, visits) = door();
        let orders = HealthServer::new(Orders(Shop { locks, door }));
        tokio::spawn(Server::builder().add_service(orders).serve_with_incoming(incoming));
        Self { url, visits }
    }

    /// Calls `check` in a new task. Aborting the task resets the stream.
    fn check(&self, service: &str) -> Call<HealthCheckResponse> {
        let (mut client, request) = (self.client(), HealthCheckRequest { service: service.to_owned() });
        tokio::spawn(async move { client.check(request).await })
    }

    fn watch(&self, service: &str) -> Call<tonic::Streaming<HealthCheckResponse>> {
        let (mut client, request) = (self.client(), HealthCheckRequest { service: service.to_owned() });
        tokio::spawn(async move { client.watch(request).await })
    }

    /// Creates a client with its own connection.
    fn client(&self) -> HealthClient<Channel> {
        HealthClient::new(Endpoint::from_shared(self.url.clone()).expect("a URL").connect_lazy())
    }
}

async fn answer<T>(call: Call<T>) -> Result<Response<T>, Status> {
    within(PROMPT * 5, "the service responds", call).await.expect("the client does not panic")
}

fn pushback(status: &Status) -> Option<&str> {
    let value = status.metadata().get("grpc-retry-pushback-ms")?;
    Some(value.to_str().expect("digits"))
}
