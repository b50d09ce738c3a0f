//! Who waits for whom among nested calls of one process, so that crosswise waiting is an error and never a silent hang.
//!
//! A place is one key on one level of nesting. A call chain that has some places and waits for another draws an edge from each it
//! has to the one it wants. Whoever would close a circle is told so: it is the last to come, so every circle is seen.
//!
//! Not here: waiting between processes, which `wait` and `retry` bound.

use crate::key::Name;
use std::num::NonZeroU64;

/// One key on one level: 0 is the lock itself, `n` a call nested n deep inside its hold.
pub(crate) type WaitNode = (Name, usize);

/// The waits of nested calls. Calls that hold nothing never appear here.
#[derive(Debug)]
pub(crate) struct WaitGraph {
    edges: Vec<WaitEdge>,
    last_id: WaitId,
}

/// One wait.
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
    /// Notes that a chain which has `has` waits for `wants`, and returns the wait's id; or the key that the chain has and somebody
    /// in the circle waits for.
    pub(crate) fn begin(&mut self, has: Vec<WaitNode>, wants: WaitNode) -> Result<WaitId, Name> {
        let mut reached = vec![&wants];
        let mut next = 0;
        while let Some(&place) = reached.get(next) {
            for edge in self.edges.iter().filter(|edge| edge.has.contains(place)) {
                if let Some((key, _)) = has.iter().find(|mine| **mine == edge.wants) {
                    return Err(Name::clone(key));
                }
                if !reached.contains(&&edge.wants) {
                    reached.push(&edge.wants);
                }
            }
            next += 1;
        }
        self.last_id = self.last_id.checked_add(1).expect("nobody waits as often as that");
        self.edges.push(WaitEdge { id: self.last_id, has, wants });
        Ok(self.last_id)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// The wait is over, whatever came of it.
    pub(crate) fn end(&mut self, id: WaitId) {
        self.edges.retain(|edge| edge.id != id);
    }
}

#[cfg(test)]
mod tests;
