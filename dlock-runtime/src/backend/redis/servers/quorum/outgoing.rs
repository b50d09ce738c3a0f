//! What goes out to the servers: to each in the order in which it was decided, whichever threads decide and send.
//!
//! What a vote leads to may be decided before what was voted on has left for all servers: a leave that overtook it would undo nothing.
//! So there is one queue, and one thread at a time sends what stands there; nobody waits for it.
//!
//! Not here: what is decided (`ballots`), how it is sent (`node`).

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::backend::Request;
use crate::sync::lock;

/// What several servers are asked.
#[derive(Debug, Default)]
pub(super) struct Fan(Vec<(usize, Vec<Request>)>);

impl Fan {
    /// Has a server asked, after all that it is asked already.
    pub(super) fn ask(&mut self, server: usize, request: Request) {
        match self.0.iter_mut().find(|(of, _)| *of == server) {
            Some((_, asked)) => asked.push(request),
            None => self.0.push((server, vec![request])),
        }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Outgoing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    fans: VecDeque<Fan>,
    is_being_sent: bool,
}

impl Outgoing {
    /// Adds what is to be sent next; it leaves when somebody [sends](Self::send).
    pub(super) fn push(&self, fan: Fan) {
        if !fan.0.is_empty() {
            lock(&self.0).fans.push_back(fan);
        }
    }

    /// Sends what stands there, unless somebody is about it, who sees to that as well. Returns whether something is left to be sent by
    /// another: whoever sends may have work of his own.
    pub(super) fn send(&self, mut to: impl FnMut(usize, Vec<Request>)) -> bool {
        for _ in 0..IN_ONE_GO {
            let Some((fan, _sending)) = self.begin() else { return false };
            for (server, asked) in fan.0 {
                to(server, asked); // with nothing locked: what cannot be sent is answered at once
            }
        }
        let state = lock(&self.0);
        !state.is_being_sent && !state.fans.is_empty()
    }

    fn begin(&self) -> Option<(Fan, Sending<'_>)> {
        let mut state = lock(&self.0);
        if state.is_being_sent {
            return None;
        }
        let fan = state.fans.pop_front()?;
        state.is_being_sent = true;
        Some((fan, Sending(self)))
    }
}

/// Somebody is about it, until this is dropped.
struct Sending<'a>(&'a Outgoing);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).is_being_sent = false;
    }
}

/// How many are sent before it is left to the driver.
const IN_ONE_GO: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::backend::redis::node::rig::acquire;

    fn fan(number: u64) -> Fan {
        let mut fan = Fan::default();
        for server in 0..3 {
            fan.ask(server, acquire(&number.to_string()));
        }
        fan
    }

    #[test]
    fn each_server_is_asked_in_the_order_in_which_it_was_decided_whoever_sends() {
        const EACH: u64 = 3_000;
        let (outgoing, decided) = (Outgoing::default(), Mutex::new(0));
        let heard: [AtomicU64; 3] = Default::default();
        let send = || {
            outgoing.send(|server, asked| {
                for request in asked {
                    let number = request.key.parse().expect("a number");
                    std::thread::yield_now();
                    assert_eq!(heard[server].swap(number, Ordering::SeqCst) + 1, number, "at {server}");
                }
            })
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
        while send() {}

        assert_eq!(heard.map(AtomicU64::into_inner), [3 * EACH; 3]);
    }

    #[test]
    fn what_is_decided_while_it_is_sent_follows_it_and_so_does_what_a_panic_leaves() {
        let (outgoing, mut sent) = (Outgoing::default(), Vec::new());
        outgoing.push(fan(1));
        let sends = || {
            outgoing.send(|server, _| {
                if server == 0 {
                    outgoing.push(fan(2));
                    assert!(!outgoing.send(|_, _| panic!("it is not his turn")));
                }
                assert!(server == 0, "this panic is part of the test");
            })
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(sends)).is_err());

        assert!(!outgoing.send(|server, asked| sent.push((server, asked[0].key.to_string()))));

        assert_eq!(sent, [0, 1, 2].map(|server| (server, "2".to_owned())));
    }

    #[test]
    fn who_has_sent_much_leaves_the_rest_to_others() {
        let outgoing = Outgoing::default();
        for number in 0..=IN_ONE_GO {
            outgoing.push(fan(u64::try_from(number).expect("few")));
        }

        assert!(outgoing.send(|_, _| {}));
        assert!(!outgoing.send(|_, _| {}));
    }
}
