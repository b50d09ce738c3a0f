//! What must never be in a crowd: two inside at once, one who is let in before another that came before him.
//!
//! Not here: that nobody sleeps for ever, which shuttle sees (all threads wait), and what is left in the end (`crowd`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::engine::Engine;
use crate::engine::acquisition::SharedAcquisition;
use crate::engine::hold_guard::HoldGuard;
use crate::error::LossCause;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// Looks on from outside. What it locks is no business of the schedules: nothing waits while it is.
#[derive(Debug, Default)]
pub(super) struct Judges(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    /// Counts what happens.
    steps: u64,
    inside: BTreeMap<usize, SharedAcquisition>,
    places: Vec<Place>,
    /// How many were let in.
    entered: usize,
}

/// Somebody who waits.
#[derive(Debug)]
struct Place {
    key: usize,
    /// At which step it had come.
    came: u64,
    /// When it may have been told that it waits no more.
    until: BootInstant,
}

impl Judges {
    /// Somebody is about to come. Returns the step.
    pub(super) fn comes(&self) -> u64 {
        lock(&self.0).step()
    }

    /// Somebody has come, and waits until then; he does not any more when what this returns is dropped.
    pub(super) fn waits(&self, key: usize, until: BootInstant) -> WaitGraph<'_> {
        let mut notes = lock(&self.0);
        let came = notes.step();
        notes.places.push(Place { key, came, until });
        WaitGraph { judges: self, came }
    }

    /// Somebody that began to come at the step `comes` is let in. Nobody who had come by then still waits.
    pub(super) fn in_order(&self, key: usize, comes: u64, now: BootInstant) {
        let notes = lock(&self.0);
        let before = |place: &&Place| place.key == key && place.came < comes && now < place.until;
        let passed_over = notes.places.iter().find(before);
        assert!(passed_over.is_none(), "{passed_over:?} is passed over by who came at {comes}");
    }

    /// Somebody is let in. Nobody else is inside, or he has lost the lock by now.
    pub(super) fn enters(&self, key: usize, held: &HoldGuard) -> Inside<'_> {
        let acquisition = SharedAcquisition::clone(held.root());
        let mut notes = lock(&self.0);
        notes.entered += 1;
        let other = notes.inside.insert(key, SharedAcquisition::clone(&acquisition));
        drop(notes);
        if let Some(other) = other {
            let now = held.engine.now();
            let has_lost = other.check_valid(now).is_err_and(|(cause, _)| cause != LossCause::ReleaseOutcome);
            assert!(has_lost || acquisition.check_valid(now).is_err(), "two have it");
        }
        Inside { judges: self, key, acquisition }
    }

    pub(super) fn entered(&self) -> usize {
        lock(&self.0).entered
    }
}

impl Notes {
    fn step(&mut self) -> u64 {
        self.steps += 1;
        self.steps
    }
}

/// Somebody waits.
#[derive(Debug)]
pub(super) struct WaitGraph<'a> {
    judges: &'a Judges,
    came: u64,
}

impl Drop for WaitGraph<'_> {
    fn drop(&mut self) {
        lock(&self.judges.0).places.retain(|place| place.came != self.came);
    }
}

/// Somebody is inside.
#[derive(Debug)]
pub(super) struct Inside<'a> {
    judges: &'a Judges,
    key: usize,
    acquisition: SharedAcquisition,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut notes = lock(&self.judges.0);
        if notes
            .inside
            .get(&self.key)
            .is_some_and(|inside| SharedAcquisition::ptr_eq(inside, &self.acquisition))
        {
            notes.inside.remove(&self.key);
        }
    }
}

/// Nothing is left of what a crowd did.
pub(super) fn is_over(engine: &Engine) {
    assert!(super::is_empty(engine), "a lane is kept");
    assert_eq!(
        engine.held.load(std::sync::atomic::Ordering::SeqCst),
        0,
        "somebody is counted who holds nothing"
    );
}
