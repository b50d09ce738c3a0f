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

/// Places an order. At most one caller across all processes runs this for a given user.
#[distributed_lock(key = "order:<user_id>", lease = "30s", retry = 3)]
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
    /// Responds with 409 if another order of the user is in progress, and with 503 if Redis is
    /// unreachable.
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
    placed: u32,
    under_way: HashMap<u64, u32>,
    at_once: bool,
}

impl Shop {
    fn begin(&self, user_id: u64) -> Result<u32, OrderError> {
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

    let (placed, refused) = send_orders(address, &[7, 7, 7, 7, 7, 7, 7, 7, 8, 9, 10, 10]).await?;
    println!(
        "{placed} orders placed (200), {refused} refused because another order of the user was in progress (409)"
    );

    let books = shop.books.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(!books.at_once, "two orders of one user were placed at once");
    assert_eq!(books.placed, placed, "every 200 is one order, and every order is one 200");
    assert!(placed >= 4, "the first order of each of the four users is placed");
    println!("no two orders of one user were placed at once");
    Ok(())
}

/// Sends all orders at once, one client each, and returns how many were placed and how many
/// refused.
async fn send_orders(
    address: SocketAddr,
    users: &[u64],
) -> Result<(u32, u32), Box<dyn std::error::Error + Send + Sync>> {
    println!("{} clients order at once, several of them for the same user:", users.len());
    let mut clients = JoinSet::new();
    for user in users {
        let path = format!("/orders/{user}");
        clients.spawn(async move { dlock_examples::post(address, &path).await });
    }
    let (mut placed, mut refused) = (0, 0);
    while let Some(answer) = clients.join_next().await {
        let (status, text) = answer??;
        println!("  {status}  {text}");
        match status {
            200 => placed += 1,
            409 => refused += 1,
            other => return Err(format!("an answer that is neither 200 nor 409: {other} {text}").into()),
        }
    }
    Ok((placed, refused))
}
