//! What a call asks for: the options of the attribute and of [`Lock`](crate::Lock), in one place.
//!
//! Not here: their names and checks in an attribute's text (`dlock-macros`), and what they make the engine do (`protocol`).

use std::time::Duration;

use crate::error::{Error, Result};
use crate::retry::RetryPolicy;

/// The options of one acquisition. An option that is not set takes the manager's default.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub(crate) lease: Option<Duration>,
    pub(crate) renew: bool,
    pub(crate) retry: u32,
    pub(crate) wait: Option<Duration>,
    pub(crate) backoff: RetryPolicy,
    pub(crate) on_lost: OnLost,
}

impl Options {
    /// Returns the defaults: the manager's lease, renewed; one try; `backoff` from 100 ms to 2 s; a loss aborts the body.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lease: None,
            renew: true,
            retry: 0,
            wait: None,
            backoff: RetryPolicy::DEFAULT,
            on_lost: OnLost::Abort,
        }
    }

    /// Returns the options if they can be used.
    pub(crate) fn checked(&self) -> Result<Self> {
        self.lease.map_or(Ok(Duration::ZERO), checked_lease)?;
        Ok(*self)
    }

    /// Sets the lease: how long the server keeps the lock when nobody renews it.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets whether the watchdog renews the lease every third of it.
    #[must_use]
    pub const fn renew(mut self, renew: bool) -> Self {
        self.renew = renew;
        self
    }

    /// Sets how many further tries follow the first, spaced by `backoff`.
    #[must_use]
    pub const fn retry(mut self, retry: u32) -> Self {
        self.retry = retry;
        self
    }

    /// Sets how long to wait for the lock, woken by releases.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets the delays between tries: exponential from `first` to `last`, with full jitter.
    #[must_use]
    pub const fn backoff(mut self, first: Duration, last: Duration) -> Self {
        self.backoff = RetryPolicy::exponential(first, last);
        self
    }

    /// Sets what a loss does to the body.
    #[must_use]
    pub const fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// What the loss of the lock does to the body that runs under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnLost {
    /// The body is dropped at its next await, and the call returns [`Error::Lost`](crate::Error::Lost).
    #[default]
    Abort,
    /// The body runs to its end and its own result is returned; the loss is logged.
    Finish,
}

/// Checks a lease: a server counts in whole milliseconds, and a deadline needs room for a slow reply.
pub(crate) fn checked_lease(lease: Duration) -> Result<Duration> {
    if (LEAST_LEASE..=LONGEST_LEASE).contains(&lease) {
        return Ok(lease);
    }
    Err(Error::Config {
        part: "lease".into(),
        problem: format!("{lease:?} is not between 100 ms and 365 days").into(),
    })
}

/// A renewal is due every third of it and must be answered before the margin at its end.
const LEAST_LEASE: Duration = Duration::from_millis(100);

/// Far beyond any use, and far from where a server's arithmetic would overflow.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
