//! [`Jobs`], the runner, which sleeps to the next tick of each job.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::config;
use crate::error::{Error, Result};
use crate::global::in_current_manager;
use crate::manager::LockManager;
use crate::scheduled::function;
use crate::scheduled::job_call::JobCall;
use crate::scheduled::job_runner::{Body, JobRunner};
use crate::scheduled::job_store::JobStore;
use crate::scheduled::schedule::Schedule;
use crate::scheduled::tick::Tick;
use crate::timer::Timer;

/// The environment variable with the names of jobs that a runner leaves out, separated by commas.
pub(super) const JOBS_OFF: &str = "DLOCK_JOBS_OFF";

/// Runs jobs at their ticks. Every process of a service has one.
///
/// Each tick starts once in all processes. The runner also repeats ticks that failed or crashed,
/// runs missed ticks, and carries out [`Job::run_now`](super::Job::run_now), all as the
/// [`Schedule`] says. It costs one round trip per tick, and one check per lease, or two while a run
/// is active. While a tick waits for a missed one that another process runs, it costs two per
/// second, and a start that waits for one costs one per second.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use dlock_runtime::{Error, LockManager};
/// use dlock_runtime::scheduled::{Jobs, Schedule};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let manager = LockManager::connect("memory://").await?;
/// # let shutdown = async {};
/// Jobs::new(manager)
///     .add("cleanup", Schedule::every(Duration::from_secs(300))?, |tick| async move {
///         println!("the tick of {:?}", tick.due());
///         Ok::<_, Error>(())
///     })
///     .run_until(shutdown)
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "jobs do not run until `run_until` is awaited"]
pub struct Jobs {
    manager: LockManager,
    /// Each job, or the problem with it.
    entries: Vec<Result<RunnerJob>>,
    grace: Duration,
}

struct RunnerJob {
    name: String,
    schedule: Schedule,
    body: Body,
}

impl fmt::Debug for RunnerJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Jobs {
    /// Returns a runner without jobs.
    pub fn new(manager: LockManager) -> Self {
        Self { manager, entries: Vec::new(), grace: Duration::from_secs(30) }
    }

    /// Adds a job whose body is a plain function. For one with `#[scheduled]`, use
    /// [`add_scheduled`](Self::add_scheduled). A body that panics has failed, and the runner
    /// continues.
    ///
    /// Problems of the name and the schedule are reported by [`run_until`](Self::run_until).
    pub fn add<F, Fut, T, E>(mut self, name: &str, schedule: Schedule, body: F) -> Self
    where
        F: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        E: Display,
    {
        let body: Body = Box::new(move |tick| {
            let run = body(tick);
            Box::pin(async move { outcome_of(run.await) })
        });
        self.entries.push(Ok(RunnerJob { name: name.to_owned(), schedule, body }));
        self
    }

    /// Adds a function with [`#[scheduled]`](macro@crate::scheduled). Its attribute has the name,
    /// the schedule, and the options.
    ///
    /// At each tick, `call` returns a call of the function, with its arguments. The runner awaits
    /// it under the run of the tick: the function does not begin a second one.
    ///
    /// This method also calls `call` once, and polls the future once, to learn the job from the
    /// function. Its body does not run then. So call the function directly, before any
    /// await. If the arguments are not owned, move their owners into the future, as in the second
    /// example. Methods, generic functions, and functions of `#[async_trait]` work too.
    ///
    /// A function that names a `manager` must name that of this runner. Otherwise, the manager of
    /// the runner applies instead of the installed one.
    ///
    /// Problems are reported by [`run_until`](Self::run_until) as [`Error::Config`]: a closure that
    /// does not call such a function before its first await, a function with a `slot`, or one with
    /// another manager.
    ///
    /// [`Error::Config`]: crate::Error::Config
    ///
    /// # Panics
    ///
    /// Panics if `call` panics.
    ///
    /// # Examples
    ///
    /// ```
    /// use dlock_runtime::scheduled::Jobs;
    /// use dlock_runtime::{Error, LockManager, scheduled};
    ///
    /// #[scheduled(name = "nightly-report", cron = "0 2 * * *", catch_up = latest, tick = tick)]
    /// async fn nightly_report(recipient: String) -> Result<Option<()>, Error> {
    ///     println!("the report of {:?} to {recipient}", tick.due());
    ///     Ok(Some(()))
    /// }
    ///
    /// #[derive(Clone)]
    /// struct Service {
    ///     locks: LockManager,
    /// }
    ///
    /// impl Service {
    ///     #[scheduled(name = "cleanup", every = "5m", manager = self.locks)]
    ///     async fn clean_up(&self) -> Result<Option<()>, Error> {
    ///         Ok(Some(()))
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let manager = LockManager::connect("memory://").await?;
    /// # let shutdown = async {};
    /// let service = Service { locks: manager.clone() };
    /// Jobs::new(manager)
    ///     .add_scheduled(|| nightly_report("the board".to_owned()))
    ///     .add_scheduled(move || {
    ///         let service = service.clone();
    ///         async move { service.clean_up().await }
    ///     })
    ///     .run_until(shutdown)
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn add_scheduled<F, Fut, T, E>(mut self, call: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        E: Display,
    {
        let learned = function::learn(&self.manager, &call).map(|job| {
            let name = job.name;
            let body: Body = Box::new(move |tick| {
                let run = function::under_run(name, tick, call());
                Box::pin(async move { outcome_of(run.await) })
            });
            RunnerJob { name: name.to_owned(), schedule: job.schedule.clone(), body }
        });
        self.entries.push(learned);
        self
    }

    /// Sets how long running bodies may continue after the shutdown. Default: 30 s. Then they are
    /// dropped, and their runs have failed: without [`FailedRun::Retry`](super::FailedRun::Retry),
    /// their ticks do not run again.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Runs the jobs until `shutdown` completes. Then no run starts, and it waits for the running
    /// ones.
    ///
    /// The variable `DLOCK_JOBS_OFF` of the environment names jobs that this runner leaves out,
    /// separated by commas. If the server is unavailable, a job tries again every second.
    ///
    /// # Errors
    ///
    /// Before any job runs: [`Error::Config`] if a schedule is invalid, if two jobs have one name,
    /// over a quorum, or outside a tokio runtime; [`Error::InvalidKey`] if a name is invalid.
    /// Later: [`Error::Shutdown`] if the manager is shut down before `shutdown` completes, and
    /// errors that another attempt would not avoid, such as [`Error::WrongKind`]. Then no run
    /// starts any more, and it waits for the running ones first, for at most the grace period. When
    /// the manager is shut down, that is the grace period of the shutdown.
    ///
    /// [`Error::Config`]: crate::Error::Config
    /// [`Error::InvalidKey`]: crate::Error::InvalidKey
    /// [`Error::Shutdown`]: crate::Error::Shutdown
    /// [`Error::WrongKind`]: crate::Error::WrongKind
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the running bodies, and their runs have failed.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        if Handle::try_current().is_err() {
            let problem =
                "jobs run on tasks of their own, which need a tokio runtime: call `run_until` in one";
            return Err(config("runtime", problem));
        }
        let off = std::env::var(JOBS_OFF).unwrap_or_default();
        let (grace, manager) = (self.grace, self.manager.clone());
        let engine = manager.engine();
        let (stop, is_stopped) = watch::channel(false);
        let mut loops = JoinSet::new();
        for runner in self.checked(&off)? {
            loops.spawn(in_current_manager(runner.run(is_stopped.clone())));
        }
        let (mut shutdown, mut result, mut bodies) = (pin!(shutdown), Ok(()), Vec::new());
        while result.is_ok() {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(ended) = loops.join_next() => match ended {
                    Ok((ended, tasks)) => {
                        result = ended;
                        bodies.push(tasks);
                    }
                    Err(error) => result = Err(config("jobs", error.to_string())),
                },
            }
        }
        // The bodies of all jobs may end, also those of one that has failed.
        stop.send_replace(true);
        let rest = async {
            while let Some(ended) = loops.join_next().await {
                bodies.extend(ended.map(|(_, tasks)| tasks));
            }
            for tasks in &mut bodies {
                while tasks.join_next().await.is_some() {}
            }
        };
        let is_shut_down = matches!(result, Err(Error::Shutdown { .. }));
        let limit = async {
            if !is_shut_down {
                return Timer::new(grace).await;
            }
            // The shutdown of the manager ends the bodies that await, unless its future is dropped.
            tokio::select! {
                () = engine.calls.aborted.wait() => Timer::new(engine.rules.response_timeout).await,
                () = &mut shutdown => Timer::new(grace).await,
            }
        };
        // At the limit, dropping the tasks drops the bodies.
        tokio::select! {
            () = rest => {}
            () = limit => {}
        }
        result
    }

    /// Checks the jobs, and returns those that are not `off`.
    fn checked(self, off: &str) -> Result<Vec<JobRunner>> {
        let mut names = BTreeSet::new();
        let mut runners = Vec::new();
        for entry in self.entries {
            let RunnerJob { name, schedule, body } = entry?;
            if !names.insert(name.clone()) {
                let problem = format!("two jobs of this runner have the name `{name}`: give each its own");
                return Err(config("jobs", problem));
            }
            let call = JobCall::new(&JobStore::new(&self.manager, &name), &schedule);
            let call = call.map_err(|error| of_job(&name, error))?;
            if !off.split(',').any(|off| off.trim() == name) {
                runners.push(JobRunner::new(call, body));
            }
        }
        Ok(runners)
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("jobs", &self.entries).finish_non_exhaustive()
    }
}

/// Adds the name of the job to an error of its schedule.
fn of_job(name: &str, error: Error) -> Error {
    match error {
        Error::Config { part, problem } => config(&part, format!("job `{name}`: {problem}")),
        other => other,
    }
}

/// Returns the output of a body without its value, and with its error as a text.
fn outcome_of<T, E: Display>(output: Result<T, E>) -> Result<(), String> {
    output.map(drop).map_err(|error| error.to_string())
}
