//! Nested calls: a call inside a hold that wants the key of the hold joins it, one at a time on
//! each level.
//!
//! ```text
//!  root hold
//!    level 0:  active call, its siblings in a queue
//!      level 1:  a call inside that active call, its siblings in a queue
//! ```
//!
//! The active calls of a hold form a path, since only the active call of a level can make calls on
//! the next. Siblings (`join!` of two nested calls) exclude each other, as the name of the lock
//! promises. A sibling waits for the one before it, for its `wait` or a lease.
//!
//! See also: `deadlock`, which finds waits that cannot end.

use std::collections::VecDeque;

use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::{AcquireFailure, Action, EventContext, KeyState};
use crate::protocol::retry_state::RetryState;

/// The nested calls of one hold. Allocates no memory while there are none.
#[derive(Clone, Debug)]
pub(crate) struct NestedCalls<A>(Vec<NestingLevel<A>>);

#[derive(Clone, Debug)]
struct NestingLevel<A> {
    active: Option<A>,
    queue: VecDeque<(A, RetryState)>,
}

impl<A: Clone + PartialEq> NestedCalls<A> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a call on level `depth`, which joins at once or waits for its sibling.
    fn join(&mut self, depth: usize, acquisition: A, retry_state: RetryState, ctx: &mut EventContext<'_, A>) {
        while self.0.len() <= depth {
            self.0.push(NestingLevel { active: None, queue: VecDeque::new() });
        }
        let Some(level) = self.0.get_mut(depth) else { return };
        if level.active.is_none() {
            level.active = Some(acquisition.clone());
            ctx.actions.push(Action::JoinNested { acquisition });
        } else {
            level.queue.push_back((acquisition, retry_state));
        }
    }

    /// Removes a nested call that has ended or stopped waiting. Returns `true` if it was one of
    /// this hold.
    pub(super) fn leave(&mut self, acquisition: &A, ctx: &mut EventContext<'_, A>) -> bool {
        for level in &mut self.0 {
            if level.active.as_ref() == Some(acquisition) {
                level.active = level.queue.pop_front().map(|(next, _)| next);
                ctx.actions
                    .extend(level.active.clone().map(|acquisition| Action::JoinNested { acquisition }));
                return true;
            }
            if let Some(at) = level.queue.iter().position(|(waiting, _)| waiting == acquisition) {
                level.queue.remove(at);
                return true;
            }
        }
        false
    }

    /// Rejects the waiting calls, because the hold has ended.
    pub(super) fn close(&mut self, ctx: &mut EventContext<'_, A>) {
        let waiting = self.0.drain(..).flat_map(|level| level.queue);
        ctx.actions.extend(
            waiting
                .map(|(acquisition, _)| Action::Reject { acquisition, refusal: AcquireFailure::ParentLost }),
        );
    }

    pub(super) fn due(&self) -> BootInstant {
        self.waiting().map(|(_, retry_state)| retry_state.due()).min().unwrap_or(BootInstant::NEVER)
    }

    /// Rejects the calls whose wait has ended.
    pub(super) fn tick(&mut self, ctx: &mut EventContext<'_, A>) {
        let now = ctx.now;
        for level in &mut self.0 {
            let timed_out: Vec<_> =
                level.queue.iter().filter(|(_, retry_state)| retry_state.is_over(now)).cloned().collect();
            level.queue.retain(|(_, retry_state)| !retry_state.is_over(now));
            ctx.actions.extend(timed_out.into_iter().map(|(acquisition, retry_state)| Action::Reject {
                acquisition,
                refusal: AcquireFailure::Contended {
                    attempts: retry_state.attempts(),
                    waited: now.since(retry_state.started()),
                    ttl: None,
                },
            }));
        }
    }

    fn waiting(&self) -> impl Iterator<Item = &(A, RetryState)> {
        self.0.iter().flat_map(|level| &level.queue)
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Adds a nested call on level `depth` of the hold of `root`.
    pub(crate) fn join_nested(
        &mut self,
        root: &A,
        depth: usize,
        acquisition: A,
        retry_state: RetryState,
        ctx: &mut EventContext<'_, A>,
    ) {
        match self.holds.of_acquisition(root) {
            Some(hold) => {
                let retry_state = retry_state.of_sibling(hold.lease());
                hold.levels().join(depth, acquisition, retry_state, ctx);
            }
            None => ctx.refuse(acquisition, AcquireFailure::ParentLost),
        }
    }
}

#[cfg(test)]
mod tests;
