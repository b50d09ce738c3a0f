// cargo run -p dlock-examples --example payment
//! A payment endpoint that is safe to repeat: a client that missed the response sends the same
//! request again, and gets the receipt of the first.
//!
//! The lock makes "look for a stored receipt; if there is none, charge and store one" one step for
//! all replicas. Without it, two concurrent requests would both find no receipt and both charge.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use dlock_runtime::{Error, distributed_lock};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Charges the card once for each request ID, however often the request is sent.
///
/// The key contains the user: if it consisted only of a value that a client chooses, one user could
/// get another's receipt. The ID is hashed because it can be of any length.
#[distributed_lock(key = "payment:<user>:<request_id|hash>", lease = "10s", wait = "5s")]
async fn pay(bank: &Bank, user: u64, request_id: &str) -> Result<String, Error> {
    if let Some(receipt) = bank.receipt(user, request_id) {
        return Ok(receipt);
    }
    let receipt = bank.charge(user).await;
    bank.store(user, request_id, &receipt);
    Ok(receipt)
}

async fn endpoint(
    Path((user, request_id)): Path<(u64, String)>,
    State(bank): State<Arc<Bank>>,
) -> Result<String, (StatusCode, String)> {
    pay(&bank, user, &request_id).await.map_err(|error| {
        let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, error.to_string())
    })
}

/// A stand-in for the card processor and the table of receipts, which in a service is a database
/// that all replicas share.
#[derive(Debug, Default)]
struct Bank {
    charges: AtomicU32,
    receipts: Mutex<HashMap<(u64, String), String>>,
}

impl Bank {
    async fn charge(&self, user: u64) -> String {
        let charge = self.charges.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
        format!("receipt {charge} for user {user}")
    }

    fn receipt(&self, user: u64, request_id: &str) -> Option<String> {
        let receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
        receipts.get(&(user, request_id.to_owned())).cloned()
    }

    fn store(&self, user: u64, request_id: &str, receipt: &str) {
        let mut receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
        receipts.insert((user, request_id.to_owned()), receipt.to_owned());
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    dlock_runtime::init(&dlock_examples::url()).await?;
    let bank = Arc::new(Bank::default());
    let service =
        Router::new().route("/payments/{user}/{request_id}", post(endpoint)).with_state(Arc::clone(&bank));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, service).await });

    println!("one payment is sent five times at once, and again after it is done:");
    let mut clients = JoinSet::new();
    for _ in 0..5 {
        clients.spawn(async move { dlock_examples::post(address, "/payments/7/a1b2").await });
    }
    let mut answers = Vec::new();
    while let Some(answer) = clients.join_next().await {
        answers.push(answer??);
    }
    answers.push(dlock_examples::post(address, "/payments/7/a1b2").await?);
    for (status, receipt) in &answers {
        println!("  {status}  {receipt}");
    }
    let other = dlock_examples::post(address, "/payments/7/c3d4").await?;
    println!("another payment of the same user: {}  {}", other.0, other.1);

    let first = (200, "receipt 1 for user 7".to_owned());
    assert!(answers.iter().all(|answer| *answer == first), "every duplicate gets the first receipt");
    assert_eq!(other, (200, "receipt 2 for user 7".to_owned()), "another payment is charged for itself");
    assert_eq!(bank.charges.load(Ordering::SeqCst), 2, "the card is charged once for each payment");
    println!("the card was charged once for each of the two payments");
    Ok(())
}
