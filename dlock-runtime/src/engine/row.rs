//! A row without gaps that grows without moving: it stands in pieces of one length.
//!
//! A row in one piece leaves a part of its room unused when it has grown, and the room of each of its former lengths behind; with one
//! entry for every lock that is held that was a fifth of what such a lock costs. And nobody waits while a million entries are copied.
//!
//! Not here: what stands in it (`lanes`, `timers`).

/// The row.
#[derive(Debug)]
pub(super) struct Row<T> {
    /// All full, but for the last that is used; at most one behind that is empty, so that to come and go costs no allocation.
    pieces: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Row<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), len: 0 }
    }
}

impl<T> Row<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        let at = index(at);
        self.pieces.get(at / PIECE)?.get(at % PIECE)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        let at = index(at);
        self.pieces.get_mut(at / PIECE)?.get_mut(at % PIECE)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
    }

    /// Adds one at the end.
    pub(super) fn push(&mut self, thing: T) {
        if self.len / PIECE == self.pieces.len() {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        if let Some(piece) = self.pieces.get_mut(self.len / PIECE) {
            piece.push(thing);
            self.len += 1;
        }
    }

    /// Takes one out; the last one has its place then.
    pub(super) fn swap_remove(&mut self, at: u32) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        if index(at) > last {
            return None;
        }
        let thing = self.pieces.get_mut(last / PIECE)?.pop()?;
        self.len = last;
        self.give_room_back();
        Some(match self.get_mut(at) {
            Some(place) => std::mem::replace(place, thing),
            None => thing, // it was the last itself
        })
    }

    fn give_room_back(&mut self) {
        self.pieces.truncate(self.len.div_ceil(PIECE) + 1);
        if self.pieces.len() < self.pieces.capacity() / 4 {
            self.pieces.shrink_to(self.pieces.len() * 2);
        }
    }
}

fn index(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

/// Few enough that a manager with few locks is small, and many enough that a row of pieces costs next to nothing beside what is in them.
const PIECE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(count: u32) -> Row<u32> {
        let mut row = Row::default();
        (0..count).for_each(|number| row.push(number));
        row
    }

    fn room<T>(row: &Row<T>) -> usize {
        row.pieces.iter().map(Vec::capacity).sum()
    }

    #[test]
    fn a_row_does_what_a_vector_does() {
        let (mut row, mut vector) = (row(200), (0..200).collect::<Vec<u32>>());

        for step in 0..200_u32 {
            let at = step * 7919 % (200 - step);
            assert_eq!(row.swap_remove(at), Some(vector.swap_remove(index(at))));
            assert_eq!(row.len(), vector.len());
            assert!(row.iter().eq(&vector), "{step}: {row:?}");
            assert_eq!(row.get(at), vector.get(index(at)), "{step}");
        }
        assert_eq!(row.swap_remove(0), None);
    }

    #[test]
    fn a_row_has_little_room_that_it_does_not_use() {
        assert!(room(&row(10_000)) < 10_000 + PIECE);
    }

    #[test]
    fn a_crowd_that_has_gone_leaves_no_room_behind() {
        let mut row = row(10_000);

        while row.swap_remove(0).is_some() {}

        assert!(
            room(&row) <= PIECE && row.pieces.capacity() <= 16,
            "{} {}",
            room(&row),
            row.pieces.capacity()
        );
    }

    #[test]
    fn who_comes_and_goes_moves_nothing() {
        for count in [0, 31, 32, 33, 64] {
            let mut row = row(count);
            row.push(0);
            row.swap_remove(count);
            let before = room(&row);

            row.push(0);
            assert_eq!(room(&row), before, "{count}");
            row.swap_remove(count);
            assert_eq!(room(&row), before, "{count}");
        }
    }
}
