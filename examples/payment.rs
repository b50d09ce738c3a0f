// cargo run -p dlock-examples --example payment
//! A payment endpoint that is safe to repeat: a client that missed the response sends the same
//! request again, and gets the receipt of the first.
//!
//! The first request charges the card, and its receipt is stored. Duplicates wait for it. If the
//! replica dies between the charge and the receipt, the next request charges with the same child
//! key, by which the card processor recognizes the charge.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use dlock_runtime::{Error, idempotent};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Charges the card once for each request ID, however often the request is sent.
///
/// The key contains the user: if it consisted only of a value that a client chooses, one user could
/// get another's receipt. The key is the whole payload, so there is no fingerprint.
#[idempotent(key = "payment:<user>:<request_id>", fingerprint = none, on_duplicate = wait("5s"),
             on_crash = resume, record = record)]
async fn pay(bank: Arc<Bank>, user: u64, request_id: String) -> Result<String, Error> {
    let child = record.child_key("charge");
    record.step("charge", async || Ok::<_, Error>(bank.charge(user, &child).await)).await
}

async fn endpoint(
    Path((user, request_id)): Path<(u64, String)>,
    State(bank): State<Arc<Bank>>,
) -> Result<String, (StatusCode, String)> {
    pay(bank, user, request_id).await.map_err(|error| {
        let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, error.to_string())
    })
}

/// A stand-in for the card processor. It charges once for each idempotency key.
#[derive(Debug, Default)]
struct Bank {
    charges: AtomicU32,
    receipts: Mutex<HashMap<String, String>>,
}

impl Bank {
    async fn charge(&self, user: u64, idempotency_key: &str) -> String {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
        let charge = || {
            let charge = self.charges.fetch_add(1, Ordering::SeqCst) + 1;
            format!("receipt {charge} for user {user}")
        };
        receipts.entry(idempotency_key.to_owned()).or_insert_with(charge).clone()
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

    // Records outlive this program, so each run has its own requests.
    let [first, second] = ["a1b2", "c3d4"].map(|id| format!("/payments/7/{id}-{}", std::process::id()));
    println!("one payment is sent five times at once, and again after it is done:");
    let mut clients = JoinSet::new();
    for _ in 0..5 {
        let path = first.clone();
        clients.spawn(async move { dlock_examples::post(address, &path).await });
    }
    let mut answers = Vec::new();
    while let Some(answer) = clients.join_next().await {
        answers.push(answer??);
    }
    answers.push(dlock_examples::post(address, &first).await?);
    for (status, receipt) in &answers {
        println!("  {status}  {receipt}");
    }
    let other = dlock_examples::post(address, &second).await?;
    println!("another payment of the same user: {}  {}", other.0, other.1);

    let first = (200, "receipt 1 for user 7".to_owned());
    assert!(answers.iter().all(|answer| *answer == first), "every duplicate gets the first receipt");
    assert_eq!(other, (200, "receipt 2 for user 7".to_owned()), "another payment is charged for itself");
    assert_eq!(bank.charges.load(Ordering::SeqCst), 2, "the card is charged once for each payment");
    println!("the card was charged once for each of the two payments");
    Ok(())
}
