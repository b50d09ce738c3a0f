//! What is due at once goes out a few at a time, and nothing is late by that: an engine over a backend that only notes what it is given.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backend::{Backend, Request};
use crate::clock::{Clock, boot_time};
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, AcquisitionRef, AcquisitionState, SharedAcquisition};
use crate::engine::effects::Effects;
use crate::engine::renewal_throttle::ThrottleLimits;
use crate::key::LockKey;
use crate::options::Options;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::wait_queue::QueueEntry;
use crate::sync::lock;
use crate::token::TokenSource;

/// A backend that does nothing with what it is given.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<Vec<Request>>);

impl Notes {
    /// Returns what was pushed since the last call.
    pub(super) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Backend for Notes {
    fn push(&self, request: Request) {
        lock(&self.0).push(request);
    }

    fn flush(&self, _: &Engine, _: BootInstant, _: &mut Effects) {}

    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {}
}

/// An engine, and what it has asked for.
struct Scene {
    engine: Engine,
    notes: Arc<Notes>,
}

impl Scene {
    fn new() -> Self {
        let notes = Arc::<Notes>::default();
        let backend = Arc::clone(&notes);
        let rules = ProtocolConfig { tracking: true, ..ProtocolConfig::DEFAULT };
        let engine = Engine::new(backend, Clock::Boot, TokenSource::of_process(1), rules, LONG);
        Self { engine, notes }
    }

    fn asked(&self) -> Vec<Request> {
        self.notes.take()
    }

    /// The server grants all that is asked for, at `now`.
    fn answer(&self, requests: Vec<Request>, now: BootInstant) {
        let mut effects = Effects::default();
        let replies = requests.into_iter().map(|request| (request, Reply::Owner));
        self.engine.on_replies(now, now, replies, &mut effects);
        effects.wake();
    }

    /// A task takes a lock at `now`.
    fn hold(&self, key: &str, lease: Duration, now: BootInstant) -> SharedAcquisition {
        self.hold_by(key, Options { lease: Some(lease), ..Options::new() }, now)
    }

    fn hold_by(&self, key: &str, options: Options, now: BootInstant) -> SharedAcquisition {
        let held = Acquisition::new(LockKey::new(key).expect("a key"));
        let limits = RetryLimits {
            retries: 0,
            wait: None,
            backoff: options.backoff,
            response_timeout: LONG,
            try_only: false,
        };
        let (acquisition, retry_state) = (
            AcquisitionRef(SharedAcquisition::clone(&held)),
            RetryState::new(now, limits, self.engine.tokens.draw()),
        );
        let waiter = QueueEntry { acquisition, terms: options.terms(LONG), retry_state };
        self.engine.with_key_now(now, held.key.name(), |key_state, cx| key_state.join(waiter, cx));
        self.answer(self.asked(), now);
        assert_eq!(held.check_valid(now), Ok(()));
        held
    }

    fn hold_many(&self, now: BootInstant) -> Vec<SharedAcquisition> {
        (0..MANY).map(|number| self.hold(&format!("order:{number}"), LONG, now)).collect()
    }

    /// Does what is due at `now`, and returns what goes out.
    fn tick(&self, now: BootInstant) -> Vec<Request> {
        loop {
            let mut effects = Effects::default();
            let due = self.engine.tick(now, &mut effects);
            effects.wake();
            if due > now {
                return self.asked();
            }
        }
    }
}

/// What is on its way to a server that answers so many milliseconds later.
struct Far {
    scene: Scene,
    away: u64,
    under_way: VecDeque<(u64, Vec<Request>)>,
    /// How many were on their way at most.
    most: usize,
}

impl Far {
    fn new(scene: Scene, away: u64) -> Self {
        Self { scene, away, under_way: VecDeque::new(), most: 0 }
    }

    /// Lets a millisecond pass, and returns what goes out.
    fn pass(&mut self, start: BootInstant, ms: u64) -> Vec<Command> {
        let now = start.plus(Duration::from_millis(ms));
        while self.under_way.front().is_some_and(|(sent, _)| sent + self.away <= ms) {
            let (_, requests) = self.under_way.pop_front().expect("it was looked at");
            self.scene.answer(requests, now);
        }
        let sent = self.scene.tick(now);
        let commands = sent.iter().map(|request| request.command).collect();
        self.under_way.push_back((ms, sent));
        self.most = self.most.max(self.under_way.iter().map(|(_, sent)| sent.len()).sum());
        commands
    }
}

#[test]
fn what_nobody_told_of_for_a_while_is_asked_a_few_at_a_time() {
    let scene = Scene::new();
    scene.hold_many(boot_time());

    scene.engine.on_invalidations_missed();

    assert!(scene.asked().is_empty(), "a burst");
    let (start, mut asked, mut near) = (boot_time(), 0, Far::new(scene, 1));
    for ms in 0..3_000 {
        asked += near.pass(start, ms).iter().filter(|command| **command == Command::Verify).count();
        if asked == MANY {
            assert!(near.most <= 2 * ThrottleLimits::OF_A_SERVER.alone, "{} on their way", near.most);
            return;
        }
    }
    panic!("{asked} are asked about");
}

#[test]
fn what_sixteen_calls_have_taken_one_after_the_other_is_renewed_in_two_goes_at_most() {
    let (scene, start) = (Scene::new(), boot_time());
    for _ in 0..7 {
        scene.engine.tokens.draw(); // wherever a company begins
    }
    let _turns: Vec<_> = (0..16).map(|number| scene.hold(&format!("order:{number}"), LONG, start)).collect();

    // The numbers of their tokens are those of one company, or of two that follow each other (`protocol::renewal`).
    let goes: Vec<usize> = (0..=10_001)
        .map(|ms| scene.tick(start.plus(Duration::from_millis(ms))))
        .map(|asked| asked.iter().filter(|request| request.command != Command::Verify).count())
        .filter(|renewed| *renewed > 0)
        .collect();

    assert_eq!(goes.iter().sum::<usize>(), 16, "{goes:?}");
    assert!(goes.len() <= 2, "{goes:?}");
}

#[test]
fn fewer_are_on_their_way_while_the_process_asks_for_something_else() {
    let scene = Scene::new();
    scene.hold_many(boot_time());
    scene.engine.on_invalidations_missed();

    let (start, mut asked, mut near) = (boot_time(), 0, Far::new(scene, 1));
    for ms in 0..200 {
        near.scene.hold(&format!("another:{ms}"), LONG, start.plus(Duration::from_millis(ms)));
        asked += near.pass(start, ms).iter().filter(|command| **command == Command::Verify).count();
    }

    assert!(near.most <= 2 * ThrottleLimits::OF_A_SERVER.beside_others, "{} on their way", near.most);
    assert!(asked > 1_000, "{asked} are asked about");
}

#[test]
fn short_leases_are_renewed_by_half_of_them_though_the_server_is_far_away_and_the_process_asks_for_more() {
    let scene = Scene::new();
    let (start, lease) = (boot_time(), Duration::from_secs(3));
    let acquisitions: Vec<_> =
        (0..1_000).map(|number| scene.hold(&format!("order:{number}"), lease, start)).collect();

    let (mut far, mut shortest) = (Far::new(scene, 50), lease);
    for ms in 0..20_000 {
        let now = start.plus(Duration::from_millis(ms));
        if ms % 20 == 0 {
            far.scene.hold(&format!("another:{ms}"), LONG, now);
        }
        far.pass(start, ms);
        shortest =
            acquisitions.iter().map(|acquisition| acquisition.remaining(now)).fold(shortest, Duration::min);
    }

    let trip = Duration::from_millis(50);
    assert!(shortest + trip * 2 > lease / 2, "{shortest:?}");
}

#[test]
fn a_server_that_is_far_away_has_more_on_its_way_to_it() {
    let scene = Scene::new();
    scene.hold_many(boot_time());
    scene.engine.on_invalidations_missed();

    let (start, mut asked, mut far) = (boot_time(), 0, Far::new(scene, 100));
    for ms in 0..8_000 {
        asked += far.pass(start, ms).iter().filter(|command| **command == Command::Verify).count();
    }

    assert!(asked >= MANY, "{asked}: at the first pace it would take a minute");
}

#[test]
fn no_lease_runs_out_however_many_are_due_at_once_and_however_far_the_server_is() {
    for away in [1, 400] {
        let scene = Scene::new();
        let start = boot_time();
        let acquisitions = scene.hold_many(start);
        scene.engine.on_reconnect(true, |_| true); // all are to be renewed now

        let mut far = Far::new(scene, away);
        for ms in 0..31_000 {
            far.pass(start, ms);
        }

        let now = start.plus(Duration::from_secs(31));
        for acquisition in &acquisitions {
            assert!(
                acquisition.check_valid(now).is_ok(),
                "{away} ms away: {:?}",
                acquisition.check_valid(now)
            );
            assert!(
                acquisition.remaining(now) > LONG / 4,
                "{away} ms away: {:?}",
                acquisition.remaining(now)
            );
        }
    }
}

#[test]
fn a_short_lease_is_renewed_in_time_among_many_long_ones() {
    let scene = Scene::new();
    scene.hold_many(boot_time());
    scene.engine.on_reconnect(true, |_| true);
    assert!(scene.asked().is_empty(), "a burst");

    let start = boot_time();
    let short = scene.hold("short", SHORT, start);
    let (mut renewed, mut near) = (0, Far::new(scene, 1));
    for ms in 0..3_000 {
        renewed += near.pass(start, ms).iter().filter(|command| **command != Command::Verify).count();
        let now = start.plus(Duration::from_millis(ms));
        assert_eq!(short.check_valid(now), Ok(()), "after {ms} ms");
    }
    assert!(renewed > MANY, "{renewed}");
}

#[test]
fn a_loss_is_told_in_time_while_many_are_in_line_and_no_answer_comes() {
    let scene = Scene::new();
    scene.hold_many(boot_time());
    let start = boot_time();
    let lost = scene.hold_by("lost", Options { lease: Some(SHORT), renew: false, ..Options::new() }, start);
    scene.engine.on_reconnect(true, |_| true);

    let told = |acquisition: &Acquisition| {
        acquisition.poll_state(None, |phase| matches!(phase, AcquisitionState::Lost(_)).then_some(()))
    };
    let mut silent = Far::new(scene, u64::MAX / 2);
    for ms in 0..SHORT.as_millis().try_into().expect("it is short") {
        silent.pass(start, ms);
        let is_over = lost.check_valid(start.plus(Duration::from_millis(ms))).is_err();
        assert_eq!(told(&lost).is_some(), is_over, "after {ms} ms");
    }

    assert!(told(&lost).is_some(), "it was lost meanwhile");
    assert!(silent.most < MANY, "they are in line");
}

/// So many that waves that do not grow would take longer than the short lease.
const MANY: usize = 20_000;

const LONG: Duration = Duration::from_secs(30);

const SHORT: Duration = Duration::from_millis(300);
