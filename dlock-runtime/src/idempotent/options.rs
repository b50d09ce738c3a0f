//! The options of an idempotent call, and their bounds.

use std::time::Duration;

use crate::config::config;
use crate::error::Result;
use crate::idempotent::fingerprint::Fingerprints;
use crate::options::{LONGEST_LEASE, checked_lease};
use crate::protocol::idempotency::{LONGEST_RESULT, OnCrash};

/// The reaction of a call to a server that is unavailable at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// The call gets [`Error::Unavailable`](crate::Error::Unavailable), and its body does not run.
    #[default]
    Error,
    /// The body runs without a record. Duplicates may run at the same time, and nothing is stored.
    Run,
}

/// The options of an idempotent call.
#[derive(Clone, Debug)]
pub(crate) struct IdempotentOptions {
    pub(crate) ttl: Duration,
    pub(crate) lease: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) on_crash: OnCrash,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) fingerprints: Result<Fingerprints>,
    pub(crate) version: u32,
    pub(crate) result_type: String,
    pub(crate) name: String,
    /// The longest result that is stored, in bytes.
    pub(crate) longest_result: usize,
    /// Whether the call has a record at all.
    pub(crate) is_recorded: bool,
}

impl Default for IdempotentOptions {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            lease: None,
            wait: None,
            on_crash: OnCrash::Fail,
            on_unavailable: OnUnavailable::Error,
            fingerprints: Ok(Fingerprints::default()),
            version: 0,
            result_type: String::new(),
            name: String::new(),
            longest_result: LONGEST_RESULT,
            is_recorded: true,
        }
    }
}

impl IdempotentOptions {
    /// Checks the bounds, and returns the lease. `default` is the manager's lease.
    pub(crate) fn checked_lease(&self, default: Duration) -> Result<Duration> {
        checked_ttl(self.ttl)?;
        match self.lease {
            Some(lease) => {
                checked_lease(lease)?;
                if lease > self.ttl {
                    return Err(config(
                        "lease",
                        "`lease` is longer than `ttl`, which ends the record first: shorten it, or raise `ttl`",
                    ));
                }
                Ok(lease)
            }
            None => Ok(default.min(self.ttl)),
        }
    }
}

/// Checks a time to live.
pub(crate) fn checked_ttl(ttl: Duration) -> Result<Duration> {
    if (SHORTEST_TTL..=LONGEST_LEASE).contains(&ttl) {
        return Ok(ttl);
    }
    Err(config("ttl", "`ttl` of an idempotent call is out of bounds: use 1 min to 365 days"))
}

/// How long a result is stored by default.
const DEFAULT_TTL: Duration = Duration::from_secs(24 * 3600);

/// A client that repeats a request does so within a minute, at least.
const SHORTEST_TTL: Duration = Duration::from_secs(60);
