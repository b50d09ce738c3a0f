//! A vector that grows without moving its elements: it consists of chunks of one length.
//!
//! A plain vector leaves up to half of its capacity unused after it has grown, and leaves freed
//! memory of each former capacity behind. With one entry for every held lock, that was a fifth of
//! the memory of such a lock. A plain vector also copies all entries when it grows, which delays a
//! caller when there are a million of them.

/// A vector in chunks.
#[derive(Debug)]
pub(super) struct ChunkedVec<T> {
    /// All are full, except for the last that is used. At most one empty chunk is kept after it, so
    /// that adding and removing one element repeatedly does not allocate.
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for ChunkedVec<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> ChunkedVec<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        let at = index(at);
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        let at = index(at);
        self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// Appends an element.
    pub(super) fn push(&mut self, element: T) {
        if self.len / CHUNK == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        if let Some(chunk) = self.chunks.get_mut(self.len / CHUNK) {
            chunk.push(element);
            self.len += 1;
        }
    }

    /// Removes an element and moves the last one to its index.
    pub(super) fn swap_remove(&mut self, at: u32) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        if index(at) > last {
            return None;
        }
        let element = self.chunks.get_mut(last / CHUNK)?.pop()?;
        self.len = last;
        self.shrink();
        Some(match self.get_mut(at) {
            Some(slot) => std::mem::replace(slot, element),
            None => element, // it was the last itself
        })
    }

    fn shrink(&mut self) {
        self.chunks.truncate(self.len.div_ceil(CHUNK) + 1);
        if self.chunks.len() < self.chunks.capacity() / 4 {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
    }
}

fn index(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

/// Small enough for a manager with few locks, and large enough that the list of chunks adds little
/// memory.
const CHUNK: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn chunked(count: u32) -> ChunkedVec<u32> {
        let mut chunked = ChunkedVec::default();
        (0..count).for_each(|number| chunked.push(number));
        chunked
    }

    fn capacity<T>(chunked: &ChunkedVec<T>) -> usize {
        chunked.chunks.iter().map(Vec::capacity).sum()
    }

    #[test]
    fn chunked_vec_behaves_like_a_vector() {
        let (mut chunked, mut vector) = (chunked(200), (0..200).collect::<Vec<u32>>());

        for step in 0..200_u32 {
            let at = step * 7919 % (200 - step);
            assert_eq!(chunked.swap_remove(at), Some(vector.swap_remove(index(at))));
            assert_eq!(chunked.len(), vector.len());
            assert!(chunked.iter().eq(&vector), "{step}: {chunked:?}");
            assert_eq!(chunked.get(at), vector.get(index(at)), "{step}");
        }
        assert_eq!(chunked.swap_remove(0), None);
    }

    #[test]
    fn unused_capacity_is_less_than_one_chunk() {
        assert!(capacity(&chunked(10_000)) < 10_000 + CHUNK);
    }

    #[test]
    fn removed_elements_free_their_memory() {
        let mut chunked = chunked(10_000);

        while chunked.swap_remove(0).is_some() {}

        assert!(
            capacity(&chunked) <= CHUNK && chunked.chunks.capacity() <= 16,
            "{} {}",
            capacity(&chunked),
            chunked.chunks.capacity()
        );
    }

    #[test]
    fn adding_and_removing_one_does_not_allocate() {
        for count in [0, 31, 32, 33, 64] {
            let mut chunked = chunked(count);
            chunked.push(0);
            chunked.swap_remove(count);
            let before = capacity(&chunked);

            chunked.push(0);
            assert_eq!(capacity(&chunked), before, "{count}");
            chunked.swap_remove(count);
            assert_eq!(capacity(&chunked), before, "{count}");
        }
    }
}
