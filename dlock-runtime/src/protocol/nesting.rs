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

use crate::protocol::deadline::BootTime;
use crate::protocol::lane::{Action, Cx, Lane, Refusal, Stage};
use crate::protocol::patience::Patience;

/// The nested calls of one hold. Takes no memory while there are none.
#[derive(Clone, Debug)]
pub(crate) struct Levels<S>(Vec<Level<S>>);

#[derive(Clone, Debug)]
struct Level<S> {
    active: Option<S>,
    queue: VecDeque<(S, Patience)>,
}

impl<S: Clone + PartialEq> Levels<S> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// A call on `depth` wants the key: it goes on at once, or waits for its sibling.
    fn join(&mut self, depth: usize, seat: S, patience: Patience, cx: &mut Cx<'_, S>) {
        while self.0.len() <= depth {
            self.0.push(Level { active: None, queue: VecDeque::new() });
        }
        let Some(level) = self.0.get_mut(depth) else { return };
        if level.active.is_none() {
            level.active = Some(seat.clone());
            cx.actions.push(Action::Join { seat });
        } else {
            level.queue.push_back((seat, patience));
        }
    }

    /// A nested call has ended, or does not want to wait any more. Returns whether it was one of ours.
    pub(super) fn leave(&mut self, seat: &S, cx: &mut Cx<'_, S>) -> bool {
        for level in &mut self.0 {
            if level.active.as_ref() == Some(seat) {
                level.active = level.queue.pop_front().map(|(next, _)| next);
                cx.actions.extend(level.active.clone().map(|seat| Action::Join { seat }));
                return true;
            }
            if let Some(at) = level.queue.iter().position(|(waiting, _)| waiting == seat) {
                level.queue.remove(at);
                return true;
            }
        }
        false
    }

    /// The hold is over: nobody joins it any more.
    pub(super) fn close(&mut self, cx: &mut Cx<'_, S>) {
        let waiting = self.0.drain(..).flat_map(|level| level.queue);
        cx.actions.extend(waiting.map(|(seat, _)| Action::Refuse { seat, refusal: Refusal::RootLost }));
    }

    pub(super) fn due(&self) -> BootTime {
        self.waiting().map(|(_, patience)| patience.due()).min().unwrap_or(BootTime::NEVER)
    }

    /// Refuses those whose wait is over.
    pub(super) fn tick(&mut self, cx: &mut Cx<'_, S>) {
        let now = cx.now;
        for level in &mut self.0 {
            let over: Vec<_> =
                level.queue.iter().filter(|(_, patience)| patience.is_over(now)).cloned().collect();
            level.queue.retain(|(_, patience)| !patience.is_over(now));
            cx.actions.extend(over.into_iter().map(|(seat, patience)| Action::Refuse {
                seat,
                refusal: Refusal::Contended {
                    attempts: patience.attempts(),
                    waited: now.since(patience.started()),
                    ttl: None,
                },
            }));
        }
    }

    fn waiting(&self) -> impl Iterator<Item = &(S, Patience)> {
        self.0.iter().flat_map(|level| &level.queue)
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// A call inside the hold of `root` wants the same key, `depth` calls deep.
    pub(crate) fn join_nested(
        &mut self,
        root: &S,
        depth: usize,
        seat: S,
        patience: Patience,
        cx: &mut Cx<'_, S>,
    ) {
        match &mut self.stage {
            Stage::Held(hold) if hold.seat == *root => {
                let patience = patience.of_sibling(hold.lease());
                hold.levels().join(depth, seat, patience, cx);
            }
            _ => cx.refuse(seat, Refusal::RootLost),
        }
    }
}

#[cfg(test)]
mod tests;
