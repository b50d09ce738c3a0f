// cargo run -p dlock-examples --example order_service
//! An order service over HTTP that places one order per user at a time, and clients that send
//! several at once.
//!
//! The lock is the one line above `place_order`. `DLOCK_URL` selects where the locks are stored;
//! the default is this process.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use dlock_runtime::distributed_lock;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Places an order. At most one caller across all processes runs this for a given user; the others
/// wait.
#[distributed_lock(key = "order:<user_id>", lease = "30s", wait = "10s")]
async fn place_order(Path(user_id): Path<u64>, State(shop): State<Arc<Shop>>) -> Result<String, OrderError> {
    let order = shop.begin(user_id)?;
    // Stock, payment, shipping: work that must not be done twice at once for one user.
    tokio::time::sleep(Duration::from_millis(150)).await;
    shop.end(user_id);
    Ok(format!("order {order} of user {user_id}"))
}

/// Why an order was not placed.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    /// The lock was not acquired, or was lost.
    #[error(transparent)]
    Lock(#[from] dlock_runtime::Error),
    /// The error that the lock prevents.
    #[error("two orders of user {0} at once")]
    Twice(u64),
}

impl IntoResponse for OrderError {
    /// Responds with 409 if other orders of the user take longer than the call waits, and with 503
    /// if Redis is unreachable.
    fn into_response(self) -> Response {
        match self {
            Self::Lock(error) => error.into_response(),
            Self::Twice(_) => (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response(),
        }
    }
}

/// The orders placed, the orders in progress, and whether two of one user ever overlapped.
#[derive(Debug, Default)]
struct Shop {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    placed: usize,
    under_way: HashMap<u64, u32>,
    at_once: bool,
}

impl Shop {
    fn begin(&self, user_id: u64) -> Result<usize, OrderError> {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = books.under_way.entry(user_id).or_default();
        *under_way += 1;
        if *under_way > 1 {
            books.at_once = true;
            return Err(OrderError::Twice(user_id));
        }
        books.placed += 1;
        Ok(books.placed)
    }

    fn end(&self, user_id: u64) {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books.under_way.entry(user_id).and_modify(|count| *count -= 1);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    dlock_runtime::init(&dlock_examples::url()).await?;

    let shop = Arc::new(Shop::default());
    let service = Router::new().route("/orders/{user_id}", post(place_order)).with_state(Arc::clone(&shop));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("the order service listens on http://{address}");
    tokio::spawn(async move { axum::serve(listener, service).await });

    let users = [7, 7, 7, 7, 7, 7, 7, 7, 8, 9, 10, 10];
    send_orders(address, &users).await?;

    let books = shop.books.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{} orders placed (200), none refused", books.placed);
    assert!(!books.at_once, "two orders of one user were placed at once");
    assert_eq!(books.placed, users.len(), "an order waits for the others of its user, and is placed");
    println!("no two orders of one user were placed at once");
    Ok(())
}

/// Sends all orders at once, one client each.
///
/// # Errors
///
/// Fails if an order is refused.
async fn send_orders(
    address: SocketAddr,
    users: &[u64],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    println!("{} clients order at once, several of them for the same user:", users.len());
    let mut clients = JoinSet::new();
    for user in users {
        let path = format!("/orders/{user}");
        clients.spawn(async move { dlock_examples::post(address, &path).await });
    }
    while let Some(answer) = clients.join_next().await {
        let (status, text) = answer??;
        println!("  {status}  {text}");
        if status != 200 {
            return Err(format!("an order was refused: {status} {text}").into());
        }
    }
    Ok(())
}
