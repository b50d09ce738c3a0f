//! The invariants of the large models: one holder at a time, and grants in the order of arrival.
//!
//! shuttle itself finds a task that sleeps forever, since all threads wait then. `large_models`
//! checks that nothing is left at the end.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::engine::Engine;
use crate::engine::acquisition::SharedAcquisition;
use crate::engine::hold_guard::HoldGuard;
use crate::error::LossCause;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// Observes all threads. Its mutex is not part of the schedules, since no thread waits while it is
/// locked.
#[derive(Debug, Default)]
pub(super) struct Invariants(Mutex<Observations>);

#[derive(Debug, Default)]
struct Observations {
    /// Counts the steps.
    steps: u64,
    inside: BTreeMap<usize, SharedAcquisition>,
    waiting: Vec<WaitEntry>,
    /// The number of grants.
    entered: usize,
}

/// A call that waits.
#[derive(Debug)]
struct WaitEntry {
    key: usize,
    /// The step at which it joined the queue.
    joined: u64,
    /// When its wait may have timed out.
    until: BootInstant,
}

impl Invariants {
    /// A call is about to join the queue. Returns the step.
    pub(super) fn begin_acquire(&self) -> u64 {
        lock(&self.0).step()
    }

    /// A call has joined the queue. It waits until the returned value is dropped, at most until
    /// `until`.
    pub(super) fn on_joined(&self, key: usize, until: BootInstant) -> Waiting<'_> {
        let mut observations = lock(&self.0);
        let joined = observations.step();
        observations.waiting.push(WaitEntry { key, joined, until });
        Waiting { invariants: self, joined }
    }

    /// Checks a grant to a call that began to join at the step `began`: no call that had joined
    /// before still waits.
    pub(super) fn check_order(&self, key: usize, began: u64, now: BootInstant) {
        let observations = lock(&self.0);
        let before = |entry: &&WaitEntry| entry.key == key && entry.joined < began && now < entry.until;
        let overtaken = observations.waiting.iter().find(before);
        assert!(overtaken.is_none(), "{overtaken:?} was overtaken by a call that joined at {began}");
    }

    /// Checks a new hold: no other call holds the lock, or it has lost it.
    pub(super) fn on_entered(&self, key: usize, held: &HoldGuard) -> Inside<'_> {
        let acquisition = SharedAcquisition::clone(held.root());
        let mut observations = lock(&self.0);
        observations.entered += 1;
        let other = observations.inside.insert(key, SharedAcquisition::clone(&acquisition));
        drop(observations);
        if let Some(other) = other {
            let now = held.engine.now();
            let has_lost = other.check_valid(now).is_err_and(|(cause, _)| cause != LossCause::Released);
            assert!(has_lost || acquisition.check_valid(now).is_err(), "two holders");
        }
        Inside { invariants: self, key, acquisition }
    }

    pub(super) fn entered(&self) -> usize {
        lock(&self.0).entered
    }
}

impl Observations {
    fn step(&mut self) -> u64 {
        self.steps += 1;
        self.steps
    }
}

/// A call that waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    invariants: &'a Invariants,
    joined: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.invariants.0).waiting.retain(|entry| entry.joined != self.joined);
    }
}

/// A call that holds the lock, until it is dropped.
#[derive(Debug)]
pub(super) struct Inside<'a> {
    invariants: &'a Invariants,
    key: usize,
    acquisition: SharedAcquisition,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut observations = lock(&self.invariants.0);
        if observations
            .inside
            .get(&self.key)
            .is_some_and(|inside| SharedAcquisition::ptr_eq(inside, &self.acquisition))
        {
            observations.inside.remove(&self.key);
        }
    }
}

/// Checks that nothing is left in the engine.
pub(super) fn check_end(engine: &Engine) {
    assert!(super::is_empty(engine), "the state of a key is left");
    assert_eq!(engine.holders.load(std::sync::atomic::Ordering::SeqCst), 0, "a holder is left in the count");
}
