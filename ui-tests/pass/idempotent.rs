//! `#[idempotent]` with each of its parameters.

use std::sync::Arc;
use std::time::Duration;

use dlock_runtime::{Error, LockManager, idempotent};
use serde::{Deserialize, Serialize};

pub struct Request {
    pub key: String,
    pub amount: u64,
    pub currency: String,
}

#[derive(Deserialize, Serialize)]
pub struct Receipt {
    pub id: String,
}

#[derive(Deserialize, Serialize)]
pub enum ApiError {
    Rejected,
    Failed(String),
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

fn is_final(error: &ApiError) -> bool {
    matches!(error, ApiError::Rejected)
}

impl ApiError {
    fn is_rejection(&self) -> bool {
        is_final(self)
    }
}

#[idempotent(key = "charge:<tenant>:<request.key>", ttl = "24h", lease = "30s",
             fingerprint = (request.amount, &request.currency), on_duplicate = wait("10s"),
             on_crash = resume, on_error = remember_if(is_final), record = record, version = 2,
             result_type = "receipt", name = "charge card;v1:", namespace = "shop")]
pub async fn charge(tenant: u64, request: Request) -> Result<Receipt, ApiError> {
    let _ = tenant;
    let amount = request.amount;
    let id = record.step("psp", async || Ok::<_, ApiError>(format!("{}:{amount}", record.child_key("psp")))).await?;
    Ok(Receipt { id })
}

/// A tuple of owned fields is borrowed, and the arguments are still there.
#[idempotent(key = "charge:<request.key>", scope = tenant, fingerprint = (request.amount, request.currency),
             result_type = "Result<my::Text,ApiError>", on_crash = rerun, on_error = remember_if(ApiError::is_rejection))]
pub async fn scoped(tenant: u64, request: Request) -> Result<String, ApiError> {
    let _ = tenant;
    Ok(request.currency)
}

const TTL: Duration = Duration::from_secs(3600);

#[idempotent(key = "job:<id>", scope = everyone, ttl = TTL, on_duplicate = skip, on_crash = fail,
             on_error = remember, detached = true)]
pub async fn skipping(id: u64) -> Result<Option<u64>, ApiError> {
    Ok(Some(id))
}

#[idempotent(key = format!("job:{id}"), fingerprint = none, detached = false, on_unavailable = run)]
pub async fn borrowing(id: &str) -> Result<usize, Error> {
    Ok(id.len())
}

#[idempotent(key = "job:<id>:<part>", on_missing = run, on_error = forget, on_duplicate = error)]
pub async fn optional(id: Option<u64>, part: u8) -> Result<u8, Error> {
    let _ = id;
    Ok(part)
}

pub struct Ledger {
    pub locks: LockManager,
    pub id: u64,
}

impl Ledger {
    #[idempotent(key = "post:<self.id>:<entry>", manager = self.locks)]
    pub async fn post(self: Arc<Self>, entry: u64) -> Result<u64, Error> {
        Ok(self.id + entry)
    }

    #[idempotent(key = "post:<self.id>:<entry>", manager = self.locks, detached = false, on_duplicate = skip)]
    pub async fn post_attached(&self, entry: u64) -> Result<(), Error> {
        let _ = entry;
        Ok(())
    }
}

pub struct Path<T>(pub T);

type Outcome<T> = Result<T, Error>;

/// Patterns, `mut`, generics, and an alias of `Result`.
#[idempotent(key = "order:<id>:<line>", fingerprint = (id, line, &names))]
pub async fn patterns<T>(Path((id, line)): Path<(u64, u32)>, mut names: Vec<String>, _: T) -> Outcome<Vec<String>>
where
    T: Send + 'static,
{
    names.push(format!("{id}:{line}"));
    Ok(names)
}

/// Functions borrow nothing, whatever their parameters are.
#[idempotent(key = "order:<id>", scope = everyone, fingerprint = none)]
pub async fn functions(
    id: u64,
    check: impl Fn(&Request) -> bool + Send + 'static,
    plain: fn(&u64) -> u64,
    boxed: Box<dyn Fn(&u8) + Send>,
) -> Result<bool, Error> {
    boxed(&7);
    plain(&id);
    Ok(check(&Request { key: String::new(), amount: 1, currency: String::new() }))
}

fn main() {
    fn is_send(_: impl Send) {}
    let request = || Request { key: String::new(), amount: 1, currency: String::new() };
    is_send(charge(7, request()));
    is_send(scoped(7, request()));
    is_send(skipping(7));
    is_send(borrowing("7"));
    is_send(optional(None, 7));
    is_send(patterns(Path((7, 1)), Vec::new(), ()));
}
