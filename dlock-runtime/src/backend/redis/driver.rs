//! The driver of a manager's connections: it runs the engine's timers and sends queued requests.
//!
//! ```text
//!  engine --outbox, deadlines--> driver --requests--> topology (node ready: sent; down: refused)
//!    ^                             | cleanup queue: withdrawals that are due  |
//!    +------------------------ replies, grants, losses ----------------------+
//! ```
//!
//! After the engine is dropped, the driver sends the remaining requests, cleans up, and ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinError;

use crate::backend::EventReceiver;
use crate::backend::event_effects::EventEffects;
use crate::backend::redis::boot_timer::BootTimer;
use crate::backend::redis::command_queue::{CommandQueue, RequestSender};
use crate::backend::redis::topology::{LoadHint, Topology};
use crate::clock::boot_time;
use crate::protocol::command::Failure;
use crate::protocol::deadline::BootInstant;

/// The driver of one manager.
pub(super) struct Driver {
    pub(super) shared: Arc<CommandQueue>,
    pub(super) events: EventReceiver,
    pub(super) topology: Topology,
    pub(super) response_timeout: Duration,
    /// The number of calls that wanted to send since the current one started; 0 if no call is
    /// sending.
    sending: AtomicUsize,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<CommandQueue>,
        events: EventReceiver,
        topology: Topology,
        response_timeout: Duration,
    ) -> Arc<Self> {
        let driver =
            Arc::new(Self { shared, events, topology, response_timeout, sending: AtomicUsize::new(0) });
        let sender: Weak<Self> = Arc::downgrade(&driver);
        driver.shared.set_sender(sender);
        driver
    }

    /// Writes queued requests on the callers' runtime, until it ends or the driver is dropped.
    pub(super) async fn run_writer(driver: Weak<Self>, shared: Arc<CommandQueue>) {
        loop {
            shared.wake_writer.notified().await;
            // Tasks that are ready add their requests to the batch.
            tokio::task::yield_now().await;
            match driver.upgrade() {
                Some(driver) => driver.send(),
                None => return,
            }
        }
    }

    /// Sends the queued requests, unless another call is sending; that call then checks again.
    ///
    /// Requests leave in the order in which they were pushed, and no call waits for another. Wakers
    /// that push more requests may run meanwhile.
    fn send(&self) {
        let mut seen = 1;
        if self.sending.fetch_add(seen, Ordering::AcqRel) > 0 {
            return;
        }
        let sending = SendGuard(self);
        for _ in 0..MAX_ROUNDS {
            let requests = self.shared.take();
            if requests.is_empty() {
                self.topology.send_rest();
            } else {
                self.topology.take(requests);
            }
            seen = self.sending.fetch_sub(seen, Ordering::AcqRel) - seen;
            if seen == 0 {
                return std::mem::forget(sending);
            }
        }
    }

    /// Runs until the engine is dropped and its work is done, or until the first attempt to connect
    /// fails. `first` receives the outcome of that attempt.
    ///
    /// # Errors
    ///
    /// Fails if a task of the topology panicked.
    pub(super) async fn run(
        self: Arc<Self>,
        first: Option<oneshot::Sender<Result<(), Failure>>>,
    ) -> Result<(), JoinError> {
        let serving = self.topology.run(first);
        tokio::pin!(serving);
        tokio::select! {
            biased;
            ended = &mut serving => return ended,
            () = self.clean_up() => {}
            () = self.drive() => {}
        }
        let _ = tokio::time::timeout(self.response_timeout + WIND_DOWN_MARGIN, self.wind_up()).await;
        Ok(())
    }

    /// Sends queued requests and runs deadlines until the engine is dropped.
    async fn drive(&self) {
        let mut timer = None;
        loop {
            let wake = self.shared.wake.notified();
            let previous = self.shared.mark_awake();
            let now = boot_time();
            let Some(events) = self.events.get() else { return };
            let mut effects = EventEffects::default();
            let due = events.on_timeout(now, &mut effects);
            drop(events);
            self.send();
            effects.run();
            let until = wake_time(previous, now, due);
            self.shared.mark_asleep(until);
            if self.events.get().is_some_and(|events| events.due() < until) {
                continue; // an earlier deadline was set meanwhile
            }
            if due <= now {
                // More is due. Received replies are handled first.
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                biased;
                () = wake => {}
                () = self.shared.runtimes.has_left_callers.notified() => {}
                () = timer.get_or_insert_with(BootTimer::new).until(until) => {}
            }
        }
    }

    /// Cleans up after commands without a reply, once they are known and there is a connection.
    async fn clean_up(&self) {
        loop {
            let more = self.shared.cleanup.more.notified();
            tokio::select! {
                () = more => {}
                () = self.wait_for_withdrawals(MAX_IDLE) => {}
            }
        }
    }

    /// Queues the withdrawals that are due, and sleeps until the next.
    async fn wait_for_withdrawals(&self, longest: Duration) {
        let wait = self.topology.clean_up(&self.shared, longest);
        tokio::time::sleep(wait).await;
    }

    /// Sends the remaining requests, and cleans up.
    async fn wind_up(&self) {
        loop {
            let (settled, more) = (self.shared.settled.notified(), self.shared.cleanup.more.notified());
            let wake = self.shared.wake.notified();
            self.send();
            if !self.shared.has_more() {
                return;
            }
            tokio::select! {
                () = settled => {}
                () = more => {}
                () = wake => {}
                () = self.wait_for_withdrawals(CLEANUP_INTERVAL) => {}
            }
        }
    }
}

impl RequestSender for Driver {
    /// Sends the queued requests, or leaves them to the writer.
    ///
    /// Requests are sent immediately if a caller waits for one and nothing is in flight, or if they
    /// are a batch: the server then works on one part while tasks request the next. Otherwise the
    /// writer collects them, which costs less per request, and writes them all when it runs. If its
    /// runtime is blocked, the driver writes them after about 20 ms.
    fn flush(&self) {
        let is_idle = match self.topology.traffic(&self.shared) {
            LoadHint::Idle => true,
            LoadHint::Busy => false,
            LoadHint::DriverOnly => return self.shared.wake.notify_one(),
        };
        if self.shared.is_write_due(is_idle) {
            return self.send();
        }
        self.shared.wake_writer();
        if is_idle {
            self.topology.watch_writer(); // otherwise, the requests in flight are watched
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.wake_writer.notify_one(); // so that the writer ends
    }
}

/// Returns when the driver wakes next, given the next deadline `due` and the earlier deadline
/// `previous` that it slept until.
///
/// If `previous` is still ahead, the driver wakes for it even though it may be obsolete. Otherwise,
/// a task that acquires one lock after another would wake the driver twice per lock: for the
/// response timeout, and for the check of a hold after 100 ms, which few holds reach.
fn wake_time(previous: BootInstant, now: BootInstant, due: BootInstant) -> BootInstant {
    if previous > now { previous.min(due) } else { due }
}

/// Leaves the queued requests to the driver if the sending call has looped too often or panicked.
struct SendGuard<'a>(&'a Driver);

impl Drop for SendGuard<'_> {
    fn drop(&mut self) {
        self.0.sending.store(0, Ordering::Release);
        self.0.shared.wake.notify_one();
    }
}

/// How often a sending call checks for new requests: it may be a task with its own work to do.
const MAX_ROUNDS: usize = 4;

/// How often a driver without an engine checks whether it can clean up more.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);

/// The sleep if there is nothing to clean up. New work wakes the driver earlier.
const MAX_IDLE: Duration = Duration::from_secs(3600);

/// How long a driver without an engine runs beyond the response timeout. A second withdrawal
/// follows the first after one second.
const WIND_DOWN_MARGIN: Duration = Duration::from_millis(2_500);

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tokio::task::JoinHandle;

    use super::*;
    use crate::backend::Request;
    use crate::backend::redis::node::test_node::{TestNode, acquire};
    use crate::backend::redis::tests::is_notified;
    use crate::backend::redis::tests::within_limit;
    use crate::backend::tests::recorded_events::RecordedEvents;
    use crate::protocol::command::{Command, Reply};

    const LONG: Duration = Duration::from_secs(20);

    fn driver_of(rig: &TestNode) -> Arc<Driver> {
        let (shared, node) = (Arc::clone(&rig.shared), Arc::clone(&rig.node));
        Driver::new(shared, EventReceiver::default(), Topology::One(node), LONG)
    }

    #[test]
    fn driver_sleeps_until_the_earlier_deadline_that_is_ahead() {
        let at = |ms: u64| BootInstant::from_nanos(ms * 1_000_000);
        let (now, due) = (at(100), at(600));

        for (previous, until) in [
            (BootInstant::START, due), // it was awake
            (at(99), due),
            (now, due),
            (at(101), at(101)),
            (at(700), due),
            (BootInstant::NEVER, due),
        ] {
            assert_eq!(wake_time(previous, now, due), until, "{previous:?}");
        }
        assert_eq!(wake_time(at(200), now, BootInstant::NEVER), at(200));
        assert_eq!(wake_time(at(200), now, at(50)), at(50), "it is due");
    }

    /// Returns `true` if the driver has been woken.
    fn is_left_to_the_driver(driver: &Driver) -> bool {
        is_notified(&driver.shared.wake)
    }

    #[test]
    fn repeated_requests_of_a_waker_are_left_to_the_driver() {
        let rig = TestNode::down(LONG); // every request is answered immediately
        let driver = driver_of(&rig);
        let (again, depth) = (Arc::downgrade(&driver), AtomicUsize::new(0));
        rig.on_reply(move |_, _| {
            assert_eq!(depth.fetch_add(1, Ordering::SeqCst), 0, "sending is not reentrant");
            let driver = again.upgrade().expect("the test has it");
            driver.shared.push(acquire("again"));
            driver.send();
            depth.fetch_sub(1, Ordering::SeqCst);
        });

        driver.shared.push(acquire("first"));
        driver.send();

        assert_eq!(rig.told().len(), MAX_ROUNDS);
        assert!(is_left_to_the_driver(&driver));
        driver.send();
        assert_eq!(rig.told().len(), 2 * MAX_ROUNDS, "it can be sent again");
    }

    #[test]
    fn a_panic_while_sending_leaves_the_rest_to_the_driver() {
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
    async fn a_batch_is_sent_at_once_and_less_is_collected() {
        const IN_FLIGHT: usize = 16;
        let mut rig = TestNode::new(LONG).await;
        let driver = driver_of(&rig);
        rig.hold();
        for number in 0..IN_FLIGHT {
            driver.shared.push(acquire(&number.to_string()));
        }
        driver.flush();
        assert_eq!(rig.asked().await, "0");

        driver.shared.push(acquire("less than a batch"));
        driver.flush();
        assert!(is_left_to_the_driver(&driver), "it is collected");
        for _ in 0..2 {
            driver.shared.push(acquire("more"));
            driver.flush();
        }

        assert!(driver.shared.take().is_empty());
    }

    #[tokio::test]
    async fn requests_of_each_thread_are_sent_in_order() {
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
        driver.send(); // as the driver does if a sending call has looped too often

        let mut next = std::collections::HashMap::new();
        for _ in 0..3 * EACH {
            let asked = rig.asked().await;
            let (thread, number) = asked.split_at(1);
            let expected = next.entry(thread.to_owned()).or_insert(0);
            assert_eq!(number.parse(), Ok(*expected), "{thread}");
            *expected += 1;
        }
    }

    #[tokio::test]
    async fn the_writer_sends_until_its_driver_is_dropped() {
        let rig = TestNode::new(LONG).await;
        let driver = driver_of(&rig);
        let writer = tokio::spawn(Driver::run_writer(Arc::downgrade(&driver), Arc::clone(&rig.shared)));

        driver.shared.push(acquire("a"));
        driver.shared.wake_writer.notify_one();
        rig.until_replied(1).await;
        drop(driver);

        tokio::time::timeout(LONG, writer).await.expect("it ends").expect("it does not panic");
    }

    #[test]
    fn requests_for_a_node_that_is_down_are_left_to_the_driver() {
        let rig = TestNode::down(LONG);
        let driver = driver_of(&rig);

        driver.shared.push(acquire("a"));
        driver.flush();

        assert!(is_left_to_the_driver(&driver));
        assert!(rig.told().is_empty());
    }

    /// Runs a driver that has an engine, whose events are returned with it.
    fn running(rig: &TestNode) -> (Arc<Driver>, Arc<RecordedEvents>, JoinHandle<Result<(), JoinError>>) {
        let receiver = EventReceiver::default();
        let events = RecordedEvents::attach(|events| receiver.attach(events));
        let (shared, node) = (Arc::clone(&rig.shared), Arc::clone(&rig.node));
        let driver = Driver::new(shared, receiver, Topology::One(node), LONG);
        let running = tokio::spawn(Arc::clone(&driver).run(None));
        (driver, events, running)
    }

    async fn ended(running: JoinHandle<Result<(), JoinError>>) {
        let ended = tokio::time::timeout(LONG, running).await.expect("it ends");
        assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
    }

    #[tokio::test]
    async fn a_driver_runs_deadlines_until_its_engine_is_gone() {
        let rig = TestNode::new(LONG).await;
        let (driver, events, running) = running(&rig);

        for millis in [0, 5, 10] {
            let due = boot_time().plus(Duration::from_millis(millis));
            events.set_due(due);
            driver.shared.wake_by(due);
            within_limit("a deadline", events.more.notified()).await;
            assert!(boot_time() >= due);
            assert_eq!(events.take(), [format!("timeout {:?}", due.since(BootInstant::START))]);
        }
        driver.shared.push(acquire("a"));
        driver.shared.wake.notify_one();
        rig.until_replied(1).await;
        driver.shared.answered(1);
        assert!(!running.is_finished());
        drop(events);
        driver.shared.wake.notify_one();

        ended(running).await;
    }

    #[tokio::test]
    async fn a_driver_without_an_engine_sends_what_is_left_before_it_ends() {
        let rig = TestNode::new(LONG).await;
        rig.set_reply("EVALSHA", ":1\r\n");
        let (driver, events, running) = running(&rig);
        let orphaned = acquire("orphaned").token;
        driver.shared.cleanup.add(vec![("orphaned".into(), orphaned)], Some(1));
        driver.shared.push(acquire("a"));

        drop(events);
        driver.shared.wake.notify_one();
        rig.until_replied(2).await;

        let mut keys: Vec<_> = rig.told().into_iter().map(|(key, _)| key).collect();
        keys.sort();
        assert_eq!(keys, ["a", "orphaned"]);
        assert!(!running.is_finished(), "the replies have not been handled");
        let mut replies = vec![(Request::new("orphaned".into(), orphaned, Command::Withdraw), Reply::Owner)];
        driver.shared.cleanup.on_withdrawal_replies(&mut replies, Some(1), boot_time());
        driver.shared.answered(2);
        ended(running).await;
    }

    #[tokio::test]
    async fn a_driver_sleeps_until_the_next_deadline() {
        let rig = TestNode::new(LONG).await;
        let (driver, events, _running) = running(&rig);
        events.set_due(boot_time().plus(LONG));

        for _ in 0..100 {
            tokio::task::yield_now().await;
        }

        assert!((1..10).contains(&events.checks()), "{}", events.checks());
        events.set_due(BootInstant::NEVER);
        driver.shared.wake.notify_one();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }

        assert!((2..20).contains(&events.checks()), "{}", events.checks());
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_without_an_engine_ends_though_a_reply_is_missing() {
        const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
        let rig = TestNode::down(LONG);
        let (shared, node) = (Arc::clone(&rig.shared), Arc::clone(&rig.node));
        let driver = Driver::new(shared, EventReceiver::default(), Topology::One(node), RESPONSE_TIMEOUT);
        driver.shared.push(acquire("a")); // the test does not count its reply
        let begun = tokio::time::Instant::now();

        assert!(Arc::clone(&driver).run(None).await.is_ok());

        let lasted = begun.elapsed();
        assert!(lasted >= RESPONSE_TIMEOUT + WIND_DOWN_MARGIN && lasted < LONG, "{lasted:?}");
    }
}
