//! Behavior of every HTTP service whose handlers hold locks: one suite, which runs on each
//! framework.
//!
//! Each framework serves these routes, and holds `order:<id>` while it responds:
//!
//! | route | source of the id | lease |
//! |---|---|---|
//! | `POST /orders/{id}` | the path | 30 s |
//! | `POST /short/{id}` | the path | 600 ms |
//! | `POST /names` | the field `id` of a JSON body, a string that may be empty | 30 s |

use std::net::SocketAddr;

use dlock_tests::world::World;
use dlock_tests::{RedisServer, within};
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{RequestBuilder, Response};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::visit::{Visits, door};
use crate::{PROMPT, Shop, assert_free_at_once};

/// The body of some requests and responses.
#[derive(Deserialize, Serialize)]
pub(crate) struct Named {
    pub(crate) id: String,
}

/// A service on its own port, which ends with the runtime of its test.
pub(crate) struct Service {
    address: SocketAddr,
    pub(crate) visits: Visits,
}

impl Service {
    /// Starts a service whose locks are at `url`. The framework provides `serve`.
    pub(crate) async fn start(url: &str, serve: fn(std::net::TcpListener, Shop)) -> Self {
        let locks = dlock_runtime::LockManager::connect(url).await.expect("the lock server is reachable");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        listener.set_nonblocking(true).expect("the socket can be non-blocking");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (door, visits) = door();
        serve(listener, Shop { locks, door });
        Self { address, visits }
    }

    /// Builds a request on a new connection.
    pub(crate) fn post(&self, path: &str) -> RequestBuilder {
        reqwest::Client::new().post(format!("http://{}{path}", self.address))
    }
}

/// Sends a request in a new task. Aborting the task closes the connection.
pub(crate) fn send(request: RequestBuilder) -> JoinHandle<Response> {
    tokio::spawn(async move { request.send().await.expect("the service responds") })
}

/// Waits for the response, and returns its status, its `Retry-After`, and its text.
pub(crate) async fn answer(response: JoinHandle<Response>) -> (u16, Option<String>, String) {
    let response =
        within(PROMPT * 5, "the service responds", response).await.expect("the client does not panic");
    let retry_after =
        response.headers().get(RETRY_AFTER).map(|value| value.to_str().expect("digits").to_owned());
    (response.status().as_u16(), retry_after, response.text().await.expect("a text"))
}

/// Generates the tests of the suite for one framework.
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
            contended_request_gets_retry_after
            request_during_an_outage_gets_retry_after
            lost_lock_stops_the_handler_without_retry_after
            invalid_key_value_is_a_bad_request
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

pub(crate) async fn contended_request_gets_retry_after(serve: fn(std::net::TcpListener, Shop)) {
    let mut service = Service::start("memory://", serve).await;
    let first = send(service.post("/orders/7"));
    let visit = service.visits.next().await;

    let second = service.post("/orders/7").send().await.expect("the service responds");
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

pub(crate) async fn request_during_an_outage_gets_retry_after(serve: fn(std::net::TcpListener, Shop)) {
    let mut redis = RedisServer::start();
    let service = Service::start(&redis.url(), serve).await;
    redis.kill();

    let refused = answer(send(service.post("/orders/7"))).await;

    let text = "the service cannot do this right now: try again in a moment";
    assert_eq!(refused, (503, Some("1".to_owned()), text.to_owned()));
}

pub(crate) async fn lost_lock_stops_the_handler_without_retry_after(serve: fn(std::net::TcpListener, Shop)) {
    let world = World::in_memory();
    let mut service = Service::start(world.url(), serve).await;
    let response = send(service.post("/short/7"));
    let visit = service.visits.next().await;

    world.delete("order:7").await;

    visit.until_dropped().await;
    assert_eq!(answer(response).await, (500, None, "the request could not be completed".to_owned()));
}

pub(crate) async fn invalid_key_value_is_a_bad_request(serve: fn(std::net::TcpListener, Shop)) {
    let service = Service::start("memory://", serve).await;

    let refused = answer(send(service.post("/names").json(&Named { id: String::new() }))).await;

    assert_eq!(refused, (400, None, "a value in the request is empty or cannot be used".to_owned()));
}

/// For frameworks and settings that drop the handler when its client disconnects.
pub(crate) async fn a_client_that_hangs_up_frees_the_lock_at_once(serve: fn(std::net::TcpListener, Shop)) {
    let world = World::in_memory();
    let mut service = Service::start(world.url(), serve).await;
    let client = send(service.post("/orders/7"));
    let visit = service.visits.next().await;

    client.abort();

    visit.until_dropped().await;
    assert_free_at_once(&world, "order:7").await;
}
