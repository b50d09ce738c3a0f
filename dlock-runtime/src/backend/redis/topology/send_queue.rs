//! What goes out to several servers: to each in the order in which it was decided, whichever threads decide and send.
//!
//! What an answer leads to may be decided before what was asked before has left for all servers: a leave that overtook it would undo
//! nothing. So there is one queue, and one thread at a time sends what stands there; nobody waits for it.
//!
//! Not here: what is decided (`quorum`, `cluster`), how it is sent (`node`).

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::backend::Request;
use crate::backend::redis::command_queue::CommandQueue;
use crate::sync::lock;

/// What several servers are asked.
#[derive(Debug)]
pub(super) struct FanOut<To>(Vec<(To, Vec<Request>)>);

impl<To> Default for FanOut<To> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<To: PartialEq> FanOut<To> {
    /// Has a server asked, after all that it is asked already: what is for the same server is told by `same_node`, whichever way it goes.
    pub(super) fn ask(&mut self, server: To, same_node: impl Fn(&To) -> bool, request: Request) {
        match self.0.iter_mut().rev().find(|(of, _)| same_node(of)) {
            Some((of, asked)) if *of == server => asked.push(request),
            _ => self.0.push((server, vec![request])),
        }
    }
}

impl<To> FanOut<To> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<To> IntoIterator for FanOut<To> {
    type Item = (To, Vec<Request>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The queue.
#[derive(Debug)]
pub(super) struct SendQueue<T>(Mutex<SendQueueState<T>>);

#[derive(Debug)]
struct SendQueueState<T> {
    queue: VecDeque<T>,
    is_being_sent: bool,
}

impl<T> Default for SendQueue<T> {
    fn default() -> Self {
        Self(Mutex::new(SendQueueState { queue: VecDeque::new(), is_being_sent: false }))
    }
}

impl<T> SendQueue<T> {
    /// Adds what is to be sent next; it leaves when somebody [sends](Self::send).
    pub(super) fn push(&self, next: T) {
        lock(&self.0).queue.push_back(next);
    }

    /// Sends what stands there, unless somebody is about it, who sees to that as well. What is left after a while, or by a panic, is left
    /// to the driver: whoever sends may have work of his own.
    pub(super) fn send(&self, driver: &CommandQueue, mut send: impl FnMut(T)) {
        let left = Unsent(driver);
        for _ in 0..IN_ONE_GO {
            let Some((next, _sending)) = self.begin() else { return std::mem::forget(left) };
            send(next); // with nothing locked: what cannot be sent is answered at once
        }
    }

    fn begin(&self) -> Option<(T, SendQueueGuard<'_, T>)> {
        let mut state = lock(&self.0);
        if state.is_being_sent {
            return None;
        }
        let next = state.queue.pop_front()?;
        state.is_being_sent = true;
        Some((next, SendQueueGuard(self)))
    }
}

/// Somebody is about it, until this is dropped.
struct SendQueueGuard<'a, T>(&'a SendQueue<T>);

impl<T> Drop for SendQueueGuard<'_, T> {
    fn drop(&mut self) {
        lock(&self.0.0).is_being_sent = false;
    }
}

/// Leaves the rest to the driver.
struct Unsent<'a>(&'a CommandQueue);

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        self.0.wake.notify_one();
    }
}

/// How many are sent before the rest is left to the driver.
const IN_ONE_GO: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::FutureExt;

    use super::*;
    use crate::backend::redis::node::test_node::acquire;

    fn fan(number: u64) -> FanOut<usize> {
        let mut fan = FanOut::default();
        for server in 0..3 {
            fan.ask(server, |of| *of == server, acquire(&number.to_string()));
        }
        fan
    }

    /// Returns whether something has been left to the driver since this was asked last.
    fn is_left(driver: &CommandQueue) -> bool {
        driver.wake.notified().now_or_never().is_some()
    }

    #[test]
    fn each_server_is_asked_in_the_order_in_which_it_was_decided_whoever_sends() {
        const EACH: u64 = 3_000;
        let (driver, outgoing, decided) = (CommandQueue::default(), SendQueue::default(), Mutex::new(0));
        let heard: [AtomicU64; 3] = Default::default();
        let send = || {
            outgoing.send(&driver, |fan: FanOut<usize>| {
                for (server, asked) in fan {
                    for request in asked {
                        let number = request.key.parse().expect("a number");
                        std::thread::yield_now();
                        assert_eq!(heard[server].swap(number, Ordering::SeqCst) + 1, number, "at {server}");
                    }
                }
            });
        };

        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        {
                            let mut last = lock(&decided);
                            *last += 1;
                            outgoing.push(fan(*last));
                        }
                        send();
                    }
                });
            }
        });
        while is_left(&driver) {
            send();
        }

        assert_eq!(heard.map(AtomicU64::into_inner), [3 * EACH; 3]);
    }

    #[test]
    fn what_is_decided_while_it_is_sent_follows_it_and_what_a_panic_leaves_is_the_drivers() {
        let (driver, outgoing, mut sent) = (CommandQueue::default(), SendQueue::default(), Vec::new());
        outgoing.push(1);
        let sends = || {
            outgoing.send(&driver, |number| {
                if number == 1 {
                    outgoing.push(2);
                    outgoing.send(&driver, |_| panic!("it is not his turn"));
                    outgoing.push(3);
                }
                assert!(number == 1, "this panic is part of the test");
            });
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(sends)).is_err());
        assert!(is_left(&driver));

        outgoing.send(&driver, |number| sent.push(number));

        assert_eq!(sent, [3]);
        assert!(!is_left(&driver));
    }

    #[test]
    fn who_has_sent_much_leaves_the_rest_to_the_driver() {
        let (driver, outgoing, mut sent) = (CommandQueue::default(), SendQueue::default(), 0);
        (0..=IN_ONE_GO).for_each(|number| outgoing.push(number));

        outgoing.send(&driver, |_| sent += 1);
        assert!(is_left(&driver) && sent == IN_ONE_GO);
        outgoing.send(&driver, |_| sent += 1);

        assert!(!is_left(&driver) && sent == IN_ONE_GO + 1);
    }
}
