//! The invariants of a run: holds do not overlap, fencing tokens rise, a body stops at its
//! deadline, and no key outlasts its lease.
//!
//! A hold is valid from its grant until its release or its deadline, whichever is first.
//!
//! See also `model` and `clients`, which check that calls end in time and that every waiter is
//! granted its lock eventually.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::LockGuard;
use crate::backend::redis::simulation::faults::Fault;
use crate::backend::redis::simulation::floods::{Flood, FloodRecord};
use crate::backend::redis::simulation::model::{RedisSimulation, in_true_time, name, sim_time};
use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;

/// One hold, in true time.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    client: usize,
    key: u64,
    from: Duration,
    until: Duration,
    token: Option<u64>,
}

/// A current hold; it ends when this is dropped.
pub(super) struct Holding<'a> {
    simulation: &'a RedisSimulation,
    at: usize,
    /// Whether the body is stopped when the hold ends.
    pub(super) stops: bool,
}

impl<'a> Holding<'a> {
    pub(super) fn enter(simulation: &'a RedisSimulation, client: usize, key: u64, guard: &LockGuard) -> Self {
        let mut holds = simulation.holds.borrow_mut();
        let (from, at) = (sim_time(), holds.len());
        holds.push(Hold { client, key, from, until: from, token: None });
        drop(holds);
        simulation.note(|| format!("{} holds k{key} for {:?}", name(client), guard.remaining()));
        let mut holding = Self { simulation, at, stops: false };
        holding.refresh(guard);
        holding
    }

    /// Reads until when the hold is valid. Returns `true` if it is valid.
    pub(super) fn refresh(&mut self, guard: &LockGuard) -> bool {
        let is_valid = guard.check().is_ok();
        if is_valid {
            self.change(|hold| hold.until = sim_time() + in_true_time(guard.remaining()));
        } else if self.stops {
            self.simulation.violated("J2: a body continues after its hold has ended".to_owned());
        }
        is_valid
    }

    pub(super) fn has_token(&mut self, token: u64) {
        self.change(|hold| hold.token = Some(token));
    }

    fn change(&self, change: impl FnOnce(&mut Hold)) {
        if let Some(hold) = self.simulation.holds.borrow_mut().get_mut(self.at) {
            change(hold);
        }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.change(|hold| hold.until = hold.until.min(sim_time()));
        self.simulation.note(|| {
            let hold = self.simulation.holds.borrow()[self.at].clone();
            format!("{} held k{} from {:?} until {:?}", name(hold.client), hold.key, hold.from, hold.until)
        });
    }
}

/// Checks the invariants of a completed run.
pub(super) fn check(simulation: &RedisSimulation, holds: &[Hold]) {
    let redis = simulation.host.redis.borrow();
    // A server that loses its keys grants locks again. Fencing still holds.
    let forgot = simulation.host.counts.borrow().0.contains_key(Fault::LOST_KEYS);
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
                    simulation.violated(format!("J1: {hold:?} overlaps {last:?}"));
                }
                if last.is_none_or(|last| last.until < hold.until) {
                    last = Some(hold);
                }
                if let Some(of_hold) = hold.token {
                    if of_hold <= token {
                        simulation.violated(format!("J3: the token of {hold:?} is not above {token}"));
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
            simulation.violated(format!("J3: {token} was issued for {key} after {last}"));
        }
    }
    for (key, ends) in redis.locks(boot_time()) {
        let left = ends.since(boot_time());
        // An extension is by twice the lease.
        if left > simulation.profile.lease.max(Duration::from_millis(500)) * 2 {
            simulation.violated(format!("J6: {key} is left for {left:?}"));
        }
    }
    check_floods(simulation);
    for command in &redis.unexpected {
        simulation.violated(format!("P4: the backend sent an unexpected command: {command}"));
    }
}

/// Checks that each flooded connection was closed in time, and that clients named the reason.
///
/// A fault may have stopped the connection before the flood: lost segments are not sent again. If
/// the client received an error meanwhile, such as `READONLY`, that may be the reason.
fn check_floods(simulation: &RedisSimulation) {
    let (host, mut is_named) = (&simulation.host, true);
    let (disturbances, errors) = (host.disturbances.borrow(), host.errors.borrow());
    for record in &*host.floods.borrow() {
        let FloodRecord { client, flood, opened, since, until, .. } = record;
        let overlaps = |times: &[(BootInstant, BootInstant)], from: &BootInstant| {
            times.iter().any(|(begun, end)| begun <= until && end >= from)
        };
        if overlaps(&disturbances, opened) {
            continue;
        }
        match record.is_closed_in_time(simulation.profile.latency.1) {
            Some(true) => {
                host.counts.borrow_mut().add(Flood::CLOSED);
                is_named &= !record.is_used || host.has_named_a_flood() || overlaps(&errors, since);
            }
            Some(false) => simulation.violated(format!("J11: {client} does not close {flood:?}: {record:?}")),
            None => {}
        }
    }
    if !is_named {
        simulation.violated("J11: no client names the flood for which it closed a connection".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(client: usize, from: u64, until: u64, token: Option<u64>) -> Hold {
        let ms = Duration::from_millis;
        Hold { client, key: 0, from: ms(from), until: ms(until), token }
    }

    fn violations_of(holds: &[Hold]) -> Vec<String> {
        let simulation = RedisSimulation::new(0, false);
        check(&simulation, holds);
        let violations = simulation.violations.take();
        violations
            .iter()
            .map(|violation| violation.split(':').next().unwrap_or_default().to_owned())
            .collect()
    }

    fn violations_after(until: u64, is_closed: bool, disturbance: u64) -> Vec<String> {
        let (simulation, at) = (RedisSimulation::new(0, false), |ms| BootInstant::from_nanos(ms * 1_000_000));
        let record = FloodRecord {
            flood: Flood::Body,
            client: "a".to_owned(),
            opened: at(100),
            is_used: true,
            since: at(1_000),
            until: at(until),
            is_closed,
        };
        simulation.host.floods.borrow_mut().push(record);
        simulation.host.disturbances.borrow_mut().push((at(disturbance), at(disturbance + 10)));
        simulation.host.note_effects(&["redis at h:1 sent a reply of more than 64 KiB".to_owned()]);
        check(&simulation, &[]);
        simulation.violations.take()
    }

    #[test]
    fn a_flood_that_is_not_closed_is_reported() {
        assert!(violations_after(1_050, true, 50).is_empty());
        assert_eq!(violations_after(1_600, true, 50).len(), 1, "closed too late");
        assert_eq!(violations_after(1_600, false, 50).len(), 1, "not closed");
        assert!(violations_after(1_600, false, 500).is_empty(), "the connection was cut before");
        assert!(violations_after(1_050, false, 50).is_empty(), "the flood was too short");
    }

    #[test]
    fn violated_invariants_are_reported() {
        let first = hold(0, 10, 50, Some(5));

        assert!(violations_of(&[first.clone(), hold(1, 50, 60, Some(6))]).is_empty());
        assert_eq!(violations_of(&[first.clone(), hold(1, 49, 60, Some(6))]), ["J1"]);
        assert_eq!(
            violations_of(&[hold(0, 10, 90, None), hold(1, 90, 91, None), hold(0, 20, 30, None)]),
            ["J1"]
        );
        assert_eq!(violations_of(&[first, hold(1, 50, 60, None), hold(0, 60, 70, Some(5))]), ["J3"]);
    }
}
