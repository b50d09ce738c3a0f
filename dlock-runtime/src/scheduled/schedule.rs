//! [`Schedule`], the instants of a job and its options.

use std::time::Duration;

use dlock_calendar::{Calendar, CalendarError};

use crate::config::config;
use crate::error::{Error, Result};
use crate::options::{LONGEST_LEASE, checked_lease};
use crate::protocol::job::begin::{CrashedRun, Overlap};
use crate::scheduled::catch_up::CatchUp;

/// When a job is due, and what happens if a run overlaps, fails, or crashes.
///
/// # Examples
///
/// ```
/// use dlock_runtime::scheduled::{CatchUp, FailedRun, Schedule};
///
/// let nightly = Schedule::cron("0 2 * * *")?
///     .tz("Europe/Berlin")
///     .catch_up(CatchUp::Latest)
///     .on_error(FailedRun::Retry(3));
/// # let _ = nightly;
/// # Ok::<_, dlock_runtime::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    calendar: Result<Calendar>,
    pub(super) overlap: Overlap,
    pub(super) catch_up: CatchUp,
    pub(super) on_error: FailedRun,
    pub(super) on_crash: CrashedRun,
    pub(super) lease: Option<Duration>,
    pub(super) min_hold: Duration,
    pub(super) max_hold: Option<Duration>,
    pub(super) spread: Duration,
}

/// The effect of a body that returns an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailedRun {
    /// The tick is done.
    #[default]
    Done,
    /// The tick runs again, at most so many times.
    ///
    /// A [`Jobs`](super::Jobs) runner of any process carries it out, within one lease.
    Retry(u32),
}

impl Schedule {
    /// Returns the schedule of a cron expression of five fields, in UTC: minute, hour, day of
    /// month, month, day of week.
    ///
    /// A field has `*`, values, lists, ranges, steps (`*/15`), and names (`MON`, `JAN`). A range
    /// does not end before it starts, and a step is not longer than its range.
    ///
    /// - The day of month can have `L` for the last day, `15W` for the day from Monday to Friday
    ///   that is nearest to the 15th, and `LW` for the last such day.
    /// - The day of week can have `MON#2` for the second Monday, and `FRIL` for the last Friday.
    ///   Sunday is 0 and 7.
    /// - If one field for days starts with `*`, also as `*/2`, a day must match both, as in
    ///   `crontab(5)`. Otherwise, a day that matches one of them matches. With a `+` before the day
    ///   of week, it must match both: `0 0 13 * +FRI` is each Friday the 13th. In these two fields,
    ///   `?` is `*`.
    ///
    /// In other zones, a fixed time that the zone skips is due at the end of the gap, and one that
    /// it repeats is due once. Times are fixed if the fields for minutes and hours have values,
    /// lists, and ranges only, such as `0 2,14 * * *`. Intervals, such as `*/15 * * * *`, run
    /// through the repeated hour, and a time of an interval that the zone skips is no tick. For a
    /// tick at the end of the gap, list the hours, such as `0 0,6,12,18 * * *`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the expression does not have five fields, a field is invalid, or it
    /// never matches, such as `0 0 30 2 *`.
    pub fn cron(expression: &str) -> Result<Self> {
        Calendar::cron(expression).map(|calendar| Self::of(Ok(calendar))).map_err(to_error)
    }

    /// Returns the schedule of the multiples of `period` since the Unix epoch, in UTC.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the period is under 1 s, over 366 days, or not a whole number of
    /// milliseconds.
    pub fn every(period: Duration) -> Result<Self> {
        Calendar::every(period).map(|calendar| Self::of(Ok(calendar))).map_err(to_error)
    }

    /// Returns a schedule whose error is reported when it is used.
    pub(crate) fn deferred(schedule: Result<Self>) -> Self {
        schedule.unwrap_or_else(|error| Self::of(Err(error)))
    }

    fn of(calendar: Result<Calendar>) -> Self {
        Self {
            calendar,
            overlap: Overlap::default(),
            catch_up: CatchUp::default(),
            on_error: FailedRun::default(),
            on_crash: CrashedRun::default(),
            lease: None,
            min_hold: Duration::ZERO,
            max_hold: None,
            spread: Duration::ZERO,
        }
    }

    /// Sets the time zone of a cron expression, by its IANA name, such as `Europe/Berlin`. Default:
    /// UTC.
    ///
    /// The zones are part of the binary: for a new rule of a zone, build all processes again. An
    /// unknown zone, or a zone for a period, is reported as [`Error::Config`] when the schedule is
    /// used.
    #[must_use]
    pub fn tz(mut self, zone: &str) -> Self {
        self.calendar = self.calendar.and_then(|calendar| calendar.tz(zone).map_err(to_error));
        self
    }

    /// Sets what happens if the previous run is active when a tick is due. Default:
    /// [`Overlap::Skip`].
    ///
    /// A call that waits for the active run checks it every 200 ms.
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Sets which ticks run that no process started in time. Default: [`CatchUp::None`].
    ///
    /// A [`Jobs`](super::Jobs) runner carries it out, before newer ticks.
    #[must_use]
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.catch_up = catch_up;
        self
    }

    /// Sets what happens if the body returns an error or panics. Default: [`FailedRun::Done`].
    #[must_use]
    pub fn on_error(mut self, on_error: FailedRun) -> Self {
        self.on_error = on_error;
        self
    }

    /// Sets what happens if the process crashes or loses the lease. Default:
    /// [`CrashedRun::Rerun`].
    ///
    /// A [`Jobs`](super::Jobs) runner of any process carries it out when the lease is over. A plain
    /// timer does so only if it calls again before the next tick.
    #[must_use]
    pub fn on_crash(mut self, on_crash: CrashedRun) -> Self {
        self.on_crash = on_crash;
        self
    }

    /// Sets the lease: how long after a crash the tick counts as running. Default: the manager's
    /// lease, which is 30 s unless set. From 100 ms to 365 days.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets how long after the start of a tick no newer tick starts, by the server's clock, however
    /// early its run ends. Default: 0. At most 365 days.
    ///
    /// A newer tick that is due within that time is skipped, or waits, as [`overlap`](Self::overlap) says.
    /// The same tick is not delayed: it never starts twice, and a retry may follow at once. Missed
    /// ticks run one after the other without it, and so does the tick after them. So this is for
    /// ticks that should be one: two callers that compute their slots of one event
    /// ([`Job::run_slot`](super::Job::run_slot)) some milliseconds apart, or instants that are too
    /// near each other.
    ///
    /// For a fixed period, it must end before the next tick can start early: it is at most half of
    /// a period of up to 20 s, and 10 s less than a longer one. A longer `min_hold` is
    /// [`Error::Config`].
    #[must_use]
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = min_hold;
        self
    }

    /// Sets how long the body may run. Default: no limit. From 100 ms to 365 days.
    ///
    /// After that time, the body is dropped, and the run has failed.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Delays each tick of a [`Jobs`](super::Jobs) runner by up to `spread`. Default: 0.
    ///
    /// The delay depends on the job and the tick, and is the same in all processes. Use it for jobs
    /// that would all start at the same second. A spread of more than half of a fixed period is
    /// [`Error::Config`]. For a cron expression, the delay is at most half of the distance to the
    /// next tick.
    #[must_use]
    pub fn spread(mut self, spread: Duration) -> Self {
        self.spread = spread;
        self
    }

    /// Returns the instants, after checking the options.
    ///
    /// # Errors
    ///
    /// [`Error::Config`].
    pub(super) fn checked(&self) -> Result<&Calendar> {
        let calendar = self.calendar.as_ref().map_err(Clone::clone)?;
        self.lease.map_or(Ok(Duration::ZERO), checked_lease)?;
        if let Some(max_hold) = self.max_hold {
            checked_lease(max_hold)
                .map_err(|_| config("max_hold", "it is out of bounds: use 100 ms to 365 days"))?;
        }
        if self.min_hold > LONGEST_LEASE {
            return Err(config("min_hold", "it is longer than 365 days: shorten it"));
        }
        self.catch_up.check(None)?;
        Ok(calendar)
    }

    /// Checks the options against the instants, for a job that uses them.
    ///
    /// # Errors
    ///
    /// [`Error::Config`].
    pub(super) fn check_instants(&self) -> Result<()> {
        let calendar = self.checked()?;
        if let Some(most) = calendar.longest_min_hold().filter(|most| self.min_hold > *most) {
            let problem = format!(
                "{:?} reaches the next tick, which may start early: use at most {most:?}",
                self.min_hold
            );
            return Err(config("min_hold", problem));
        }
        let period = calendar.fixed_period();
        self.catch_up.check(period)?;
        if let Some(most) = period.map(|period| period / 2).filter(|most| self.spread > *most) {
            let problem =
                format!("{:?} is longer than half of the period: use at most {most:?}", self.spread);
            return Err(config("spread", problem));
        }
        Ok(())
    }

    /// Returns the first instant after `now`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the schedule is invalid, or has no further instant.
    #[cfg(feature = "testing")]
    pub(crate) fn next_after(&self, now: std::time::SystemTime) -> Result<std::time::SystemTime> {
        use crate::scheduled::tick;
        let now = tick::to_millis(now).unwrap_or_default();
        let next = self.checked()?.next_after(now).map(tick::from_millis);
        next.ok_or_else(|| config("schedule", "it has no further instant: correct the expression"))
    }

    pub(super) fn retries(&self) -> u32 {
        match self.on_error {
            FailedRun::Done => 0,
            FailedRun::Retry(retries) => retries,
        }
    }
}

fn to_error(error: CalendarError) -> Error {
    config(error.part, error.problem)
}
