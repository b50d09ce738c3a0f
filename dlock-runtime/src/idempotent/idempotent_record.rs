//! [`IdempotentRecord`], the handle that the body of an idempotent call receives.

use std::future::Future;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::idempotent::attempt::Attempt;
use crate::idempotent::child_key::child_key;
use crate::idempotent::json::{decoded_step, encoded};
use crate::key::LockKey;

/// The record of an idempotent call that runs.
///
/// It is cheap to clone; all clones are one record. It owns what it needs, so a body that runs on a
/// task of its own can move it.
///
/// # Examples
///
/// ```
/// # use dlock_runtime::{Error, LockManager};
/// use dlock_runtime::idempotent::OnCrash;
///
/// # async fn pay(_key: &str) -> Result<String, Error> { Ok("paid".to_owned()) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let manager = LockManager::connect("memory://").await?;
/// let call = manager.idempotent("charge:7:a1b2").on_crash(OnCrash::Resume);
/// let paid = call
///     .run(async |record| {
///         let child_key = record.child_key("pay"); // the same in each attempt
///         record.step("pay", async || pay(&child_key).await).await
///     })
///     .await?;
/// assert_eq!(paid.value(), "paid");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct IdempotentRecord {
    attempt: Arc<Attempt>,
}

impl IdempotentRecord {
    pub(super) fn new(attempt: &Arc<Attempt>) -> Self {
        Self { attempt: Arc::clone(attempt) }
    }

    /// Returns the idempotency key.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.attempt.key()
    }

    /// Returns the number of this attempt, from 1.
    ///
    /// It is larger than 1 if an earlier attempt crashed, or completed a step and then returned an
    /// error.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt.number
    }

    /// Returns `true` if there is a record in the store.
    ///
    /// Returns `false` if the server was unavailable at the start, as
    /// [`OnUnavailable::Run`](crate::idempotent::OnUnavailable::Run) allows.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.attempt.is_recorded
    }

    /// Checks that no other attempt may have started, without a request to the server.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is over, and [`OnCrash`](crate::idempotent::OnCrash) lets
    /// another attempt start; with [`OnCrash::Fail`](crate::idempotent::OnCrash::Fail), if the
    /// `ttl` is over; if the record was deleted, or an operator has resolved it.
    pub fn check(&self) -> Result<()> {
        self.attempt.lease.check().map_err(|error| self.attempt.refuse(error))
    }

    /// Returns the idempotency key for the call that a step makes, such as to a payment provider.
    ///
    /// It has 32 hex digits, and is the same for every attempt, process, and version of this
    /// library. So the provider recognizes a call that is made again after a crash.
    #[must_use]
    pub fn child_key(&self, step: &str) -> String {
        child_key(self.attempt.key().full_name(), step)
    }

    /// Runs a step, or returns its stored result.
    ///
    /// If an earlier attempt has completed the step, `body` does not run: with
    /// [`OnCrash::Resume`](crate::idempotent::OnCrash::Resume) after a crash, and always after an
    /// attempt that returned an error. If the process dies inside the step, the step runs again, so
    /// give [`child_key`](Self::child_key) to the service that it calls.
    ///
    /// A step has one round trip. Its result is stored as JSON. If the result is larger than 64
    /// KiB, if those of all steps are larger than 1 MiB, or if it cannot be read from its JSON,
    /// such as `NaN` or `Some(())`, this call still returns it. A later attempt then gets
    /// [`Error::ResultNotStored`] instead of running the step again.
    ///
    /// If the body returns an error, nothing is stored.
    ///
    /// # Errors
    ///
    /// The error of `body`. Converted to `E`:
    ///
    /// - [`Error::Config`] if two steps of the body have the same name, if the name is empty or
    ///   longer than 64 bytes, or if 64 other steps have completed or begun.
    /// - [`Error::Lost`] if another attempt may have started.
    /// - [`Error::ResultNotStored`] and [`Error::Undecodable`] for a completed step.
    ///
    /// After one of these, an error of the body is [not stored](crate::Idempotent::on_crash).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the step may have run, and its result may not be stored.
    pub async fn step<T, E, F, Fut>(&self, name: &str, body: F) -> Result<T, E>
    where
        T: StepValue,
        E: From<Error>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let refuse = |error| self.attempt.refuse(error);
        if let Some(stored) = self.attempt.begin_step(name).map_err(refuse)? {
            return Ok(decoded_step(&stored, self.attempt.key(), name).map_err(refuse)?);
        }
        let value = body().await?;
        self.attempt.store_step(name, encoded(&value)).await.map_err(refuse)?;
        Ok(value)
    }
}

/// A value that a step can return: it is stored as JSON, and read again. Every type that implements
/// `Serialize` and `DeserializeOwned` is one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a step",
    label = "a step's result is stored: derive `Serialize` and `Deserialize`",
    note = "write `#[derive(serde::Serialize, serde::Deserialize)]` above the type; it must own its parts",
    note = "a type of another crate that implements neither, such as a response of a client: return the parts that the body needs"
)]
pub trait StepValue: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> StepValue for T {}
