//! Receivers of the replies and messages of a node.
//!
//! The replies of a server that serves all keys go to the engine. If several servers serve the keys
//! together, one reply is not final, and the topology receives it first.

use std::sync::Arc;

use redis::Value;

use crate::backend::event_effects::EventEffects;
use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::node::grant_message::GrantMessage;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::topology::cluster::redirects::Redirect;
use crate::backend::{BackendEvents, EventReceiver, Request};
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::token::Token;

/// Receives the replies and messages of a node.
pub(super) trait ReplySink: Send + Sync {
    /// Called with the replies to requests that were sent together at `sent`; each request is
    /// answered exactly once.
    ///
    /// `epoch` identifies the connection that they were sent on. `None`: they were not sent.
    fn on_replies(&self, replies: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>);

    /// Called when a message reports that a token of this manager was granted its lock.
    fn on_grant(&self, grant: GrantMessage);

    /// Called when a message reports that the lock of `key` may have been released. `None`: that
    /// of any key, because messages may have been missed.
    fn on_key_event(&self, key: Option<&Name>);

    /// Called after a reconnect: messages may have been missed. If the node `moved` to another
    /// server, writes may have been lost too.
    fn connected(&self, moved: bool);

    /// Called when the connection is lost or cannot be made.
    fn disconnected(&self) {}

    /// Returns the handler of redirected requests. `None`: a redirect is a reply like any other.
    fn redirects(&self) -> Option<&dyn RedirectHandler> {
        None
    }
}

/// Handles requests that one of several servers did not run because another server owns their key.
pub(super) trait RedirectHandler {
    /// Parses a redirect. Returns `None` if `reply` is one to the request itself.
    fn read(&self, reply: &Value) -> Option<Redirect>;

    /// Takes over redirected requests with the route that they have taken.
    fn follow(&self, sent_away: Vec<(Request, Redirect)>, history: RouteHistory);
}

/// Delivers to the engine, for a server that serves all keys.
pub(super) struct EngineSink {
    pub(super) shared: Arc<CommandQueue>,
    pub(super) events: EventReceiver,
}

impl EngineSink {
    /// Delivers replies to the engine, and returns the tokens that must be cleaned up.
    pub(super) fn deliver(&self, replies: Vec<(Request, Reply)>, sent: BootInstant) -> Vec<(Name, Token)> {
        let (now, mut effects) = (boot_time(), EventEffects::default());
        let events = self.events.get();
        let left = replies.into_iter().flat_map(|(mut request, reply)| {
            if let Some(events) = &events {
                return events.on_reply(request, reply, sent, now, &mut effects);
            }
            // The engine is dropped, so grants have no owner. Releases are still reported to the
            // log.
            let left = possible_effects(&request, &reply);
            if let Some(recipient) = request.recipient.take() {
                effects.answer(recipient, reply, now);
            }
            left
        });
        let left = left.collect();
        drop(events);
        self.finish(effects);
        left
    }

    /// Reports an event to the engine, unless the engine is dropped.
    fn report(&self, event: impl FnOnce(&dyn BackendEvents, BootInstant, &mut EventEffects)) {
        if let Some(events) = self.events.get() {
            let mut effects = EventEffects::default();
            event(&*events, boot_time(), &mut effects);
            self.finish(effects);
        }
    }

    /// Flushes the requests that an event has submitted, and runs its effects.
    fn finish(&self, mut effects: EventEffects) {
        if effects.take_has_requests() {
            self.shared.flush();
        }
        effects.run();
    }
}

impl ReplySink for EngineSink {
    /// Delivers replies to withdrawals of orphaned tokens to the cleanup queue, and all others to
    /// the engine. Queues what must be cleaned up.
    fn on_replies(&self, mut replies: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>) {
        let count = replies.len();
        self.shared.cleanup.on_withdrawal_replies(&mut replies, epoch, boot_time());
        let orphaned = self.deliver(replies, sent);
        self.shared.cleanup.add(orphaned, epoch);
        self.shared.answered(count);
    }

    fn on_grant(&self, grant: GrantMessage) {
        self.report(|events, now, effects| {
            events.on_grant(&grant.key, grant.token, grant.offer, now, effects);
        });
    }

    fn on_key_event(&self, key: Option<&Name>) {
        self.report(|events, now, effects| events.on_invalidation(key, now, effects));
    }

    fn connected(&self, moved: bool) {
        self.on_reconnect(moved, |_| true);
    }
}

impl EngineSink {
    /// Reports that keys for which `concerns` returns `true` are reachable again; if they `moved`,
    /// on another server.
    pub(super) fn on_reconnect(&self, moved: bool, concerns: impl Fn(&str) -> bool) {
        self.shared.cleanup.retry_now(&concerns);
        self.report(|events, now, effects| events.on_reconnect(moved, &concerns, now, effects));
    }
}

/// Returns the tokens under which a command may have left an effect in the server.
fn possible_effects(request: &Request, reply: &Reply) -> Vec<(Name, Token)> {
    // A retained hold is meant to outlive its manager, so it is not cleaned up.
    let leaves_nothing = matches!(
        request.command,
        Command::Verify | Command::Inspect | Command::Ping | Command::Call | Command::SetTtl { .. }
    );
    let nothing =
        matches!(reply, Reply::Contended | Reply::NotQueued { .. } | Reply::Absent | Reply::NotOwner);
    let is_release = request.command.is_release();
    let is_released =
        (is_release || matches!(request.command, Command::ForceRelease)) && matches!(reply, Reply::Owner);
    let never_ran = matches!(reply, Reply::Refused(_)) && !is_release;
    if leaves_nothing || nothing || is_released || never_ran {
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
    fn read_only_commands_leave_no_effect() {
        for command in [Command::Verify, Command::Inspect, Command::Ping] {
            let request = Request::new("k".into(), TokenSource::of_process(1).next(), command);
            for reply in [Reply::Owner, Reply::Unknown(Failure::new(FailureKind::Passing, "no reply"))] {
                assert!(possible_effects(&request, &reply).is_empty(), "{command:?}: {reply:?}");
            }
        }
    }
}
