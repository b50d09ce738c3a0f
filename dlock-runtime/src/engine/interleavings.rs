//! What threads of one process may do to each other over the engine, as models that loom runs in every order.
//!
//! | | |
//! |---|---|
//! | guard and waiter | who lets go on one thread wakes who waits on another, or who gives up passes it on |
//! | renewer and guard | a deadline that is moved on, and one that is looked at |
//! | loss and looker | who listens for a loss is told, whenever it comes |
//! | release twice | one of two releases of one hold is asked of the server |
//!
//! The locks and atomics are loom's (`sync::shared`); all else is the code that ships. What it uses of tokio, channels and `Notify`,
//! is taken for correct. Not here: what threads may do to each other in a backend.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::future::block_on;
use loom::thread;

use crate::backend::{Backend, Request};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::answer::Told;
use crate::engine::effects::Effects;
use crate::engine::hold::Held;
use crate::engine::turn::{Phase, Seat, Turn};
use crate::engine::waiting::Waiting;
use crate::error::LossCause;
use crate::key::LockKey;
use crate::options::Options;
use crate::protocol::Rules;
use crate::protocol::command::Reply;
use crate::protocol::deadline::{BootTime, Deadline};
use crate::sync::lock;
use crate::token::TokenSource;

/// What is run in every order.
#[derive(Debug)]
pub struct Model {
    /// What it shows.
    pub name: &'static str,
    /// Runs it in one order.
    pub run: fn(),
    /// Whether it has a fault that is to be found.
    pub is_faulty: bool,
}

/// Returns all models.
#[must_use]
pub fn models() -> Vec<Model> {
    let right = |name, run| Model { name, run, is_faulty: false };
    vec![
        right("a waiter is woken by who lets go", waiter_is_woken),
        right("two who wait are woken one after the other", two_waiters_are_woken),
        right("a waiter that gives up passes its turn on", waiter_gives_up),
        right("a loss is told to who listens", loss_is_told),
        right("a deadline that is moved on is believed", deadline_moves_on),
        right("a hold is released once", released_once),
        Model {
            name: "a waiter that looks first and leaves its waker later sleeps for ever",
            run: waiter_registers_too_late,
            is_faulty: true,
        },
    ]
}

/// A server that grants all that is asked for, at once.
#[derive(Debug, Default)]
struct Grants {
    outbox: Mutex<Vec<Request>>,
    released: Mutex<usize>,
}

impl Backend for Grants {
    fn push(&self, request: Request) {
        lock(&self.outbox).push(request);
    }

    fn flush(&self, engine: &Engine, now: BootTime, effects: &mut Effects) {
        loop {
            let requests = std::mem::take(&mut *lock(&self.outbox));
            if requests.is_empty() {
                return;
            }
            *lock(&self.released) += requests.iter().filter(|request| request.command.lets_go()).count();
            let replies = requests.into_iter().map(|request| (request, Reply::Ours));
            drop(engine.replies(now, now, replies, effects));
        }
    }

    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {}
}

fn engine() -> (Arc<Engine>, Arc<Grants>) {
    let grants = Arc::<Grants>::default();
    let rules = Rules { hand_off: LONG, ..Rules::DEFAULT };
    let backend = Arc::clone(&grants);
    let engine = Engine::new(backend, Clock::Boot, TokenSource::new(), rules, LONG);
    (Arc::new(engine), grants)
}

fn key() -> LockKey {
    LockKey::new("order:7").expect("a key")
}

fn wait(engine: &Arc<Engine>) -> Waiting {
    let options = Options { wait: Some(LONG), ..Options::new() };
    Waiting::join(engine, key(), &options, None)
}

fn hold(engine: &Arc<Engine>) -> Held {
    block_on(wait(engine)).expect("nobody else has it")
}

fn is_empty(engine: &Engine) -> bool {
    engine.shards.keys().next().is_none()
}

fn waiter_is_woken() {
    let (engine, _) = engine();
    let held = hold(&engine);
    let other = Arc::clone(&engine);

    let waits = thread::spawn(move || {
        let held = hold(&other);
        assert!(held.believed().is_ok());
    });
    drop(held);

    waits.join().expect("it has had its turn");
    assert!(is_empty(&engine));
}

fn two_waiters_are_woken() {
    let (engine, _) = engine();
    let held = hold(&engine);
    let inside = Arc::new(AtomicBool::new(false));

    let wait = |engine: &Arc<Engine>| {
        let (engine, inside) = (Arc::clone(engine), Arc::clone(&inside));
        thread::spawn(move || {
            let held = hold(&engine);
            assert!(!inside.swap(true, Ordering::SeqCst), "two have it");
            thread::yield_now();
            inside.store(false, Ordering::SeqCst);
            drop(held);
        })
    };
    let both = [wait(&engine), wait(&engine)];
    drop(held);

    for one in both {
        one.join().expect("it has had its turn");
    }
    assert!(is_empty(&engine));
}

fn waiter_gives_up() {
    let (engine, _) = engine();
    let held = hold(&engine);
    let mut waiting = wait(&engine);
    let other = Arc::clone(&engine);

    let gives_up = thread::spawn(move || {
        let mut cx = Context::from_waker(Waker::noop());
        let polled = Pin::new(&mut waiting).poll(&mut cx);
        drop((polled.is_ready(), polled, waiting));
        drop(other);
    });
    drop(held);
    gives_up.join().expect("it has gone");

    assert!(is_empty(&engine), "a turn that nobody wants is kept");
    drop(hold(&engine));
}

fn loss_is_told() {
    let (engine, _) = engine();
    let held = hold(&engine);
    let (turn, other) = (Arc::clone(held.root()), Arc::clone(&engine));

    let loses = thread::spawn(move || {
        other.on_lane(turn.key.name(), |lane, cx| lane.lose(LossCause::NotOurs, cx));
    });
    let looker = held.root().looker();
    let cause = block_on(std::future::poll_fn(|cx| {
        let lost = looker.look(cx.waker(), |phase| match phase {
            Phase::Lost(lost) => Some(lost.cause),
            _ => None,
        });
        lost.map_or(Poll::Pending, Poll::Ready)
    }));

    assert_eq!(cause, LossCause::NotOurs);
    assert!(held.believed().is_err());
    loses.join().expect("it is lost");
}

fn deadline_moves_on() {
    let at = |seconds: u64| BootTime::from_nanos(seconds * 1_000_000_000);
    let deadline = move |sent: u64| Deadline::of_lease(at(sent), Duration::from_secs(10));
    let turn = Turn::new(key());
    let other = Arc::clone(&turn);

    let renews = thread::spawn(move || {
        let seat = Seat(other);
        drop(seat.admit(deadline(0), BootTime::NEVER, 1, at(0)));
        seat.prolong(deadline(20), BootTime::NEVER);
        seat.prolong(deadline(10), BootTime::NEVER); // an answer that was overtaken
    });
    let is_held = turn.look(None, |phase| matches!(phase, Phase::Held { .. }).then_some(())).is_some();
    if is_held {
        assert!(turn.believed(at(5)).is_ok(), "what is held has a deadline");
    }
    renews.join().expect("it is renewed");

    assert!(turn.believed(at(25)).is_ok() && turn.believed(at(30)).is_err());
}

fn released_once() {
    let (engine, grants) = engine();
    let held = Arc::new(hold(&engine));
    let other = Arc::clone(&held);

    let releases = thread::spawn(move || drop(other.let_go(Told::Nobody)));
    drop(held.let_go(Told::Nobody));
    releases.join().expect("it is released");

    assert_eq!(*lock(&grants.released), 1);
    assert!(is_empty(&engine));
}

/// What `Waiting` must not do: between the look and the waker the turn may come.
fn waiter_registers_too_late() {
    let turn = Turn::new(key());
    let other = Arc::clone(&turn);

    let admits = thread::spawn(move || {
        let deadline = Deadline::of_lease(BootTime::START, LONG);
        let wakers = Seat(other).admit(deadline, BootTime::NEVER, 1, BootTime::START);
        wakers.into_iter().for_each(Waker::wake);
    });
    let bell = Arc::<Bell>::default();
    let is_held = |phase: &mut Phase| matches!(phase, Phase::Held { .. }).then_some(());
    let sleeps = turn.look(None, is_held).is_none();
    if sleeps {
        turn.look(Some(&Waker::from(Arc::clone(&bell))), |_| None::<()>);
    }
    admits.join().expect("it is admitted");

    assert!(!sleeps || bell.0.load(Ordering::SeqCst), "it is its turn, and it sleeps");
}

/// Whether somebody was woken.
#[derive(Debug, Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

const LONG: Duration = Duration::from_secs(30);
