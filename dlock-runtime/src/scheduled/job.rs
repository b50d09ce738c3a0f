//! [`Job`], the handle of a job, for calls and for operators.

use std::fmt::Display;
use std::time::SystemTime;

use crate::config::config;
use crate::error::{Error, Result};
use crate::manager::LockManager;
use crate::protocol::job::begin::{BeginKind, SkipReason};
use crate::protocol::job::job_record::OwnerReply;
use crate::scheduled::job_call::{JobCall, JobExecution, TickDecision};
use crate::scheduled::job_history::{self, JobRun, JobStatus};
use crate::scheduled::job_store::JobStore;
use crate::scheduled::operation::{JobAnswer, JobRequest};
use crate::scheduled::run_output::RunOutput;
use crate::scheduled::schedule::Schedule;
use crate::scheduled::tick::{self, Tick};

/// A job of a fleet. Returned by [`LockManager::job`].
///
/// Its record is in the store: which ticks have started, and how they ended. It works with one
/// server, Sentinel, a cluster, and `memory://`. Over a quorum, every call gets [`Error::Config`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use dlock_runtime::{Error, LockManager};
/// use dlock_runtime::scheduled::Schedule;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let manager = LockManager::connect("memory://").await?;
/// let hourly = Schedule::cron("0 * * * *")?;
/// // Any timer, in any number of processes, may call this: each tick starts once.
/// let report = manager.job("report").run(&hourly, async |tick| Ok::<_, Error>(tick.attempt())).await?;
/// assert_eq!(report, Some(1));
/// let again = manager.job("report").run(&hourly, async |tick| Ok::<_, Error>(tick.attempt())).await?;
/// assert_eq!(again, None);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until a method is awaited"]
pub struct Job {
    store: JobStore,
}

impl LockManager {
    /// Returns the job `name` of this manager's namespace.
    ///
    /// An invalid name is reported when the job is used.
    pub fn job(&self, name: &str) -> Job {
        Job { store: JobStore::new(self, name) }
    }
}

impl Job {
    /// Runs `body` if no process has run the current tick of `schedule`, and returns its value.
    ///
    /// Returns `None` if this call does not run the tick: another call runs it or has run it, the
    /// job is paused, the previous run is active and [`Schedule::overlap`] skips the tick, or a
    /// runner is running a missed tick, and runs this one after it. If that runner ends before, the
    /// tick is missed.
    ///
    /// The current tick is the next instant of the schedule if that is due within the *early* time,
    /// by the server's clock, and otherwise the last instant. The early time is half of the
    /// distance between the two, and at most 10 s. While the body runs, its lease is renewed.
    ///
    /// A call that does not run costs one round trip, a call that runs costs two, and one per
    /// renewal. If the clocks of the process and the server differ, the first call of a manager
    /// costs one more.
    ///
    /// # Errors
    ///
    /// The error of the body, after it is recorded. Converted to `E`:
    ///
    /// - [`Error::Lost`] if the lease was lost while the body ran, after `max_hold`, or with
    ///   [`LossCause::Cancelled`](crate::LossCause::Cancelled) if a newer tick replaced it. The
    ///   body was dropped.
    /// - [`Error::Unavailable`] if the server is unavailable at the start. The body did not run.
    /// - [`Error::Config`] if the schedule is invalid, inside a body of the same job, or over a
    ///   quorum; [`Error::InvalidKey`]; [`Error::Shutdown`].
    /// - [`Error::FencingCounter`] if no higher fencing token can be issued; [`Error::WrongKind`]
    ///   if the key holds no record. The body did not run.
    ///
    /// # Panics
    ///
    /// Panics if the body panics. The run is recorded as failed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before the body starts, the tick may still run elsewhere. If it is
    /// dropped while the body runs, the run is recorded as failed; after that, as it ended.
    pub async fn run<T, E, F>(&self, schedule: &Schedule, body: F) -> Result<Option<T>, E>
    where
        F: AsyncFnOnce(Tick) -> Result<T, E>,
        E: From<Error> + Display,
    {
        Self::run_body(self.begin(schedule, None).await?, body).await
    }

    /// Like [`run`](Self::run), for a slot that the caller chooses, such as the fire time of
    /// another scheduler.
    ///
    /// Slots only increase: an older slot than the last one does not run. The record of the job
    /// lives for at least 400 days after it. `schedule` gives the options; its instants are not
    /// used, so no slot counts as missed, and the job has no other schedule after the call.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run). [`Error::Config`] if the slot is more than one day ahead of the
    /// server's clock, since it would make every later tick late.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, SystemTime};
    /// # use dlock_runtime::{Error, LockManager};
    /// use dlock_runtime::scheduled::Schedule;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let (manager, fire_at) = (LockManager::connect("memory://").await?, SystemTime::now());
    /// let options = Schedule::every(Duration::from_secs(60))?.lease(Duration::from_secs(10));
    /// let job = manager.job("report");
    ///
    /// // `fire_at` is from another scheduler, which calls every process.
    /// let first = job.run_slot(fire_at, &options, async |_| Ok::<_, Error>(())).await?;
    /// let again = job.run_slot(fire_at, &options, async |_| Ok::<_, Error>(())).await?;
    /// assert_eq!((first, again), (Some(()), None));
    /// # Ok(()) }
    /// ```
    pub async fn run_slot<T, E, F>(
        &self,
        slot: SystemTime,
        schedule: &Schedule,
        body: F,
    ) -> Result<Option<T>, E>
    where
        F: AsyncFnOnce(Tick) -> Result<T, E>,
        E: From<Error> + Display,
    {
        Self::run_body(self.begin(schedule, Some(slot)).await?, body).await
    }

    /// Begins the current tick, or the slot that the caller has chosen. Returns `None` if it does
    /// not run here.
    pub(super) async fn begin(
        &self,
        schedule: &Schedule,
        slot: Option<SystemTime>,
    ) -> Result<Option<JobExecution>> {
        let begun = match slot {
            None => JobCall::new(&self.store, schedule)?.begin_current(None, &mut None).await?,
            Some(slot) => {
                let call = JobCall::of_slots(&self.store, schedule)?;
                let slot = tick::to_millis(slot).ok_or_else(|| {
                    config("slot", "the slot is before 1970: pass the time at which the run is due")
                })?;
                match call.begin(BeginKind::Slot { slot }).await? {
                    TickDecision::Skipped { reason: SkipReason::Ahead, .. } => {
                        let problem =
                            "the slot is more than one day ahead of the server's clock: check both clocks";
                        return Err(config("slot", problem));
                    }
                    begun => begun,
                }
            }
        };
        Ok(match begun {
            TickDecision::Run(execution) => Some(execution),
            TickDecision::Skipped { .. } | TickDecision::Missed { .. } => None,
        })
    }

    async fn run_body<T, E, F>(execution: Option<JobExecution>, body: F) -> Result<Option<T>, E>
    where
        F: AsyncFnOnce(Tick) -> Result<T, E>,
        E: From<Error> + Display,
    {
        let Some(execution) = execution else { return Ok(None) };
        execution.body(body, &RunOutput::of_result()).await.map(Some)
    }

    /// Returns the last runs, the latest first, at most `count` and at most 50.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the server is unavailable; [`Error::InvalidKey`];
    /// [`Error::Config`] over a quorum; [`Error::WrongKind`] if the key holds no record;
    /// [`Error::FencingCounter`] if another client has written its last fencing token.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn history(&self, count: usize) -> Result<Vec<JobRun>> {
        Ok(self.store.read().await?.map(|record| job_history::runs(&record, count)).unwrap_or_default())
    }

    /// Returns the last run that has ended.
    ///
    /// # Errors
    ///
    /// As [`history`](Self::history).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn last_run(&self) -> Result<Option<JobRun>> {
        Ok(self.history(1).await?.pop())
    }

    /// Returns the state of the job, or `None` if it was never seen, or not for its time to live.
    ///
    /// # Errors
    ///
    /// As [`history`](Self::history).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn status(&self) -> Result<Option<JobStatus>> {
        let reply = self.store.send(JobRequest::Read).await?;
        let JobAnswer::Record(record) = reply.answer else { return Ok(None) };
        Ok(record.map(|record| job_history::status(&record, reply.now)))
    }

    /// Pauses the job: its ticks are skipped until it is resumed. A run that is active continues.
    ///
    /// # Errors
    ///
    /// As [`history`](Self::history).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, and after [`Error::Unavailable`], the job may or may not be
    /// paused.
    pub async fn pause(&self) -> Result<()> {
        self.store.send(JobRequest::SetPaused(true)).await.map(drop)
    }

    /// Resumes a paused job. Ticks that were due until now do not start any more, and do not count
    /// as missed. A run that is active continues: if it fails or crashes, its tick may start again.
    ///
    /// # Errors
    ///
    /// As [`history`](Self::history).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, and after [`Error::Unavailable`], the job may or may not be
    /// resumed.
    pub async fn resume(&self) -> Result<()> {
        self.store.send(JobRequest::SetPaused(false)).await.map(drop)
    }

    /// Requests a run at once, in addition to the schedule.
    ///
    /// A [`Jobs`](crate::scheduled::Jobs) runner of any process carries it out, within one lease,
    /// or within one lease after the active run has ended. It changes neither the last slot nor the
    /// number of missed ticks, and runs even if the job is paused.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownJob`] if the job has no record: no runner has started with it, and no call
    /// has asked for a tick of it, or not for the record's time to live. Otherwise as
    /// [`history`](Self::history).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, and after [`Error::Unavailable`], the run may or may not be
    /// requested. It is not sent again, since the run may have taken place by then.
    pub async fn run_now(&self) -> Result<()> {
        match self.store.send(JobRequest::RequestRun).await?.answer {
            JobAnswer::Owner(OwnerReply::NotOwner) => {
                Err(Error::UnknownJob { key: self.store.checked_key()?.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Forgets which ticks have started. Ticks until now do not run, and do not count as missed.
    ///
    /// Use it after the event `dlock.job_slot_ahead`: a slot that is ahead of the server's clock
    /// makes later ticks late. A run that is active loses its lease.
    ///
    /// # Errors
    ///
    /// As [`history`](Self::history).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, and after [`Error::Unavailable`], the record may or may not be
    /// reset.
    pub async fn reset(&self) -> Result<()> {
        self.store.send(JobRequest::Reset).await.map(drop)
    }
}
