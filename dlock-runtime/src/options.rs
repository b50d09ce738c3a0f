//! What a call asks for: the options of the attribute and of [`Lock`](crate::Lock), in one place.
//!
//! Not here: their names and checks in an attribute's text (`dlock-macros`), and what they make the engine do (`protocol`).

use std::time::Duration;

use crate::error::{Error, Result};
use crate::protocol::hold_terms::HoldTerms;
use crate::retry::RetryPolicy;

/// The options of one acquisition. An option that is not set takes the manager's default.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub(crate) lease: Option<Duration>,
    pub(crate) renew: bool,
    pub(crate) retry: u32,
    pub(crate) wait: Option<Duration>,
    pub(crate) backoff: RetryPolicy,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) reentrant: bool,
    pub(crate) on_lost: OnLost,
    pub(crate) release_mode: ReleaseMode,
    /// Whether the call only asks whether it gets the lock, and not when it might.
    pub(crate) try_only: bool,
}

impl Options {
    /// Returns the defaults: the manager's lease, renewed; one try; `backoff` from 100 ms to 2 s; a loss aborts the body; a
    /// call waits for its release.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lease: None,
            renew: true,
            retry: 0,
            wait: None,
            backoff: RetryPolicy::DEFAULT,
            max_hold: None,
            min_hold: None,
            reentrant: true,
            on_lost: OnLost::Abort,
            release_mode: ReleaseMode::Awaited,
            try_only: false,
        }
    }

    /// Returns whether the options can be used, where calls that name no lease get `default`.
    pub(crate) fn checked(&self, default: Duration) -> Result<()> {
        self.lease.map_or(Ok(Duration::ZERO), checked_lease)?;
        match self.contradiction().or_else(|| self.ends_before_min_hold(self.terms(default).lease())) {
            Some((part, problem)) => Err(Error::Config { part: part.into(), problem: problem.into() }),
            None => Ok(()),
        }
    }

    /// Returns which option cannot be kept beside the others, and why. The attribute says the same of what is written out in it.
    pub(crate) const fn contradiction(&self) -> Option<(&'static str, &'static str)> {
        if let Some(lease) = self.lease
            && !is_lease(lease)
        {
            return Some(("lease", "`lease` is not between 100 ms and 365 days"));
        }
        if let Some(max_hold) = self.max_hold
            && !is_lease(max_hold)
        {
            return Some(("max_hold", "`max_hold` is not between 100 ms and 365 days"));
        }
        if let Some(min_hold) = self.min_hold
            && is_longer(min_hold, LONGEST_LEASE)
        {
            return Some(("min_hold", "`min_hold` is longer than 365 days"));
        }
        if let (Some(lease), Some(max_hold)) = (self.lease, self.max_hold)
            && is_longer(lease, max_hold)
        {
            return Some(("lease", "`lease` is longer than `max_hold`, which ends the hold first"));
        }
        match self.lease {
            Some(lease) => self.ends_before_min_hold(lease),
            None => None,
        }
    }

    const fn ends_before_min_hold(&self, lease: Duration) -> Option<(&'static str, &'static str)> {
        match (self.min_hold, self.renew) {
            (Some(min_hold), false) if is_longer(min_hold, lease) => Some((
                "min_hold",
                "`min_hold` is longer than `lease`, and with `renew = false` a crash would end the lock before it",
            )),
            _ => None,
        }
    }

    /// Returns what the options ask of a hold, where calls that name no lease get `default`.
    pub(crate) fn terms(&self, default: Duration) -> HoldTerms {
        let Self { renew, max_hold, min_hold, .. } = *self;
        // A little longer, so that it is `max_hold` that ends the hold, and not the margin of the lease.
        let longest =
            max_hold.map_or(Duration::MAX, |max_hold| max_hold.saturating_add(max_hold / 50 + LEASE_MARGIN));
        let lease = self.lease.unwrap_or_else(|| default.min(longest));
        HoldTerms::of_lease(lease).renew(renew).max_hold(max_hold).min_hold(min_hold)
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

    /// Sets after how long the hold ends though it could be renewed: it is lost then, by
    /// [`LossCause::MaxHold`](crate::LossCause::MaxHold). A default lease that is longer is cut to it.
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets for how long nobody else gets the lock after it was taken, though it may be let go of earlier.
    #[must_use]
    pub const fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = Some(min_hold);
        self
    }

    /// Sets whether a call joins the hold that its call chain has of the key, or gets
    /// [`Error::Reentrant`](crate::Error::Reentrant).
    #[must_use]
    pub const fn reentrant(mut self, reentrant: bool) -> Self {
        self.reentrant = reentrant;
        self
    }

    /// Sets how many further tries follow the first, spaced by `backoff`. Without `wait` the call ends after a response timeout for each
    /// try, and the delays between them, whatever the server does; `yield_to_foreign=on` adds 300 ms to each try.
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

    /// Sets whether a call whose body has ended waits for the server to release the lock. Default: it does, [`ReleaseMode::Awaited`].
    /// [`ReleaseMode`] says what is given up else. It is for bodies: a guard has [`release`](crate::LockGuard::release).
    #[must_use]
    pub const fn release_mode(mut self, release_mode: ReleaseMode) -> Self {
        self.release_mode = release_mode;
        self
    }

    /// Has a call that tries once only ask whether it gets the lock: where nobody is told when it might, that is not asked.
    #[doc(hidden)]
    #[must_use]
    pub const fn try_only(mut self) -> Self {
        self.try_only = true;
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
    ///
    /// If the body completes in the poll after which the loss is found, its value is dropped and the error says `completed: true`,
    /// since another holder may have worked at the same time. The body's own value is returned if it is an error, if the function's
    /// return type cannot carry a lock error, or if only `max_hold` has passed.
    #[default]
    Abort,
    /// The body runs to its end and its own result is returned; the loss is logged.
    Finish,
}

/// Whether a call whose body has ended waits for the server to let go of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReleaseMode {
    /// The call returns once the server has answered, or has not within a response timeout. Whoever is told of the call's end finds
    /// the lock free.
    #[default]
    Awaited,
    /// The call returns at once; the release is on its way. The hold is over by then, and whatever this manager asks of the same key
    /// next comes after it; but another process may find the lock taken for a moment yet, and a process that ends without
    /// [`shutdown`](crate::LockManager::shutdown) may leave it taken for a lease. What the server answers is logged.
    ///
    /// At most 1,024 such releases of one manager are without an answer; the calls that end beyond them wait for theirs.
    Background,
}

/// Checks a lease: a server counts in whole milliseconds, and a deadline needs room for a slow reply.
pub(crate) fn checked_lease(lease: Duration) -> Result<Duration> {
    if is_lease(lease) {
        return Ok(lease);
    }
    Err(Error::Config {
        part: "lease".into(),
        problem: format!("{lease:?} is not between 100 ms and 365 days").into(),
    })
}

const fn is_lease(lease: Duration) -> bool {
    !is_longer(SHORTEST_LEASE, lease) && !is_longer(lease, LONGEST_LEASE)
}

/// Durations cannot be compared by `<` where a constant is made.
const fn is_longer(left: Duration, right: Duration) -> bool {
    left.as_nanos() > right.as_nanos()
}

/// With a fiftieth of the lease this is more than what a deadline is earlier than the end of a lease.
const LEASE_MARGIN: Duration = Duration::from_millis(5);

/// A renewal is due every third of it and must be answered before the margin at its end.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Far beyond any use, and far from where a server's arithmetic would overflow.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Duration = Duration::from_secs(30);

    #[test]
    fn a_default_lease_is_cut_to_max_hold_and_one_that_is_set_is_kept() {
        let max_hold = Options::new().max_hold(Duration::from_secs(9));

        let cut = max_hold.terms(DEFAULT).lease();
        assert!(cut > Duration::from_secs(9) && cut < Duration::from_millis(9_200), "{cut:?}");
        assert_eq!(max_hold.lease(Duration::from_secs(5)).terms(DEFAULT).lease(), Duration::from_secs(5));
        assert_eq!(Options::new().terms(DEFAULT).lease(), DEFAULT);
    }
}
