//! What must never be seen: two valid holds at once, a token that does not rise, a body that runs on after its deadline, keys that are left.
//!
//! A hold is valid from its entry until it is let go of or its deadline has come, whichever is first.
//!
//! Not here: calls that do not end in time, and whoever has no turn at last (`world`, `clients`).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::LockGuard;
use crate::backend::redis::simulation::faults::Fault;
use crate::backend::redis::simulation::world::{World, in_true_time, name, sim_time};
use crate::clock::boot_time;

/// One hold, in true time.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    client: usize,
    key: u64,
    from: Duration,
    until: Duration,
    token: Option<u64>,
}

/// A hold that goes on; it ends when this is dropped.
pub(super) struct Holding<'a> {
    world: &'a World,
    at: usize,
    /// Whether who holds is stopped at its end.
    pub(super) stops: bool,
}

impl<'a> Holding<'a> {
    pub(super) fn enter(world: &'a World, client: usize, key: u64, guard: &LockGuard) -> Self {
        let mut holds = world.holds.borrow_mut();
        let (from, at) = (sim_time(), holds.len());
        holds.push(Hold { client, key, from, until: from, token: None });
        drop(holds);
        world.note(|| format!("{} holds k{key} for {:?}", name(client), guard.remaining()));
        let mut holding = Self { world, at, stops: false };
        holding.looks(guard);
        holding
    }

    /// Looks until when the hold is valid, and returns whether it is.
    pub(super) fn looks(&mut self, guard: &LockGuard) -> bool {
        let is_valid = guard.check().is_ok();
        if is_valid {
            self.change(|hold| hold.until = sim_time() + in_true_time(guard.remaining()));
        } else if self.stops {
            self.world.violated("J2: a body runs on after its hold has ended".to_owned());
        }
        is_valid
    }

    pub(super) fn has_token(&mut self, token: u64) {
        self.change(|hold| hold.token = Some(token));
    }

    fn change(&self, change: impl FnOnce(&mut Hold)) {
        if let Some(hold) = self.world.holds.borrow_mut().get_mut(self.at) {
            change(hold);
        }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.change(|hold| hold.until = hold.until.min(sim_time()));
        self.world.note(|| {
            let hold = self.world.holds.borrow()[self.at].clone();
            format!("{} held k{} from {:?} until {:?}", name(hold.client), hold.key, hold.from, hold.until)
        });
    }
}

/// Judges a run that is over.
pub(super) fn judge(world: &World, holds: &[Hold]) {
    let redis = world.machine.redis.borrow();
    // A server that forgets who holds lets in somebody else; what is fenced stays so.
    let forgot = world.machine.counts.borrow().0.contains_key(Fault::LOST_KEYS);
    if !forgot {
        let mut by_key = BTreeMap::<u64, Vec<&Hold>>::new();
        for hold in holds {
            by_key.entry(hold.key).or_default().push(hold);
        }
        for holds in by_key.values_mut() {
            holds.sort_by_key(|hold| (hold.from, hold.until));
            let (mut last, mut token) = (None::<&Hold>, 0);
            for hold in holds {
                if let Some(last) = last.filter(|last| hold.from < last.until) {
                    world.violated(format!("J1: {hold:?} overlaps {last:?}"));
                }
                if last.is_none_or(|last| last.until < hold.until) {
                    last = Some(hold);
                }
                if let Some(of_hold) = hold.token {
                    if of_hold <= token {
                        world.violated(format!("J3: the token of {hold:?} is not above {token}"));
                    }
                    token = of_hold;
                }
            }
        }
    }
    let mut issued = BTreeMap::new();
    for (key, token) in &redis.issued {
        let last = issued.insert(key, *token).unwrap_or_default();
        if *token <= last {
            world.violated(format!("J3: {token} was issued for {key} after {last}"));
        }
    }
    for (key, ends) in redis.locks(boot_time()) {
        let left = ends.since(boot_time());
        // When a hold is extended, it is by twice the lease.
        if left > world.profile.lease.max(Duration::from_millis(500)) * 2 {
            world.violated(format!("J6: {key} is left for {left:?}"));
        }
    }
    for said in &redis.strange {
        world.violated(format!("P4: our backend has no reason to say {said}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(client: usize, from: u64, until: u64, token: Option<u64>) -> Hold {
        let ms = Duration::from_millis;
        Hold { client, key: 0, from: ms(from), until: ms(until), token }
    }

    fn judged(holds: &[Hold]) -> Vec<String> {
        let world = World::new(0, false);
        judge(&world, holds);
        let violations = world.violations.take();
        violations
            .iter()
            .map(|violation| violation.split(':').next().unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn what_must_never_be_seen_is_seen() {
        let first = hold(0, 10, 50, Some(5));

        assert!(judged(&[first.clone(), hold(1, 50, 60, Some(6))]).is_empty());
        assert_eq!(judged(&[first.clone(), hold(1, 49, 60, Some(6))]), ["J1"]);
        assert_eq!(judged(&[hold(0, 10, 90, None), hold(1, 90, 91, None), hold(0, 20, 30, None)]), ["J1"]);
        assert_eq!(judged(&[first, hold(1, 50, 60, None), hold(0, 60, 70, Some(5))]), ["J3"]);
    }
}
