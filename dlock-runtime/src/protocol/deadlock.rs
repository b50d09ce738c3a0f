//! The wait-for graph of nested calls in one process: a deadlock is an error and never a silent
//! hang.
//!
//! A node is one key on one nesting level. A call chain that holds some nodes and waits for another
//! adds an edge from each node that it holds to the one it wants. A wait that would close a cycle
//! fails. The last wait of a cycle always closes it, so every cycle is found.
//!
//! Waits between processes are not in the graph: `wait` and `retry` bound those.

use crate::key::Name;
use std::num::NonZeroU64;

/// One key on one level: 0 is the lock itself, and `n` is a call that is nested `n` levels deep in
/// its hold.
pub(crate) type WaitNode = (Name, usize);

/// The waits of nested calls. A call that holds nothing is never in the graph.
#[derive(Debug)]
pub(crate) struct WaitGraph {
    edges: Vec<WaitEdge>,
    last_id: WaitId,
}

/// The id of one wait.
pub(crate) type WaitId = NonZeroU64;

impl Default for WaitGraph {
    fn default() -> Self {
        Self { edges: Vec::new(), last_id: WaitId::MIN }
    }
}

#[derive(Debug)]
struct WaitEdge {
    id: WaitId,
    has: Vec<WaitNode>,
    wants: WaitNode,
}

impl WaitGraph {
    /// Adds the wait of a chain that holds `has` for `wants`, and returns its id. Returns an error
    /// with a key that the chain holds and that the cycle waits for, if there is a cycle.
    pub(crate) fn begin(&mut self, has: Vec<WaitNode>, wants: WaitNode) -> Result<WaitId, Name> {
        let mut reached = vec![&wants];
        let mut next = 0;
        while let Some(&node) = reached.get(next) {
            for edge in self.edges.iter().filter(|edge| edge.has.contains(node)) {
                if let Some((key, _)) = has.iter().find(|held| **held == edge.wants) {
                    return Err(Name::clone(key));
                }
                if !reached.contains(&&edge.wants) {
                    reached.push(&edge.wants);
                }
            }
            next += 1;
        }
        self.last_id = self.last_id.checked_add(1).expect("fewer than 2^64 waits");
        self.edges.push(WaitEdge { id: self.last_id, has, wants });
        Ok(self.last_id)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// Removes a wait that has ended.
    pub(crate) fn end(&mut self, id: WaitId) {
        self.edges.retain(|edge| edge.id != id);
    }
}

#[cfg(test)]
mod tests;
