//! When something is due for each of a row of things, which are told apart by their places in it.
//!
//! ```text
//!  heap                 1          each is due no later than the four below it: the first of all stands at the top
//!            3       1      7    4
//!         6 3 5 9  2 ..                     things[place]: whose time that is;   places[thing]: where it is
//! ```
//!
//! What is noted of each is three numbers, whatever is due and when: there is one for every lock that is held. To set a time later than
//! most, as a lock that is taken or renewed has it, costs a look at one other.
//!
//! Not here: what is due (`protocol`), who looks (`engine`).

use crate::engine::row::Row;
use crate::protocol::deadline::BootTime;

/// The times of a row of things.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Where the time of each thing stands in the heap, if something is due for it.
    places: Row<u32>,
    /// The heap: times, and whose they are.
    times: Row<BootTime>,
    things: Row<u32>,
}

impl Timers {
    /// Adds a thing at the end of the row, for which nothing is due.
    pub(super) fn push(&mut self) {
        self.places.push(NOWHERE);
    }

    /// Takes a thing out of the row; the last one has its place then.
    pub(super) fn swap_remove(&mut self, at: u32) {
        self.set(at, BootTime::NEVER);
        self.places.swap_remove(at);
        let moved = self.places.get(at).copied().and_then(|place| self.things.get_mut(place));
        if let Some(thing) = moved {
            *thing = at;
        }
    }

    /// Returns when something is due for a thing.
    pub(super) fn due(&self, at: u32) -> BootTime {
        let place = self.places.get(at);
        place.and_then(|place| self.times.get(*place)).copied().unwrap_or(BootTime::NEVER)
    }

    /// Sets when something is due for a thing; at no time where that is never.
    pub(super) fn set(&mut self, at: u32, due: BootTime) {
        let Some(place) = self.places.get(at).copied().filter(|_| due != self.due(at)) else { return };
        match (place, due) {
            (NOWHERE, _) => {
                let last = self.end();
                self.times.push(due);
                self.things.push(at);
                self.rise(last, due, at);
            }
            (_, BootTime::NEVER) => self.take_out(place, at),
            _ => self.settle(place, due, at),
        }
    }

    /// Returns when something is due first, and for whom.
    pub(super) fn first(&self) -> Option<(BootTime, u32)> {
        Some((*self.times.get(0)?, *self.things.get(0)?))
    }

    /// Takes out what stands at `place` for the thing at `at`; the last one goes where it has room.
    fn take_out(&mut self, place: u32, at: u32) {
        if let Some(of) = self.places.get_mut(at) {
            *of = NOWHERE;
        }
        let last = self.end().saturating_sub(1);
        let moved = (self.times.swap_remove(last), self.things.swap_remove(last));
        if let (Some(time), Some(thing)) = moved
            && place < last
        {
            self.settle(place, time, thing);
        }
    }

    /// Puts a time where it belongs, from `place` on, which is free for it.
    fn settle(&mut self, place: u32, time: BootTime, thing: u32) {
        let rises = above(place).and_then(|above| self.times.get(above)).is_some_and(|above| time < *above);
        if rises { self.rise(place, time, thing) } else { self.sink(place, time, thing) }
    }

    fn rise(&mut self, mut place: u32, time: BootTime, thing: u32) {
        while let Some(above) = above(place)
            && let (Some(earlier), Some(whose)) = (self.times.get(above), self.things.get(above))
            && time < *earlier
        {
            let (earlier, whose) = (*earlier, *whose);
            self.put(place, earlier, whose);
            place = above;
        }
        self.put(place, time, thing);
    }

    fn sink(&mut self, mut place: u32, time: BootTime, thing: u32) {
        loop {
            let below = below(place).filter_map(|at| Some((*self.times.get(at)?, at)));
            let Some((first, of)) = below.min().filter(|(first, _)| *first < time) else { break };
            let Some(whose) = self.things.get(of).copied() else { break };
            self.put(place, first, whose);
            place = of;
        }
        self.put(place, time, thing);
    }

    /// Writes a time, whose it is, and where that is.
    fn put(&mut self, place: u32, time: BootTime, thing: u32) {
        let written = (self.times.get_mut(place), self.things.get_mut(place), self.places.get_mut(thing));
        if let (Some(at), Some(whose), Some(of)) = written {
            (*at, *whose, *of) = (time, thing, place);
        }
    }

    /// Returns the place behind the last.
    fn end(&self) -> u32 {
        u32::try_from(self.times.len()).unwrap_or(NOWHERE)
    }
}

/// Returns the place above another, where that is not the top.
fn above(place: u32) -> Option<u32> {
    Some(place.checked_sub(1)? / WIDTH)
}

/// Returns the places below another.
fn below(place: u32) -> impl Iterator<Item = u32> {
    let first = place.saturating_mul(WIDTH).saturating_add(1);
    first..first.saturating_add(WIDTH)
}

/// How many stand below each: with four, fewer rooms of memory are looked at than with two.
const WIDTH: u32 = 4;

/// The place of a thing for which nothing is due.
const NOWHERE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push,
        Remove(usize),
        Set(usize, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Push),
            any::<usize>().prop_map(Step::Remove),
            (any::<usize>(), 0..60_u64).prop_map(|(at, time)| Step::Set(at, time)),
        ]
    }

    proptest! {
        #[test]
        fn the_first_is_the_first_whatever_came_and_went(steps in prop::collection::vec(step(), 0..200)) {
            let (mut timers, mut model) = (Timers::default(), Vec::<BootTime>::new());
            for step in steps {
                match step {
                    Step::Push => {
                        timers.push();
                        model.push(BootTime::NEVER);
                    }
                    Step::Remove(at) if !model.is_empty() => {
                        let at = at % model.len();
                        model.swap_remove(at);
                        timers.swap_remove(u32::try_from(at).expect("few"));
                    }
                    Step::Set(at, time) if !model.is_empty() => {
                        let at = at % model.len();
                        let time = if time == 0 { BootTime::NEVER } else { BootTime::from_nanos(time) };
                        model[at] = time;
                        timers.set(u32::try_from(at).expect("few"), time);
                    }
                    _ => {}
                }
                let first = model.iter().copied().min().filter(|time| *time != BootTime::NEVER);
                prop_assert_eq!(timers.first().map(|(time, _)| time), first);
                for (at, time) in model.iter().enumerate() {
                    prop_assert_eq!(timers.due(u32::try_from(at).expect("few")), *time);
                }
                if let Some((time, at)) = timers.first() {
                    prop_assert_eq!(model[usize::try_from(at).expect("few")], time);
                }
            }
        }
    }
}
