//! Models of several threads with several acquisitions each, while time passes and another process
//! contends.
//!
//! An acquisition waits, waits with a limit, or tries once. Some are dropped after some polls,
//! while they wait, hold, or release.
//!
//! shuttle draws all random choices, so that a schedule can be repeated: the acquisitions, how much
//! time passes, and which thread runs. Each model has its own time.

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

use super::coverage::cover;
use super::invariants::{self, Invariants};
use super::server::Server;
use super::{LONG, Model, block_on, engine_over, thread};
use crate::backend::event_effects::EventEffects;
use crate::engine::Engine;
use crate::engine::acquire_future::AcquireFuture;
use crate::engine::hold_guard::HoldGuard;
use crate::engine::pending_release::ReleaseReport;
use crate::error::Error;
use crate::key::LockKey;
use crate::options::Options;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::simulated;

pub(super) fn models() -> Vec<Model> {
    vec![
        Model::sound("threads at one lock, with immediate replies", || run(LOSSLESS)),
        Model::sound("threads at one lock, with replies from a thread", || {
            run(LargeModel { replies: Replies::FromThread, ..LOSSLESS });
        }),
        Model::sound("threads at two locks, and another process", || {
            run(LargeModel { keys: 2, replies: Replies::FromThread, competitor: 2, ..LOSSLESS });
        }),
        Model::sound("threads that lose their locks", || {
            run(LargeModel {
                threads: 4,
                losses: 5,
                competitor: 1,
                replies: Replies::FromThread,
                ..LOSSLESS
            });
        }),
        Model::sound("threads during a shutdown", || {
            run(LargeModel { threads: 4, is_shut_down: true, replies: Replies::FromThread, ..LOSSLESS });
        }),
    ]
}

/// The parameters of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct LargeModel {
    pub(super) threads: u64,
    /// The number of acquisitions of each thread.
    pub(super) acquisitions: u64,
    /// The number of locks.
    pub(super) keys: usize,
    pub(super) replies: Replies,
    /// The number of acquisitions of another process.
    pub(super) competitor: u64,
    /// How often a lock is deleted. If not 0, time passes until the end, since some waits need it.
    pub(super) losses: u64,
    pub(super) is_shut_down: bool,
}

/// A model without losses, in which no acquisition needs a timer.
pub(super) const LOSSLESS: LargeModel = LargeModel {
    threads: 5,
    acquisitions: 3,
    keys: 1,
    replies: Replies::Immediate,
    competitor: 0,
    losses: 0,
    is_shut_down: false,
};

/// The thread that delivers the replies of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replies {
    /// The thread that sends the request.
    Immediate,
    /// A separate thread.
    FromThread,
}

/// A running model.
#[derive(Debug)]
pub(super) struct Fixture {
    pub(super) model: LargeModel,
    pub(super) engine: Arc<Engine>,
    pub(super) server: Arc<Server>,
    pub(super) invariants: Invariants,
    keys: Vec<LockKey>,
    time: Arc<AtomicU64>,
}

/// How a call acquires a lock.
#[derive(Clone, Copy, Debug)]
enum AcquireMode {
    Wait,
    WaitFor(Duration),
    Try,
}

/// Runs a model once.
pub(super) fn run(model: LargeModel) {
    run_with(model, |fixture| {
        for _ in 0..fixture.model.acquisitions {
            fixture.acquire_once();
        }
    });
}

/// Runs a model once, with `each` as the body of its threads.
pub(super) fn run_with(model: LargeModel, each: fn(&Fixture)) {
    let time = Arc::new(AtomicU64::new(1_000_000_000));
    let shown = Arc::clone(&time);
    let _simulated = simulated::begin(move || BootInstant::from_nanos(shown.load(Ordering::SeqCst)));
    let (notify, notified) = match model.replies {
        Replies::Immediate => (None, None),
        Replies::FromThread => {
            let (notify, notified) = mpsc::channel();
            (Some(notify), Some(notified))
        }
    };
    let fixture = Arc::new(Fixture::new(model, time, notify));

    let replies = notified.map(|notified| fixture.spawn(move |fixture| fixture.deliver_replies(&notified)));
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&has_ended);
    let ticks = fixture.spawn(move |fixture| fixture.pass_time(&ended));
    let mut others = vec![fixture.spawn(Fixture::delete_locks)];
    if model.competitor > 0 {
        others.push(fixture.spawn(Fixture::run_competitor));
    }
    if model.is_shut_down {
        others.push(fixture.spawn(Fixture::shut_down));
    }
    let threads: Vec<_> = (0..model.threads).map(|_| fixture.spawn(each)).collect();
    for one in threads.into_iter().chain(others) {
        one.join().expect("the thread ends");
    }
    has_ended.store(true, Ordering::SeqCst);
    ticks.join().expect("the thread ends");
    fixture.server.stop_thread();
    if let Some(replies) = replies {
        replies.join().expect("the thread ends");
    }
    fixture.check_end();
}

impl Fixture {
    fn new(model: LargeModel, time: Arc<AtomicU64>, notify: Option<mpsc::Sender<()>>) -> Self {
        let grant_lease = if model.losses > 0 { SHORT } else { LONG };
        let rules = ProtocolConfig {
            grant_lease,
            handoff_budget: HANDOFF_BUDGET,
            response_timeout: LONG,
            tracking: model.losses > 0,
            ..ProtocolConfig::DEFAULT
        };
        let server = Arc::new(Server::new(grant_lease, notify));
        let engine = engine_over(Arc::<Server>::clone(&server), rules);
        let keys = ["order:7", "order:8"].map(|name| LockKey::new(name).expect("a key"));
        let keys = keys.into_iter().take(model.keys).collect();
        Self { model, engine, server, invariants: Invariants::default(), keys, time }
    }

    fn spawn(self: &Arc<Self>, run: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let fixture = Arc::clone(self);
        thread::spawn(move || run(&fixture))
    }

    /// Advances the time by at most `most` ms.
    fn advance(&self, most: u64) {
        self.time.fetch_add(draw(most + 1) * 1_000_000, Ordering::SeqCst);
    }

    pub(super) fn key(&self, at: usize) -> LockKey {
        self.keys.get(at).cloned().expect("the model has this key")
    }

    /// Acquires a lock in a random way.
    fn acquire_once(&self) {
        let mode = match draw(8) {
            0 => AcquireMode::Try,
            1 => AcquireMode::WaitFor(Duration::from_millis(1 + draw(8))),
            _ => AcquireMode::Wait,
        };
        let at = if self.keys.len() > 1 { index(draw(2)) } else { 0 };
        let stage = Cell::new(WAITING);
        let acquiring = self.acquire(at, mode, &stage);
        if draw(4) > 0 {
            block_on(acquiring);
            return;
        }
        let from = if draw(2) == 0 { WAITING } else { HOLDING };
        if !block_on(DropAfter { polls: 1 + draw(6), from, stage: &stage, future: pin!(acquiring) }) {
            cover(stage.get(), 1);
        }
    }

    async fn acquire(&self, at: usize, mode: AcquireMode, stage: &Cell<&'static str>) {
        let wait = match mode {
            AcquireMode::Try => None,
            AcquireMode::Wait => Some(LONG),
            AcquireMode::WaitFor(time) => Some(time),
        };
        let began = self.invariants.begin_acquire();
        let until = wait.map_or(BootInstant::START, |wait| self.engine.clock.now().plus(wait));
        let options = Options { wait, ..Options::new() };
        let mut waiting = AcquireFuture::join(&self.engine, self.key(at), &options, None, None);
        let waits = self.invariants.on_joined(at, until); // dropped before `waiting`
        let outcome = poll_fn(|cx| waiting.poll_entered(&options, cx)).await;
        drop(waits);
        let held = match outcome {
            Ok(held) => held,
            Err(error) => return self.on_rejected(mode, &error),
        };
        if self.is_lossless() {
            self.invariants.check_order(at, began, self.engine.clock.now());
        }
        self.hold(at, held, stage).await;
    }

    /// Holds the lock for a while, and releases it in a random way.
    async fn hold(&self, at: usize, held: HoldGuard, stage: &Cell<&'static str>) {
        stage.set(HOLDING);
        let inside = self.invariants.on_entered(at, &held);
        for _ in 0..draw(4) {
            self.advance(2);
            yield_now().await;
            let valid = held.check_valid();
            assert!(valid.is_ok() || !self.is_lossless(), "{valid:?}");
            if valid.is_err() {
                cover("a loss was reported inside", 1);
                break;
            }
        }
        drop(inside);
        stage.set(RELEASING);
        if draw(2) == 0 {
            return drop(held);
        }
        if let Some(answer) = held.release(ReleaseReport::Caller).answer() {
            let reply = answer.await.expect("every request gets a reply");
            assert!(matches!(reply, Reply::Owner) || !self.is_lossless(), "{reply:?}");
        }
    }

    /// Returns `true` if no lock is deleted.
    fn is_lossless(&self) -> bool {
        self.model.losses == 0
    }

    /// Checks the error of a call that did not acquire its lock.
    fn on_rejected(&self, mode: AcquireMode, error: &Error) {
        let what = match (mode, error) {
            (_, Error::Shutdown { .. }) if self.model.is_shut_down => "rejected: shut down",
            (_, Error::Lost { .. }) if !self.is_lossless() => "rejected: lost before its start",
            (AcquireMode::Try, Error::Contended { .. }) => "contended: tried once",
            (AcquireMode::WaitFor(_), Error::Contended { .. }) => "contended: timed out",
            (AcquireMode::WaitFor(_), Error::Unavailable { .. }) => "no reply in time",
            _ => panic!("{mode:?}: {error}"),
        };
        cover(what, 1);
    }

    /// Delivers the replies of the server.
    fn deliver_replies(&self, notified: &mpsc::Receiver<()>) {
        loop {
            let is_notified = notified.recv().is_ok();
            let mut effects = EventEffects::default();
            self.server.reply_all(&mut effects);
            effects.run();
            if !is_notified {
                return;
            }
        }
    }

    /// Advances the time and runs what is due: for eight ticks, or until the end if locks are
    /// deleted.
    fn pass_time(&self, has_ended: &AtomicBool) {
        let mut ticks = 8;
        while ticks > 0 || !(self.is_lossless() || has_ended.load(Ordering::SeqCst)) {
            ticks -= i32::from(ticks > 0);
            self.advance(4);
            self.server.report(|events, effects| {
                events.on_timeout(self.engine.clock.now(), effects);
            });
            thread::yield_now();
        }
    }

    /// Deletes locks that may be held.
    fn delete_locks(&self) {
        for _ in 0..self.model.losses {
            yield_for(16);
            self.server.delete(self.key(0).name());
            cover("a lock was deleted", 1);
        }
    }

    fn shut_down(&self) {
        yield_for(64);
        block_on(self.engine.shutdown(LONG));
    }

    /// Acquires and releases as another process.
    fn run_competitor(&self) {
        for _ in 0..self.model.competitor {
            let key = self.key(0);
            let (token, grant) = self.server.competitor_acquires(key.name(), self.engine.clock.now());
            if let Some(grant) = grant {
                cover("the other process waited", 1);
                if block_on(grant).is_err() {
                    continue; // its queue entry was deleted
                }
            }
            yield_for(4);
            self.server.competitor_releases(key.name(), token);
        }
    }

    /// Checks that nothing is left, and that every grant was released.
    fn check_end(&self) {
        invariants::check_end(&self.engine);
        assert!(self.server.is_empty(self.engine.clock.now()), "a lock is left in the server");
        let (granted, released, spurious) = self.server.counts();
        assert!(granted == released || !self.is_lossless(), "{granted} grants, {released} releases");
        assert!(spurious == 0 || !self.is_lossless(), "{spurious} releases of locks that were not held");
        cover("a lock was handed off", self.invariants.entered().saturating_sub(granted));
    }
}

/// An acquisition that is dropped after that many polls from a stage on, unless it has ended. From
/// that stage on it is polled without being woken.
struct DropAfter<'a, F> {
    polls: u64,
    from: &'static str,
    stage: &'a Cell<&'static str>,
    future: Pin<&'a mut F>,
}

impl<F: Future<Output = ()>> Future for DropAfter<'_, F> {
    /// Whether the acquisition has ended.
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        if self.polls == 0 {
            return Poll::Ready(false);
        }
        if self.future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        if self.from == WAITING || self.stage.get() != WAITING {
            self.polls -= 1;
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Yields to other threads for a while.
fn yield_for(most: u64) {
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

/// The stages of an acquisition, as the events of a drop there.
const WAITING: &str = "dropped while waiting";
const HOLDING: &str = "dropped while holding";
const RELEASING: &str = "dropped while releasing";

/// Short enough to be used up sometimes.
const HANDOFF_BUDGET: Duration = Duration::from_millis(3);

/// A short `grant_lease`, so that a lost grant is requested again soon.
const SHORT: Duration = Duration::from_millis(60);
