//! When something is due for each of a row of things, which are told apart by their places in it.
//!
//! Those for which something is due at one time stand in one list, and most do: a renewal is due on a grid. So what is noted of each
//! is three numbers, and to change it costs no more for a million of them than for one.
//!
//! Not here: what is due (`protocol`), who looks (`engine`).

use std::collections::BTreeMap;

use crate::engine::row::Row;
use crate::protocol::deadline::BootTime;

/// The times of a row of things.
#[derive(Debug, Default)]
pub(super) struct Timers {
    things: Row<Link>,
    lists: Vec<List>,
    /// Lists that are empty, to be used again.
    empty: Vec<u32>,
    by_time: BTreeMap<BootTime, u32>,
}

/// Where one thing stands in its list.
#[derive(Clone, Copy, Debug)]
struct Link {
    list: u32,
    before: u32,
    behind: u32,
}

impl Link {
    const NOWHERE: Self = Self { list: NONE, before: NONE, behind: NONE };
}

/// Those for which something is due at one time.
#[derive(Clone, Copy, Debug)]
struct List {
    time: BootTime,
    first: u32,
}

impl Timers {
    /// Adds a thing at the end of the row, for which nothing is due.
    pub(super) fn push(&mut self) {
        self.things.push(Link::NOWHERE);
    }

    /// Takes a thing out of the row; the last one has its place then.
    pub(super) fn swap_remove(&mut self, at: u32) {
        self.set(at, BootTime::NEVER);
        self.things.swap_remove(at);
        let Some(last) = self.things.get(at).copied() else { return };
        if let Some(before) = self.thing(last.before) {
            before.behind = at;
        } else if let Some(list) = self.list(last.list) {
            list.first = at;
        }
        if let Some(behind) = self.thing(last.behind) {
            behind.before = at;
        }
    }

    /// Gives up room that is not needed any more.
    pub(super) fn tidy(&mut self) {
        if self.by_time.is_empty() {
            (self.lists, self.empty) = (Vec::new(), Vec::new());
        }
    }

    /// Returns when something is due for a thing.
    pub(super) fn due(&self, at: u32) -> BootTime {
        let list = self.things.get(at).and_then(|thing| self.lists.get(index(thing.list)));
        list.map_or(BootTime::NEVER, |list| list.time)
    }

    /// Sets when something is due for a thing; at no time where that is never.
    pub(super) fn set(&mut self, at: u32, due: BootTime) {
        if due == self.due(at) {
            return;
        }
        self.take_out(at);
        if due == BootTime::NEVER {
            return;
        }
        let list = self.list_of(due);
        let first = self.list(list).map_or(NONE, |list| std::mem::replace(&mut list.first, at));
        if let Some(first) = self.thing(first) {
            first.before = at;
        }
        if let Some(thing) = self.thing(at) {
            *thing = Link { list, before: NONE, behind: first };
        }
    }

    /// Returns when something is due first, and for whom.
    pub(super) fn first(&self) -> Option<(BootTime, u32)> {
        let (time, list) = self.by_time.first_key_value()?;
        Some((*time, self.lists.get(index(*list))?.first))
    }

    fn take_out(&mut self, at: u32) {
        let Some(thing) = self.thing(at) else { return };
        let Link { list, before, behind } = std::mem::replace(thing, Link::NOWHERE);
        if let Some(behind) = self.thing(behind) {
            behind.before = before;
        }
        if let Some(before) = self.thing(before) {
            before.behind = behind;
        } else if let Some(of) = self.list(list) {
            of.first = behind;
            if behind == NONE {
                let time = of.time;
                self.by_time.remove(&time);
                self.empty.push(list);
            }
        }
    }

    /// Returns the list of a time, which has to get somebody if it is new.
    fn list_of(&mut self, time: BootTime) -> u32 {
        let (lists, empty) = (&mut self.lists, &mut self.empty);
        *self.by_time.entry(time).or_insert_with(|| {
            let list = List { time, first: NONE };
            let at = empty.pop().unwrap_or_else(|| {
                lists.push(list);
                u32::try_from(lists.len() - 1).unwrap_or(NONE)
            });
            if let Some(place) = lists.get_mut(index(at)) {
                *place = list;
            }
            at
        })
    }

    fn thing(&mut self, at: u32) -> Option<&mut Link> {
        self.things.get_mut(at)
    }

    fn list(&mut self, at: u32) -> Option<&mut List> {
        self.lists.get_mut(index(at))
    }
}

fn index(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

/// Nobody, nowhere.
const NONE: u32 = u32::MAX;

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
            (any::<usize>(), 0..6_u64).prop_map(|(at, time)| Step::Set(at, time)),
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
                    prop_assert_eq!(model[index(at)], time);
                }
            }
        }
    }
}
