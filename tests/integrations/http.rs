//! What every service over HTTP must do with the locks of its handlers: one suite, run on each framework.
//!
//! Each framework serves these routes, and holds `order:<id>` while it answers:
//!
//! | route | the id is in | lease |
//! |---|---|---|
//! | `POST /orders/{id}` | the path | 30 s |
//! | `POST /short/{id}` | the path | 600 ms |
//! | `POST /names` | the field `id` of a JSON body; a text, which may be empty | 30 s |

use std::net::SocketAddr;

use dlock_tests::world::World;
use dlock_tests::{RedisServer, within};
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{RequestBuilder, Response};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::visit::{Visits, door};
use crate::{PROMPT, Shop, assert_free_at_once};

/// What a test asks for, or a handler is asked for.
#[derive(Deserialize, Serialize)]
pub(crate) struct Named {
    pub(crate) id: String,
}

/// A service on a port of its own, which ends with the runtime of its test.
pub(crate) struct Service {
    address: SocketAddr,
    pub(crate) visits: Visits,
}

impl Service {
    /// Starts a service whose locks are at `url`. `serve` is the framework's.
    pub(crate) async fn start(url: &str, serve: fn(std::net::TcpListener, Shop)) -> Self {
        let locks = dlock_runtime::LockManager::connect(url).await.expect("the locks can be reached");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        listener.set_nonblocking(true).expect("a socket can be set to that");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (door, visits) = door();
        serve(listener, Shop { locks, door });
        Self { address, visits }
    }

    /// Begins a request of a client with a connection of its own.
    pub(crate) fn post(&self, path: &str) -> RequestBuilder {
        reqwest::Client::new().post(format!("http://{}{path}", self.address))
    }
}

/// Sends a request in a task of its own; aborting it closes the connection.
pub(crate) fn send(request: RequestBuilder) -> JoinHandle<Response> {
    tokio::spawn(async move { request.send().await.expect("the service answers") })
}

/// Waits for the answer, and takes it apart: status, `Retry-After`, text.
pub(crate) async fn answer(response: JoinHandle<Response>) -> (u16, Option<String>, String) {
    let response =
        within(PROMPT * 5, "the service answers", response).await.expect("the client does not panic");
    let retry_after =
        response.headers().get(RETRY_AFTER).map(|value| value.to_str().expect("digits").to_owned());
    (response.status().as_u16(), retry_after, response.text().await.expect("a text"))
}

/// Makes the suite tests of a framework.
macro_rules! suite {
    ($serve:path: $($test:ident)+) => {$(
        #[tokio::test]
        async fn $test() {
            $crate::http::$test($serve).await;
        }
    )+};
    ($serve:path) => {
        $crate::http::suite! { $serve:
            a_handler_runs_while_its_lock_is_free
            a_second_request_is_told_to_come_back
            requests_without_locks_are_told_to_come_back
            a_lost_lock_stops_the_handler_and_nobody_is_told_to_repeat_it
            a_value_that_makes_no_key_is_the_mistake_of_the_request
        }
    };
}
pub(crate) use suite;

pub(crate) async fn a_handler_runs_while_its_lock_is_free(serve: fn(std::net::TcpListener, Shop)) {
    let mut service = Service::start("memory://", serve).await;

    for _ in 0..2 {
        let response = send(service.post("/orders/7"));
        service.visits.next().await.end();

        assert_eq!(answer(response).await, (200, None, "order 7".to_owned()));
    }
}

pub(crate) async fn a_second_request_is_told_to_come_back(serve: fn(std::net::TcpListener, Shop)) {
    let mut service = Service::start("memory://", serve).await;
    let first = send(service.post("/orders/7"));
    let visit = service.visits.next().await;

    let second = service.post("/orders/7").send().await.expect("the service answers");
    visit.end();

    let content = second.headers().get(CONTENT_TYPE).cloned();
    assert_eq!(
        content.as_ref().map(reqwest::header::HeaderValue::as_bytes),
        Some(&b"text/plain; charset=utf-8"[..])
    );
    let text = "another request is working on this: try again in a moment";
    assert_eq!(answer(tokio::spawn(async { second })).await, (409, Some("1".to_owned()), text.to_owned()));
    assert_eq!(answer(first).await.0, 200);
}

pub(crate) async fn requests_without_locks_are_told_to_come_back(serve: fn(std::net::TcpListener, Shop)) {
    let mut redis = RedisServer::start();
    let service = Service::start(&redis.url(), serve).await;
    redis.kill();

    let refused = answer(send(service.post("/orders/7"))).await;

    let text = "the service cannot do this right now: try again in a moment";
    assert_eq!(refused, (503, Some("1".to_owned()), text.to_owned()));
}

pub(crate) async fn a_lost_lock_stops_the_handler_and_nobody_is_told_to_repeat_it(
    serve: fn(std::net::TcpListener, Shop),
) {
    let world = World::in_memory();
    let mut service = Service::start(world.url(), serve).await;
    let response = send(service.post("/short/7"));
    let visit = service.visits.next().await;

    world.delete("order:7").await;

    visit.until_dropped().await;
    assert_eq!(answer(response).await, (500, None, "the request could not be completed".to_owned()));
}

pub(crate) async fn a_value_that_makes_no_key_is_the_mistake_of_the_request(
    serve: fn(std::net::TcpListener, Shop),
) {
    let service = Service::start("memory://", serve).await;

    let refused = answer(send(service.post("/names").json(&Named { id: String::new() }))).await;

    assert_eq!(refused, (400, None, "a value in the request is empty or cannot be used".to_owned()));
}

/// For the frameworks and settings that drop the handler of a client that has hung up.
pub(crate) async fn a_client_that_hangs_up_frees_the_lock_at_once(serve: fn(std::net::TcpListener, Shop)) {
    let world = World::in_memory();
    let mut service = Service::start(world.url(), serve).await;
    let client = send(service.post("/orders/7"));
    let visit = service.visits.next().await;

    client.abort();

    visit.until_dropped().await;
    assert_free_at_once(&world, "order:7").await;
}
