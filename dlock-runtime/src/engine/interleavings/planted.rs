//! Crowds with a fault in them, each for what must see it: shuttle, that somebody sleeps for ever; the judges, all else. Who does not find
//! these finds nothing elsewhere.

use super::crowd::{Answers, CALM, Crowd, Scene, draw, run_with};
use super::{LONG, Model, block_on, thread};
use crate::backend::Request;
use crate::engine::acquire_future::AcquireFuture;
use crate::engine::acquisition::{AcquisitionRef, SharedAcquisition};
use crate::engine::effects::Effects;
use crate::engine::hold_guard::HoldGuard;
use crate::engine::release_completion::ReleaseReport;
use crate::options::Options;
use crate::protocol::deadline::BootInstant;
use crate::protocol::hold::ReleaseOutcome;
use crate::sync::lock;

pub(super) fn models() -> Vec<Model> {
    vec![
        Model::faulty("a turn is handed on and nobody is woken", "deadlock", || {
            run_with(CALM, hand_on_in_silence);
        }),
        Model::faulty("a lock is let go of before its body has ended", "two have it", || {
            run_with(CALM, let_go_too_early);
        }),
        Model::faulty("who stands back wants his old place", "is passed over", || run_with(CALM, back_off)),
        Model::faulty("a release never comes to the server", "is left in the server", || {
            run_with(Crowd { answers: Answers::ByAThread, ..CALM }, drop_a_release);
        }),
    ]
}

fn join(scene: &Scene) -> AcquireFuture {
    let options = Options { wait: Some(LONG), ..Options::new() };
    AcquireFuture::join(&scene.engine, scene.key(0), &options, None)
}

fn hold(scene: &Scene) -> HoldGuard {
    block_on(join(scene)).expect("nothing is lost")
}

fn hand_on_in_silence(scene: &Scene) {
    for _ in 0..scene.crowd.acquisitions {
        let held = hold(scene);
        if draw(8) > 0 {
            continue;
        }
        let (engine, acquisition) = (&scene.engine, AcquisitionRef(SharedAcquisition::clone(held.root())));
        let (key, now, mut effects) = (held.key().name(), engine.now(), Effects::default());
        let released =
            engine.with_key_at(key, now, &mut effects, |key_state, cx| key_state.release(&acquisition, cx));
        if let ReleaseOutcome::Send(token, command) = released {
            engine.push(Request::new(key.clone(), token, command), now, &mut effects);
        }
        engine.flush_backend(now, &mut effects);
        drop(effects); // and whom it would have woken
    }
}

fn let_go_too_early(scene: &Scene) {
    for _ in 0..scene.crowd.acquisitions {
        let held = hold(scene);
        let inside = scene.judges.enters(0, &held);
        drop(held.let_go(ReleaseReport::None));
        thread::yield_now();
        drop(inside);
    }
}

fn back_off(scene: &Scene) {
    for _ in 0..scene.crowd.acquisitions {
        let comes = scene.judges.comes();
        let mut waiting = join(scene);
        let waits = scene.judges.waits(0, BootInstant::NEVER);
        if draw(4) == 0 {
            waiting = join(scene); // and the first is dropped
        }
        let held = block_on(waiting).expect("nothing is lost");
        drop(waits);
        scene.judges.in_order(0, comes, scene.engine.now());
        drop(held);
    }
}

fn drop_a_release(scene: &Scene) {
    for acquisition in 0..scene.crowd.acquisitions {
        if acquisition == 1 {
            *lock(&scene.server.drops) = 1;
        }
        drop(hold(scene));
    }
}
