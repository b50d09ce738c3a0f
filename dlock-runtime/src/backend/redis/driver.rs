//! The driver of a manager's connections: it keeps the engine's time, and gives what is queued to the servers.
//!
//! ```text
//!  engine --outbox, due--> driver --requests--> servers (a node is ready: they leave at once; down: refused at once)
//!    ^                       | abandon list: leaves that are due                |
//!    +--------------------- answers, grants, losses ---------------------------+
//! ```
//!
//! When the engine is gone it sends what is left, undoes what nobody can have any more, and ends.
//!
//! Not here: where it runs (`home`), who serves a key (`servers`), connections (`node`), what an answer means (`protocol`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinError;

use crate::backend::redis::boot_timer::BootTimer;
use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::topology::{LoadHint, Topology};
use crate::clock::boot_time;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::io::Io;
use crate::protocol::command::Failure;
use crate::protocol::deadline::BootInstant;

/// The driver.
pub(super) struct Driver {
    pub(super) shared: Arc<CommandQueue>,
    pub(super) engine: Weak<Engine>,
    pub(super) servers: Topology,
    pub(super) response_timeout: Duration,
    /// Whether it shares its thread with tasks that ask for locks: it lets all that are ready do so before it sends.
    gathers: bool,
    /// How often somebody wanted to send since one began to; 0 while nobody does.
    sending: AtomicUsize,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<CommandQueue>,
        engine: Weak<Engine>,
        servers: Topology,
        response_timeout: Duration,
        io: Io,
    ) -> Arc<Self> {
        let gathers = io == Io::Runtime;
        Arc::new(Self { shared, engine, servers, response_timeout, gathers, sending: AtomicUsize::new(0) })
    }

    /// Returns whether somebody may want something of it yet.
    pub(super) fn is_needed(&self) -> bool {
        self.engine.strong_count() > 0 || self.shared.has_more()
    }

    /// Sends what is queued, or has it sent. It leaves here and now where somebody waits for it and nothing is under way, or where it is
    /// much: so the server is at work on one part while the tasks of the next one ask. Else it is gathered by the driver, which costs
    /// less for each: a release in the background leaves together with what its task asks for next.
    pub(super) fn flush(&self) {
        let leaves_now = match self.servers.traffic(&self.shared) {
            LoadHint::Idle => self.shared.is_awaited() || self.shared.is_much(),
            LoadHint::Busy => self.shared.is_much(),
            LoadHint::OfTheDriver => false,
        };
        if leaves_now {
            self.send();
        } else {
            self.shared.wake.notify_one();
        }
    }

    /// Gives what is queued to the servers, unless somebody is about it, who looks again then: requests leave in the order in which they
    /// were pushed, and nobody waits for another. On the way wakers may run that push more.
    fn send(&self) {
        let mut seen = 1;
        if self.sending.fetch_add(seen, Ordering::AcqRel) > 0 {
            return;
        }
        let sending = SendGuard(self);
        for _ in 0..IN_ONE_GO {
            self.servers.take(self.shared.take());
            seen = self.sending.fetch_sub(seen, Ordering::AcqRel) - seen;
            if seen == 0 {
                return std::mem::forget(sending);
            }
        }
    }

    /// Runs until the engine is gone and what it left is dealt with, or until the first attempt to connect has failed; `first` is
    /// told how it ended.
    ///
    /// # Errors
    ///
    /// Fails if what serves the keys panicked.
    pub(super) async fn run(
        self: Arc<Self>,
        first: Option<oneshot::Sender<Result<(), Failure>>>,
    ) -> Result<(), JoinError> {
        let serving = self.servers.run(first);
        tokio::pin!(serving);
        tokio::select! {
            biased;
            ended = &mut serving => return ended,
            () = self.undo() => {}
            () = self.drive() => {}
        }
        let _ = tokio::time::timeout(self.response_timeout + LAST_WORDS, self.wind_up()).await;
        Ok(())
    }

    /// Gives what is queued to whom it belongs and does what comes due, until the engine is gone.
    async fn drive(&self) {
        let mut alarm = None;
        loop {
            let wake = self.shared.wake.notified();
            let told = self.shared.wakes_up();
            let now = boot_time();
            let due = match self.engine.upgrade() {
                Some(engine) => {
                    let mut effects = Effects::default();
                    let due = engine.tick(now, &mut effects);
                    effects.wake();
                    due
                }
                None => return,
            };
            self.send();
            let until = asleep_until(told, now, due);
            self.shared.falls_asleep(until);
            if self.engine.upgrade().is_some_and(|engine| engine.due() < until) {
                continue; // something came due earlier while we were not looking
            }
            if due <= now {
                tokio::task::yield_now().await; // much is due: what came in is dealt with between
                continue;
            }
            tokio::select! {
                biased;
                () = wake => if self.gathers {
                    tokio::task::yield_now().await;
                },
                () = alarm.get_or_insert_with(BootTimer::new).until(until) => {}
            }
        }
    }

    /// Undoes the effect of commands without an answer, as soon as they are known and there is a connection.
    async fn undo(&self) {
        loop {
            let more = self.shared.undoing.more.notified();
            tokio::select! {
                () = more => {}
                () = self.until_due_leaves(LONGEST_IDLE) => {}
            }
        }
    }

    /// Queues the leaves that can be sent, and waits for those that come next.
    async fn until_due_leaves(&self, longest: Duration) {
        let wait = self.servers.undo(&self.shared, longest);
        tokio::time::sleep(wait).await;
    }

    /// Sends what is left, and undoes what nobody can have any more.
    async fn wind_up(&self) {
        loop {
            let (settled, more) = (self.shared.settled.notified(), self.shared.undoing.more.notified());
            let wake = self.shared.wake.notified();
            self.send();
            if !self.shared.has_more() {
                return;
            }
            tokio::select! {
                () = settled => {}
                () = more => {}
                () = wake => {}
                () = self.until_due_leaves(BETWEEN_LOOKS) => {}
            }
        }
    }
}

/// Returns until when the driver sleeps from `now` on, where something is due at `due` and it has been `told` of a time before.
///
/// What it was told of is looked at then, though it may be done by now. A task that takes lock after lock would have it woken for each of
/// them, twice: for the limit of the answer, and for the check of a hold that is a tenth of a second old, which few live to see.
fn asleep_until(told: BootInstant, now: BootInstant, due: BootInstant) -> BootInstant {
    if told > now { told.min(due) } else { due }
}

/// Leaves it to the driver to send what is queued, where who was about it has been at it for long, or has panicked.
struct SendGuard<'a>(&'a Driver);

impl Drop for SendGuard<'_> {
    fn drop(&mut self) {
        self.0.sending.store(0, Ordering::Release);
        self.0.shared.wake.notify_one();
    }
}

/// How often who sends looks whether others have come meanwhile: it may be a task that has its own work to do.
const IN_ONE_GO: usize = 4;

/// How often a driver whose engine is gone looks whether it can undo more.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// With nothing to undo, and nothing that would tell of it otherwise.
const LONGEST_IDLE: Duration = Duration::from_secs(3600);

/// How much longer than an answer takes a driver whose engine is gone goes on: there is a second leave after a second.
const LAST_WORDS: Duration = Duration::from_millis(2_500);

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use futures_util::FutureExt;

    use super::*;
    use crate::backend::redis::command_queue::MUCH;
    use crate::backend::redis::node::test_node::{TestNode, acquire};

    const LONG: Duration = Duration::from_secs(20);

    fn driver_of(rig: &TestNode) -> Arc<Driver> {
        let (shared, node) = (Arc::clone(&rig.shared), Arc::clone(&rig.node));
        Driver::new(shared, Weak::new(), Topology::One(node), LONG, Io::Thread)
    }

    #[test]
    fn a_driver_sleeps_until_what_it_was_told_of_unless_that_has_passed_or_something_is_due_before() {
        let at = |ms: u64| BootInstant::from_nanos(ms * 1_000_000);
        let (now, due) = (at(100), at(600));

        for (told, until) in [
            (BootInstant::START, due), // it was awake
            (at(99), due),
            (now, due),
            (at(101), at(101)),
            (at(700), due),
            (BootInstant::NEVER, due),
        ] {
            assert_eq!(asleep_until(told, now, due), until, "{told:?}");
        }
        assert_eq!(asleep_until(at(200), now, BootInstant::NEVER), at(200));
        assert_eq!(asleep_until(at(200), now, at(50)), at(50), "it is due");
    }

    /// Returns whether the driver has been told to look.
    fn is_left_to_the_driver(driver: &Driver) -> bool {
        driver.shared.wake.notified().now_or_never().is_some()
    }

    #[test]
    fn a_waker_that_asks_again_and_again_is_left_to_the_driver() {
        let rig = TestNode::down(LONG); // what is sent is answered on the spot
        let driver = driver_of(&rig);
        let (again, depth) = (Arc::downgrade(&driver), AtomicUsize::new(0));
        rig.on_reply(move |_, _| {
            assert_eq!(depth.fetch_add(1, Ordering::SeqCst), 0, "nobody sends inside of who sends");
            let driver = again.upgrade().expect("the test has it");
            driver.shared.push(acquire("again"));
            driver.send();
            depth.fetch_sub(1, Ordering::SeqCst);
        });

        driver.shared.push(acquire("first"));
        driver.send();

        assert_eq!(rig.told().len(), IN_ONE_GO);
        assert!(is_left_to_the_driver(&driver));
        driver.send();
        assert_eq!(rig.told().len(), 2 * IN_ONE_GO, "it can be sent again");
    }

    #[test]
    fn a_panic_of_who_sends_leaves_the_rest_to_the_driver() {
        let rig = TestNode::down(LONG);
        let driver = driver_of(&rig);
        rig.on_reply(|key, _| assert_ne!(key, "first", "this panic is part of the test"));

        driver.shared.push(acquire("first"));
        let sent = catch_unwind(AssertUnwindSafe(|| driver.send()));
        driver.shared.push(acquire("second"));

        assert!(sent.is_err() && is_left_to_the_driver(&driver));
        driver.send();
        assert_eq!(rig.told().len(), 2);
    }

    #[tokio::test]
    async fn much_leaves_here_and_now_and_little_is_gathered_while_something_is_under_way() {
        let mut rig = TestNode::new(LONG).await;
        let driver = driver_of(&rig);
        rig.hold();
        driver.shared.push(acquire("under way"));
        driver.flush();
        assert_eq!(rig.asked().await, "under way");

        for number in 1..MUCH {
            driver.shared.push(acquire(&number.to_string()));
            driver.flush();
            assert!(is_left_to_the_driver(&driver), "it is gathered");
        }
        driver.shared.push(acquire("the last of them"));
        driver.flush();

        assert!(!is_left_to_the_driver(&driver) && driver.shared.take().is_empty());
    }

    #[tokio::test]
    async fn what_threads_push_leaves_in_the_order_of_each() {
        const EACH: usize = 500;
        let mut rig = TestNode::new(LONG).await;
        let driver = driver_of(&rig);

        std::thread::scope(|scope| {
            for thread in ["a", "b", "c"] {
                let driver = &driver;
                scope.spawn(move || {
                    for number in 0..EACH {
                        driver.shared.push(acquire(&format!("{thread}{number}")));
                        driver.send();
                    }
                });
            }
        });
        driver.send(); // as the driver would, where one has been at it for long

        let mut next = std::collections::HashMap::new();
        for _ in 0..3 * EACH {
            let asked = rig.asked().await;
            let (thread, number) = asked.split_at(1);
            let expected = next.entry(thread.to_owned()).or_insert(0);
            assert_eq!(number.parse(), Ok(*expected), "{thread}");
            *expected += 1;
        }
    }
}
