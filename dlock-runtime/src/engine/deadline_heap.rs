//! When something is due for each of a row of things, which are told apart by their numbers in it.
//!
//! ```text
//!                 1               each is due no later than the four below it: the first of all stands at the top
//!       3      1     7     4
//!    6 3 5 9  2 ..
//! ```
//!
//! What is noted of each is three numbers, whatever is due and when: there is one for every lock that is held. A time that is later than
//! most costs a look at one other when it is added; what stood at the top, as a renewal that is due does, sinks through all levels: four
//! looks for each, of which a hundred thousand things have nine.
//!
//! Not here: what is due (`protocol`), who looks (`engine`).

use crate::engine::row::Row;
use crate::protocol::deadline::BootInstant;

/// The times of a row of things.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Row<HeapEntry>,
}

/// Where the time of a thing stands in the heap, if something is due for it. Each thing has its own at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeapIndex(u32);

/// Things that have their places at hand.
pub(super) trait Things {
    /// Returns the place of a thing, where there is such a thing.
    fn place(&mut self, thing: u32) -> Option<&mut HeapIndex>;
}

/// When something is due, and for which thing. Packed, as it would have a quarter of its room for nothing.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct HeapEntry {
    time: BootInstant,
    thing: u32,
}

impl Timers {
    /// Returns when something is due for the thing of this place.
    pub(super) fn due(&self, place: HeapIndex) -> BootInstant {
        self.heap.get(place.0).map_or(BootInstant::NEVER, |due| due.time)
    }

    /// Sets when something is due for a thing; at no time where that is never.
    pub(super) fn set(&mut self, things: &mut impl Things, thing: u32, time: BootInstant) {
        let Some(place) = things.place(thing) else { return };
        if time == self.due(*place) {
            return;
        }
        let due = HeapEntry { time, thing };
        match (*place, time) {
            (HeapIndex::NOWHERE, _) => {
                let last = self.end();
                self.heap.push(due);
                self.rise(things, last, due);
            }
            (_, BootInstant::NEVER) => {
                let gap = std::mem::replace(place, HeapIndex::NOWHERE);
                self.fill(things, gap.0);
            }
            (at, _) => self.settle(things, at.0, due),
        }
    }

    /// The thing of this place has another number from now on.
    pub(super) fn renumber(&mut self, place: HeapIndex, thing: u32) {
        if let Some(due) = self.heap.get_mut(place.0) {
            due.thing = thing;
        }
    }

    /// Returns when something is due first, and for which thing.
    pub(super) fn first(&self) -> Option<(BootInstant, u32)> {
        self.heap.get(0).map(|due| (due.time, due.thing))
    }

    /// Fills a gap with the last one.
    fn fill(&mut self, things: &mut impl Things, gap: u32) {
        let last = self.end().saturating_sub(1);
        let moved = self.heap.swap_remove(last);
        if let Some(due) = moved.filter(|_| gap < last) {
            self.settle(things, gap, due);
        }
    }

    /// Puts something where it belongs, from `place` on, which is free for it.
    fn settle(&mut self, things: &mut impl Things, place: u32, due: HeapEntry) {
        match above(place).and_then(|above| self.heap.get(above)) {
            Some(above) if due.is_before(*above) => self.rise(things, place, due),
            _ => self.sink(things, place, due),
        }
    }

    fn rise(&mut self, things: &mut impl Things, mut place: u32, due: HeapEntry) {
        while let Some(at) = above(place)
            && let Some(above) = self.heap.get(at).copied()
            && due.is_before(above)
        {
            self.put(things, place, above);
            place = at;
        }
        self.put(things, place, due);
    }

    fn sink(&mut self, things: &mut impl Things, mut place: u32, due: HeapEntry) {
        loop {
            let (mut at, mut first) = (place, due);
            for below in below(place) {
                let Some(other) = self.heap.get(below).copied() else { break };
                if other.is_before(first) {
                    (at, first) = (below, other);
                }
            }
            self.put(things, place, first);
            if at == place {
                return;
            }
            place = at;
        }
    }

    fn put(&mut self, things: &mut impl Things, place: u32, due: HeapEntry) {
        if let (Some(at), Some(of)) = (self.heap.get_mut(place), things.place(due.thing)) {
            (*at, *of) = (due, HeapIndex(place));
        }
    }

    /// Returns the place behind the last.
    fn end(&self) -> u32 {
        u32::try_from(self.heap.len()).unwrap_or(u32::MAX)
    }
}

impl HeapIndex {
    /// That of a thing for which nothing is due.
    pub(super) const NOWHERE: Self = Self(u32::MAX);
}

impl HeapEntry {
    fn is_before(self, other: Self) -> bool {
        let (time, of_other) = (self.time, other.time); // not by reference, which a packed field has none of
        time < of_other
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Things for Row<HeapIndex> {
        fn place(&mut self, thing: u32) -> Option<&mut HeapIndex> {
            self.get_mut(thing)
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum HeapStep {
        Push,
        Remove(usize),
        Set(usize, u64),
        /// What is due first is so at another time.
        Again(u64),
    }

    fn step() -> impl Strategy<Value = HeapStep> {
        prop_oneof![
            4 => Just(HeapStep::Push),
            1 => any::<usize>().prop_map(HeapStep::Remove),
            6 => (any::<usize>(), 0..600_u64).prop_map(|(at, time)| HeapStep::Set(at, time)),
            2 => (1..600_u64).prop_map(HeapStep::Again),
        ]
    }

    fn few(at: usize) -> u32 {
        u32::try_from(at).expect("few")
    }

    fn assert_is_a_heap(timers: &Timers, things: &Row<HeapIndex>) {
        for place in 0..timers.end() {
            let due = timers.heap.get(place).copied().expect("the heap has no gaps");
            let above = above(place).and_then(|above| timers.heap.get(above)).copied();
            assert!(above.is_none_or(|above| !due.is_before(above)), "{place}: {timers:?}");
            assert_eq!(things.get(due.thing), Some(&HeapIndex(place)), "{timers:?}");
        }
    }

    #[test]
    fn a_time_in_the_heap_stays_small() {
        assert_eq!(size_of::<HeapEntry>(), 12);
    }

    proptest! {
        #[test]
        fn the_first_is_the_first_whatever_came_and_went(steps in prop::collection::vec(step(), 0..1_000)) {
            let (mut timers, mut things) = (Timers::default(), Row::default());
            let mut model = Vec::<BootInstant>::new();
            for step in steps {
                match step {
                    HeapStep::Push => {
                        things.push(HeapIndex::NOWHERE);
                        model.push(BootInstant::NEVER);
                    }
                    HeapStep::Remove(at) if !model.is_empty() => {
                        let at = at % model.len();
                        model.swap_remove(at);
                        timers.set(&mut things, few(at), BootInstant::NEVER);
                        things.swap_remove(few(at));
                        if let Some(moved) = things.get(few(at)) {
                            timers.renumber(*moved, few(at));
                        }
                    }
                    HeapStep::Set(at, time) if !model.is_empty() => {
                        let at = at % model.len();
                        let time = if time == 0 { BootInstant::NEVER } else { BootInstant::from_nanos(time) };
                        model[at] = time;
                        timers.set(&mut things, few(at), time);
                    }
                    HeapStep::Again(time) => {
                        let Some((_, at)) = timers.first() else { continue };
                        model[usize::try_from(at).expect("few")] = BootInstant::from_nanos(time);
                        timers.set(&mut things, at, BootInstant::from_nanos(time));
                    }
                    _ => {}
                }
                let first = model.iter().copied().min().filter(|time| *time != BootInstant::NEVER);
                prop_assert_eq!(timers.first().map(|(time, _)| time), first);
            }
            assert_is_a_heap(&timers, &things);
            for (time, place) in model.iter().zip(things.iter()) {
                prop_assert_eq!(timers.due(*place), *time);
            }
            let due = model.iter().filter(|time| **time != BootInstant::NEVER).count();
            prop_assert_eq!(timers.heap.len(), due);
        }
    }
}
