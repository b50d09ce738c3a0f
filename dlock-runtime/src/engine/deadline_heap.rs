//! A 4-ary min-heap of deadlines, one for each element of a collection.
//!
//! ```text
//!                 1               each deadline is no later than the four below it: the first is the root
//!       3      1     7     4
//!    6 3 5 9  2 ..
//! ```
//!
//! An entry takes 12 bytes, since there is one for every held lock. Adding a deadline that is later
//! than most costs one comparison. Replacing the root, as each renewal does, costs four comparisons
//! per level: 100,000 elements have nine levels.

use crate::engine::chunked_vec::ChunkedVec;
use crate::protocol::deadline::BootInstant;

/// The deadlines of a collection.
#[derive(Debug, Default)]
pub(super) struct DeadlineHeap {
    heap: ChunkedVec<HeapEntry>,
}

/// The index of an item's deadline in the heap. Each item stores its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeapIndex(u32);

/// Items that store their heap indexes.
pub(super) trait HeapItems {
    /// Returns the heap index of `item`, or `None` if there is no such item.
    fn index_of(&mut self, item: u32) -> Option<&mut HeapIndex>;
}

/// A deadline and its item. Packed, because padding would take a quarter of its size.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct HeapEntry {
    time: BootInstant,
    item: u32,
}

impl DeadlineHeap {
    /// Returns the deadline at this index.
    pub(super) fn due(&self, index: HeapIndex) -> BootInstant {
        self.heap.get(index.0).map_or(BootInstant::NEVER, |due| due.time)
    }

    /// Sets the deadline of an item. [`BootInstant::NEVER`] removes it.
    pub(super) fn set(&mut self, items: &mut impl HeapItems, item: u32, time: BootInstant) {
        let Some(index) = items.index_of(item) else { return };
        if time == self.due(*index) {
            return;
        }
        let due = HeapEntry { time, item };
        match (*index, time) {
            (HeapIndex::NONE, _) => {
                let last = self.end();
                self.heap.push(due);
                self.sift_up(items, last, due);
            }
            (_, BootInstant::NEVER) => {
                let gap = std::mem::replace(index, HeapIndex::NONE);
                self.fill_gap(items, gap.0);
            }
            (at, _) => self.insert_at(items, at.0, due),
        }
    }

    /// Changes the number of the item at this index.
    pub(super) fn renumber(&mut self, index: HeapIndex, item: u32) {
        if let Some(due) = self.heap.get_mut(index.0) {
            due.item = item;
        }
    }

    /// Returns the first deadline and its item.
    pub(super) fn first(&self) -> Option<(BootInstant, u32)> {
        self.heap.get(0).map(|due| (due.time, due.item))
    }

    /// Fills a gap with the last entry.
    fn fill_gap(&mut self, items: &mut impl HeapItems, gap: u32) {
        let last = self.end().saturating_sub(1);
        let moved = self.heap.swap_remove(last);
        if let Some(due) = moved.filter(|_| gap < last) {
            self.insert_at(items, gap, due);
        }
    }

    /// Inserts an entry at the free `index` and restores the order of the heap.
    fn insert_at(&mut self, items: &mut impl HeapItems, index: u32, due: HeapEntry) {
        match parent(index).and_then(|parent| self.heap.get(parent)) {
            Some(parent) if due.is_before(*parent) => self.sift_up(items, index, due),
            _ => self.sift_down(items, index, due),
        }
    }

    fn sift_up(&mut self, items: &mut impl HeapItems, mut index: u32, due: HeapEntry) {
        while let Some(at) = parent(index)
            && let Some(parent) = self.heap.get(at).copied()
            && due.is_before(parent)
        {
            self.put(items, index, parent);
            index = at;
        }
        self.put(items, index, due);
    }

    fn sift_down(&mut self, items: &mut impl HeapItems, mut index: u32, due: HeapEntry) {
        loop {
            let (mut at, mut first) = (index, due);
            for child in children(index) {
                let Some(other) = self.heap.get(child).copied() else { break };
                if other.is_before(first) {
                    (at, first) = (child, other);
                }
            }
            self.put(items, index, first);
            if at == index {
                return;
            }
            index = at;
        }
    }

    fn put(&mut self, items: &mut impl HeapItems, index: u32, due: HeapEntry) {
        if let (Some(at), Some(of)) = (self.heap.get_mut(index), items.index_of(due.item)) {
            (*at, *of) = (due, HeapIndex(index));
        }
    }

    /// Returns the index after the last.
    fn end(&self) -> u32 {
        u32::try_from(self.heap.len()).unwrap_or(u32::MAX)
    }
}

impl HeapIndex {
    /// The index of an item without a deadline.
    pub(super) const NONE: Self = Self(u32::MAX);
}

impl HeapEntry {
    fn is_before(self, other: Self) -> bool {
        let (time, of_other) = (self.time, other.time); // a packed field has no reference
        time < of_other
    }
}

/// Returns the parent of an index, or `None` for the root.
fn parent(index: u32) -> Option<u32> {
    Some(index.checked_sub(1)? / WIDTH)
}

/// Returns the children of an index.
fn children(index: u32) -> impl Iterator<Item = u32> {
    let first = index.saturating_mul(WIDTH).saturating_add(1);
    first..first.saturating_add(WIDTH)
}

/// The number of children of each entry. Four touch fewer cache lines than two.
const WIDTH: u32 = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl HeapItems for ChunkedVec<HeapIndex> {
        fn index_of(&mut self, item: u32) -> Option<&mut HeapIndex> {
            self.get_mut(item)
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum HeapStep {
        Push,
        Remove(usize),
        Set(usize, u64),
        /// Changes the first deadline.
        SetFirst(u64),
    }

    fn step() -> impl Strategy<Value = HeapStep> {
        prop_oneof![
            4 => Just(HeapStep::Push),
            1 => any::<usize>().prop_map(HeapStep::Remove),
            6 => (any::<usize>(), 0..600_u64).prop_map(|(at, time)| HeapStep::Set(at, time)),
            2 => (1..600_u64).prop_map(HeapStep::SetFirst),
        ]
    }

    fn number(at: usize) -> u32 {
        u32::try_from(at).expect("number")
    }

    fn assert_is_a_heap(deadlines: &DeadlineHeap, items: &ChunkedVec<HeapIndex>) {
        for index in 0..deadlines.end() {
            let due = deadlines.heap.get(index).copied().expect("the heap has no gaps");
            let parent = parent(index).and_then(|parent| deadlines.heap.get(parent)).copied();
            assert!(parent.is_none_or(|parent| !due.is_before(parent)), "{index}: {deadlines:?}");
            assert_eq!(items.get(due.item), Some(&HeapIndex(index)), "{deadlines:?}");
        }
    }

    #[test]
    fn a_heap_entry_takes_12_bytes() {
        assert_eq!(size_of::<HeapEntry>(), 12);
    }

    proptest! {
        #[test]
        fn the_first_deadline_is_the_earliest(steps in prop::collection::vec(step(), 0..1_000)) {
            let (mut deadlines, mut items) = (DeadlineHeap::default(), ChunkedVec::default());
            let mut model = Vec::<BootInstant>::new();
            for step in steps {
                match step {
                    HeapStep::Push => {
                        items.push(HeapIndex::NONE);
                        model.push(BootInstant::NEVER);
                    }
                    HeapStep::Remove(at) if !model.is_empty() => {
                        let at = at % model.len();
                        model.swap_remove(at);
                        deadlines.set(&mut items, number(at), BootInstant::NEVER);
                        items.swap_remove(number(at));
                        if let Some(moved) = items.get(number(at)) {
                            deadlines.renumber(*moved, number(at));
                        }
                    }
                    HeapStep::Set(at, time) if !model.is_empty() => {
                        let at = at % model.len();
                        let time = if time == 0 { BootInstant::NEVER } else { BootInstant::from_nanos(time) };
                        model[at] = time;
                        deadlines.set(&mut items, number(at), time);
                    }
                    HeapStep::SetFirst(time) => {
                        let Some((_, at)) = deadlines.first() else { continue };
                        model[usize::try_from(at).expect("number")] = BootInstant::from_nanos(time);
                        deadlines.set(&mut items, at, BootInstant::from_nanos(time));
                    }
                    _ => {}
                }
                let first = model.iter().copied().min().filter(|time| *time != BootInstant::NEVER);
                prop_assert_eq!(deadlines.first().map(|(time, _)| time), first);
            }
            assert_is_a_heap(&deadlines, &items);
            for (time, index) in model.iter().zip(items.iter()) {
                prop_assert_eq!(deadlines.due(*index), *time);
            }
            let due = model.iter().filter(|time| **time != BootInstant::NEVER).count();
            prop_assert_eq!(deadlines.heap.len(), due);
        }
    }
}
