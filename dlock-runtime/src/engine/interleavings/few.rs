//! Two or three threads, each with a turn or two: few enough to try every order of what they do.
//!
//! | | |
//! |---|---|
//! | guard and waiter | who lets go on one thread wakes who waits on another, or who gives up passes it on |
//! | renewer and guard | a deadline that is moved on, and one that is looked at |
//! | loss and looker | who listens for a loss is told, whenever it comes |
//! | release twice | one of two releases of one hold is asked of the server |
//!
//! Not here: longer runs of more threads (`crowd`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::{LONG, Model, block_on, engine, hold, is_empty, key, thread, wait};
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, AcquisitionRef, AcquisitionState, SharedAcquisition};
use crate::engine::release_completion::ReleaseReport;
use crate::error::LossCause;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::sync::lock;

pub(super) fn models() -> Vec<Model> {
    vec![
        Model::right("a waiter is woken by who lets go", waiter_is_woken),
        Model::right("two who wait are woken one after the other", two_waiters_are_woken),
        Model::right("a waiter that gives up passes its turn on", waiter_gives_up),
        Model::right("a loss is told to who listens", loss_is_told),
        Model::right("a deadline that is moved on is believed", deadline_moves_on),
        Model::right("a hold is released once", released_once),
        Model::faulty(
            "a waiter that looks first and leaves its waker later sleeps for ever",
            "it is its turn, and it sleeps",
            waiter_registers_too_late,
        ),
    ]
}

fn waiter_is_woken() {
    let (engine, _) = engine();
    let held = hold(&engine);
    let other = Arc::clone(&engine);

    let waits = thread::spawn(move || {
        let held = hold(&other);
        assert!(held.check_valid().is_ok());
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
    let (acquisition, other) = (SharedAcquisition::clone(held.root()), Arc::clone(&engine));

    let loses = thread::spawn(move || {
        other.with_key(acquisition.key.name(), |key_state, cx| key_state.mark_lost(LossCause::NotOwner, cx));
    });
    let looker = held.root().observer();
    let cause = block_on(std::future::poll_fn(|cx| {
        let lost = looker.poll_state(cx.waker(), |phase| match phase {
            AcquisitionState::Lost(lost) => Some(lost.cause),
            _ => None,
        });
        lost.map_or(Poll::Pending, Poll::Ready)
    }));

    assert_eq!(cause, LossCause::NotOwner);
    assert!(held.check_valid().is_err());
    loses.join().expect("it is lost");
}

fn deadline_moves_on() {
    let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
    let deadline = move |sent: u64| Deadline::of_lease(at(sent), Duration::from_secs(10));
    let acquisition = Acquisition::new(key());
    let other = SharedAcquisition::clone(&acquisition);

    let renews = thread::spawn(move || {
        let acquisition = AcquisitionRef(other);
        drop(acquisition.grant((deadline(0), BootInstant::NEVER), false, 1, at(0)));
        acquisition.extend(deadline(20), BootInstant::NEVER);
        acquisition.extend(deadline(10), BootInstant::NEVER); // an answer that was overtaken
    });
    let is_held = acquisition
        .poll_state(None, |phase| matches!(phase, AcquisitionState::HoldGuard { .. }).then_some(()))
        .is_some();
    if is_held {
        assert!(acquisition.check_valid(at(5)).is_ok(), "what is held has a deadline");
    }
    renews.join().expect("it is renewed");

    assert!(acquisition.check_valid(at(25)).is_ok() && acquisition.check_valid(at(30)).is_err());
}

fn released_once() {
    let (engine, grants) = engine();
    let held = Arc::new(hold(&engine));
    let other = Arc::clone(&held);

    let releases = thread::spawn(move || drop(other.let_go(ReleaseReport::None)));
    drop(held.let_go(ReleaseReport::None));
    releases.join().expect("it is released");

    assert_eq!(*lock(&grants.released), 1);
    assert!(is_empty(&engine));
}

/// What `AcquireFuture` must not do: between the look and the waker the turn may come.
fn waiter_registers_too_late() {
    let acquisition = Acquisition::new(key());
    let other = SharedAcquisition::clone(&acquisition);

    let admits = thread::spawn(move || {
        let deadline = Deadline::of_lease(BootInstant::START, LONG);
        AcquisitionRef(other).grant((deadline, BootInstant::NEVER), false, 1, BootInstant::START).wake();
    });
    let bell = Arc::<Bell>::default();
    let is_held =
        |phase: &mut AcquisitionState| matches!(phase, AcquisitionState::HoldGuard { .. }).then_some(());
    let sleeps = acquisition.poll_state(None, is_held).is_none();
    if sleeps {
        acquisition.poll_state(Some(&Waker::from(Arc::clone(&bell))), |_| None::<()>);
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
