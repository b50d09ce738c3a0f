//! [`Options`], the options of one acquisition, for the attribute and for [`Lock`](crate::Lock).
//!
//! See also `dlock-macros`, which parses the parameters of the attribute.

use std::time::Duration;

use crate::config::duration;
use crate::error::{Error, Result};
use crate::protocol::hold_terms::HoldTerms;
use crate::retry::RetryPolicy;

/// The options of one acquisition. The manager supplies the defaults.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub(crate) lease: Option<Duration>,
    pub(crate) renew: bool,
    pub(crate) retry: u32,
    pub(crate) wait: Option<Duration>,
    pub(crate) backoff: RetryPolicy,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) min_hold_on: MinHoldOn,
    pub(crate) reentrant: bool,
    pub(crate) on_lost: OnLost,
    pub(crate) release_mode: ReleaseMode,
    /// Whether the call only tries once and never waits, so that it needs no estimate of when the
    /// lock is free.
    pub(crate) try_only: bool,
}

impl Options {
    /// Returns the defaults.
    ///
    /// They are: the manager's lease, renewed; one attempt; a backoff from 100 ms to 2 s; a loss
    /// aborts the body; a call waits for its release.
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
            min_hold_on: MinHoldOn::Always,
            reentrant: true,
            on_lost: OnLost::Abort,
            release_mode: ReleaseMode::Awaited,
            try_only: false,
        }
    }

    /// Checks the options, with `default` as the lease of calls that set none.
    pub(crate) fn checked(&self, default: Duration) -> Result<()> {
        self.lease.map_or(Ok(Duration::ZERO), checked_lease)?;
        match self.contradiction().or_else(|| self.ends_before_min_hold(self.terms(default).lease())) {
            Some((part, problem)) => Err(Error::Config { part: part.into(), problem: problem.into() }),
            None => Ok(()),
        }
    }

    /// Returns the option that contradicts another or its bounds, and why. The attribute reports
    /// the same for literals.
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

    /// Returns the terms of the hold, with `default` as the lease of calls that set none.
    pub(crate) fn terms(&self, default: Duration) -> HoldTerms {
        let Self { renew, max_hold, min_hold, min_hold_on, .. } = *self;
        // A little longer than `max_hold`, so that `max_hold` ends the hold before the margin of
        // the lease does.
        let longest =
            max_hold.map_or(Duration::MAX, |max_hold| max_hold.saturating_add(max_hold / 50 + LEASE_MARGIN));
        let lease = self.lease.unwrap_or_else(|| default.min(longest));
        HoldTerms::of_lease(lease)
            .renew(renew)
            .max_hold(max_hold)
            .min_hold(min_hold)
            .min_hold_on_success(min_hold_on == MinHoldOn::Ok)
    }

    /// As [`Lock::lease`](crate::Lock::lease).
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// As [`Lock::renew`](crate::Lock::renew).
    #[must_use]
    pub const fn renew(mut self, renew: bool) -> Self {
        self.renew = renew;
        self
    }

    /// As [`Lock::max_hold`](crate::Lock::max_hold).
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// As [`Lock::min_hold`](crate::Lock::min_hold).
    #[must_use]
    pub const fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = Some(min_hold);
        self
    }

    /// As [`Lock::min_hold_on`](crate::Lock::min_hold_on).
    #[must_use]
    pub const fn min_hold_on(mut self, min_hold_on: MinHoldOn) -> Self {
        self.min_hold_on = min_hold_on;
        self
    }

    /// As [`Lock::reentrant`](crate::Lock::reentrant).
    #[must_use]
    pub const fn reentrant(mut self, reentrant: bool) -> Self {
        self.reentrant = reentrant;
        self
    }

    /// As [`Lock::retry`](crate::Lock::retry).
    #[must_use]
    pub const fn retry(mut self, retry: u32) -> Self {
        self.retry = retry;
        self
    }

    /// As [`Lock::wait`](crate::Lock::wait).
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// As [`Lock::backoff`](crate::Lock::backoff).
    #[must_use]
    pub const fn backoff(mut self, first: Duration, last: Duration) -> Self {
        self.backoff = RetryPolicy::exponential(first, last);
        self
    }

    /// As [`Lock::on_lost`](crate::Lock::on_lost).
    #[must_use]
    pub const fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// As [`Lock::release_mode`](crate::Lock::release_mode).
    #[must_use]
    pub const fn release_mode(mut self, release_mode: ReleaseMode) -> Self {
        self.release_mode = release_mode;
        self
    }

    /// Has a call that tries once fail without an estimate of when the lock will be free.
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

/// The effect of a lost lock on the body that runs under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// Drops the body at its next await; the call returns [`Error::Lost`].
    ///
    /// If the loss is detected after the poll in which the body completes, its value is dropped and
    /// the error has `completed: true`, because another holder may have worked at the same time.
    /// The body's own value is returned if only `max_hold` has passed, if the function's return
    /// type cannot carry a lock error, or, except with [`Lock::run`](crate::Lock::run), if it is an
    /// error.
    #[default]
    Abort,
    /// Lets the body run to its end and returns its result. The loss is logged.
    Finish,
}

/// The ends of a hold that [`min_hold`](crate::Lock::min_hold) applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MinHoldOn {
    /// Every end: the lock is kept even if the body has failed, panicked, or been dropped.
    #[default]
    Always,
    /// Success only: otherwise the lock is released when the body ends, so that the work can be
    /// repeated immediately.
    ///
    /// A body of the attribute or of [`Lock::try_run`](crate::Lock::try_run) succeeds if it
    /// completes without an error, and one of [`Lock::run`](crate::Lock::run) if it completes. With
    /// a guard, [`release`](crate::LockGuard::release) is the success, and dropping it is not.
    /// `LockLayer` (feature `tower`) says which responses are a success.
    ///
    /// If the hold is lost before the body ends, because of `max_hold` or a shutdown, the body is
    /// stopped and the lock is released. With [`OnLost::Finish`] a later success retains the lock,
    /// unless its lease has ended by then.
    Ok,
}

/// Whether a call whose body has ended waits for the server's reply to the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReleaseMode {
    /// The call returns when the server has replied, or after one response timeout, as
    /// [`LockGuard::release`](crate::LockGuard::release) does.
    ///
    /// A process that learns of the call's return finds the lock free.
    #[default]
    Awaited,
    /// The call returns immediately, and the release completes in the background.
    ///
    /// The hold ends before the call returns, and later requests of this manager for the same key
    /// are sent after the release. But until the server has processed it, another process finds the
    /// lock held. If the process ends without [`shutdown`](crate::LockManager::shutdown), the lock
    /// may stay held until its lease expires. The server's reply is logged.
    ///
    /// At most 1,024 background releases of one manager are in flight; calls beyond them wait for
    /// the reply.
    Background,
}

/// Checks a lease: a server counts whole milliseconds, and a deadline needs time for a slow reply.
pub(crate) fn checked_lease(lease: Duration) -> Result<Duration> {
    if is_lease(lease) {
        return Ok(lease);
    }
    Err(Error::Config {
        part: "lease".into(),
        problem: format!("{} is not between 100 ms and 365 days", duration::shown(lease)).into(),
    })
}

const fn is_lease(lease: Duration) -> bool {
    !is_longer(SHORTEST_LEASE, lease) && !is_longer(lease, LONGEST_LEASE)
}

/// `Duration` cannot be compared with `<` in a `const fn`.
const fn is_longer(left: Duration, right: Duration) -> bool {
    left.as_nanos() > right.as_nanos()
}

/// Together with 1/50 of the lease, this exceeds the margin between a deadline and the end of its
/// lease.
const LEASE_MARGIN: Duration = Duration::from_millis(5);

/// A renewal is due when at most a third of the lease has passed, and its reply must arrive before
/// the margin at the end of the lease.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Longer than any use needs, and far below the point where a server's arithmetic overflows.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Duration = Duration::from_secs(30);

    #[test]
    fn max_hold_reduces_only_the_default_lease() {
        let max_hold = Options::new().max_hold(Duration::from_secs(9));

        let cut = max_hold.terms(DEFAULT).lease();
        assert!(cut > Duration::from_secs(9) && cut < Duration::from_millis(9_200), "{cut:?}");
        assert_eq!(max_hold.lease(Duration::from_secs(5)).terms(DEFAULT).lease(), Duration::from_secs(5));
        assert_eq!(Options::new().terms(DEFAULT).lease(), DEFAULT);
    }

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn each_method_sets_its_option() {
        let set = Options::new()
            .lease(ms(1_000))
            .renew(false)
            .retry(3)
            .wait(ms(2_000))
            .backoff(ms(7), ms(70))
            .max_hold(ms(3_000))
            .min_hold(ms(400))
            .min_hold_on(MinHoldOn::Ok)
            .reentrant(false)
            .on_lost(OnLost::Finish)
            .release_mode(ReleaseMode::Background)
            .try_only();

        assert_eq!((set.lease, set.renew, set.retry), (Some(ms(1_000)), false, 3));
        assert_eq!((set.wait, set.backoff), (Some(ms(2_000)), RetryPolicy::exponential(ms(7), ms(70))));
        assert_eq!((set.max_hold, set.min_hold), (Some(ms(3_000)), Some(ms(400))));
        assert_eq!((set.min_hold_on, set.reentrant, set.on_lost), (MinHoldOn::Ok, false, OnLost::Finish));
        assert_eq!((set.release_mode, set.try_only), (ReleaseMode::Background, true));
        // Not changed by the methods after them.
        assert_eq!(set.retry(4).lease, Some(ms(1_000)));
    }

    #[test]
    fn options_are_refused_beyond_their_bounds() {
        let (shortest, longest, step) = (ms(100), 365 * DAY, Duration::from_nanos(1));
        let new = Options::new;
        for (options, part) in [
            (new(), None),
            (new().lease(shortest), None),
            (new().lease(shortest.saturating_sub(step)), Some("lease")),
            (new().lease(longest), None),
            (new().lease(longest + step), Some("lease")),
            (new().max_hold(shortest), None),
            (new().max_hold(shortest.saturating_sub(step)), Some("max_hold")),
            (new().max_hold(longest), None),
            (new().max_hold(longest + step), Some("max_hold")),
            (new().min_hold(longest), None),
            (new().min_hold(longest + step), Some("min_hold")),
            (new().lease(ms(500)).max_hold(ms(500)), None),
            (new().lease(ms(500) + step).max_hold(ms(500)), Some("lease")),
            (new().min_hold(DEFAULT + step), None),
            (new().min_hold(DEFAULT).renew(false), None),
            (new().min_hold(DEFAULT + step).renew(false), Some("min_hold")),
            (new().lease(ms(500)).min_hold(ms(500)).renew(false), None),
            (new().lease(ms(500)).min_hold(ms(501)).renew(false), Some("min_hold")),
            (new().lease(ms(500)).min_hold(ms(501)), None),
            (new().lease(ms(500)).renew(false), None),
        ] {
            let refused = options.checked(DEFAULT);
            let told = match &refused {
                Ok(()) => None,
                Err(Error::Config { part, problem }) => {
                    assert!(problem.contains(&**part) || problem.contains("is not between"), "{problem}");
                    Some(&**part)
                }
                Err(error) => panic!("{options:?}: {error}"),
            };
            assert_eq!(told, part, "{options:?}: {refused:?}");
            let by_macro = options.contradiction().map(|(part, _)| part);
            let depends_on_manager = options.lease.is_none() && !options.renew;
            assert_eq!(by_macro, part.filter(|_| !depends_on_manager), "{options:?}");
        }
    }

    #[test]
    fn the_lease_under_a_max_hold_covers_the_margin() {
        let lease = |max_hold| Options::new().max_hold(max_hold).terms(DEFAULT).lease();

        assert_eq!(lease(ms(10_000)), ms(10_205));
        assert_eq!(lease(ms(29_406)), ms(29_406) + ms(29_406) / 50 + ms(5));
        assert_eq!(lease(ms(29_407)), DEFAULT);
    }

    #[test]
    fn a_checked_lease_is_returned() {
        assert_eq!(checked_lease(ms(100)).ok(), Some(ms(100)));
        let error = checked_lease(ms(99)).expect_err("it is too short").to_string();
        assert!(error.contains("99ms is not between 100 ms and 365 days"), "{error}");
    }
}
