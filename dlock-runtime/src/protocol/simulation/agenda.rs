//! What happens when: events by their time, and at one time in the order in which they were put down.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events that are to come.
#[derive(Debug)]
pub(in crate::protocol) struct Agenda<E> {
    /// Time, number, and place in `events`.
    times: BinaryHeap<Reverse<(u64, u32, u32)>>,
    events: Vec<Option<E>>,
    vacant: Vec<u32>,
    count: u32,
}

impl<E> Agenda<E> {
    pub(in crate::protocol) fn new() -> Self {
        Self {
            times: BinaryHeap::with_capacity(64),
            events: Vec::with_capacity(64),
            vacant: Vec::new(),
            count: 0,
        }
    }

    pub(in crate::protocol) fn put(&mut self, time: u64, event: E) {
        self.count += 1;
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.events.push(None);
            u32::try_from(self.events.len() - 1).expect("a schedule has a few thousand events")
        });
        self.events[place as usize] = Some(event);
        self.times.push(Reverse((time, self.count, place)));
    }

    pub(in crate::protocol) fn next(&mut self) -> Option<(u64, E)> {
        let Reverse((time, _, place)) = self.times.pop()?;
        self.vacant.push(place);
        Some((time, self.events[place as usize].take()?))
    }
}

#[test]
fn events_come_in_the_order_of_their_times_and_then_as_they_were_put_down() {
    let mut agenda = Agenda::new();
    for (time, event) in [(3, 'c'), (1, 'a'), (3, 'd'), (2, 'b')] {
        agenda.put(time, event);
    }

    let mut row = String::new();
    while let Some((_, event)) = agenda.next() {
        row.push(event);
    }

    assert_eq!(row, "abcd");
}
