//! The local queue: all tasks of one process that want one key, in the order in which they came.
//!
//! Only its head is a contender in the backend, so that contention of k tasks costs a server one.
//!
//! Not here: how the head contends (`acquire`), when a holder hands over (`hold`).

use std::collections::VecDeque;

use crate::protocol::deadline::BootTime;
use crate::protocol::patience::{Patience, Verdict};
use crate::protocol::terms::Terms;

/// One task that waits for its turn. `S` is its seat: how it is told.
#[derive(Clone, Debug)]
pub(crate) struct Waiter<S> {
    pub(crate) seat: S,
    /// What it asks of its hold.
    pub(crate) terms: Terms,
    pub(crate) patience: Patience,
}

/// The tasks that wait, first come first served.
#[derive(Clone, Debug)]
pub(crate) struct LocalQueue<S> {
    waiters: VecDeque<Waiter<S>>,
    /// Not later than the first thing that is due for any waiter. Removing a waiter leaves it as it is: looking at all of them at
    /// every hand-over would make hand-overs dear, one look too many now and then is cheap.
    due: BootTime,
    /// How many take the first answer for their last.
    once: usize,
}

impl<S: PartialEq> LocalQueue<S> {
    pub(crate) fn new() -> Self {
        Self { waiters: VecDeque::new(), due: BootTime::NEVER, once: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn head(&self) -> Option<&Waiter<S>> {
        self.waiters.front()
    }

    /// Puts a waiter at the end.
    pub(crate) fn push(&mut self, waiter: Waiter<S>) {
        self.due = self.due.min(waiter.patience.due());
        self.once += usize::from(waiter.patience.is_once());
        if self.waiters.capacity() == 0 {
            self.waiters.reserve_exact(1);
        }
        self.waiters.push_back(waiter);
    }

    /// Takes the head out: its turn has come.
    pub(crate) fn pop(&mut self) -> Option<Waiter<S>> {
        let head = self.waiters.pop_front()?;
        self.once -= usize::from(head.patience.is_once());
        if self.waiters.is_empty() {
            // A lock that is held and wanted by nobody else costs no room for those who wait.
            self.waiters = VecDeque::new();
        }
        Some(head)
    }

    /// Takes out the waiter of `seat`, wherever it stands.
    pub(crate) fn remove(&mut self, seat: &S) -> Option<Waiter<S>> {
        let at = self.waiters.iter().position(|waiter| waiter.seat == *seat)?;
        let waiter = self.waiters.remove(at)?;
        self.once -= usize::from(waiter.patience.is_once());
        Some(waiter)
    }

    /// Takes out all.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Waiter<S>> {
        self.once = 0;
        self.due = BootTime::NEVER;
        std::mem::take(&mut self.waiters).into_iter()
    }

    /// Tells all that the lock is not to be had now, and gives those who will not wait for it to `gave_up`.
    ///
    /// Only the head and those who try once need telling at once; the others learn of it when their next try is due.
    pub(crate) fn not_yet(&mut self, now: BootTime, mut gave_up: impl FnMut(Waiter<S>)) {
        if let Some(head) = self.waiters.front_mut() {
            let verdict = head.patience.not_yet(now);
            self.due = self.due.min(head.patience.due());
            if verdict == Verdict::GiveUp {
                self.pop().into_iter().for_each(&mut gave_up);
            }
        }
        self.refuse_once(gave_up);
    }

    /// Puts tries that are due before `time` off until then.
    pub(crate) fn not_before(&mut self, time: BootTime) {
        self.waiters.iter_mut().for_each(|waiter| waiter.patience.not_before(time));
    }

    /// Gives those who try once to `gave_up`: the answer is there.
    pub(crate) fn refuse_once(&mut self, mut gave_up: impl FnMut(Waiter<S>)) {
        if self.once > 0 {
            self.once = 0;
            for waiter in std::mem::take(&mut self.waiters) {
                if waiter.patience.is_once() { gave_up(waiter) } else { self.waiters.push_back(waiter) }
            }
        }
    }

    /// Goes through what is due by `now`: gives those whose wait is over, or whose last try found one of us before them, to
    /// `gave_up`, and returns whether a try of the head is due. `held`: a task of this process holds the lock; `unheard`: no
    /// answer has come yet.
    pub(crate) fn tick(
        &mut self,
        now: BootTime,
        held: bool,
        unheard: bool,
        mut gave_up: impl FnMut(Waiter<S>),
    ) -> bool {
        if now < self.due {
            return false;
        }
        let mut head_tries = false;
        self.due = BootTime::NEVER;
        self.once = 0;
        for (at, mut waiter) in std::mem::take(&mut self.waiters).into_iter().enumerate() {
            let patience = &mut waiter.patience;
            if unheard {
                patience.await_first_answer(now);
            }
            let tries = patience.take_try(now);
            // A contender's last try is decided by the answer to it; all others have one of us before them, which is an answer.
            let contends = at == 0 && !held;
            let over = patience.is_over(now)
                || (!contends && !patience.is_once() && patience.not_yet(now) == Verdict::GiveUp);
            if over {
                gave_up(waiter);
                continue;
            }
            head_tries |= contends && tries;
            self.due = self.due.min(patience.due());
            self.once += usize::from(patience.is_once());
            self.waiters.push_back(waiter);
        }
        head_tries
    }

    /// Returns a time not later than the first thing that is due.
    pub(crate) fn due(&self) -> BootTime {
        if self.waiters.is_empty() { BootTime::NEVER } else { self.due }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::patience::Limits;
    use crate::retry::RetryPolicy;

    fn at(ms: u64) -> BootTime {
        BootTime::from_nanos(ms * 1_000_000)
    }

    fn waiter(seat: u32, retries: u32, wait: Option<u64>) -> Waiter<u32> {
        let limits = Limits {
            retries,
            wait: wait.map(Duration::from_millis),
            backoff: RetryPolicy::DEFAULT,
            response_timeout: Duration::from_millis(500),
        };
        let patience = Patience::new(at(0), limits, seat);
        let terms = Terms { lease: Duration::from_secs(1), renew: true, max_hold: None, at_least: None };
        Waiter { seat, terms, patience }
    }

    #[test]
    fn turns_come_in_the_order_of_coming() {
        let mut queue = LocalQueue::new();
        (0..3).for_each(|seat| queue.push(waiter(seat, 0, Some(9))));
        queue.remove(&1);

        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|waiter| waiter.seat).collect();

        assert_eq!(order, [0, 2]);
    }

    #[test]
    fn who_tries_once_is_told_with_the_first_answer_and_the_others_stay() {
        let mut queue = LocalQueue::new();
        queue.push(waiter(0, 0, Some(9)));
        queue.push(waiter(1, 0, None));
        queue.push(waiter(2, 3, None));

        let mut gone = Vec::new();
        queue.not_yet(at(1), |waiter| gone.push(waiter.seat));

        assert_eq!(gone, [1]);
        assert_eq!(queue.head().map(|head| head.seat), Some(0));
    }

    #[test]
    fn a_wait_that_is_over_ends_in_the_middle_of_the_queue() {
        let mut queue = LocalQueue::new();
        queue.push(waiter(0, 0, Some(90)));
        queue.push(waiter(1, 0, Some(20)));
        assert_eq!(queue.due(), at(20));

        let mut gone = Vec::new();
        let head_tries = queue.tick(at(20), false, false, |waiter| gone.push(waiter.seat));

        assert_eq!((gone, head_tries, queue.due()), (vec![1], false, at(90)));
    }
}
