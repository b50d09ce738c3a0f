//! Large models with a seeded fault, one for each check. shuttle finds a task that sleeps forever,
//! and the invariants find the rest.

use super::large_models::{Fixture, LOSSLESS, LargeModel, Replies, draw, run_with};
use super::{LONG, Model, block_on, thread};
use crate::backend::Request;
use crate::backend::event_effects::EventEffects;
use crate::engine::acquire_future::AcquireFuture;
use crate::engine::acquisition::SharedAcquisition;
use crate::engine::effects::Effects;
use crate::engine::hold_guard::HoldGuard;
use crate::engine::pending_release::ReleaseReport;
use crate::options::Options;
use crate::protocol::deadline::BootInstant;
use crate::protocol::hold::ReleaseOutcome;
use crate::sync::lock;

pub(super) fn models() -> Vec<Model> {
    vec![
        Model::faulty("a hand-off wakes no task", "deadlock", || {
            run_with(LOSSLESS, hand_off_without_wake);
        }),
        Model::faulty("a lock is released before its body ends", "two holders", || {
            run_with(LOSSLESS, release_too_early);
        }),
        Model::faulty("a call that joins again expects its old place", "was overtaken", || {
            run_with(LOSSLESS, join_again);
        }),
        Model::faulty("a release never arrives at the server", "is left in the server", || {
            run_with(LargeModel { replies: Replies::FromThread, ..LOSSLESS }, drop_a_release);
        }),
    ]
}

fn join(fixture: &Fixture) -> AcquireFuture {
    let options = Options { wait: Some(LONG), ..Options::new() };
    AcquireFuture::join(&fixture.engine, fixture.key(0), &options, None, None)
}

fn hold(fixture: &Fixture) -> HoldGuard {
    block_on(join(fixture)).expect("nothing is lost")
}

fn hand_off_without_wake(fixture: &Fixture) {
    for _ in 0..fixture.model.acquisitions {
        let held = hold(fixture);
        if draw(8) > 0 {
            continue;
        }
        let (engine, acquisition) = (&fixture.engine, SharedAcquisition::clone(held.root()));
        let (key, now, mut tasks) = (held.key().name(), engine.now(), EventEffects::default());
        let mut effects = Effects::new(&mut tasks);
        let released =
            engine.with_key_at(key, now, &mut effects, |key_state, cx| key_state.release(&acquisition, cx));
        if let ReleaseOutcome::Send(token, command) = released {
            engine.submit(Request::new(key.clone(), token, command), &mut effects);
        }
        engine.backend.flush(now, &mut tasks);
        drop(tasks); // without waking the next task
    }
}

fn release_too_early(fixture: &Fixture) {
    for _ in 0..fixture.model.acquisitions {
        let held = hold(fixture);
        let inside = fixture.invariants.on_entered(0, &held);
        drop(held.release(ReleaseReport::None));
        thread::yield_now();
        drop(inside);
    }
}

fn join_again(fixture: &Fixture) {
    for _ in 0..fixture.model.acquisitions {
        let began = fixture.invariants.begin_acquire();
        let mut waiting = join(fixture);
        let waits = fixture.invariants.on_joined(0, BootInstant::NEVER);
        if draw(4) == 0 {
            waiting = join(fixture); // and the first is dropped
        }
        let held = block_on(waiting).expect("nothing is lost");
        drop(waits);
        fixture.invariants.check_order(0, began, fixture.engine.now());
        drop(held);
    }
}

fn drop_a_release(fixture: &Fixture) {
    for acquisition in 0..fixture.model.acquisitions {
        if acquisition == 1 {
            *lock(&fixture.server.drops) = 1;
        }
        drop(hold(fixture));
    }
}
