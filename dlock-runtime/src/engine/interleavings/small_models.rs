//! Models of two or three threads, small enough to try all schedules.
//!
//! | threads | property |
//! |---|---|
//! | guard and waiter | a release wakes a waiter on another thread; a waiter that gives up passes the lock on |
//! | renewal and guard | a deadline that moves while it is read |
//! | loss and observer | an observer receives a loss, whenever it happens |
//! | two releases | one of two releases of one hold is sent to the server |
//!
//! See `large_models` for more threads.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::{LONG, Model, block_on, engine, hold, is_empty, key, thread, wait};
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, AcquisitionState, SharedAcquisition};
use crate::engine::hold_guard::HoldObserver;
use crate::engine::pending_release::ReleaseReport;
use crate::error::LossCause;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::sync::lock;

pub(super) fn models() -> Vec<Model> {
    vec![
        Model::sound("a release wakes a waiter", waiter_is_woken),
        Model::sound("two waiters are woken one after the other", two_waiters_are_woken),
        Model::sound("a waiter that gives up passes the lock on", waiter_gives_up),
        Model::sound("an observer receives a loss", observer_receives_loss),
        Model::sound("an extended deadline is valid", extended_deadline_is_valid),
        Model::sound("a hold is released once", released_once),
        Model::faulty(
            "a waiter that registers its waker after the check sleeps forever",
            "granted, and still asleep",
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

    waits.join().expect("it acquired the lock");
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
            assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
            thread::yield_now();
            inside.store(false, Ordering::SeqCst);
            drop(held);
        })
    };
    let both = [wait(&engine), wait(&engine)];
    drop(held);

    for one in both {
        one.join().expect("it acquired the lock");
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
    gives_up.join().expect("it gave up");

    assert!(is_empty(&engine), "an unwanted grant is kept");
    drop(hold(&engine));
}

fn observer_receives_loss() {
    let (engine, _) = engine();
    let held = hold(&engine);
    let (acquisition, other) = (SharedAcquisition::clone(held.root()), Arc::clone(&engine));

    let loses = thread::spawn(move || {
        other.with_key(acquisition.key.name(), |key_state, cx| {
            key_state.mark_all_lost(LossCause::NotOwner, cx);
        });
    });
    let observer = HoldObserver::alongside_call(&held);
    let cause = block_on(std::future::poll_fn(|cx| {
        let lost = observer.poll_state(cx.waker(), |state| match state {
            AcquisitionState::Lost(lost) => Some(lost.cause),
            _ => None,
        });
        lost.map_or(Poll::Pending, Poll::Ready)
    }));

    assert_eq!(cause, LossCause::NotOwner);
    assert!(held.check_valid().is_err());
    loses.join().expect("it is lost");
}

fn extended_deadline_is_valid() {
    let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
    let deadline = move |sent: u64| Deadline::of_lease(at(sent), Duration::from_secs(10));
    let acquisition = Acquisition::new(key());
    let other = SharedAcquisition::clone(&acquisition);

    let renews = thread::spawn(move || {
        drop(other.grant((deadline(0), BootInstant::NEVER), false, 1, at(0)));
        other.extend(deadline(20), BootInstant::NEVER);
        other.extend(deadline(10), BootInstant::NEVER); // a reply that was overtaken
    });
    let is_held = acquisition
        .poll_state(None, |state| matches!(state, AcquisitionState::Held { .. }).then_some(()))
        .is_some();
    if is_held {
        assert!(acquisition.check_valid(at(5)).is_ok(), "a hold has a deadline");
    }
    renews.join().expect("it is renewed");

    assert!(acquisition.check_valid(at(25)).is_ok() && acquisition.check_valid(at(30)).is_err());
}

fn released_once() {
    let (engine, grants) = engine();
    let held = Arc::new(hold(&engine));
    let other = Arc::clone(&held);

    let releases = thread::spawn(move || drop(other.release(ReleaseReport::None)));
    drop(held.release(ReleaseReport::None));
    releases.join().expect("it is released");

    assert_eq!(*lock(&grants.released), 1);
    assert!(is_empty(&engine));
}

/// Registers after the check, as `AcquireFuture` must not: a grant can come between the two.
fn waiter_registers_too_late() {
    let acquisition = Acquisition::new(key());
    let other = SharedAcquisition::clone(&acquisition);

    let grants = thread::spawn(move || {
        let deadline = Deadline::of_lease(BootInstant::START, LONG);
        other.grant((deadline, BootInstant::NEVER), false, 1, BootInstant::START).wake();
    });
    let flag = Arc::<FlagWaker>::default();
    let is_held = |state: &mut AcquisitionState| matches!(state, AcquisitionState::Held { .. }).then_some(());
    let sleeps = acquisition.poll_state(None, is_held).is_none();
    if sleeps {
        acquisition.poll_state(Some(&Waker::from(Arc::clone(&flag))), |_| None::<()>);
    }
    grants.join().expect("it is granted");

    assert!(!sleeps || flag.0.load(Ordering::SeqCst), "granted, and still asleep");
}

/// Records whether it was woken.
#[derive(Debug, Default)]
struct FlagWaker(AtomicBool);

impl Wake for FlagWaker {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
