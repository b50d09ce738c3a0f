// cargo run -p dlock-examples --example service
//! A complete service of axum: a handler with a JSON body, an error type of its own, a graceful
//! shutdown, and unit tests (`cargo test -p dlock-examples --example service`).
//!
//! Two customers want the last ticket, one of them twice. Then the service stops by itself, as it
//! would on SIGTERM or Ctrl-C. `DLOCK_URL` selects where the locks are stored; the default is this
//! process.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use dlock_runtime::{Error, distributed_lock};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// The body of `POST /tickets`.
#[derive(Debug, Deserialize)]
struct Purchase {
    concert: String,
    customer: u64,
}

/// The body of the reply.
#[derive(Debug, PartialEq, Serialize)]
struct Ticket {
    concert: String,
    left: u32,
}

/// Sells a ticket. For one concert, at most one caller across all processes is in here.
#[distributed_lock(key = "concert:<purchase.concert>", lease = "10s", wait = "5s")]
async fn buy(State(office): State<Office>, purchase: Json<Purchase>) -> Result<Json<Ticket>, BuyError> {
    let left = office.tickets_left();
    // The payment. Without the lock, another call would read the same number meanwhile.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let left = left.checked_sub(1).ok_or(BuyError::SoldOut)?;
    office.sold_to(purchase.customer, left);
    Ok(Json(Ticket { concert: purchase.0.concert, left }))
}

/// Why no ticket was sold.
#[derive(Debug, thiserror::Error)]
enum BuyError {
    #[error("there is no ticket left")]
    SoldOut,
    /// The lock was not acquired, or was lost.
    #[error(transparent)]
    Lock(#[from] Error),
}

impl IntoResponse for BuyError {
    /// A JSON body in the style of the service. Of a lock error, the client gets the status, the
    /// message, and the headers, such as `Retry-After`. The rest is for the log.
    fn into_response(self) -> Response {
        let body = |message: &str| Json(serde_json::json!({ "error": message }));
        match self {
            Self::SoldOut => (StatusCode::GONE, body("there is no ticket left")).into_response(),
            Self::Lock(error) => {
                eprintln!("  no lock: {error}");
                let status = StatusCode::from_u16(error.http_status());
                let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                (status, AppendHeaders(error.headers()), body(error.client_message())).into_response()
            }
        }
    }
}

/// The state of the service: a stand-in for its database.
#[derive(Clone, Debug, Default)]
struct Office(Arc<Mutex<Sales>>);

#[derive(Debug, Default)]
struct Sales {
    left: u32,
    customers: Vec<u64>,
}

impl Office {
    fn with_tickets(left: u32) -> Self {
        Self(Arc::new(Mutex::new(Sales { left, customers: Vec::new() })))
    }

    fn tickets_left(&self) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).left
    }

    fn sold_to(&self, customer: u64, left: u32) {
        let mut sales = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sales.left = left;
        sales.customers.push(customer);
    }

    fn customers(&self) -> Vec<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).customers.clone()
    }
}

fn app(office: Office) -> Router {
    Router::new().route("/tickets", post(buy)).route("/ready", get(ready)).with_state(office)
}

/// The readiness probe: whether the server of the locks replies.
async fn ready() -> Result<(), Error> {
    dlock_runtime::manager()?.ready().await
}

/// Completes on SIGTERM, on Ctrl-C, or when `or` does.
async fn stopped(or: impl Future) {
    #[cfg(unix)]
    let terminated = async {
        let signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
        match signal {
            Ok(mut signal) => _ = signal.recv().await,
            Err(_) => std::future::pending().await, // it cannot be waited for
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
        _ = or => {}
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let locks = dlock_runtime::init(&dlock_examples::url()).await?;

    let office = Office::with_tickets(1);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("the ticket office listens on http://{address}, as `{}`", locks.owner());
    let (done, customers_left) = oneshot::channel::<()>();
    let customers = tokio::spawn(async move {
        let outcome = visit(address).await;
        drop(done);
        outcome
    });

    // The server first: every accepted request may still wait for its lock and finish. Then the
    // locks, so that no other process waits for a lease to expire.
    axum::serve(listener, app(office.clone())).with_graceful_shutdown(stopped(customers_left)).await?;
    locks.shutdown(Duration::from_secs(5)).await;

    let mut statuses = customers.await??;
    statuses.sort_unstable();
    println!("stopped; the ticket went to customer {:?}", office.customers());
    assert_eq!(statuses, [200, 410, 410], "one ticket is sold, and the others get 410");
    assert_eq!(office.customers().len(), 1, "the last ticket is sold once");
    Ok(())
}

/// Three requests at once for the last ticket. Returns their statuses.
async fn visit(address: SocketAddr) -> std::io::Result<Vec<u16>> {
    let request = async |customer: u64| {
        let body = format!(r#"{{"concert":"tonight","customer":{customer}}}"#);
        let (status, text) = dlock_examples::post_json(address, "/tickets", &body).await?;
        println!("  customer {customer}: {status}  {text}");
        std::io::Result::Ok(status)
    };
    let (one, again, other) = tokio::try_join!(request(7), request(7), request(8))?;
    Ok(vec![one, again, other])
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_runtime::testing::{TestLocks, errors};

    fn purchase(customer: u64) -> Json<Purchase> {
        Json(Purchase { concert: "tonight".to_owned(), customer })
    }

    // Time is paused, so no test waits for real.
    #[tokio::test(start_paused = true)]
    async fn the_last_ticket_is_sold_once() {
        let (locks, office) = (TestLocks::new(), Office::with_tickets(1));
        let call = |customer| locks.run(buy(State(office.clone()), purchase(customer)));

        let (first, second) = tokio::join!(call(7), call(8));

        assert_eq!(first.expect("there was a ticket").left, 0);
        assert!(matches!(second, Err(BuyError::SoldOut)), "{second:?}");
        assert_eq!(office.customers(), [7]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_customer_waits_five_seconds_for_another_process() {
        let (locks, office) = (TestLocks::new(), Office::with_tickets(1));
        let _elsewhere = locks.hold("concert:tonight").await;

        let refused = locks.run(buy(State(office.clone()), purchase(7))).await;

        assert!(matches!(refused, Err(BuyError::Lock(Error::Contended { .. }))), "{refused:?}");
        assert!(office.customers().is_empty());
    }

    #[test]
    fn a_lock_error_is_a_json_response_that_says_when_to_retry() {
        let response = BuyError::from(errors::contended("concert:tonight")).into_response();

        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert!(response.headers().contains_key("retry-after"));
        assert_eq!(response.headers()["content-type"], "application/json");
    }
}
