//! [`CatchUp`], which missed ticks run.

use std::time::Duration;

use dlock_calendar::Calendar;

use crate::clock::millis;
use crate::config::config;
use crate::error::Result;

/// Which ticks run that no process started in time.
///
/// Only ticks since the job was first seen with its schedule, and since the last tick that started
/// or was skipped, can run. They run in order, before newer ticks, which wait until the last
/// attempt that [`FailedRun`](crate::scheduled::FailedRun) and
/// [`CrashedRun`](crate::scheduled::CrashedRun) allow has ended. With
/// [`Overlap::CancelPrevious`](crate::scheduled::Overlap::CancelPrevious), a tick that is due while
/// one runs ends that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CatchUp {
    /// No missed tick runs.
    #[default]
    None,
    /// The latest missed tick runs.
    Latest,
    /// The latest `max` missed ticks run that were due within `window`. From 1 to 1,000 ticks.
    #[non_exhaustive]
    All {
        /// The maximum number of ticks.
        max: u32,
        /// How long ago a tick may have been due. At least one period, if the period is fixed.
        window: Duration,
    },
}

impl CatchUp {
    /// Returns [`CatchUp::All`].
    #[must_use]
    pub fn all(max: u32, window: Duration) -> Self {
        Self::All { max, window }
    }

    /// Checks the bounds, for a job with that fixed period, if it has one.
    pub(super) fn check(self, period: Option<Duration>) -> Result<()> {
        let Self::All { max, window } = self else { return Ok(()) };
        if max == 0 || max > 1_000 {
            let problem = format!("`all(max = {max})` is not between 1 and 1,000; to run none, use `none`");
            return Err(config("catch_up", problem));
        }
        if let Some(period) = period.filter(|period| window < *period) {
            let problem = format!(
                "the window of {window:?} is shorter than the period of {period:?}, so no missed tick is in it: lengthen it"
            );
            return Err(config("catch_up", problem));
        }
        Ok(())
    }

    /// Returns the missed slots that run, in order: those after `since` and before `before`.
    pub(super) fn slots(self, calendar: &Calendar, since: u64, before: u64, now: u64) -> Vec<u64> {
        match self {
            Self::None => Vec::new(),
            Self::Latest => calendar.between(since, before, 1, 1).0,
            Self::All { max, window } => {
                let window = millis(window);
                let since = since.max(now.saturating_sub(window));
                calendar.between(since, before, max as usize, max.into()).0
            }
        }
    }
}
