//! The engine bounds renewals and verifications in flight, and none of them is late because of it.
//!
//! The backend of these tests only records the requests that it is given.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::backend::event_effects::EventEffects;
use crate::backend::tests::test_operation::TestOperation;
use crate::backend::{Backend, BackendEvents, Capabilities, OwnerSource, Request};
use crate::clock::{Clock, boot_time};
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, AcquisitionState, SharedAcquisition};
use crate::key::LockKey;
use crate::options::Options;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::wait_queue::QueueEntry;
use crate::sync::lock;
use crate::token::{ProcessId, TokenSource};

/// A backend that only records the requests that it is given.
#[derive(Debug, Default)]
pub(super) struct RequestRecorder {
    /// Whether it has the capabilities of several servers that vote.
    is_quorum: bool,
    requests: Mutex<Vec<Request>>,
    /// The deadlines that were reported as earlier than all before.
    earlier: Mutex<Vec<BootInstant>>,
    settled: AtomicUsize,
    is_closed: AtomicBool,
}

impl RequestRecorder {
    #[cfg(any(feature = "idempotent", feature = "scheduled"))]
    pub(super) fn of_quorum() -> Self {
        Self { is_quorum: true, ..Self::default() }
    }

    /// Returns the requests since the last call.
    pub(super) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *lock(&self.requests))
    }

    /// Returns the deadlines that became earlier since the last call.
    pub(super) fn take_earlier(&self) -> Vec<BootInstant> {
        std::mem::take(&mut *lock(&self.earlier))
    }

    /// Returns how often the engine has waited for the cleanup of commands.
    pub(super) fn settled(&self) -> usize {
        self.settled.load(Ordering::Relaxed)
    }

    /// Returns `true` if the engine has closed the backend.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

impl Backend for RequestRecorder {
    fn capabilities(&self) -> Capabilities {
        Capabilities { store_calls: !self.is_quorum, ..Capabilities::SERVER }
    }

    fn attach(&self, _: Weak<dyn BackendEvents>) {}

    fn submit(&self, request: Request) {
        lock(&self.requests).push(request);
    }

    fn due_earlier(&self, due: BootInstant) {
        lock(&self.earlier).push(due);
    }

    fn flush(&self, _: BootInstant, _: &mut EventEffects) {}

    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.settled.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn owner_of(&self, _: ProcessId, _: &str) -> OwnerSource {
        OwnerSource::Server(Arc::new(TestOperation::default()), Box::new(|_| Some("web-1".to_owned())))
    }
}

/// An engine and the requests that it has sent.
pub(super) struct Fixture {
    pub(super) engine: Arc<Engine>,
    pub(super) recorder: Arc<RequestRecorder>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with_clock(Clock::Boot)
    }

    pub(super) fn with_clock(clock: Clock) -> Self {
        let recorder = Arc::<RequestRecorder>::default();
        let backend = Arc::clone(&recorder);
        let rules = ProtocolConfig { tracking: true, ..ProtocolConfig::DEFAULT };
        let engine = Arc::new(Engine::new(backend, clock, TokenSource::of_process(1), rules, LONG));
        Self { engine, recorder }
    }

    pub(super) fn sent(&self) -> Vec<Request> {
        self.recorder.take()
    }

    /// The server grants all requests at `now`.
    fn answer(&self, requests: Vec<Request>, now: BootInstant) {
        let mut effects = EventEffects::default();
        for request in requests {
            self.engine.on_reply(request, Reply::Owner, now, now, &mut effects);
        }
        effects.run();
    }

    /// Reports an event of the backend.
    fn report(&self, event: impl FnOnce(&Engine, BootInstant, &mut EventEffects)) {
        let mut effects = EventEffects::default();
        event(&self.engine, boot_time(), &mut effects);
        effects.run();
    }

    /// Reports a new connection to another server.
    fn reconnect(&self) {
        self.report(|engine, now, effects| engine.on_reconnect(true, &|_| true, now, effects));
    }

    /// A task acquires a lock at `now`.
    pub(super) fn hold(&self, key: &str, lease: Duration, now: BootInstant) -> SharedAcquisition {
        self.hold_by(key, Options { lease: Some(lease), ..Options::new() }, now)
    }

    pub(super) fn hold_by(&self, key: &str, options: Options, now: BootInstant) -> SharedAcquisition {
        let held = Acquisition::new(LockKey::new(key).expect("a key"));
        let limits = RetryLimits {
            retries: 0,
            wait: None,
            backoff: options.backoff,
            response_timeout: LONG,
            try_only: false,
        };
        let retry_state = RetryState::new(now, limits, self.engine.tokens.draw());
        let acquisition = SharedAcquisition::clone(&held);
        let waiter = QueueEntry { acquisition, terms: options.terms(LONG), retry_state };
        self.engine.with_key_now(now, held.key.name(), |key_state, cx| key_state.join(waiter, cx));
        self.answer(self.sent(), now);
        assert_eq!(held.check_valid(now), Ok(()));
        held
    }

    fn hold_many(&self, now: BootInstant) -> Vec<SharedAcquisition> {
        (0..MANY).map(|number| self.hold(&format!("order:{number}"), LONG, now)).collect()
    }

    /// Runs all that is due at `now`, and returns the requests that it sends.
    pub(super) fn tick(&self, now: BootInstant) -> Vec<Request> {
        loop {
            let mut effects = EventEffects::default();
            let due = self.engine.on_timeout(now, &mut effects);
            effects.run();
            if due > now {
                return self.sent();
            }
        }
    }
}

/// A server that replies `latency_ms` after each request.
struct DistantServer {
    fixture: Fixture,
    latency_ms: u64,
    in_flight: VecDeque<(u64, Vec<Request>)>,
    /// The most requests that were in flight at one time.
    max_in_flight: usize,
}

impl DistantServer {
    fn new(fixture: Fixture, latency_ms: u64) -> Self {
        Self { fixture, latency_ms, in_flight: VecDeque::new(), max_in_flight: 0 }
    }

    /// Advances the time to `ms` after `start`, and returns the commands that are sent.
    fn pass(&mut self, start: BootInstant, ms: u64) -> Vec<Command> {
        let now = start.plus(Duration::from_millis(ms));
        while self.in_flight.front().is_some_and(|(sent, _)| sent + self.latency_ms <= ms) {
            let (_, requests) = self.in_flight.pop_front().expect("front() was not empty");
            self.fixture.answer(requests, now);
        }
        let sent = self.fixture.tick(now);
        let commands = sent.iter().map(|request| request.command).collect();
        self.in_flight.push_back((ms, sent));
        self.max_in_flight = self.max_in_flight.max(self.in_flight.iter().map(|(_, sent)| sent.len()).sum());
        commands
    }
}

#[test]
fn verifications_in_flight_are_bounded() {
    let fixture = Fixture::new();
    fixture.hold_many(boot_time());

    fixture.report(|engine, now, effects| engine.on_invalidation(None, now, effects));

    assert!(fixture.sent().is_empty(), "a burst");
    let (start, mut verified, mut server) = (boot_time(), 0, DistantServer::new(fixture, 1));
    for ms in 0..3_000 {
        verified += server.pass(start, ms).iter().filter(|command| **command == Command::Verify).count();
        if verified == MANY {
            let limit = Capabilities::SERVER.max_renewals_in_flight;
            assert!(server.max_in_flight <= limit, "{} in flight", server.max_in_flight);
            return;
        }
    }
    panic!("{verified} are verified");
}

#[test]
fn sixteen_holds_in_a_row_are_renewed_in_two_batches() {
    let (fixture, start) = (Fixture::new(), boot_time());
    for _ in 0..7 {
        fixture.engine.tokens.draw(); // not at the start of a cohort
    }
    let _acquisitions: Vec<_> =
        (0..16).map(|number| fixture.hold(&format!("order:{number}"), LONG, start)).collect();

    // The numbers of their tokens belong to one cohort or to two adjacent ones
    // (`protocol::renewal`).
    let batches: Vec<usize> = (0..=10_001)
        .map(|ms| fixture.tick(start.plus(Duration::from_millis(ms))))
        .map(|sent| sent.iter().filter(|request| request.command != Command::Verify).count())
        .filter(|renewed| *renewed > 0)
        .collect();

    assert_eq!(batches.iter().sum::<usize>(), 16, "{batches:?}");
    assert!(batches.len() <= 2, "{batches:?}");
}

#[test]
fn short_leases_are_renewed_by_half_of_the_lease() {
    let fixture = Fixture::new();
    let (start, lease) = (boot_time(), Duration::from_secs(3));
    let acquisitions: Vec<_> =
        (0..1_000).map(|number| fixture.hold(&format!("order:{number}"), lease, start)).collect();

    let (mut server, mut shortest) = (DistantServer::new(fixture, 50), lease);
    for ms in 0..20_000 {
        let now = start.plus(Duration::from_millis(ms));
        if ms % 20 == 0 {
            server.fixture.hold(&format!("another:{ms}"), LONG, now);
        }
        server.pass(start, ms);
        shortest =
            acquisitions.iter().map(|acquisition| acquisition.remaining(now)).fold(shortest, Duration::min);
    }

    let round_trip = Duration::from_millis(50);
    assert!(shortest + round_trip * 2 > lease / 2, "{shortest:?}");
}

#[test]
fn no_lease_expires_when_many_renewals_are_due_at_once() {
    for latency_ms in [1, 400] {
        let fixture = Fixture::new();
        let start = boot_time();
        let acquisitions = fixture.hold_many(start);
        fixture.reconnect(); // schedules a renewal of each

        let mut server = DistantServer::new(fixture, latency_ms);
        for ms in 0..31_000 {
            server.pass(start, ms);
        }

        let now = start.plus(Duration::from_secs(31));
        for acquisition in &acquisitions {
            assert!(
                acquisition.check_valid(now).is_ok(),
                "latency {latency_ms} ms: {:?}",
                acquisition.check_valid(now)
            );
            assert!(
                acquisition.remaining(now) > LONG / 4,
                "latency {latency_ms} ms: {:?}",
                acquisition.remaining(now)
            );
        }
    }
}

#[test]
fn a_short_lease_is_renewed_in_time_among_many_long_ones() {
    let fixture = Fixture::new();
    fixture.hold_many(boot_time());
    fixture.reconnect();
    assert!(fixture.sent().is_empty(), "a burst");

    let start = boot_time();
    let short = fixture.hold("short", SHORT, start);
    let (mut renewed, mut server) = (0, DistantServer::new(fixture, 1));
    for ms in 0..3_000 {
        renewed += server.pass(start, ms).iter().filter(|command| **command != Command::Verify).count();
        let now = start.plus(Duration::from_millis(ms));
        assert_eq!(short.check_valid(now), Ok(()), "after {ms} ms");
    }
    assert!(renewed > MANY, "{renewed}");
}

#[test]
fn a_loss_is_reported_in_time_while_renewals_are_deferred() {
    let fixture = Fixture::new();
    fixture.hold_many(boot_time());
    let start = boot_time();
    let lost = fixture.hold_by("lost", Options { lease: Some(SHORT), renew: false, ..Options::new() }, start);
    fixture.reconnect();

    let reported = |acquisition: &Acquisition| {
        acquisition.poll_state(None, |state| matches!(state, AcquisitionState::Lost(_)).then_some(()))
    };
    let mut server = DistantServer::new(fixture, u64::MAX / 2);
    for ms in 0..SHORT.as_millis().try_into().expect("a short time") {
        server.pass(start, ms);
        let is_over = lost.check_valid(start.plus(Duration::from_millis(ms))).is_err();
        assert_eq!(reported(&lost).is_some(), is_over, "after {ms} ms");
    }

    assert!(reported(&lost).is_some(), "the lock is lost");
    assert!(server.max_in_flight < MANY, "the others are deferred");
}

/// So many that their renewals take longer than the short lease.
const MANY: usize = 20_000;

const LONG: Duration = Duration::from_secs(30);

const SHORT: Duration = Duration::from_millis(300);
