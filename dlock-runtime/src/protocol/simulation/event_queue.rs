//! The pending events of a schedule, ordered by time and then by insertion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A queue of events that have not happened yet.
#[derive(Debug)]
pub(in crate::protocol) struct EventQueue<E> {
    /// Time, insertion number, and index in `events`.
    times: BinaryHeap<Reverse<(u64, u32, u32)>>,
    events: Vec<Option<E>>,
    vacant: Vec<u32>,
    count: u32,
}

impl<E> EventQueue<E> {
    pub(in crate::protocol) fn new() -> Self {
        Self {
            times: BinaryHeap::with_capacity(64),
            events: Vec::with_capacity(64),
            vacant: Vec::new(),
            count: 0,
        }
    }

    pub(in crate::protocol) fn push(&mut self, time: u64, event: E) {
        self.count += 1;
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.events.push(None);
            u32::try_from(self.events.len() - 1).expect("a schedule has a few thousand events")
        });
        self.events[index as usize] = Some(event);
        self.times.push(Reverse((time, self.count, index)));
    }

    pub(in crate::protocol) fn pop(&mut self) -> Option<(u64, E)> {
        let Reverse((time, _, index)) = self.times.pop()?;
        self.vacant.push(index);
        Some((time, self.events[index as usize].take()?))
    }
}

#[test]
fn events_are_ordered_by_time_then_by_insertion() {
    let mut queue = EventQueue::new();
    for (time, event) in [(3, 'c'), (1, 'a'), (3, 'd'), (2, 'b')] {
        queue.push(time, event);
    }

    let mut order = String::new();
    while let Some((_, event)) = queue.pop() {
        order.push(event);
    }

    assert_eq!(order, "abcd");
}
