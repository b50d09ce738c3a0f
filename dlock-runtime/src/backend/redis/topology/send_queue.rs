//! A queue that sends requests to several servers, to each server in the order of the decisions.
//!
//! A reply may cause new requests before earlier ones have been sent to every server. A withdrawal
//! that overtook its acquire would clean up nothing. So there is one queue, and one thread at a
//! time sends from it; other threads do not wait.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::backend::Request;
use crate::backend::redis::command_queue::CommandQueue;
use crate::sync::lock;

/// Requests for several servers.
pub(super) type FanOut<To> = Vec<(To, Vec<Request>)>;

/// Adds a request for a server, behind all others for it. `same_node` matches entries for the same
/// server on any of its connections.
pub(super) fn add<To: PartialEq>(
    fan: &mut FanOut<To>,
    server: To,
    same_node: impl Fn(&To) -> bool,
    request: Request,
) {
    match fan.iter_mut().rev().find(|(of, _)| same_node(of)) {
        Some((of, asked)) if *of == server => asked.push(request),
        _ => fan.push((server, vec![request])),
    }
}

/// A queue of decisions to send.
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
    /// Queues `next`. It leaves with the next call of [`send`](Self::send).
    pub(super) fn push(&self, next: T) {
        lock(&self.0).queue.push_back(next);
    }

    /// Sends what is queued, unless another thread is sending; that thread then sends it too.
    ///
    /// After 16 entries or a panic, the rest is left to the driver, because the calling task has
    /// its own work to do.
    pub(super) fn send(&self, driver: &CommandQueue, mut send: impl FnMut(T)) {
        let left = Unsent(driver);
        for _ in 0..MAX_SENDS {
            let Some((next, _sending)) = self.begin() else { return std::mem::forget(left) };
            send(next); // nothing is locked: unsendable requests are answered here
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

/// Marks the queue as being sent until it is dropped.
struct SendQueueGuard<'a, T>(&'a SendQueue<T>);

impl<T> Drop for SendQueueGuard<'_, T> {
    fn drop(&mut self) {
        lock(&self.0.0).is_being_sent = false;
    }
}

/// Wakes the driver to send the rest.
struct Unsent<'a>(&'a CommandQueue);

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        self.0.wake.notify_one();
    }
}

/// How many entries one call sends before it leaves the rest to the driver.
const MAX_SENDS: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::backend::redis::node::test_node::acquire;
    use crate::backend::redis::tests::is_notified;

    fn fan(number: u64) -> FanOut<usize> {
        let mut fan = FanOut::default();
        for server in 0..3 {
            add(&mut fan, server, |of| *of == server, acquire(&number.to_string()));
        }
        fan
    }

    /// Returns `true` if work was left to the driver since the last call.
    fn is_left(driver: &CommandQueue) -> bool {
        is_notified(&driver.wake)
    }

    #[test]
    fn each_server_receives_requests_in_decision_order() {
        const EACH: u64 = 500;
        let (driver, outgoing, decided) = (CommandQueue::default(), SendQueue::default(), Mutex::new(0));
        let received: [AtomicU64; 3] = Default::default();
        let send = || {
            outgoing.send(&driver, |fan: FanOut<usize>| {
                for (server, asked) in fan {
                    for request in asked {
                        let number = request.key.parse().expect("a number");
                        std::thread::yield_now();
                        assert_eq!(
                            received[server].swap(number, Ordering::SeqCst) + 1,
                            number,
                            "at {server}"
                        );
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

        assert_eq!(received.map(AtomicU64::into_inner), [3 * EACH; 3]);
    }

    #[test]
    fn nested_sends_wait_and_a_panic_leaves_the_rest_to_the_driver() {
        let (driver, outgoing, mut sent) = (CommandQueue::default(), SendQueue::default(), Vec::new());
        outgoing.push(1);
        let sends = || {
            outgoing.send(&driver, |number| {
                if number == 1 {
                    outgoing.push(2);
                    outgoing.send(&driver, |_| panic!("it must not send while another call sends"));
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
    fn a_long_queue_is_left_to_the_driver() {
        let (driver, outgoing, mut sent) = (CommandQueue::default(), SendQueue::default(), 0);
        (0..=MAX_SENDS).for_each(|number| outgoing.push(number));

        outgoing.send(&driver, |_| sent += 1);
        assert!(is_left(&driver) && sent == MAX_SENDS);
        outgoing.send(&driver, |_| sent += 1);

        assert!(!is_left(&driver) && sent == MAX_SENDS + 1);
    }

    #[test]
    fn requests_for_a_server_by_one_route_are_together() {
        let mut fan = FanOut::default();
        assert!(fan.is_empty());
        for (key, server, asking) in [
            ("a", 0, false),
            ("b", 0, true),
            ("c", 0, true),
            ("d", 0, false),
            ("e", 1, false),
            ("f", 0, false),
        ] {
            add(&mut fan, (server, asking), |(of, _)| *of == server, acquire(key));
        }
        assert!(!fan.is_empty());

        let keys = |requests: Vec<Request>| -> String {
            requests.iter().map(|request| request.key.to_string()).collect()
        };
        let parts: Vec<_> = fan.into_iter().map(|(to, requests)| (to, keys(requests))).collect();
        let expected = [((0, false), "a"), ((0, true), "bc"), ((0, false), "df"), ((1, false), "e")];
        assert_eq!(parts, expected.map(|(to, keys)| (to, keys.to_owned())));
    }
}
