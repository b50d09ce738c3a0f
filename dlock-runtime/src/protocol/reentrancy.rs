//! Calls inside a hold that want the key of the hold: they join it, one at a time on each level.
//!
//! ```text
//!  root hold
//!    level 0:  active call, its siblings in a queue
//!      level 1:  a call inside that active call, its siblings in a queue
//! ```
//!
//! The active calls of a hold form a path, since only the active call of a level can make calls on the next. Siblings (`join!` of
//! two nested calls) exclude each other, as the lock's name promises; a sibling waits for the one before it, for its `wait` or a lease.
//!
//! Not here: how a call knows that it is nested (`held`), whether waiting can end at all (`waits`).

use std::collections::VecDeque;

use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::{AcquireFailure, Action, EventContext, KeyPhase, KeyState};
use crate::protocol::retry_state::RetryState;

/// The nested calls of one hold. Takes no memory while there are none.
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

    /// A call on `depth` wants the key: it goes on at once, or waits for its sibling.
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

    /// A nested call has ended, or does not want to wait any more. Returns whether it was one of ours.
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

    /// The hold is over: nobody joins it any more.
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

    /// Refuses those whose wait is over.
    pub(super) fn tick(&mut self, ctx: &mut EventContext<'_, A>) {
        let now = ctx.now;
        for level in &mut self.0 {
            let over: Vec<_> =
                level.queue.iter().filter(|(_, retry_state)| retry_state.is_over(now)).cloned().collect();
            level.queue.retain(|(_, retry_state)| !retry_state.is_over(now));
            ctx.actions.extend(over.into_iter().map(|(acquisition, retry_state)| Action::Reject {
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
    /// A call inside the hold of `root` wants the same key, `depth` calls deep.
    pub(crate) fn join_nested(
        &mut self,
        root: &A,
        depth: usize,
        acquisition: A,
        retry_state: RetryState,
        ctx: &mut EventContext<'_, A>,
    ) {
        match &mut self.phase {
            KeyPhase::Held(hold) if hold.acquisition == *root => {
                let retry_state = retry_state.of_sibling(hold.lease());
                hold.levels().join(depth, acquisition, retry_state, ctx);
            }
            _ => ctx.refuse(acquisition, AcquireFailure::ParentLost),
        }
    }
}

#[cfg(test)]
mod tests;
