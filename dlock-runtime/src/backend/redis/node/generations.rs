//! [`Generations`]: barriers behind the requests of a node, whichever connections they use.
//!
//! ```text
//!  sent requests:  [ generation 1 ]barrier [ generation 2 ]barrier [ current generation ]
//! ```
//!
//! A barrier ends the current generation. It is dropped when all requests of that generation and of
//! the earlier ones are completed or redirected. A queue of one connection is not enough: the
//! connections have no common order, and a request whose script the server has lost is sent again,
//! behind later ones.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::sync::lock;

/// The generations of a node's requests that are not completed, oldest first.
#[derive(Default)]
pub(crate) struct Generations(Mutex<GenerationsState>);

#[derive(Default)]
struct GenerationsState {
    /// Those that a barrier has ended.
    ended: VecDeque<(usize, Box<dyn Send>)>,
    /// How many guards the current generation has.
    current: usize,
    /// The number of the current generation.
    number: u64,
}

/// Belongs to requests of one generation, until they are completed.
pub(crate) struct GenerationGuard {
    generations: Arc<Generations>,
    number: u64,
}

impl Generations {
    /// Adds requests to the current generation.
    pub(crate) fn enter(self: &Arc<Self>) -> GenerationGuard {
        let mut state = lock(&self.0);
        state.current += 1;
        GenerationGuard { generations: Arc::clone(self), number: state.number }
    }

    /// Drops `barrier` once all requests of the current generation and of earlier ones are
    /// completed; at once if there are none.
    pub(crate) fn drop_behind(&self, barrier: Box<dyn Send>) {
        let mut state = lock(&self.0);
        let count = std::mem::take(&mut state.current);
        state.ended.push_back((count, barrier));
        state.number += 1;
        let reached = state.take_reached();
        drop(state);
        drop(reached); // holds no lock: a barrier may send requests
    }
}

impl GenerationsState {
    fn count(&mut self, number: u64) -> &mut usize {
        let back = usize::try_from(self.number - number).unwrap_or(usize::MAX);
        match self.ended.len().checked_sub(back) {
            Some(place) if back > 0 => &mut self.ended[place].0,
            _ => &mut self.current,
        }
    }

    /// Removes the barriers that nothing is before, in order.
    fn take_reached(&mut self) -> Vec<Box<dyn Send>> {
        let reached = self.ended.iter().take_while(|(count, _)| *count == 0).count();
        self.ended.drain(..reached).map(|(_, barrier)| barrier).collect()
    }
}

impl GenerationGuard {
    /// Returns `true` if a barrier has ended the generation.
    pub(crate) fn is_ended(&self) -> bool {
        self.number < lock(&self.generations.0).number
    }

    /// Returns the guard of the oldest generation among those of `requests`.
    pub(crate) fn oldest<T>(requests: &[(Self, T)]) -> Option<Self> {
        requests.iter().map(|(guard, _)| guard).min_by_key(|guard| guard.number).cloned()
    }
}

impl Clone for GenerationGuard {
    fn clone(&self) -> Self {
        *lock(&self.generations.0).count(self.number) += 1;
        Self { generations: Arc::clone(&self.generations), number: self.number }
    }
}

impl Drop for GenerationGuard {
    fn drop(&mut self) {
        let mut state = lock(&self.generations.0);
        *state.count(self.number) -= 1;
        let reached = state.take_reached();
        drop(state);
        drop(reached); // holds no lock: a barrier may send requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A barrier that records its name.
    struct Barrier(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Drop for Barrier {
        fn drop(&mut self) {
            lock(&self.1).push(self.0);
        }
    }

    #[derive(Default)]
    struct TestGenerations {
        generations: Arc<Generations>,
        reached: Arc<Mutex<Vec<&'static str>>>,
    }

    impl TestGenerations {
        fn drop_behind(&self, name: &'static str) {
            self.generations.drop_behind(Box::new(Barrier(name, Arc::clone(&self.reached))));
        }

        fn reached(&self) -> Vec<&'static str> {
            lock(&self.reached).clone()
        }
    }

    #[test]
    fn a_barrier_behind_no_request_is_reached_at_once() {
        let test = TestGenerations::default();

        test.drop_behind("a");
        let later = test.generations.enter();
        assert_eq!(test.reached(), ["a"]);
        drop(later);
        test.drop_behind("b");

        assert_eq!(test.reached(), ["a", "b"]);
    }

    #[test]
    fn a_barrier_waits_for_earlier_requests_only() {
        let test = TestGenerations::default();
        let before = [test.generations.enter(), test.generations.enter()];

        test.drop_behind("a");
        let later = test.generations.enter();
        let [first, second] = before;
        drop(second);
        assert!(test.reached().is_empty());
        drop(first);

        assert_eq!(test.reached(), ["a"]);
        drop(later);
    }

    #[test]
    fn a_barrier_waits_for_all_earlier_generations() {
        let test = TestGenerations::default();
        let first = test.generations.enter();
        test.drop_behind("a");
        let second = test.generations.enter();
        test.drop_behind("b");

        drop(second);
        assert!(test.reached().is_empty());
        drop(first);

        assert_eq!(test.reached(), ["a", "b"]);
    }

    #[test]
    fn a_clone_belongs_to_the_generation_of_its_original() {
        let test = TestGenerations::default();
        let first = test.generations.enter();
        test.drop_behind("a");

        let again = first.clone();
        drop(first);
        assert!(test.reached().is_empty());
        drop(again);

        assert_eq!(test.reached(), ["a"]);
    }

    /// A barrier sends the requests that wait for it.
    #[test]
    fn a_barrier_may_enter_and_place_barriers() {
        struct Enters(TestGenerations);
        impl Drop for Enters {
            fn drop(&mut self) {
                drop(self.0.generations.enter());
                self.0.drop_behind("b");
            }
        }
        let test = TestGenerations::default();
        let (generations, reached) = (Arc::clone(&test.generations), Arc::clone(&test.reached));
        let before = test.generations.enter();
        test.generations.drop_behind(Box::new(Enters(TestGenerations { generations, reached })));

        drop(before);

        assert_eq!(test.reached(), ["b"]);
    }
}
