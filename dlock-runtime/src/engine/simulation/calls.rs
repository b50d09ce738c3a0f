//! The tasks of a simulation: calls of every kind, and bodies that use every method of a guard.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select};

use super::executor;
use super::fault_profile::UNBOUNDED;
use super::network::{MS, Net, TIMEOUT};
use crate::error::{Error, LossCause};
use crate::lock::Lock;
use crate::sync::lock;
use crate::{LockGuard, LockManager, OnLost, ReleaseMode, in_current_scope};

/// The payload of a panic that is part of the simulation.
pub(super) struct PlannedPanic;

/// A caller in one process.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) net: Arc<Net>,
    pub(super) process: usize,
    pub(super) manager: LockManager,
}

/// A lock, and what its options guarantee.
struct LockRequest {
    lock: Lock,
    key: u64,
    /// The longest time to acquire it, in nanoseconds.
    limit: u64,
    finishes: bool,
}

impl Caller {
    /// Makes calls one after the other.
    pub(super) async fn task(self) {
        let rounds = lock(&self.net.state).profile.rounds;
        for _ in 0..rounds {
            self.sleep_up_to(50).await;
            match self.up_to(9) {
                0..=2 => self.guard().await,
                3 => self.try_once().await,
                _ => self.run(0).await,
            }
        }
    }

    /// Acquires a guard, uses it, and releases, drops, or leaks it.
    pub(super) async fn guard(&self) {
        let request = self.request(0);
        let (from, was_shut) = (self.net.now(), self.is_shut());
        let acquired = request.lock.acquire().await;
        self.net.check_time(self.process, "acquire", from, self.until_shut(from, request.limit, 0));
        if acquired.is_ok() && was_shut {
            self.net.violation("a manager that is shut down grants a lock".to_owned());
        }
        match acquired {
            Ok(guard) => self.with_guard(&request, guard).await,
            Err(error) => self.on_rejected(&error, false),
        }
    }

    async fn try_once(&self) {
        let request = self.request(0);
        match self.in_time("try_acquire", TIMEOUT, request.lock.try_acquire()).await {
            Ok(Some(guard)) => self.with_guard(&request, guard).await,
            Ok(None) => {}
            Err(error) => self.on_rejected(&error, false),
        }
    }

    async fn with_guard(&self, request: &LockRequest, guard: LockGuard) {
        let id = self.net.on_begin(self.process, &guard, false, false);
        let held = GuardUse { net: Arc::clone(&self.net), id };
        self.use_guard(&guard, request, id, 0, true).await;
        drop(held); // the use ends before the release
        let (guard_leaks, max_hold) = {
            let profile = &lock(&self.net.state).profile;
            (profile.guard_leaks, profile.max_hold)
        };
        if max_hold > 0 && self.chance(guard_leaks) {
            let mut state = lock(&self.net.state);
            state.invariants.leaking_processes.insert(self.process);
            state.cover("a guard leaked");
            drop(state);
            return std::mem::forget(guard);
        }
        if self.chance(50) {
            let released = self.in_time("release", TIMEOUT, guard.release()).await;
            if let Err(error) = released {
                self.expect(error.is_lost() || error.is_unavailable(), "release", &error);
            }
        }
    }

    /// Runs a body under a lock.
    pub(super) fn run(&self, depth: u64) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        let request = self.request(depth);
        self.run_under(request, depth)
    }

    fn run_under(&self, request: LockRequest, depth: u64) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            let (from, net) = (self.net.now(), &self.net);
            let (mut entered, mut ended, mut lost_at_its_end) = (None, None, false);
            let (entered_at, ended_at, was_lost) = (&mut entered, &mut ended, &mut lost_at_its_end);
            let was_shut = depth == 0 && self.is_shut();
            let outcome = request.lock.run(async |guard: &LockGuard| {
                if was_shut {
                    net.violation("a manager that is shut down starts a body".to_owned());
                }
                *entered_at = Some(net.now());
                net.check_time(
                    self.process,
                    "the acquisition before a body",
                    from,
                    self.until_shut(from, request.limit, depth),
                );
                let id = net.on_begin(self.process, guard, true, request.finishes);
                let inner = self.use_guard(guard, &request, id, depth, request.finishes);
                CheckedBody { net, guard, id, inner, is_done: false }.await;
                *ended_at = Some(net.now());
                *was_lost = net.may_overlap(guard);
            });
            let outcome = outcome.await;
            if outcome.is_ok() && depth == 0 && lock(&net.state).profile.loses_no_hold {
                lock(&net.state).cover("a run on a distant server without faults");
            }
            match (ended, entered) {
                (Some(ended), _) => net.check_time(self.process, "the release after a run", ended, TIMEOUT),
                (None, None) => {
                    let limit = self.until_shut(from, request.limit, depth);
                    net.check_time(self.process, "a run without a body", from, limit);
                }
                _ => {}
            }
            match outcome {
                Ok(()) if lost_at_its_end && !request.finishes => {
                    net.violation("J2: a body that completes under a lost lock returns its value".to_owned());
                }
                Ok(()) => {}
                Err(error) if entered.is_some() => {
                    let is_kept = depth == 0 && lock(&net.state).profile.loses_no_hold;
                    let knows =
                        matches!(error, Error::Lost { completed, .. } if completed == ended.is_some());
                    let may_be = knows && !request.finishes && !is_kept;
                    if ended.is_some() {
                        lock(&net.state).cover("a run lost after its body completed");
                    }
                    self.expect(may_be, "a run whose body began", &error);
                    let by_fork = matches!(error, Error::Lost { cause: LossCause::Forked, .. });
                    lock(&net.state).cover(if by_fork { "a run lost by a fork" } else { "a run lost" });
                }
                Err(error) => self.on_rejected(&error, depth > 0),
            }
        })
    }

    /// Uses a guard, in a body or outside one.
    fn use_guard<'a>(
        &'a self,
        guard: &'a LockGuard,
        request: &'a LockRequest,
        id: u64,
        depth: u64,
        unwatched: bool,
    ) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        Box::pin(async move {
            let (work, nested) = {
                let profile = &lock(&self.net.state).profile;
                (profile.work, profile.nested)
            };
            for _ in 0..=self.up_to(2) {
                match self.up_to(9) {
                    0..=3 => self.sleep_up_to(work).await,
                    4 => {
                        let fence = self.in_time("fencing_token", TIMEOUT, guard.fencing_token()).await;
                        match fence {
                            Ok(fence) if depth == 0 => self.net.on_fenced(id, fence.get()),
                            Ok(_) => {}
                            Err(error) => {
                                self.expect(
                                    error.is_lost() || error.is_unavailable(),
                                    "fencing_token",
                                    &error,
                                );
                            }
                        }
                    }
                    5 => {
                        let lease = Duration::from_millis(100 + self.up_to(2_000));
                        let extended = self.in_time("extend", TIMEOUT, guard.extend(lease)).await;
                        if let Err(error) = extended {
                            self.expect(error.is_lost() || error.is_unavailable(), "extend", &error);
                        }
                    }
                    6 => {
                        // Dropped after that many polls.
                        let polls = self.up_to(2);
                        let _ =
                            Some(LimitedPolls { left: polls, inner: Box::pin(guard.fencing_token()) }.await);
                        let lease = Duration::from_millis(500);
                        let _ = LimitedPolls { left: polls, inner: Box::pin(guard.extend(lease)) }.await;
                        lock(&self.net.state).cover("a request under a hold dropped");
                    }
                    7 => self.until_lost(guard, work).await,
                    _ => {}
                }
                if unwatched && guard.check().is_ok() {
                    self.net.check_hold(id, guard, false);
                }
                if depth < 2 && !unwatched && self.chance(nested) {
                    self.call_inside(request, depth).await;
                }
                let panics = lock(&self.net.state).profile.panics;
                if !unwatched && self.chance(panics) {
                    let mut state = lock(&self.net.state);
                    state.invariants.is_dropping = true;
                    state.cover("a body panics");
                    drop(state);
                    resume_unwind(Box::new(PlannedPanic));
                }
            }
        })
    }

    /// Waits for the loss of the lock, for at most `work` ms.
    async fn until_lost(&self, guard: &LockGuard, work: u64) {
        let from = self.net.now();
        let lost = std::pin::pin!(guard.lost());
        let while_ = self.net.sleep(self.draw_millis(work));
        if let Either::Left((cause, _)) = select(lost, while_).await {
            lock(&self.net.state).cover("a loss reported");
            if let (LossCause::Expired | LossCause::GrantUnconfirmed | LossCause::MaxHold, Some(held)) =
                (cause, guard.held())
            {
                self.net.check_loss_report(self.process, held.root(), from);
            }
            if guard.check().is_ok() {
                self.net.violation("a lock is lost and valid".to_owned());
            }
        }
    }

    /// Makes a call inside a body.
    async fn call_inside(&self, request: &LockRequest, depth: u64) {
        let same = || LockRequest { key: request.key, ..self.request_for(depth + 1, request.key) };
        match self.up_to(8) {
            0 => {
                lock(&self.net.state).cover("a call joins");
                self.run_under(same(), depth + 1).await;
            }
            1 => {
                lock(&self.net.state).cover("two calls join concurrently");
                let both = [self.run_under(same(), depth + 1), self.run_under(same(), depth + 1)];
                futures_util::future::join_all(both).await;
            }
            2 => {
                lock(&self.net.state).cover("a spawned call joins");
                let (ended, has_ended) = tokio::sync::oneshot::channel();
                let (caller, key) = (self.clone(), request.key);
                let inside = in_current_scope(async move {
                    let same = caller.request_for(depth + 1, key);
                    caller.run_under(same, depth + 1).await;
                    let _ = ended.send(());
                });
                executor::spawn(self.process, inside);
                if self.chance(80) {
                    let _ = has_ended.await;
                }
            }
            3 => {
                let error = request.lock.acquire().await;
                let Err(error) = error else {
                    return self.net.violation("a guard joins".to_owned());
                };
                let is_reentrant = matches!(error, Error::Reentrant { .. });
                self.expect(is_reentrant, "acquire inside a run of its key", &error);
            }
            _ => {
                lock(&self.net.state).cover("another lock inside");
                self.run(depth + 1).await;
            }
        }
    }

    fn request(&self, depth: u64) -> LockRequest {
        let keys = lock(&self.net.state).profile.keys;
        self.request_for(depth, self.up_to(keys - 1))
    }

    fn request_for(&self, depth: u64, key: u64) -> LockRequest {
        let profile = lock(&self.net.state).profile.clone();
        let millis = Duration::from_millis;
        let uneven = self.up_to(1) * profile.uneven;
        let lease = profile.lease + uneven;
        let renew = !self.chance(profile.unrenewed);
        let finishes = self.chance(profile.finish);
        let mut lock = self.manager.lock(format!("key:{key}")).lease(millis(lease)).renew(renew);
        lock = lock.on_lost(if finishes { OnLost::Finish } else { OnLost::Abort });
        if self.chance(profile.background) {
            lock = lock.release_mode(ReleaseMode::Background);
        }
        if profile.max_hold > 0 {
            lock = lock.max_hold(millis(lease + profile.max_hold));
        }
        let min_hold = if renew { profile.min_hold } else { profile.min_hold.min(lease) };
        if min_hold > 0 {
            lock = lock.min_hold(millis(min_hold));
        }
        // A nested call that waits for a sibling of its call chain is limited only by a lease.
        let (lock, limit) = match self.up_to(4) {
            0 if depth > 0 => (lock, TIMEOUT.max(lease * MS)),
            0 => (lock, TIMEOUT),
            1 => {
                let tries = lock.retry(3).backoff(millis(20), millis(80));
                // A response timeout for each try, and with `yield_to_foreign` the cooldown.
                let each = TIMEOUT + if profile.yields_to_foreign { 300 * MS } else { 0 };
                (tries, (4 * each + 3 * 80 * MS).max(if depth > 0 { lease * MS } else { 0 }))
            }
            _ => {
                let wait = if depth > 0 { profile.wait.min(2_000) } else { profile.wait };
                (lock.wait(millis(wait)), wait * MS)
            }
        };
        LockRequest { lock, key, limit, finishes }
    }

    fn is_shut(&self) -> bool {
        self.manager.engine().is_closed()
    }

    /// Returns how long a call may wait that began at `from`: at most until the shutdown of its
    /// manager.
    fn until_shut(&self, from: u64, limit: u64, depth: u64) -> u64 {
        let since = lock(&self.net.state).invariants.shutdown_times.get(&self.process).copied();
        match since.filter(|_| depth == 0 && self.is_shut()) {
            Some(since) => limit.min(since.saturating_sub(from)),
            None => limit,
        }
    }

    async fn in_time<T>(&self, what: &str, limit: u64, call: impl Future<Output = T>) -> T {
        let from = self.net.now();
        let result = call.await;
        self.net.check_time(self.process, what, from, limit);
        result
    }

    /// Checks the error of a call that did not acquire its lock.
    fn on_rejected(&self, error: &Error, is_nested: bool) {
        let kind = match error {
            Error::Contended { .. } => "rejected: contended",
            _ if self.manager.engine().is_forked() => {
                let is_refused = error.is_unavailable() || matches!(error, Error::Reentrant { .. });
                self.expect(is_refused, "a call in a forked process", error);
                "rejected: forked"
            }
            Error::Unavailable { .. } => "rejected: unavailable",
            Error::Lost { .. } => "rejected: lost before its start",
            Error::Shutdown { .. }
                if lock(&self.net.state).invariants.shutdown_times.contains_key(&self.process) =>
            {
                "rejected: shut down"
            }
            Error::Deadlock { .. } if is_nested => "rejected: deadlock",
            _ => return self.expect(false, "a rejected call", error),
        };
        lock(&self.net.state).cover(kind);
    }

    fn expect(&self, is_expected: bool, what: &str, error: &Error) {
        if !is_expected {
            self.net.violation(format!("J8: {what} ends with {error:?}"));
        }
    }

    fn up_to(&self, bound: u64) -> u64 {
        lock(&self.net.state).random.up_to(bound)
    }

    fn chance(&self, percent: u64) -> bool {
        lock(&self.net.state).random.chance(percent)
    }

    fn draw_millis(&self, most: u64) -> u64 {
        lock(&self.net.state).random.millis(most)
    }

    async fn sleep_up_to(&self, most: u64) {
        let time = self.draw_millis(most);
        self.net.sleep(time).await;
    }
}

/// Returns the longest time after the fault period, in nanoseconds, if no call is stuck.
pub(super) fn longest(profile: &super::fault_profile::FaultProfile) -> u64 {
    let calls = u64::try_from(profile.processes).unwrap_or_default() * profile.tasks * profile.rounds;
    let each = 12 * (profile.work + 100) + profile.min_hold + 4 * profile.lease + profile.max_hold;
    (calls * each + 10 * (profile.lease + profile.uneven + 2_000)).min(UNBOUNDED / 10) * MS
}

/// Records the end of a guard's use on drop.
struct GuardUse {
    net: Arc<Net>,
    id: u64,
}

impl Drop for GuardUse {
    fn drop(&mut self) {
        self.net.on_end(self.id, true);
    }
}

/// A body whose polls and end are checked.
struct CheckedBody<'a, F> {
    net: &'a Arc<Net>,
    guard: &'a LockGuard,
    id: u64,
    inner: F,
    is_done: bool,
}

impl<F: Future<Output = ()> + Unpin> Future for CheckedBody<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.net.check_hold(self.id, self.guard, true);
        let ended = Pin::new(&mut self.inner).poll(cx);
        self.is_done = ended.is_ready();
        ended
    }
}

impl<F> Drop for CheckedBody<'_, F> {
    fn drop(&mut self) {
        self.net.on_end(self.id, self.is_done);
    }
}

/// A future that is polled at most `left` times.
pub(super) struct LimitedPolls<F> {
    pub(super) left: u64,
    pub(super) inner: Pin<Box<F>>,
}

impl<F: Future> Future for LimitedPolls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.inner.as_mut().poll(cx).map(Some)
    }
}
