//! Crowds: several threads that take several turns each, in ways that are drawn, while time passes and others want the lock, too.
//!
//! | a turn | |
//! |---|---|
//! | waits | until it is let in |
//! | waits for a while | and gives up when its time is over |
//! | tries | and does not wait |
//! | is cut short | dropped after some polls, as it waits, holds or lets go |
//!
//! What is drawn is drawn by shuttle, so that a schedule that is run again is the same: the turns, how much time passes, and which thread
//! goes on. Time is that of the crowd alone.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use shuttle::future::yield_now;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::mpsc;

use super::judges::{self, Judges};
use super::server::Server;
use super::tally::happened;
use super::{LONG, Model, block_on, engine_over, thread};
use crate::engine::Engine;
use crate::engine::acquire_future::AcquireFuture;
use crate::engine::effects::Effects;
use crate::engine::hold_guard::HoldGuard;
use crate::engine::release_completion::ReleaseReport;
use crate::error::Error;
use crate::key::LockKey;
use crate::options::Options;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::simulated;

pub(super) fn models() -> Vec<Model> {
    vec![
        Model::right("a crowd at one lock, answered at once", || run(CALM)),
        Model::right("a crowd at one lock, answered by a thread", || {
            run(Crowd { answers: Answers::ByAThread, ..CALM });
        }),
        Model::right("a crowd at two locks, beside another process", || {
            run(Crowd { keys: 2, answers: Answers::ByAThread, rival: 2, ..CALM });
        }),
        Model::right("a crowd that loses its locks", || {
            run(Crowd { threads: 4, losses: 5, rival: 1, answers: Answers::ByAThread, ..CALM });
        }),
        Model::right("a crowd under a shutdown", || {
            run(Crowd { threads: 4, is_shut_down: true, answers: Answers::ByAThread, ..CALM });
        }),
    ]
}

/// What a crowd is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    pub(super) threads: u64,
    /// How many each of them takes.
    pub(super) acquisitions: u64,
    /// How many locks there are.
    pub(super) keys: usize,
    pub(super) answers: Answers,
    /// How often another process wants one of them.
    pub(super) rival: u64,
    /// How often a lock is deleted. Time goes on until all is over then, and some of it is needed.
    pub(super) losses: u64,
    pub(super) is_shut_down: bool,
}

/// A crowd that loses nothing: nobody needs a timer to get in.
pub(super) const CALM: Crowd = Crowd {
    threads: 5,
    acquisitions: 3,
    keys: 1,
    answers: Answers::AtOnce,
    rival: 0,
    losses: 0,
    is_shut_down: false,
};

/// Who gives the answers of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    /// Whoever asks.
    AtOnce,
    /// A thread that does nothing else.
    ByAThread,
}

/// A crowd and where it is.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) crowd: Crowd,
    pub(super) engine: Arc<Engine>,
    pub(super) server: Arc<Server>,
    pub(super) judges: Judges,
    keys: Vec<LockKey>,
    time: Arc<AtomicU64>,
}

/// How somebody takes a turn.
#[derive(Clone, Copy, Debug)]
enum Way {
    WaitGraph,
    WaitsFor(Duration),
    Tries,
}

/// Runs a crowd once.
pub(super) fn run(crowd: Crowd) {
    run_with(crowd, |scene| {
        for _ in 0..scene.crowd.acquisitions {
            scene.take_a_turn();
        }
    });
}

/// Runs a crowd once, whose threads do what is given.
pub(super) fn run_with(crowd: Crowd, each: fn(&Scene)) {
    let time = Arc::new(AtomicU64::new(1_000_000_000));
    let shown = Arc::clone(&time);
    let _simulated = simulated::begin(move || BootInstant::from_nanos(shown.load(Ordering::SeqCst)));
    let (bell, rings) = match crowd.answers {
        Answers::AtOnce => (None, None),
        Answers::ByAThread => {
            let (bell, rings) = mpsc::channel();
            (Some(bell), Some(rings))
        }
    };
    let scene = Arc::new(Scene::new(crowd, time, bell));

    let answers = rings.map(|rings| scene.spawn(move |scene| scene.answer(&rings)));
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    let ticks = scene.spawn(move |scene| scene.pass_time(&seen));
    let mut beside = vec![scene.spawn(Scene::mark_lost)];
    if crowd.rival > 0 {
        beside.push(scene.spawn(Scene::play_the_rival));
    }
    if crowd.is_shut_down {
        beside.push(scene.spawn(Scene::shut_down));
    }
    let threads: Vec<_> = (0..crowd.threads).map(|_| scene.spawn(each)).collect();
    for one in threads.into_iter().chain(beside) {
        one.join().expect("it ends");
    }
    is_over.store(true, Ordering::SeqCst);
    ticks.join().expect("it ends");
    scene.server.hang_up();
    if let Some(answers) = answers {
        answers.join().expect("it ends");
    }
    scene.is_over();
}

impl Scene {
    fn new(crowd: Crowd, time: Arc<AtomicU64>, bell: Option<mpsc::Sender<()>>) -> Self {
        let grant_lease = if crowd.losses > 0 { SHORT } else { LONG };
        let rules = ProtocolConfig {
            grant_lease,
            handoff_budget: HAND_OFF,
            response_timeout: LONG,
            tracking: crowd.losses > 0,
            ..ProtocolConfig::DEFAULT
        };
        let server = Arc::new(Server::new(grant_lease, bell));
        let engine = engine_over(Arc::<Server>::clone(&server), rules);
        let keys = ["order:7", "order:8"].map(|name| LockKey::new(name).expect("a key"));
        let keys = keys.into_iter().take(crowd.keys).collect();
        Self { crowd, engine, server, judges: Judges::default(), keys, time }
    }

    fn spawn(self: &Arc<Self>, run: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let scene = Arc::clone(self);
        thread::spawn(move || run(&scene))
    }

    /// Lets some milliseconds pass.
    fn pass(&self, most: u64) {
        self.time.fetch_add(draw(most + 1) * 1_000_000, Ordering::SeqCst);
    }

    pub(super) fn key(&self, at: usize) -> LockKey {
        self.keys.get(at).cloned().expect("there are so many")
    }

    /// Takes a turn in a way that is drawn.
    fn take_a_turn(&self) {
        let way = match draw(8) {
            0 => Way::Tries,
            1 => Way::WaitsFor(Duration::from_millis(1 + draw(8))),
            _ => Way::WaitGraph,
        };
        let at = if self.keys.len() > 1 { index(draw(2)) } else { 0 };
        let stage = Cell::new(WAITS);
        let acquisition = self.acquisition(at, way, &stage);
        if draw(4) > 0 {
            block_on(acquisition);
            return;
        }
        let from = if draw(2) == 0 { WAITS } else { HOLDS };
        if !block_on(CutShort { polls: 1 + draw(6), from, stage: &stage, future: pin!(acquisition) }) {
            happened(stage.get(), 1);
        }
    }

    async fn acquisition(&self, at: usize, way: Way, stage: &Cell<&'static str>) {
        let wait = match way {
            Way::Tries => None,
            Way::WaitGraph => Some(LONG),
            Way::WaitsFor(time) => Some(time),
        };
        let comes = self.judges.comes();
        let until = wait.map_or(BootInstant::START, |wait| self.engine.clock.now().plus(wait));
        let options = Options { wait, ..Options::new() };
        let mut waiting = AcquireFuture::join(&self.engine, self.key(at), &options, None);
        let waits = self.judges.waits(at, until); // dropped before the wait is
        let outcome = poll_fn(|cx| waiting.poll_entered(&options, cx)).await;
        drop(waits);
        let held = match outcome {
            Ok(held) => held,
            Err(error) => return self.refused(way, &error),
        };
        if self.is_calm() {
            self.judges.in_order(at, comes, self.engine.clock.now());
        }
        self.hold(at, held, stage).await;
    }

    /// Stays inside for a while, and lets go in a way that is drawn.
    async fn hold(&self, at: usize, held: HoldGuard, stage: &Cell<&'static str>) {
        stage.set(HOLDS);
        let inside = self.judges.enters(at, &held);
        for _ in 0..draw(4) {
            self.pass(2);
            yield_now().await;
            let believed = held.check_valid();
            assert!(believed.is_ok() || !self.is_calm(), "{believed:?}");
            if believed.is_err() {
                happened("a loss was told inside", 1);
                break;
            }
        }
        drop(inside);
        stage.set(LETS_GO);
        if draw(2) == 0 {
            return drop(held);
        }
        if let Some(answer) = held.let_go(ReleaseReport::Caller).answer() {
            let reply = answer.await.expect("every request is answered");
            assert!(matches!(reply, Reply::Owner) || !self.is_calm(), "{reply:?}");
        }
    }

    /// Whether nothing is lost.
    fn is_calm(&self) -> bool {
        self.crowd.losses == 0
    }

    /// That is something to be told.
    fn refused(&self, way: Way, error: &Error) {
        let what = match (way, error) {
            (_, Error::Shutdown { .. }) if self.crowd.is_shut_down => "refused: shut down",
            (_, Error::Lost { .. }) if !self.is_calm() => "refused: lost before its start",
            (Way::Tries, Error::Contended { .. }) => "contended: it tried",
            (Way::WaitsFor(_), Error::Contended { .. }) => "contended: its time was over",
            (Way::WaitsFor(_), Error::Unavailable { .. }) => "no answer in its time",
            _ => panic!("{way:?}: {error}"),
        };
        happened(what, 1);
    }

    /// Gives the answers of the server.
    fn answer(&self, rings: &mpsc::Receiver<()>) {
        loop {
            let has_rung = rings.recv().is_ok();
            let mut effects = Effects::default();
            self.server.answer_all(&self.engine, &mut effects);
            effects.wake();
            if !has_rung {
                return;
            }
        }
    }

    /// Lets time pass and does what is due: for a while, and where something may depend on it until all is over.
    fn pass_time(&self, is_over: &AtomicBool) {
        let mut ticks = 8;
        while ticks > 0 || !(self.is_calm() || is_over.load(Ordering::SeqCst)) {
            ticks -= i32::from(ticks > 0);
            self.pass(4);
            let mut effects = Effects::default();
            self.engine.tick(self.engine.clock.now(), &mut effects);
            effects.wake();
            thread::yield_now();
        }
    }

    /// Deletes locks under those who have them.
    fn mark_lost(&self) {
        for _ in 0..self.crowd.losses {
            stand_by(16);
            self.server.forget(&self.engine, self.key(0).name());
            happened("a lock was deleted", 1);
        }
    }

    fn shut_down(&self) {
        stand_by(64);
        block_on(self.engine.shutdown(LONG));
    }

    /// Takes turns as another process does.
    fn play_the_rival(&self) {
        for _ in 0..self.crowd.rival {
            let key = self.key(0);
            let (token, acquisition) = self.server.rival_asks(key.name(), self.engine.clock.now());
            if let Some(acquisition) = acquisition {
                happened("the other process waited", 1);
                if block_on(acquisition).is_err() {
                    continue; // its place was deleted
                }
            }
            stand_by(4);
            self.server.rival_releases(&self.engine, key.name(), token);
        }
    }

    /// Nothing is left, and what was let in has let go.
    fn is_over(&self) {
        judges::is_over(&self.engine);
        assert!(self.server.is_empty(self.engine.clock.now()), "a lock is left in the server");
        let (let_in, let_go, vain) = self.server.counts();
        assert!(let_in == let_go || !self.is_calm(), "{let_in} let in, {let_go} let go");
        assert!(vain == 0 || !self.is_calm(), "{vain} releases of what was not held");
        happened("a turn was handed on", self.judges.entered().saturating_sub(let_in));
    }
}

/// A turn that is dropped after so many polls, counted from a stage on, if it has not ended by then. From there on it is polled whether
/// it was woken or not.
struct CutShort<'a, F> {
    polls: u64,
    from: &'static str,
    stage: &'a Cell<&'static str>,
    future: Pin<&'a mut F>,
}

impl<F: Future<Output = ()>> Future for CutShort<'_, F> {
    /// Whether it has ended.
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        if self.polls == 0 {
            return Poll::Ready(false);
        }
        if self.future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        if self.from == WAITS || self.stage.get() != WAITS {
            self.polls -= 1;
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Lets others go on for a while.
fn stand_by(most: u64) {
    for _ in 0..draw(most) {
        thread::yield_now();
    }
}

/// Draws a number below `end`.
pub(super) fn draw(end: u64) -> u64 {
    thread_rng().gen_range(0..end)
}

fn index(at: u64) -> usize {
    usize::try_from(at).unwrap_or_default()
}

/// The stages of a turn, by what it is to be dropped there.
const WAITS: &str = "dropped as it waited";
const HOLDS: &str = "dropped as it held";
const LETS_GO: &str = "dropped as it let go";

/// So little that it is used up now and then.
const HAND_OFF: Duration = Duration::from_millis(3);

/// A grant that is over soon: what is lost on its way is asked for again.
const SHORT: Duration = Duration::from_millis(60);
