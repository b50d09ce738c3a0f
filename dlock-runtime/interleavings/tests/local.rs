//! Every order of what the threads of one process do with what they share of the engine, up to three preemptions.
//!
//! The models stand beside the engine (`engine::interleavings`), since they use what nobody else may.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_interleavings::{Model, models};

/// Runs a model in every order. Returns how many there were.
fn try_every_order(model: &Model) -> u64 {
    let orders = Arc::new(AtomicU64::new(0));
    let (counted, run) = (Arc::clone(&orders), model.run);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        run();
    });
    orders.load(Ordering::Relaxed)
}

#[test]
fn no_order_of_threads_breaks_a_promise_and_each_planted_fault_is_found() {
    let (mut sound, mut faulty) = (0, 0);
    for model in models() {
        let begun = std::time::Instant::now();
        let mut orders = None;
        let ran = catch_unwind(AssertUnwindSafe(|| orders = Some(try_every_order(&model))));
        println!("{}: {orders:?} orders, {:.1} s", model.name, begun.elapsed().as_secs_f64());
        let (said, is_right) = model.judge(ran);
        assert!(is_right, "{}: {said:?}", model.name);
        assert!(orders != Some(1), "{}: one order shows nothing", model.name);
        *if model.fault.is_some() { &mut faulty } else { &mut sound } += 1;
    }
    assert!(sound > 0 && faulty > 0, "{sound} models, and {faulty} planted faults");
}
