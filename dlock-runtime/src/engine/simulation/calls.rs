//! What the tasks of a world do: calls of every kind, and bodies that use all that a guard has.
//!
//! Not here: when they are dropped (`world`), what is judged of them (`judges`).

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select};

use super::executor;
use super::network::{MS, Net, TIMEOUT};
use super::weather::PATIENT;
use crate::error::{Error, LossCause};
use crate::lock::Lock;
use crate::sync::lock;
use crate::{LockGuard, LockManager, OnLost, ReleaseMode, in_current_scope};

/// What a body panics with where that is part of the plan.
pub(super) struct Planned;

/// Who calls.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) net: Arc<Net>,
    pub(super) process: usize,
    pub(super) manager: LockManager,
}

/// A lock, and what its options promise.
struct Asked {
    lock: Lock,
    key: u64,
    /// How long it may take to get it, in nanoseconds.
    limit: u64,
    finishes: bool,
}

impl Caller {
    /// Makes call after call.
    pub(super) async fn task(self) {
        let rounds = lock(&self.net.state).weather.rounds;
        for _ in 0..rounds {
            self.sleep_up_to(50).await;
            match self.up_to(9) {
                0..=2 => self.guard().await,
                3 => self.only_try().await,
                _ => self.run(0).await,
            }
        }
    }

    /// Takes a guard, uses it, and lets go of it in one of four ways.
    pub(super) async fn guard(&self) {
        let asked = self.asked(0);
        let (from, was_shut) = (self.net.now(), self.is_shut());
        let got = asked.lock.acquire().await;
        self.net.judge_time(self.process, "acquire", from, self.until_shut(from, asked.limit, 0));
        if got.is_ok() && was_shut {
            self.net.wrong("a manager that is shut down gives a lock away".to_owned());
        }
        match got {
            Ok(guard) => self.with_guard(&asked, guard).await,
            Err(error) => self.refused(&error, false),
        }
    }

    async fn only_try(&self) {
        let asked = self.asked(0);
        match self.in_time("try_acquire", TIMEOUT, asked.lock.try_acquire()).await {
            Ok(Some(guard)) => self.with_guard(&asked, guard).await,
            Ok(None) => {}
            Err(error) => self.refused(&error, false),
        }
    }

    async fn with_guard(&self, asked: &Asked, guard: LockGuard) {
        let id = self.net.begins(self.process, &guard, false, false);
        let held = Holding { net: Arc::clone(&self.net), id };
        self.use_of(&guard, asked, id, 0, true).await;
        drop(held); // it is over before it is let go of
        let (forgets, max_hold) = {
            let weather = &lock(&self.net.state).weather;
            (weather.forgets, weather.max_hold)
        };
        if max_hold > 0 && self.chance(forgets) {
            let mut state = lock(&self.net.state);
            state.judges.forgotten.insert(self.process);
            state.happens("a guard forgotten");
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
        let asked = self.asked(depth);
        self.run_under(asked, depth)
    }

    fn run_under(&self, asked: Asked, depth: u64) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            let (from, net) = (self.net.now(), &self.net);
            let (mut entered, mut ended, mut lost_at_its_end) = (None, None, false);
            let (entered_at, ended_at, was_lost) = (&mut entered, &mut ended, &mut lost_at_its_end);
            let was_shut = depth == 0 && self.is_shut();
            let outcome = asked.lock.run(async |guard: &LockGuard| {
                if was_shut {
                    net.wrong("a manager that is shut down lets a body begin".to_owned());
                }
                *entered_at = Some(net.now());
                net.judge_time(
                    self.process,
                    "the way to a body",
                    from,
                    self.until_shut(from, asked.limit, depth),
                );
                let id = net.begins(self.process, guard, true, asked.finishes);
                let inner = self.use_of(guard, &asked, id, depth, asked.finishes);
                Watched { net, guard, id, inner, is_done: false }.await;
                *ended_at = Some(net.now());
                *was_lost = net.may_overlap(guard);
            });
            let outcome = outcome.await;
            if outcome.is_ok() && depth == 0 && lock(&net.state).weather.keeps_holds {
                lock(&net.state).happens("a run far away while nothing goes wrong");
            }
            match (ended, entered) {
                (Some(ended), _) => net.judge_time(self.process, "the end of a run", ended, TIMEOUT),
                (None, None) => {
                    let limit = self.until_shut(from, asked.limit, depth);
                    net.judge_time(self.process, "a run without a body", from, limit);
                }
                _ => {}
            }
            match outcome {
                Ok(()) if lost_at_its_end && !asked.finishes => {
                    net.wrong("J2: a body that completes under a lost lock gives its value".to_owned());
                }
                Ok(()) => {}
                Err(error) if entered.is_some() => {
                    let is_kept = depth == 0 && lock(&net.state).weather.keeps_holds;
                    let knows =
                        matches!(error, Error::Lost { completed, .. } if completed == ended.is_some());
                    let may_be = knows && !asked.finishes && !is_kept;
                    if ended.is_some() {
                        lock(&net.state).happens("a run lost when its body had completed");
                    }
                    self.expect(may_be, "a run whose body began", &error);
                    let by_fork = matches!(error, Error::Lost { cause: LossCause::Forked, .. });
                    lock(&net.state).happens(if by_fork { "a run lost by a fork" } else { "a run lost" });
                }
                Err(error) => self.refused(&error, depth > 0),
            }
        })
    }

    /// What a body does, and the code with a guard.
    fn use_of<'a>(
        &'a self,
        guard: &'a LockGuard,
        asked: &'a Asked,
        id: u64,
        depth: u64,
        unwatched: bool,
    ) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        Box::pin(async move {
            let (work, nested) = {
                let weather = &lock(&self.net.state).weather;
                (weather.work, weather.nested)
            };
            for _ in 0..=self.up_to(2) {
                match self.up_to(9) {
                    0..=3 => self.sleep_up_to(work).await,
                    4 => {
                        let fence = self.in_time("fencing_token", TIMEOUT, guard.fencing_token()).await;
                        match fence {
                            Ok(fence) if depth == 0 => self.net.fenced(id, fence.get()),
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
                        // Dropped after so many polls, whatever comes of it.
                        let polls = self.up_to(2);
                        let _ = Some(Polls { left: polls, inner: Box::pin(guard.fencing_token()) }.await);
                        let lease = Duration::from_millis(500);
                        let _ = Polls { left: polls, inner: Box::pin(guard.extend(lease)) }.await;
                        lock(&self.net.state).happens("a request under a hold dropped");
                    }
                    7 => self.until_lost(guard, work).await,
                    _ => {}
                }
                if unwatched && guard.check().is_ok() {
                    self.net.believes(id, guard, false);
                }
                if depth < 2 && !unwatched && self.chance(nested) {
                    self.call_inside(asked, depth).await;
                }
                let panics = lock(&self.net.state).weather.panics;
                if !unwatched && self.chance(panics) {
                    let mut state = lock(&self.net.state);
                    state.judges.is_cutting = true;
                    state.happens("a body panics");
                    drop(state);
                    resume_unwind(Box::new(Planned));
                }
            }
        })
    }

    /// WaitGraph for the loss of the lock, for a while.
    async fn until_lost(&self, guard: &LockGuard, work: u64) {
        let from = self.net.now();
        let lost = std::pin::pin!(guard.lost());
        let while_ = self.net.sleep(self.draw_millis(work));
        if let Either::Left((cause, _)) = select(lost, while_).await {
            lock(&self.net.state).happens("a loss told");
            if let (LossCause::Expired | LossCause::GrantUnconfirmed | LossCause::MaxHold, Some(held)) =
                (cause, guard.held())
            {
                self.net.told_of_loss(self.process, held.root(), from);
            }
            if guard.check().is_ok() {
                self.net.wrong("a lock is lost and believed".to_owned());
            }
        }
    }

    /// Makes a call inside a body.
    async fn call_inside(&self, asked: &Asked, depth: u64) {
        let same = || Asked { key: asked.key, ..self.asked_of(depth + 1, asked.key) };
        match self.up_to(8) {
            0 => {
                lock(&self.net.state).happens("a call joins");
                self.run_under(same(), depth + 1).await;
            }
            1 => {
                lock(&self.net.state).happens("two calls join side by side");
                let both = [self.run_under(same(), depth + 1), self.run_under(same(), depth + 1)];
                futures_util::future::join_all(both).await;
            }
            2 => {
                lock(&self.net.state).happens("a spawned call joins");
                let (ended, has_ended) = tokio::sync::oneshot::channel();
                let (caller, key) = (self.clone(), asked.key);
                let inside = in_current_scope(async move {
                    let same = caller.asked_of(depth + 1, key);
                    caller.run_under(same, depth + 1).await;
                    let _ = ended.send(());
                });
                executor::spawn(self.process, inside);
                if self.chance(80) {
                    let _ = has_ended.await;
                }
            }
            3 => {
                let error = asked.lock.acquire().await;
                let Err(error) = error else {
                    return self.net.wrong("a guard joins".to_owned());
                };
                let is_reentrant = matches!(error, Error::Reentrant { .. });
                self.expect(is_reentrant, "acquire inside a run of its key", &error);
            }
            _ => {
                lock(&self.net.state).happens("another lock inside");
                self.run(depth + 1).await;
            }
        }
    }

    fn asked(&self, depth: u64) -> Asked {
        let keys = lock(&self.net.state).weather.keys;
        self.asked_of(depth, self.up_to(keys - 1))
    }

    fn asked_of(&self, depth: u64, key: u64) -> Asked {
        let weather = lock(&self.net.state).weather.clone();
        let millis = Duration::from_millis;
        let uneven = self.up_to(1) * weather.uneven;
        let lease = weather.lease + uneven;
        let renew = !self.chance(weather.unrenewed);
        let finishes = self.chance(weather.finish);
        let mut lock = self.manager.lock(format!("key:{key}")).lease(millis(lease)).renew(renew);
        lock = lock.on_lost(if finishes { OnLost::Finish } else { OnLost::Abort });
        if self.chance(weather.background) {
            lock = lock.release_mode(ReleaseMode::Background);
        }
        if weather.max_hold > 0 {
            lock = lock.max_hold(millis(lease + weather.max_hold));
        }
        let min_hold = if renew { weather.min_hold } else { weather.min_hold.min(lease) };
        if min_hold > 0 {
            lock = lock.min_hold(millis(min_hold));
        }
        // A call that is nested and waits for a sibling of its own chain has no other limit than a lease.
        let (lock, limit) = match self.up_to(4) {
            0 if depth > 0 => (lock, TIMEOUT.max(lease * MS)),
            0 => (lock, TIMEOUT),
            1 => {
                let tries = lock.retry(3).backoff(millis(20), millis(80));
                // A response timeout for each try, and where room is made for others the time for which they get it.
                let each = TIMEOUT + if weather.shares { 300 * MS } else { 0 };
                (tries, (4 * each + 3 * 80 * MS).max(if depth > 0 { lease * MS } else { 0 }))
            }
            _ => {
                let wait = if depth > 0 { weather.wait.min(2_000) } else { weather.wait };
                (lock.wait(millis(wait)), wait * MS)
            }
        };
        Asked { lock, key, limit, finishes }
    }

    fn is_shut(&self) -> bool {
        self.manager.engine().is_closed()
    }

    /// How long a call may wait that began at `from`: nobody waits any more once the manager is shut down.
    fn until_shut(&self, from: u64, limit: u64, depth: u64) -> u64 {
        let since = lock(&self.net.state).judges.shut.get(&self.process).copied();
        match since.filter(|_| depth == 0 && self.is_shut()) {
            Some(since) => limit.min(since.saturating_sub(from)),
            None => limit,
        }
    }

    async fn in_time<T>(&self, what: &str, limit: u64, call: impl Future<Output = T>) -> T {
        let from = self.net.now();
        let result = call.await;
        self.net.judge_time(self.process, what, from, limit);
        result
    }

    /// A call did not get its lock.
    fn refused(&self, error: &Error, is_nested: bool) {
        let kind = match error {
            Error::Contended { .. } => "refused: contended",
            _ if self.manager.engine().is_forked() => {
                let is_refused = error.is_unavailable() || matches!(error, Error::Reentrant { .. });
                self.expect(is_refused, "a call in a forked process", error);
                "refused: forked"
            }
            Error::Unavailable { .. } => "refused: unavailable",
            Error::Lost { .. } => "refused: lost before its start",
            Error::Shutdown { .. } if lock(&self.net.state).judges.shut.contains_key(&self.process) => {
                "refused: shut down"
            }
            Error::Deadlock { .. } if is_nested => "refused: deadlock",
            _ => return self.expect(false, "a call that gets no lock", error),
        };
        lock(&self.net.state).happens(kind);
    }

    fn expect(&self, is_expected: bool, what: &str, error: &Error) {
        if !is_expected {
            self.net.wrong(format!("J8: {what} ends with {error:?}"));
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

/// The most that a world may take after its weather, if nobody waits in vain.
pub(super) fn longest(weather: &super::weather::Weather) -> u64 {
    let calls = u64::try_from(weather.processes).unwrap_or_default() * weather.tasks * weather.rounds;
    let each = 12 * (weather.work + 100) + weather.min_hold + 4 * weather.lease + weather.max_hold;
    (calls * each + 10 * (weather.lease + weather.uneven + 2_000)).min(PATIENT / 10) * MS
}

/// Says that a guard is used no more, whatever ends that.
struct Holding {
    net: Arc<Net>,
    id: u64,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.net.ends(self.id, true);
    }
}

/// A body, whose every poll is judged, and its end.
struct Watched<'a, F> {
    net: &'a Arc<Net>,
    guard: &'a LockGuard,
    id: u64,
    inner: F,
    is_done: bool,
}

impl<F: Future<Output = ()> + Unpin> Future for Watched<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.net.believes(self.id, self.guard, true);
        let ended = Pin::new(&mut self.inner).poll(cx);
        self.is_done = ended.is_ready();
        ended
    }
}

impl<F> Drop for Watched<'_, F> {
    fn drop(&mut self) {
        self.net.ends(self.id, self.is_done);
    }
}

/// A future that is polled so often and no more.
pub(super) struct Polls<F> {
    pub(super) left: u64,
    pub(super) inner: Pin<Box<F>>,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.inner.as_mut().poll(cx).map(Some)
    }
}
