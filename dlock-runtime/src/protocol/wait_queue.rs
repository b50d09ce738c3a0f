//! The local queue: all tasks of one process that want one key, in the order in which they came.
//!
//! Only its head is a contender in the backend, so that contention of k tasks costs a server one. What is kept from them stands beside them:
//! nearly no lock has either, and so both are one pointer.
//!
//! Not here: how the head contends (`acquire`), when a holder hands over (`hold`), what is kept and for how long (`keep`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::protocol::deadline::BootInstant;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::LastObserved;
use crate::protocol::retained::RetainedHold;
use crate::protocol::retry_state::{RetryDecision, RetryState};

/// One task that waits for its turn. `S` is its seat: how it is told.
#[derive(Clone, Debug)]
pub(crate) struct QueueEntry<A> {
    pub(crate) acquisition: A,
    /// What it asks of its hold.
    pub(crate) terms: HoldTerms,
    pub(crate) retry_state: RetryState,
}

/// The tasks that wait, first come first served.
///
/// It takes no room while nobody waits, as for nearly every lock that is held. However many wait, an event costs what those cost that
/// it concerns: a hand-over the head alone, and what falls due those for whom it does.
#[derive(Clone, Debug)]
pub(crate) struct WaitQueue<A>(Option<Box<QueueTail<A>>>);

/// What few lanes have.
#[derive(Clone, Debug)]
struct QueueTail<A> {
    waiters: Option<WaiterList<A>>,
    kept: Vec<RetainedHold<A>>,
}

#[derive(Clone, Debug)]
struct WaiterList<A> {
    head: Option<QueueEntry<A>>,
    /// Those behind it, and holes where somebody left; each has a number, one above that of the place before it.
    others: VecDeque<Option<QueueEntry<A>>>,
    /// The number of the first of the others.
    first: u64,
    /// Which of the others take the first answer for their last.
    once: Vec<u64>,
    /// When something is due for one of the others; also for some who have left, or for whom it is due later by now.
    dues: BinaryHeap<Reverse<(BootInstant, u64)>>,
    /// How many wait.
    count: usize,
    heard: LastObserved,
}

impl<A: PartialEq> WaitQueue<A> {
    pub(crate) const fn new() -> Self {
        Self(None)
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

    /// Returns what those who wait have heard of the lock last.
    pub(crate) fn last_observed(&self) -> Option<&LastObserved> {
        self.waiters().map(|waiters| &waiters.heard)
    }

    /// Notes what is heard of the lock, for those who wait.
    pub(crate) fn observe(&mut self, heard: LastObserved) {
        if let Some(waiters) = self.waiters_mut() {
            waiters.heard = heard;
        }
    }

    /// Puts a waiter at the end. The first to come has heard this much.
    pub(crate) fn push(&mut self, waiter: QueueEntry<A>, heard: LastObserved) {
        self.rest().waiters.get_or_insert_with(|| WaiterList::new(heard)).push(waiter);
    }

    /// The head's turn has come, and all that is wanted of it was read: it is dropped where it stands, which moves nothing at each
    /// hand-over. Who stands behind it is the head then.
    pub(crate) fn advance(&mut self) {
        if let Some(waiters) = self.waiters_mut() {
            waiters.advance();
        }
        self.tidy();
    }

    /// Takes the head out.
    pub(crate) fn pop(&mut self) -> Option<QueueEntry<A>> {
        let head = self.waiters_mut()?.pop();
        self.tidy();
        head
    }

    /// Takes out the waiter of `seat`, wherever it stands.
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
        waiters.close_up();
        waiter
    }

    /// Takes out all.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = QueueEntry<A>> + use<A> {
        let waiters = self.0.as_mut().and_then(|rest| rest.waiters.take());
        self.tidy();
        waiters
            .into_iter()
            .flat_map(|waiters| waiters.head.into_iter().chain(waiters.others.into_iter().flatten()))
    }

    /// Gives up its room where nobody waits any more.
    pub(crate) fn tidy(&mut self) {
        if let Some(rest) = &mut self.0
            && rest.waiters.as_ref().is_none_or(|waiters| waiters.count == 0)
        {
            rest.waiters = None;
            if rest.kept.is_empty() {
                self.0 = None;
            }
        }
    }

    /// Returns the locks that are kept from those who wait.
    pub(crate) fn kept(&self) -> &[RetainedHold<A>] {
        self.0.as_ref().map_or(&[], |rest| &rest.kept)
    }

    /// Keeps one more.
    pub(crate) fn keep(&mut self, kept: RetainedHold<A>) {
        let all = &mut self.rest().kept;
        all.reserve_exact(1); // there is one, nearly always
        all.push(kept);
    }

    /// Keeps those that stay.
    pub(crate) fn retain_kept(&mut self, stays: impl FnMut(&mut RetainedHold<A>) -> bool) {
        let Some(rest) = &mut self.0 else { return };
        rest.kept.retain_mut(stays);
        if rest.kept.is_empty() && rest.waiters.is_none() {
            self.0 = None;
        }
    }

    /// Tells all that the lock is not to be had now, and gives those who will not wait for it to `gave_up`.
    ///
    /// Only the head and those who try once need telling at once; the others learn of it when their next try is due.
    pub(crate) fn on_contended(&mut self, now: BootInstant, mut gave_up: impl FnMut(QueueEntry<A>)) {
        let Some(waiters) = self.waiters_mut() else { return };
        let gives_up = |head: &mut QueueEntry<A>| head.retry_state.on_contended(now) == RetryDecision::GiveUp;
        if waiters.head.as_mut().is_some_and(gives_up)
            && let Some(head) = waiters.pop()
        {
            gave_up(head);
        }
        self.refuse_once(gave_up);
    }

    /// Notes that the connection was lost with the head's command under way. The head and those who try once try again, once each; of
    /// these, the ones that have done so go to `gave_up`. Returns `true` if a call tries again.
    pub(crate) fn try_again(&mut self, now: BootInstant, mut gave_up: impl FnMut(QueueEntry<A>)) -> bool {
        let Some(waiters) = self.waiters_mut() else { return false };
        let mut tries_again = false;
        while let Some(head) = waiters.head.as_mut() {
            tries_again = head.retry_state.try_again(now);
            if tries_again || head.retry_state.on_contended(now) == RetryDecision::Stay {
                break;
            }
            waiters.pop().into_iter().for_each(&mut gave_up);
        }
        for number in std::mem::take(&mut waiters.once) {
            let Some(waiter) = waiters.other(number) else { continue };
            if waiter.retry_state.try_again(now) {
                waiters.once.push(number);
                tries_again = true;
            } else {
                waiters.take(number).into_iter().for_each(&mut gave_up);
            }
        }
        tries_again
    }

    /// Puts tries that are due before `time` off until then.
    pub(crate) fn not_before(&mut self, time: BootInstant) {
        let Some(waiters) = self.waiters_mut() else { return };
        let all = waiters.head.iter_mut().chain(waiters.others.iter_mut().flatten());
        all.for_each(|waiter| waiter.retry_state.not_before(time));
    }

    /// Gives those who try once to `gave_up`: the answer is there.
    pub(crate) fn refuse_once(&mut self, mut gave_up: impl FnMut(QueueEntry<A>)) {
        let Some(waiters) = self.waiters_mut() else { return };
        for number in std::mem::take(&mut waiters.once) {
            waiters.take(number).into_iter().for_each(&mut gave_up);
        }
        while waiters.head.as_ref().is_some_and(|head| head.retry_state.is_once()) {
            waiters.pop().into_iter().for_each(&mut gave_up);
        }
    }

    /// Goes through what is due by `now`: gives those whose wait is over, or whose last try found one of us before them, to
    /// `gave_up`, and returns whether a try of the head is due. `held`: a task of this process holds the lock; `unheard`: no
    /// answer has come yet.
    pub(crate) fn tick(
        &mut self,
        now: BootInstant,
        held: bool,
        unheard: bool,
        mut gave_up: impl FnMut(QueueEntry<A>),
    ) -> bool {
        let Some(waiters) = self.waiters_mut() else { return false };
        let due = |retry_state: &mut RetryState, contends: bool| {
            if unheard {
                retry_state.await_first_answer(now);
            }
            let tries = retry_state.consume_retry(now);
            // A contender's last try is decided by the answer to it; all others have one of us before them, which is an answer.
            let over = retry_state.is_over(now)
                || (!contends
                    && !retry_state.is_once()
                    && retry_state.on_contended(now) == RetryDecision::GiveUp);
            (tries, over)
        };
        while let Some(number) = waiters.due_by(now) {
            let Some(waiter) = waiters.other(number) else { continue };
            if waiter.retry_state.due() > now || !due(&mut waiter.retry_state, false).1 {
                let again = waiter.retry_state.due();
                waiters.dues.push(Reverse((again, number)));
            } else {
                waiters.take(number).into_iter().for_each(&mut gave_up);
            }
        }
        let Some(first) = waiters.head.as_mut().filter(|first| first.retry_state.due() <= now) else {
            return false;
        };
        let (tries, over) = due(&mut first.retry_state, !held);
        if over {
            waiters.pop().into_iter().for_each(gave_up);
        }
        tries && !held && !over
    }

    /// Returns a time not later than the first thing that is due.
    pub(crate) fn due(&self) -> BootInstant {
        let Some(waiters) = self.waiters() else { return BootInstant::NEVER };
        let head = waiters.head.as_ref().map_or(BootInstant::NEVER, |head| head.retry_state.due());
        waiters.dues.peek().map_or(head, |Reverse((due, _))| head.min(*due))
    }
}

impl<A> WaitQueue<A> {
    fn waiters(&self) -> Option<&WaiterList<A>> {
        self.0.as_ref()?.waiters.as_ref()
    }

    fn waiters_mut(&mut self) -> Option<&mut WaiterList<A>> {
        self.0.as_mut()?.waiters.as_mut()
    }

    fn rest(&mut self) -> &mut QueueTail<A> {
        self.0.get_or_insert_with(|| Box::new(QueueTail { waiters: None, kept: Vec::new() }))
    }
}

impl<A> WaiterList<A> {
    fn new(heard: LastObserved) -> Self {
        Self {
            head: None,
            others: VecDeque::new(),
            first: 0,
            once: Vec::new(),
            dues: BinaryHeap::new(),
            count: 0,
            heard,
        }
    }

    fn push(&mut self, waiter: QueueEntry<A>) {
        self.count += 1;
        if self.head.is_none() {
            self.head = Some(waiter);
            return;
        }
        self.close_ranks();
        let number = self.first + len(&self.others);
        if waiter.retry_state.is_once() {
            self.once.push(number);
        }
        self.dues.push(Reverse((waiter.retry_state.due(), number)));
        self.others.push_back(Some(waiter));
    }

    /// Takes the head out.
    fn pop(&mut self) -> Option<QueueEntry<A>> {
        let head = self.head.take();
        self.count -= usize::from(head.is_some());
        self.advance();
        head
    }

    /// Has who stands behind the head be the head.
    fn advance(&mut self) {
        self.count -= usize::from(self.head.is_some());
        self.head = self.others.pop_front().flatten();
        self.first += 1;
        self.close_up();
    }

    /// Takes out one of the others.
    fn take(&mut self, number: u64) -> Option<QueueEntry<A>> {
        let waiter = self.place(number)?.take()?;
        self.count -= 1;
        self.close_up();
        Some(waiter)
    }

    fn other(&mut self, number: u64) -> Option<&mut QueueEntry<A>> {
        self.place(number)?.as_mut()
    }

    fn place(&mut self, number: u64) -> Option<&mut Option<QueueEntry<A>>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.others.get_mut(at)
    }

    /// Has the first of the others be somebody.
    fn close_up(&mut self) {
        while let Some(None) = self.others.front() {
            self.others.pop_front();
            self.first += 1;
        }
    }

    /// Returns one of the others for whom something may be due by `now`.
    fn due_by(&mut self, now: BootInstant) -> Option<u64> {
        let due = self.dues.peek().filter(|Reverse((due, _))| *due <= now)?;
        let Reverse((_, number)) = *due;
        self.dues.pop();
        Some(number)
    }

    /// Closes the holes among the others, and forgets what was noted of who is gone, once there is more of that than of those who wait:
    /// a few who wait for long must not keep the places of all who came and left behind them.
    fn close_ranks(&mut self) {
        if self.others.len().max(self.dues.len()) < 2 * self.count + FEW {
            return;
        }
        self.others.retain(Option::is_some);
        let waiters = || self.others.iter().flatten().zip(self.first..);
        self.dues = waiters().map(|(waiter, number)| Reverse((waiter.retry_state.due(), number))).collect();
        self.once =
            waiters().filter(|(waiter, _)| waiter.retry_state.is_once()).map(|(_, number)| number).collect();
    }
}

fn len<T>(queue: &VecDeque<T>) -> u64 {
    u64::try_from(queue.len()).unwrap_or(u64::MAX)
}

/// So few that it is not worth looking through them.
const FEW: usize = 16;

#[cfg(test)]
mod tests;
