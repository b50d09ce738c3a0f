//! Runs the loom models of the engine in all schedules with up to three preemptions.
//!
//! The models are in `engine::interleavings`, since they use private parts of the engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_interleavings::{Model, models};

/// Runs a model in all schedules. Returns their number.
fn run_all_schedules(model: &Model) -> u64 {
    let schedules = Arc::new(AtomicU64::new(0));
    let (counted, run) = (Arc::clone(&schedules), model.run);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        run();
    });
    schedules.load(Ordering::Relaxed)
}

#[test]
fn loom_models_hold_and_seeded_bugs_are_found() {
    let (mut sound, mut faulty) = (0, 0);
    for model in models() {
        let begun = std::time::Instant::now();
        let mut schedules = None;
        let ran = catch_unwind(AssertUnwindSafe(|| schedules = Some(run_all_schedules(&model))));
        println!("{}: {schedules:?} schedules, {:.1} s", model.name, begun.elapsed().as_secs_f64());
        let (message, is_expected) = model.check(ran);
        assert!(is_expected, "{}: {message:?}", model.name);
        assert!(schedules != Some(1), "{}: one schedule shows nothing", model.name);
        *if model.fault.is_some() { &mut faulty } else { &mut sound } += 1;
    }
    assert!(sound > 0 && faulty > 0, "{sound} models, and {faulty} seeded bugs");
}
