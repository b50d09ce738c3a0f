//! The local queue: all tasks of one process that want one key, in the order of their arrival.
//!
//! Only the head contends in the backend, so the contention of k tasks costs a server as much as
//! one. The contender, the retained holds, and the cooldown are stored next to the waiters: few
//! keys have any of them, so they share one pointer, and a call allocates once.

use std::collections::{BTreeSet, VecDeque};

use crate::protocol::contender::Contender;
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Cooldown;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::LastObserved;
use crate::protocol::retained::RetainedHold;
use crate::protocol::retry_state::{RetryDecision, RetryState};
use crate::protocol::timers::KeyTimer;

/// One waiting task. `A` identifies its acquisition.
#[derive(Clone, Debug)]
pub(crate) struct QueueEntry<A> {
    pub(crate) acquisition: A,
    /// The terms of its hold.
    pub(crate) terms: HoldTerms,
    pub(crate) retry_state: RetryState,
}

/// The waiting tasks, first come, first served.
///
/// An empty queue allocates nothing, which is the case for nearly every held lock. The cost of a
/// hand-off depends only on the head, and that of a timeout on the waiters that are due. A
/// cancellation scans the queue: with a map of waiters by number and one from acquisitions to
/// numbers, 64 tasks on two threads hand a key off 30 % less often
/// (`benches/scenarios/hot_key.rs`).
#[derive(Clone, Debug)]
pub(crate) struct WaitQueue<A>(Option<Box<QueueState<A>>>);

/// The state that few keys have.
#[derive(Clone, Debug)]
struct QueueState<A> {
    /// Not in `others`, so that a call without contention allocates neither of the collections.
    head: Option<QueueEntry<A>>,
    /// The waiters after the head, with their numbers, which count arrivals and rise.
    others: VecDeque<(u64, QueueEntry<A>)>,
    /// When something is due for each of `others`.
    due_times: BTreeSet<(BootInstant, u64)>,
    /// The numbers of those that the first reply decides. Some may have left.
    single_tries: Vec<u64>,
    /// The number of the last arrival.
    arrivals: u64,
    /// The last observation of the lock, or `None` if no task waits.
    observed: Option<LastObserved>,
    contender: Option<Contender>,
    retained: Vec<RetainedHold>,
    cooldown: Option<Cooldown>,
}

impl<A: PartialEq> WaitQueue<A> {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Returns `true` if no task waits, none contends, no hold is retained, and there is no
    /// cooldown.
    pub(crate) fn is_unused(&self) -> bool {
        self.0.as_ref().is_none_or(|queue| queue.is_unused())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head().is_none()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn count(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| usize::from(queue.head.is_some()) + queue.others.len())
    }

    pub(crate) fn head(&self) -> Option<&QueueEntry<A>> {
        self.0.as_ref()?.head.as_ref()
    }

    pub(crate) fn head_mut(&mut self) -> Option<&mut QueueEntry<A>> {
        self.0.as_mut()?.head.as_mut()
    }

    /// Returns the last observation of the lock.
    pub(crate) fn last_observed(&self) -> Option<&LastObserved> {
        self.0.as_ref()?.observed.as_ref()
    }

    /// Records the last observation of the lock.
    pub(crate) fn observe(&mut self, observed: LastObserved) {
        if let Some(last) = self.0.as_mut().and_then(|queue| queue.observed.as_mut()) {
            *last = observed;
        }
    }

    /// Appends a waiter. `observed` is the observation if the queue was empty.
    pub(crate) fn push(&mut self, waiter: QueueEntry<A>, observed: LastObserved) {
        let queue = self.allocate();
        queue.observed.get_or_insert(observed);
        if queue.head.is_none() {
            queue.head = Some(waiter);
            return;
        }
        queue.arrivals += 1;
        if waiter.retry_state.is_single_try() {
            queue.single_tries.push(queue.arrivals);
        }
        queue.due_times.insert((waiter.retry_state.due(), queue.arrivals));
        queue.others.push_back((queue.arrivals, waiter));
    }

    /// Removes and returns the head, and makes the next waiter the head.
    pub(crate) fn pop(&mut self) -> Option<QueueEntry<A>> {
        let head = self.0.as_mut()?.pop();
        self.shrink();
        head
    }

    /// Removes and returns the waiter of `acquisition`.
    pub(crate) fn remove(&mut self, acquisition: &A) -> Option<QueueEntry<A>> {
        if self.head()?.acquisition == *acquisition {
            return self.pop();
        }
        let queue = self.0.as_mut()?;
        let at = queue.others.iter().position(|(_, waiter)| waiter.acquisition == *acquisition)?;
        queue.take_at(at)
    }

    /// Removes and returns all waiters.
    pub(crate) fn drain(&mut self) -> Vec<QueueEntry<A>> {
        std::iter::from_fn(|| self.pop()).collect()
    }

    /// Frees the memory if no task waits.
    pub(crate) fn shrink(&mut self) {
        if let Some(queue) = &mut self.0
            && queue.head.is_none()
        {
            queue.observed = None;
            if queue.is_unused() {
                self.0 = None;
            }
        }
    }

    /// Returns the contender of the key.
    pub(super) fn contender(&self) -> Option<&Contender> {
        self.0.as_ref()?.contender.as_ref()
    }

    pub(super) fn contender_mut(&mut self) -> Option<&mut Contender> {
        self.0.as_mut()?.contender.as_mut()
    }

    /// Starts to contend, or continues in the state of `contender`.
    pub(super) fn set_contender(&mut self, contender: Contender) {
        self.allocate().contender = Some(contender);
    }

    /// Removes the contender.
    pub(super) fn end_contender(&mut self) {
        if let Some(queue) = &mut self.0 {
            queue.contender = None;
            self.shrink();
        }
    }

    /// Returns the retained holds of the key.
    pub(crate) fn retained(&self) -> &[RetainedHold] {
        self.0.as_ref().map_or(&[], |queue| &queue.retained)
    }

    /// Adds a retained hold.
    pub(crate) fn retain(&mut self, hold: RetainedHold) {
        self.allocate().retained.push(hold);
    }

    /// Drops the retained holds for which `stays` returns `false`.
    pub(crate) fn filter_retained(&mut self, stays: impl FnMut(&mut RetainedHold) -> bool) {
        if let Some(queue) = &mut self.0 {
            queue.retained.retain_mut(stays);
            self.shrink();
        }
    }

    /// Returns the cooldown of the key, or `None` if there is none.
    pub(super) fn cooldown(&self) -> Option<Cooldown> {
        self.0.as_ref()?.cooldown
    }

    /// Starts a cooldown.
    pub(super) fn set_cooldown(&mut self, cooldown: Cooldown) {
        self.allocate().cooldown = Some(cooldown);
    }

    /// Ends the cooldown.
    pub(super) fn end_cooldown(&mut self) {
        if let Some(queue) = &mut self.0 {
            queue.cooldown = None;
            self.shrink();
        }
    }

    /// Records that the lock is held or unavailable, and returns the waiters that give up.
    ///
    /// Only the head and single tries are affected at once. The others give up when their next try
    /// is due.
    pub(crate) fn on_contended(&mut self, now: BootInstant) -> Vec<QueueEntry<A>> {
        let Some(queue) = &mut self.0 else { return Vec::new() };
        let does_give_up =
            |head: &mut QueueEntry<A>| head.retry_state.on_contended(now) == RetryDecision::GiveUp;
        let mut given_up = Vec::new();
        if queue.head.as_mut().is_some_and(does_give_up) {
            given_up.extend(queue.pop());
        }
        given_up.extend(self.take_single_tries());
        given_up
    }

    /// Records that the connection was lost with the head's command in flight. The head and the
    /// single tries retry once each. Returns whether a call retries, and the calls that already
    /// have.
    pub(crate) fn try_again(&mut self, now: BootInstant) -> (bool, Vec<QueueEntry<A>>) {
        let (mut tries_again, mut given_up) = (false, Vec::new());
        let Some(queue) = &mut self.0 else { return (tries_again, given_up) };
        while let Some(head) = queue.head.as_mut() {
            tries_again = head.retry_state.try_again(now);
            if tries_again || head.retry_state.on_contended(now) == RetryDecision::Stay {
                break;
            }
            given_up.extend(queue.pop());
        }
        for number in std::mem::take(&mut queue.single_tries) {
            let Some(at) = queue.index(number) else { continue };
            if queue.change_at(at, |retry_state| retry_state.try_again(now)) {
                queue.single_tries.push(number);
                tries_again = true;
            } else {
                given_up.extend(queue.take_at(at));
            }
        }
        (tries_again, given_up)
    }

    /// Defers the tries that are due before `time` to `time`.
    pub(crate) fn not_before(&mut self, time: BootInstant) {
        let Some(queue) = &mut self.0 else { return };
        let all = queue.head.iter_mut().chain(queue.others.iter_mut().map(|(_, waiter)| waiter));
        all.for_each(|waiter| waiter.retry_state.not_before(time));
        let others = queue.others.iter();
        queue.due_times = others.map(|(number, waiter)| (waiter.retry_state.due(), *number)).collect();
    }

    /// Removes and returns the single tries, because the reply has arrived.
    pub(crate) fn take_single_tries(&mut self) -> Vec<QueueEntry<A>> {
        let Some(queue) = &mut self.0 else { return Vec::new() };
        let numbers = std::mem::take(&mut queue.single_tries);
        let mut take = |number| queue.index(number).and_then(|at| queue.take_at(at));
        let mut tries: Vec<_> = numbers.into_iter().filter_map(&mut take).collect();
        while queue.head.as_ref().is_some_and(|head| head.retry_state.is_single_try()) {
            tries.extend(queue.pop());
        }
        tries
    }

    /// Handles what is due at `now`. Returns whether a try of the head is due, and the waiters that
    /// give up.
    ///
    /// Those are the waiters whose wait has ended, and those whose last try found another task of
    /// this process before them. `held`: a task of this process holds the lock. `unobserved`: no
    /// reply has arrived.
    pub(crate) fn tick(
        &mut self,
        now: BootInstant,
        held: bool,
        unobserved: bool,
    ) -> (bool, Vec<QueueEntry<A>>) {
        let mut given_up = Vec::new();
        let Some(queue) = &mut self.0 else { return (false, given_up) };
        let due = |retry_state: &mut RetryState, contends: bool| {
            if unobserved {
                retry_state.await_first_reply(now);
            }
            let tries = retry_state.consume_retry(now);
            // The reply decides the last try of the contender. For the others a task of this
            // process is first, which decides their last try.
            let over = retry_state.is_over(now)
                || (!contends
                    && !retry_state.is_single_try()
                    && retry_state.on_contended(now) == RetryDecision::GiveUp);
            (tries, over)
        };
        while let Some((_, number)) = queue.due_times.first().copied().filter(|(due, _)| *due <= now) {
            let Some(at) = queue.index(number) else { break };
            if queue.change_at(at, |retry_state| due(retry_state, false).1) {
                given_up.extend(queue.take_at(at));
            }
        }
        let Some(first) = queue.head.as_mut().filter(|first| first.retry_state.due() <= now) else {
            return (false, given_up);
        };
        let (tries, over) = due(&mut first.retry_state, !held);
        if over {
            given_up.extend(queue.pop());
        }
        (tries && !held && !over, given_up)
    }

    /// Passes each timer to `set`.
    pub(crate) fn timers(&self, set: &mut impl FnMut(KeyTimer, BootInstant)) {
        let Some(queue) = &self.0 else { return };
        if let Some(contender) = &queue.contender {
            contender.timers(set);
        }
        if let Some(head) = &queue.head {
            head.retry_state.timers(set);
        }
        if let Some((due, _)) = queue.due_times.first() {
            set(KeyTimer::WaitTimeout, *due);
        }
        queue.retained.iter().for_each(|kept| kept.timers(set));
        if let Some(cooldown) = &queue.cooldown {
            set(KeyTimer::Cooldown, cooldown.until);
        }
    }

    fn allocate(&mut self) -> &mut QueueState<A> {
        self.0.get_or_insert_with(|| {
            Box::new(QueueState {
                head: None,
                others: VecDeque::new(),
                due_times: BTreeSet::new(),
                single_tries: Vec::new(),
                arrivals: 0,
                observed: None,
                contender: None,
                retained: Vec::new(),
                cooldown: None,
            })
        })
    }
}

impl<A> QueueState<A> {
    /// Returns `true` if the key has none of the parts.
    fn is_unused(&self) -> bool {
        self.head.is_none() && self.contender.is_none() && self.retained.is_empty() && self.cooldown.is_none()
    }

    /// Removes and returns the head, and makes the next waiter the head.
    fn pop(&mut self) -> Option<QueueEntry<A>> {
        let next = self.take_at(0);
        std::mem::replace(&mut self.head, next)
    }

    /// Returns the index in `others` of the waiter with this number.
    fn index(&self, number: u64) -> Option<usize> {
        self.others.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    /// Applies `change` to the retry state at this index of `others`.
    fn change_at(&mut self, at: usize, change: impl FnOnce(&mut RetryState) -> bool) -> bool {
        let Some((number, waiter)) = self.others.get_mut(at) else { return false };
        let before = waiter.retry_state.due();
        let result = change(&mut waiter.retry_state);
        self.due_times.remove(&(before, *number));
        self.due_times.insert((waiter.retry_state.due(), *number));
        result
    }

    /// Removes and returns the entry at this index of `others`.
    fn take_at(&mut self, at: usize) -> Option<QueueEntry<A>> {
        let (number, waiter) = self.others.remove(at)?;
        self.due_times.remove(&(waiter.retry_state.due(), number));
        Some(waiter)
    }
}

#[cfg(test)]
mod tests;
