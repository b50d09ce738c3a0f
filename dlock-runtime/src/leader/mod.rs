//! Leader election: at most one process of a fleet leads, on a lock whose fencing token is the
//! number of the term.
//!
//! ```text
//! mod          Leadership: the candidates of one name, and their loop
//! term         Term: what the body of the leader receives
//! elections    the terms of this process, for `is_leader`, `resign`, and a shutdown
//! watch        LeaderWatch: which process leads
//! ```
//!
//! ```text
//!              lock acquired, fencing token issued
//!  candidate ------------------------------------> leader
//!     ^  ^                                          |  |
//!     |  |   the body returned, or the lock is lost |  |
//!     |  +-------- pause: the backoff --------------+  |
//!     |                                                |
//!     +----------- pause: one lease -------------------+
//!                                        resigned, and another process contends
//! ```

pub(crate) mod elections;
mod term;
mod watch;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::fork::in_one_process;
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::leader::elections::Election;
use crate::lock::Lock;
use crate::manager::LockManager;
use crate::scope::Scope;
use crate::telemetry;

pub use term::Term;
pub use watch::{CurrentLeader, LeaderWatch};

/// The leadership of one name in a fleet. Returned by [`LockManager::leader`].
///
/// The leader holds the lock of the key `leader:<name>`, so `dlock inspect` and
/// [`LockManager::force_release`] work with it. It works with every kind of server, including a
/// quorum.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// # let manager = dlock_runtime::LockManager::connect("memory://").await?;
/// let indexer = manager.leader("indexer").lease(Duration::from_secs(10));
/// # let stop = manager.clone();
/// // In a task of its own. It returns when the manager is shut down.
/// indexer
///     .lead(async |term| {
///         while term.is_valid() {
///             // .. one step of the work; writes carry `term.number()` ..
/// #           tokio::spawn({ let stop = stop.clone(); async move { stop.shutdown(Duration::ZERO).await } });
///             tokio::time::sleep(Duration::from_millis(100)).await;
///         }
///     })
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a process is no candidate until `lead` is called"]
pub struct Leadership {
    manager: LockManager,
    key: Result<LockKey>,
    lease: Option<Duration>,
}

/// How a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TermEnd {
    Returned,
    Resigned,
}

impl LockManager {
    /// Returns the leadership of `name` in this manager's namespace.
    ///
    /// An invalid name is reported when it is used.
    pub fn leader(&self, name: &str) -> Leadership {
        let key = LockKey::named("leader", name, self.namespace()).map_err(Into::into);
        Leadership { manager: self.clone(), key, lease: None }
    }
}

impl Leadership {
    /// Sets the lease of the leader: how long after a crash no other process leads. Default: the
    /// manager's lease, which is 30 s unless set. From 100 ms to 365 days.
    ///
    /// It is renewed while the process leads.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Runs `body` whenever this process leads, until the manager is shut down.
    ///
    /// The process waits in the lock's queue. When it becomes the leader, the body starts. If the
    /// leadership is lost, the body is dropped at its next await, as under a lock. If the body
    /// returns, the term ends, and the process contends again after a backoff of 100 ms, which
    /// doubles up to 10 s while terms are shorter than a lease. If the server is unavailable, the
    /// process contends again after the same backoff, and the event `dlock.unavailable` has the
    /// reason.
    ///
    /// If this is called several times for one name of one manager, one call contends, and the
    /// others wait until it has ended.
    ///
    /// A term costs three round trips, for the lock, the number, and the release, and one per
    /// renewal.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`], [`Error::Config`], [`Error::WrongKind`], [`Error::FencingCounter`],
    /// [`Error::Reentrant`] if the current call chain holds the lock of this name, and
    /// [`Error::Unavailable`] in a forked process. When the manager is shut down, it returns `Ok`.
    ///
    /// # Panics
    ///
    /// Panics if the body panics. The term ends, and another process leads.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and sends the release. [`resign`](Self::resign) waits for
    /// its reply.
    pub async fn lead<F, Fut>(&self, mut body: F) -> Result<()>
    where
        F: FnMut(Term) -> Fut,
        Fut: Future<Output = ()>,
    {
        let key = self.key.clone()?;
        let engine = self.manager.engine();
        engine.in_own_process(Some(&key))?; // before any mutex
        // A call that contends waits for that hold, and this one would wait for that call.
        if Scope::current().is_some_and(|scope| Scope::of_key(&scope, engine, &key).is_some()) {
            return Err(Error::Reentrant { key });
        }
        let (election, lease) = (self.manager.elections().of(&key, engine.now()), self.lease_or_default());
        let candidate = engine.run_in_own_process(Some(&key), election.candidate(engine)).await?;
        let Some(_candidate) = candidate else { return Ok(()) };
        let mut pause = FIRST_PAUSE;
        loop {
            let acquired = self.lock(&key).acquire().await;
            let started = engine.now();
            let ended = match acquired {
                Ok(guard) => self.run_term(guard, &election, &mut body).await,
                Err(error) => Err(error),
            };
            let resigned = match ended {
                Ok(end) => end == TermEnd::Resigned,
                Err(Error::Shutdown { .. }) => return Ok(()),
                Err(Error::Contended { .. }) => continue,
                Err(Error::Lost { .. } | Error::Unavailable { .. } | Error::Deadlock { .. }) => false,
                Err(error) => return Err(error),
            };
            if engine.is_closed() {
                return Ok(());
            }
            if engine.now().since(started) > lease {
                pause = FIRST_PAUSE;
            }
            // Without a reply, another process may lead or wait.
            let may_have_successor = resigned && !matches!(self.manager.record_of(&key).await, Ok(None));
            let time = if may_have_successor { lease } else { pause };
            pause = (pause * 2).min(LAST_PAUSE);
            let pausing = async {
                tokio::select! {
                    () = engine.backend.sleep(time) => {}
                    () = engine.calls.closed.wait() => {}
                }
                Ok(())
            };
            engine.run_in_own_process(Some(&key), pausing).await?;
        }
    }

    /// Ends the term of this process, and waits until its lock is released.
    ///
    /// The body is dropped at its current await. If another process waits, it leads one round trip
    /// later, and this one pauses for one lease before it contends again. If it cannot learn
    /// whether another process waits, it pauses too. If this process does not hold the lock,
    /// the call changes nothing, so a call of `lead` that waits for the lock may lead immediately
    /// after it.
    ///
    /// `Ok` means that the server has confirmed the release, or that this process holds nothing.
    /// That also applies if the future of [`lead`](Self::lead) is dropped, or if its term ends for
    /// another reason. All calls for one term return the same result.
    ///
    /// It has no limit of its own: if the runtime of [`lead`](Self::lead) stands still, it waits
    /// until that runtime continues. [`LockManager::shutdown`] has a limit.
    ///
    /// # Errors
    ///
    /// - [`Error::Unavailable`] if the server did not confirm the release, and [`Error::Config`] if
    ///   it refused the release permanently. Also `Unavailable` in a forked process.
    /// - [`Error::Lost`] if the lock was lost before the release: another process may have led at
    ///   the same time.
    /// - [`Error::WrongKind`] if the key holds a value that is not a lock of this layout.
    /// - [`Error::InvalidKey`].
    ///
    /// After `Unavailable`, `Config`, and a `Lost` that no reply of the server has confirmed, such
    /// as one with the cause [`Expired`](crate::LossCause::Expired), the lock may still be held for
    /// one lease, because a renewal without a reply may have extended it. The release is repeated
    /// in the background. Later calls return the same error until one lease has passed, the server
    /// reports that this process is not the holder, or this process leads again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the term still ends.
    pub async fn resign(&self) -> Result<()> {
        let key = self.key.as_ref().map_err(Clone::clone)?;
        let engine = self.manager.engine();
        engine.in_own_process(Some(key))?; // before any mutex
        let now = engine.now();
        let election = self.manager.elections().of(key, now);
        engine.run_in_own_process(Some(key), election.resign(now)).await
    }

    /// Returns `true` if this process leads, by the deadline of its lease.
    ///
    /// It sends no request.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        let engine = self.manager.engine();
        let leads = |key| {
            let now = engine.now();
            self.manager.elections().of(key, now).number(now).is_some()
        };
        !engine.is_forked() && self.key.as_ref().is_ok_and(leads)
    }

    /// Returns a watch of the process that leads, and of its terms.
    #[must_use]
    pub fn watch(&self) -> LeaderWatch {
        LeaderWatch::new(self.manager.clone(), self.key.clone())
    }

    fn lock(&self, key: &LockKey) -> Lock {
        let lock = self.manager.lock(key.clone()).wait(LONGEST_WAIT);
        match self.lease {
            Some(lease) => lock.lease(lease),
            None => lock,
        }
    }

    fn lease_or_default(&self) -> Duration {
        self.lease.unwrap_or(self.manager.engine().lease)
    }

    /// Gets the number of one term, and runs its body until it returns, the lock is lost, or the
    /// process resigns. Then drops it, and releases the lock.
    async fn run_term<F, Fut>(
        &self,
        guard: LockGuard,
        election: &Arc<Election>,
        body: &mut F,
    ) -> Result<TermEnd>
    where
        F: FnMut(Term) -> Fut,
        Fut: Future,
    {
        let engine = self.manager.engine();
        let unavailable = |error: &Error| telemetry::task_unavailable(error, engine.event_limits());
        let leading = election.register(guard, self.lease_or_default());
        let (guard, active) = (leading.guard(), leading.active().clone());
        let key = guard.key().clone();
        let ended = {
            let mut running = pin!(async {
                let number = guard.fencing_token().await.inspect_err(unavailable)?;
                leading.start(number);
                body(Term::new(engine, &key, number, &active)).await;
                Ok(TermEnd::Returned)
            });
            let mut ending = in_one_process(async {
                tokio::select! {
                    biased;
                    () = leading.resigned() => Ok(TermEnd::Resigned),
                    _ = guard.lost() => guard.check().map(|()| TermEnd::Resigned),
                }
            });
            poll_fn(|cx| {
                // After a pause of any length, the body of a lost term is not polled again.
                guard.check()?;
                if let Poll::Ready(ended) = Pin::new(&mut ending).poll(cx) {
                    return Poll::Ready(ended);
                }
                running.as_mut().poll(cx)
            })
            .await
        };
        drop(leading);
        let released = engine.run_in_own_process(Some(&key), active.released()).await;
        match (ended?, released) {
            // Also without a confirmed release, it lets other processes lead.
            (TermEnd::Resigned, Err(Error::Lost { .. } | Error::Unavailable { .. })) => Ok(TermEnd::Resigned),
            (end, released) => released.map(|()| end),
        }
    }
}

/// The pauses between terms, and after failures.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// A candidate that waits for longer enters the queue again.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);
