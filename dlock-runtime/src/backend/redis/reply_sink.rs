//! Who is told what a node's server says.
//!
//! A server that serves all keys tells the engine. Where several serve them together, what one of them says is not the last word,
//! and somebody stands in between.
//!
//! Not here: how answers come in (`batch`), how grants and bells do (`hearing`), what they mean (`protocol`).

use std::sync::{Arc, Weak};

use redis::Value;

use crate::backend::Request;
use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::node::connect::GrantMessage;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::topology::cluster::redirects::Redirect;
use crate::clock::boot_time;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::token::Token;

/// Who is told what a node's server says.
pub(super) trait ReplySink: Send + Sync {
    /// Requests that were sent together, at `sent`, are answered; each exactly once. `epoch` is the connection that they went out on;
    /// there is none for those that did not.
    fn on_replies(&self, replies: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>);

    /// A message says that a token of ours was granted its lock.
    fn on_grant(&self, grant: GrantMessage);

    /// The bell of a key rings: its lock may have been let go of.
    fn on_key_event(&self, key: &Name);

    /// Messages may have been missed; where the node `moved`, to another server than before, so may what was written.
    fn connected(&self, moved: bool);

    /// There is no connection any more, or still none.
    fn disconnected(&self) {}

    /// Returns who takes requests that the server sends elsewhere; where there is nobody, that is an answer like any other.
    fn redirects(&self) -> Option<&dyn RedirectHandler> {
        None
    }
}

/// Who takes requests that one of several servers did not run, since they belong to another.
pub(super) trait RedirectHandler {
    /// Reads an answer; `None` where it is one to the request.
    fn read(&self, answer: &Value) -> Option<Redirect>;

    /// Takes over requests that came by `passage`.
    fn follow(&self, sent_away: Vec<(Request, Redirect)>, passage: RouteHistory);
}

/// The engine, for a server that serves all keys.
pub(super) struct EngineSink {
    pub(super) shared: Arc<CommandQueue>,
    pub(super) engine: Weak<Engine>,
}

impl EngineSink {
    /// Tells the engine, and returns what is to be undone.
    pub(super) fn tell(&self, replies: Vec<(Request, Reply)>, sent: BootInstant) -> Vec<(Name, Token)> {
        let (now, mut effects) = (boot_time(), Effects::default());
        let left = if let Some(engine) = self.engine.upgrade() {
            engine.on_replies(now, sent, replies, &mut effects)
        } else {
            // Nobody is left to have what was granted; the log is still told.
            let left = replies.into_iter().flat_map(|(mut request, reply)| {
                let left = effect_of(&request, &reply);
                effects.answer(request.answer.take(), reply, now);
                left
            });
            left.collect()
        };
        effects.wake();
        left
    }
}

impl ReplySink for EngineSink {
    /// Hands answers on: those to a leave of an abandoned token to the list, all others to the engine, and notes what is to be
    /// undone.
    fn on_replies(&self, mut replies: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>) {
        let count = replies.len();
        self.shared.undoing.left(&mut replies, epoch, boot_time());
        let abandoned = self.tell(replies, sent);
        self.shared.undoing.add(abandoned, epoch);
        self.shared.answered(count);
    }

    fn on_grant(&self, grant: GrantMessage) {
        if let Some(engine) = self.engine.upgrade() {
            let mut effects = Effects::default();
            engine.on_grant(&grant.key, grant.token, grant.offer, boot_time(), &mut effects);
            effects.wake();
        }
    }

    fn on_key_event(&self, key: &Name) {
        if let Some(engine) = self.engine.upgrade() {
            engine.on_invalidation(key);
        }
    }

    fn connected(&self, moved: bool) {
        self.on_reconnect(moved, |_| true);
    }
}

impl EngineSink {
    /// Says that keys which `concerns` takes can be asked for again; where they `moved`, at another server than before.
    pub(super) fn on_reconnect(&self, moved: bool, concerns: impl Fn(&str) -> bool) {
        self.shared.undoing.retry_now(&concerns);
        if let Some(engine) = self.engine.upgrade() {
            engine.on_reconnect(moved, concerns);
        }
    }
}

/// The tokens under which a command may have left something in the server.
fn effect_of(request: &Request, reply: &Reply) -> Vec<(Name, Token)> {
    // What is kept is kept though everybody is gone: that is what it is for.
    let leaves_nothing = matches!(
        request.command,
        Command::Verify | Command::Inspect | Command::Ping | Command::SetTtl { .. }
    );
    let nothing =
        matches!(reply, Reply::Contended | Reply::NotQueued { .. } | Reply::Absent | Reply::NotOwner);
    let lets_go = request.command.is_release();
    let undone =
        (lets_go || matches!(request.command, Command::ForceRelease)) && matches!(reply, Reply::Owner);
    let never_ran = matches!(reply, Reply::Refused(_)) && !lets_go;
    if leaves_nothing || nothing || undone || never_ran {
        return Vec::new();
    }
    let next = match request.command {
        Command::Yield { next, .. } => Some(next),
        _ => None,
    };
    std::iter::once(request.token).chain(next).map(|token| (Name::clone(&request.key), token)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::{Failure, FailureKind};
    use crate::token::TokenSource;

    #[test]
    fn who_only_looked_leaves_nothing_whatever_he_was_told() {
        for command in [Command::Verify, Command::Inspect, Command::Ping] {
            let request = Request::new("k".into(), TokenSource::of_process(1).next(), command);
            for reply in [Reply::Owner, Reply::Unknown(Failure::new(FailureKind::Passing, "no answer"))] {
                assert!(effect_of(&request, &reply).is_empty(), "{command:?}: {reply:?}");
            }
        }
    }
}
