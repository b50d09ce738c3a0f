//! The local queue: all tasks of one process that want one key, in the order of their arrival.
//!
//! Only the head contends in the backend, so the contention of k tasks costs a server as much as
//! one. Retained holds are stored next to the waiters: nearly no key has either, so both share one
//! pointer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::protocol::deadline::BootInstant;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::LastObserved;
use crate::protocol::retained::RetainedHold;
use crate::protocol::retry_state::{RetryDecision, RetryState};

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
/// An empty queue allocates nothing, which is the case for nearly every held lock. The cost of an
/// event depends only on the waiters that it concerns: a hand-off on the head, and a timeout on
/// those that are due.
#[derive(Clone, Debug)]
pub(crate) struct WaitQueue<A>(Option<Box<QueueTail<A>>>);

/// The state that few keys have.
#[derive(Clone, Debug)]
struct QueueTail<A> {
    waiters: Option<WaiterList<A>>,
    kept: Vec<RetainedHold>,
}

#[derive(Clone, Debug)]
struct WaiterList<A> {
    head: Option<QueueEntry<A>>,
    /// The waiters after the head, with holes for those that have left. Each has a number, one
    /// above that of the entry before it.
    others: VecDeque<Option<QueueEntry<A>>>,
    /// The number of the first entry of `others`.
    first: u64,
    /// The numbers of those in `others` that the first reply decides.
    single_tries: Vec<u64>,
    /// When something is due for an entry of `others`. Entries can be stale: their waiter has left,
    /// or is due later.
    due_times: BinaryHeap<Reverse<(BootInstant, u64)>>,
    /// The number of waiters.
    count: usize,
    observed: LastObserved,
}

impl<A: PartialEq> WaitQueue<A> {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Returns `true` if no task waits and no hold is retained.
    pub(crate) fn is_unused(&self) -> bool {
        self.is_empty() && self.kept().is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    pub(crate) fn count(&self) -> usize {
        self.waiters().map_or(0, |waiters| waiters.count)
    }

    pub(crate) fn head(&self) -> Option<&QueueEntry<A>> {
        self.waiters().and_then(|waiters| waiters.head.as_ref())
    }

    pub(crate) fn head_mut(&mut self) -> Option<&mut QueueEntry<A>> {
        self.waiters_mut().and_then(|waiters| waiters.head.as_mut())
    }

    /// Returns the last observation of the lock.
    pub(crate) fn last_observed(&self) -> Option<&LastObserved> {
        self.waiters().map(|waiters| &waiters.observed)
    }

    /// Records the last observation of the lock.
    pub(crate) fn observe(&mut self, observed: LastObserved) {
        if let Some(waiters) = self.waiters_mut() {
            waiters.observed = observed;
        }
    }

    /// Appends a waiter. `observed` is the observation if the queue was empty.
    pub(crate) fn push(&mut self, waiter: QueueEntry<A>, observed: LastObserved) {
        self.tail().waiters.get_or_insert_with(|| WaiterList::new(observed)).push(waiter);
    }

    /// Removes the head, which was granted the lock, and makes the next waiter the head. The head
    /// is dropped in place, so a hand-off moves nothing.
    pub(crate) fn advance(&mut self) {
        if let Some(waiters) = self.waiters_mut() {
            waiters.advance();
        }
        self.shrink();
    }

    /// Removes and returns the head.
    pub(crate) fn pop(&mut self) -> Option<QueueEntry<A>> {
        let head = self.waiters_mut()?.pop();
        self.shrink();
        head
    }

    /// Removes and returns the waiter of `acquisition`.
    pub(crate) fn remove(&mut self, acquisition: &A) -> Option<QueueEntry<A>> {
        let waiters = self.waiters_mut()?;
        if waiters.head.as_ref().is_some_and(|head| head.acquisition == *acquisition) {
            return self.pop();
        }
        let place = waiters
            .others
            .iter_mut()
            .find(|place| place.as_ref().is_some_and(|of| of.acquisition == *acquisition));
        let waiter = place?.take();
        waiters.count -= 1;
        waiters.trim_front();
        waiter
    }

    /// Removes and returns all waiters.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = QueueEntry<A>> + use<A> {
        let waiters = self.0.as_mut().and_then(|tail| tail.waiters.take());
        self.shrink();
        waiters
            .into_iter()
            .flat_map(|waiters| waiters.head.into_iter().chain(waiters.others.into_iter().flatten()))
    }

    /// Frees the memory if no task waits.
    pub(crate) fn shrink(&mut self) {
        if let Some(tail) = &mut self.0
            && tail.waiters.as_ref().is_none_or(|waiters| waiters.count == 0)
        {
            tail.waiters = None;
            if tail.kept.is_empty() {
                self.0 = None;
            }
        }
    }

    /// Returns the retained holds of the key.
    pub(crate) fn kept(&self) -> &[RetainedHold] {
        self.0.as_ref().map_or(&[], |tail| &tail.kept)
    }

    /// Adds a retained hold.
    pub(crate) fn keep(&mut self, kept: RetainedHold) {
        let all = &mut self.tail().kept;
        all.reserve_exact(1); // there is nearly always only one
        all.push(kept);
    }

    /// Drops the retained holds for which `stays` returns `false`.
    pub(crate) fn retain_kept(&mut self, stays: impl FnMut(&mut RetainedHold) -> bool) {
        let Some(tail) = &mut self.0 else { return };
        tail.kept.retain_mut(stays);
        if tail.kept.is_empty() && tail.waiters.is_none() {
            self.0 = None;
        }
    }

    /// Records that the lock is held or unavailable, and passes the waiters that give up to
    /// `given_up`.
    ///
    /// Only the head and single tries are affected at once. The others give up when their next try
    /// is due.
    pub(crate) fn on_contended(&mut self, now: BootInstant, mut given_up: impl FnMut(QueueEntry<A>)) {
        let Some(waiters) = self.waiters_mut() else { return };
        let does_give_up =
            |head: &mut QueueEntry<A>| head.retry_state.on_contended(now) == RetryDecision::GiveUp;
        if waiters.head.as_mut().is_some_and(does_give_up)
            && let Some(head) = waiters.pop()
        {
            given_up(head);
        }
        self.reject_single_tries(given_up);
    }

    /// Records that the connection was lost with the head's command in flight. The head and the
    /// single tries retry once each; those that already have go to `given_up`. Returns `true` if a
    /// call retries.
    pub(crate) fn try_again(&mut self, now: BootInstant, mut given_up: impl FnMut(QueueEntry<A>)) -> bool {
        let Some(waiters) = self.waiters_mut() else { return false };
        let mut tries_again = false;
        while let Some(head) = waiters.head.as_mut() {
            tries_again = head.retry_state.try_again(now);
            if tries_again || head.retry_state.on_contended(now) == RetryDecision::Stay {
                break;
            }
            waiters.pop().into_iter().for_each(&mut given_up);
        }
        for number in std::mem::take(&mut waiters.single_tries) {
            let Some(waiter) = waiters.other(number) else { continue };
            if waiter.retry_state.try_again(now) {
                waiters.single_tries.push(number);
                tries_again = true;
            } else {
                waiters.take(number).into_iter().for_each(&mut given_up);
            }
        }
        tries_again
    }

    /// Defers the tries that are due before `time` to `time`.
    pub(crate) fn not_before(&mut self, time: BootInstant) {
        let Some(waiters) = self.waiters_mut() else { return };
        let all = waiters.head.iter_mut().chain(waiters.others.iter_mut().flatten());
        all.for_each(|waiter| waiter.retry_state.not_before(time));
    }

    /// Passes the single tries to `given_up`, because the reply has arrived.
    pub(crate) fn reject_single_tries(&mut self, mut given_up: impl FnMut(QueueEntry<A>)) {
        let Some(waiters) = self.waiters_mut() else { return };
        for number in std::mem::take(&mut waiters.single_tries) {
            waiters.take(number).into_iter().for_each(&mut given_up);
        }
        while waiters.head.as_ref().is_some_and(|head| head.retry_state.is_single_try()) {
            waiters.pop().into_iter().for_each(&mut given_up);
        }
    }

    /// Handles what is due at `now`, and returns `true` if a try of the head is due.
    ///
    /// Passes to `given_up` the waiters whose wait has ended, and those whose last try found
    /// another task of this process before them. `held`: a task of this process holds the lock.
    /// `unobserved`: no reply has arrived.
    pub(crate) fn tick(
        &mut self,
        now: BootInstant,
        held: bool,
        unobserved: bool,
        mut given_up: impl FnMut(QueueEntry<A>),
    ) -> bool {
        let Some(waiters) = self.waiters_mut() else { return false };
        let due = |retry_state: &mut RetryState, contends: bool| {
            if unobserved {
                retry_state.await_first_answer(now);
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
        while let Some(number) = waiters.due_by(now) {
            let Some(waiter) = waiters.other(number) else { continue };
            if waiter.retry_state.due() > now || !due(&mut waiter.retry_state, false).1 {
                let again = waiter.retry_state.due();
                waiters.due_times.push(Reverse((again, number)));
            } else {
                waiters.take(number).into_iter().for_each(&mut given_up);
            }
        }
        let Some(first) = waiters.head.as_mut().filter(|first| first.retry_state.due() <= now) else {
            return false;
        };
        let (tries, over) = due(&mut first.retry_state, !held);
        if over {
            waiters.pop().into_iter().for_each(given_up);
        }
        tries && !held && !over
    }

    /// Returns a time at or before the first at which something is due.
    pub(crate) fn due(&self) -> BootInstant {
        let Some(waiters) = self.waiters() else { return BootInstant::NEVER };
        let head = waiters.head.as_ref().map_or(BootInstant::NEVER, |head| head.retry_state.due());
        waiters.due_times.peek().map_or(head, |Reverse((due, _))| head.min(*due))
    }
}

impl<A> WaitQueue<A> {
    fn waiters(&self) -> Option<&WaiterList<A>> {
        self.0.as_ref()?.waiters.as_ref()
    }

    fn waiters_mut(&mut self) -> Option<&mut WaiterList<A>> {
        self.0.as_mut()?.waiters.as_mut()
    }

    fn tail(&mut self) -> &mut QueueTail<A> {
        self.0.get_or_insert_with(|| Box::new(QueueTail { waiters: None, kept: Vec::new() }))
    }
}

impl<A> WaiterList<A> {
    fn new(observed: LastObserved) -> Self {
        Self {
            head: None,
            others: VecDeque::new(),
            first: 0,
            single_tries: Vec::new(),
            due_times: BinaryHeap::new(),
            count: 0,
            observed,
        }
    }

    fn push(&mut self, waiter: QueueEntry<A>) {
        self.count += 1;
        if self.head.is_none() {
            self.head = Some(waiter);
            return;
        }
        self.compact();
        let number = self.first + len(&self.others);
        if waiter.retry_state.is_single_try() {
            self.single_tries.push(number);
        }
        self.due_times.push(Reverse((waiter.retry_state.due(), number)));
        self.others.push_back(Some(waiter));
    }

    /// Removes and returns the head.
    fn pop(&mut self) -> Option<QueueEntry<A>> {
        let head = self.head.take();
        self.count -= usize::from(head.is_some());
        self.advance();
        head
    }

    /// Makes the next waiter the head.
    fn advance(&mut self) {
        self.count -= usize::from(self.head.is_some());
        self.head = self.others.pop_front().flatten();
        self.first += 1;
        self.trim_front();
    }

    /// Removes and returns an entry of `others`.
    fn take(&mut self, number: u64) -> Option<QueueEntry<A>> {
        let waiter = self.place(number)?.take()?;
        self.count -= 1;
        self.trim_front();
        Some(waiter)
    }

    fn other(&mut self, number: u64) -> Option<&mut QueueEntry<A>> {
        self.place(number)?.as_mut()
    }

    fn place(&mut self, number: u64) -> Option<&mut Option<QueueEntry<A>>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.others.get_mut(at)
    }

    /// Removes leading holes, so that the first entry of `others` is a waiter.
    fn trim_front(&mut self) {
        while let Some(None) = self.others.front() {
            self.others.pop_front();
            self.first += 1;
        }
    }

    /// Returns an entry of `others` for which something may be due at `now`.
    fn due_by(&mut self, now: BootInstant) -> Option<u64> {
        let due = self.due_times.peek().filter(|Reverse((due, _))| *due <= now)?;
        let Reverse((_, number)) = *due;
        self.due_times.pop();
        Some(number)
    }

    /// Removes holes and stale due times once there are more of them than of waiters. Otherwise a
    /// few long waits would keep the memory of all tasks that came and left after them.
    fn compact(&mut self) {
        if self.others.len().max(self.due_times.len()) < 2 * self.count + COMPACT_MIN {
            return;
        }
        self.others.retain(Option::is_some);
        let waiters = || self.others.iter().flatten().zip(self.first..);
        self.due_times =
            waiters().map(|(waiter, number)| Reverse((waiter.retry_state.due(), number))).collect();
        self.single_tries = waiters()
            .filter(|(waiter, _)| waiter.retry_state.is_single_try())
            .map(|(_, number)| number)
            .collect();
    }
}

fn len<T>(queue: &VecDeque<T>) -> u64 {
    u64::try_from(queue.len()).unwrap_or(u64::MAX)
}

/// The number of entries below which a cleanup is not worth it.
const COMPACT_MIN: usize = 16;

#[cfg(test)]
mod tests;
