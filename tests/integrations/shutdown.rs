//! Shutting down a service of axum, in the two orders of the guide on services.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use dlock_runtime::{Error, LockManager, distributed_lock};
use dlock_tests::within;
use dlock_tests::world::World;
use reqwest::RequestBuilder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::http::{answer, send};
use crate::visit::{Visits, door};
use crate::{PROMPT, Shop, assert_free_at_once};

/// How long holders may take after `shutdown` was called.
const GRACE: Duration = Duration::from_secs(5);

/// A service that stops gracefully.
struct Stoppable {
    url: String,
    locks: LockManager,
    visits: Visits,
    arrivals: mpsc::UnboundedReceiver<()>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<io::Result<()>>,
}

/// The state of its handlers.
#[derive(Clone)]
struct Front {
    shop: Shop,
    arrivals: mpsc::UnboundedSender<()>,
}

impl Stoppable {
    async fn start(world: &World) -> Self {
        let locks = world.manager().await;
        let (door, visits) = door();
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let front = Front { shop: Shop { locks: locks.clone(), door }, arrivals: arrived };
        let routes = Router::new().route("/orders/{id}", post(order)).with_state(front);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let url =
            format!("http://{}/orders/7", listener.local_addr().expect("a bound socket has an address"));
        let (stop, stopped) = oneshot::channel::<()>();
        let until_stopped = async move { drop(stopped.await) };
        let serve = axum::serve(listener, routes).with_graceful_shutdown(until_stopped);
        Self { url, locks, visits, arrivals, stop, server: tokio::spawn(async move { serve.await }) }
    }

    fn order(&self) -> RequestBuilder {
        reqwest::Client::new().post(&self.url)
    }

    /// Returns once the handler of the next request holds its lock or waits for it.
    async fn arrival(&mut self) {
        within(PROMPT * 5, "a request arrives", self.arrivals.recv()).await.expect("the service is running");
    }
}

/// Reports the request, and waits for the lock in the same poll.
async fn order(State(front): State<Front>, Path(id): Path<u64>) -> Result<String, Error> {
    front.arrivals.send(()).expect("the test is running");
    place(&front.shop, id).await
}

#[distributed_lock(key = "order:<id>", wait = "30s", manager = shop.locks)]
async fn place(shop: &Shop, id: u64) -> Result<String, Error> {
    shop.door.visit().await;
    Ok(format!("order {id}"))
}

#[tokio::test]
async fn the_server_first_serves_requests_that_wait() {
    let world = World::in_memory();
    let mut service = Stoppable::start(&world).await;
    let holder = send(service.order());
    service.arrival().await;
    let held = service.visits.next().await;
    let waiter = send(service.order());
    service.arrival().await;

    service.stop.send(()).expect("the server runs");
    held.end();
    service.visits.next().await.end();
    within(PROMPT * 5, "the server ends", service.server).await.expect("no panic").expect("it was served");
    service.locks.shutdown(GRACE).await;

    assert_eq!(answer(holder).await, (200, None, "order 7".to_owned()));
    assert_eq!(answer(waiter).await, (200, None, "order 7".to_owned()));
    assert_free_at_once(&world, "order:7").await;
}

#[tokio::test]
async fn the_locks_first_refuses_requests_that_wait() {
    let world = World::in_memory();
    let mut service = Stoppable::start(&world).await;
    let holder = send(service.order());
    service.arrival().await;
    let held = service.visits.next().await;
    let waiter = send(service.order());
    service.arrival().await;

    let locks = service.locks.clone();
    let shutdown = tokio::spawn(async move { locks.shutdown(GRACE).await });
    let (status, retry_after, _) = answer(waiter).await;
    held.end();
    within(PROMPT * 5, "the locks are shut down", shutdown).await.expect("no panic");
    let late = answer(send(service.order())).await;
    service.stop.send(()).expect("the server runs");
    within(PROMPT * 5, "the server ends", service.server).await.expect("no panic").expect("it was served");

    assert_eq!((status, retry_after.as_deref(), late.0), (503, Some("1"), 503));
    assert_eq!(answer(holder).await, (200, None, "order 7".to_owned()));
    assert_free_at_once(&world, "order:7").await;
}
