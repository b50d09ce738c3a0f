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
use crate::protocol::command::{Command, EnqueueMode, Reply};
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

    /// Called after a connect: messages may have been missed. If the node `moved` to another
    /// server, or the server belongs to a quorum, the server may lack writes too.
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
    // None of these adds a token to a value, except that a renewal may repair a minority of a
    // quorum, which cleans up itself. The token that one of them finds is released by a request of
    // its own, or is retained by `SetTtl`: a retained hold outlives its manager.
    let leaves_nothing = matches!(
        request.command,
        Command::SetTtl { .. }
            | Command::Enqueue { mode: EnqueueMode::Recheck, .. }
            | Command::Renew { .. }
            | Command::Fence
            | Command::RaiseFence { .. }
            | Command::Verify
            | Command::Inspect
            | Command::Ping
            | Command::Call
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
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::backend::redis::driver::Driver;
    use crate::backend::redis::node::test_node::TestNode;
    use crate::backend::redis::tests::{is_notified, unknown};
    use crate::backend::redis::topology::Topology;
    use crate::backend::reply_recipient::ReplyRecipient;
    use crate::backend::tests::recorded_events::RecordedEvents;
    use crate::protocol::command::{Failure, FailureKind};
    use crate::protocol::foreign_clients::{FleetHold, Grant};
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

    const LEASE: Duration = Duration::from_secs(30);

    fn refused() -> Reply {
        Reply::Refused(Failure::new(FailureKind::Passing, "out of memory"))
    }

    /// Returns a sink whose queue was asked to clean up nothing yet.
    fn sink() -> (EngineSink, Arc<RecordedEvents>) {
        let sink = EngineSink { shared: Arc::default(), events: EventReceiver::default() };
        let events = RecordedEvents::attach(|events| sink.events.attach(events));
        (sink, events)
    }

    #[test]
    fn commands_that_may_have_run_leave_their_tokens() {
        let tokens = TokenSource::of_process(1);
        let (token, next) = (tokens.next(), tokens.next());
        let (acquire, enqueue) =
            (Command::Acquire { lease: LEASE }, Command::Enqueue { lease: LEASE, mode: EnqueueMode::Join });
        let recheck = Command::Enqueue { lease: LEASE, mode: EnqueueMode::Recheck };
        let r#yield = Command::Yield { next, fleet_hold: FleetHold::UNKNOWN };
        for (command, reply, left) in [
            (acquire, Reply::Owner, vec![token]),
            (acquire, Reply::Contended, vec![]),
            (acquire, refused(), vec![]),
            (acquire, unknown(), vec![token]),
            (enqueue, Reply::Queued { ttl: None }, vec![token]),
            (enqueue, Reply::NotQueued { ttl: None }, vec![]),
            (enqueue, Reply::Absent, vec![]),
            (recheck, Reply::Queued { ttl: None }, vec![]),
            (recheck, unknown(), vec![]),
            (Command::Renew { lease: LEASE }, Reply::Owner, vec![]),
            (Command::Renew { lease: LEASE }, Reply::NotOwner, vec![]),
            (Command::Renew { lease: LEASE }, unknown(), vec![]),
            (Command::Fence, Reply::Fenced(1), vec![]),
            (Command::Fence, unknown(), vec![]),
            (Command::RaiseFence { fence: 1 }, Reply::Fenced(1), vec![]),
            (Command::RELEASE, Reply::Owner, vec![]),
            (Command::RELEASE, unknown(), vec![token]),
            (Command::RELEASE, refused(), vec![token]),
            (Command::Withdraw, Reply::NotOwner, vec![]),
            (Command::ForceRelease, Reply::Owner, vec![]),
            (Command::ForceRelease, refused(), vec![]),
            (Command::SetTtl { ttl: LEASE }, Reply::Owner, vec![]),
            (Command::Call, unknown(), vec![]),
            (r#yield, Reply::Yielded, vec![token, next]),
            (r#yield, unknown(), vec![token, next]),
            (r#yield, Reply::NotOwner, vec![]),
        ] {
            let request = Request::new("k".into(), token, command);

            let effects = possible_effects(&request, &reply);

            assert!(effects.iter().all(|(key, _)| key == "k"));
            let tokens: Vec<_> = effects.into_iter().map(|(_, token)| token).collect();
            assert_eq!(tokens, left, "{command:?}: {reply:?}");
        }
    }

    #[test]
    fn replies_after_the_engine_is_dropped_reach_their_callers() {
        let (sink, events) = sink();
        drop(events);
        let tokens = TokenSource::of_process(1);
        let (caller, mut receiver) = oneshot::channel();
        let release = Request {
            recipient: Some(ReplyRecipient::Caller(caller)),
            ..Request::new("k".into(), tokens.next(), Command::RELEASE)
        };
        let acquire = Request::new("k".into(), tokens.next(), Command::Acquire { lease: LEASE });
        sink.shared.push(release);
        sink.shared.push(acquire);
        let replies = sink.shared.take().into_iter().map(|request| (request, Reply::Owner)).collect();

        sink.on_replies(replies, boot_time(), Some(1));

        assert!(matches!(receiver.try_recv(), Ok(Reply::Owner)));
        let withdrawn: Vec<_> = sink.shared.cleanup.due_withdrawals().iter().map(|of| of.token).collect();
        assert_eq!(withdrawn, [tokens.at(1)], "the acquired lock has no owner");
    }

    #[test]
    fn the_engine_gets_replies_and_has_orphans_cleaned_up() {
        let (sink, events) = sink();
        let tokens = TokenSource::of_process(1);
        let orphan = tokens.next();
        sink.shared.push(Request::new("a".into(), orphan, Command::RELEASE));
        sink.shared.push(Request::new("b".into(), tokens.next(), Command::RELEASE));
        let replies = sink.shared.take().into_iter().zip([unknown(), Reply::Owner]).collect();

        sink.on_replies(replies, boot_time(), Some(1));

        assert_eq!(events.take().last().map(String::as_str), Some("reply b Owner"));
        let [withdrawal] = &sink.shared.cleanup.due_withdrawals()[..] else {
            panic!("one request is orphaned")
        };
        assert_eq!((&*withdrawal.key, withdrawal.token), ("a", orphan));
        let replies = vec![(Request::new("a".into(), orphan, Command::Withdraw), Reply::NotOwner)];
        sink.on_replies(replies, boot_time(), Some(1));
        assert!(events.take().is_empty(), "a withdrawal of the cleanup is not the engine's");
        assert!(sink.shared.cleanup.is_empty());
    }

    #[test]
    fn messages_and_reconnects_reach_the_engine() {
        let (sink, events) = sink();
        for key in ["a", "b"] {
            events.set_in_use(key);
        }
        let offer = Grant { lease: LEASE, ..Grant::NONE };

        sink.on_grant(GrantMessage { token: TokenSource::of_process(1).next(), offer, key: "k".into() });
        sink.on_key_event(Some(&"k".into()));
        sink.on_key_event(None);
        sink.connected(true);
        sink.on_reconnect(false, |key| key == "b");
        sink.disconnected();

        let expected = [
            "grant k 30s",
            "invalidation k",
            "invalidation *",
            r#"reconnect moved=true ["a", "b"]"#,
            r#"reconnect moved=false ["b"]"#,
        ];
        assert_eq!(events.take(), expected);
    }

    #[test]
    fn a_reconnect_retries_the_withdrawals_of_its_keys() {
        let (sink, _events) = sink();
        let tokens = TokenSource::of_process(1);
        let orphaned = ["a", "b"].map(|key| (key.into(), tokens.next()));
        sink.shared.cleanup.add(orphaned.to_vec(), Some(1));
        let withdrawals = sink.shared.cleanup.due_withdrawals();
        let mut replies = withdrawals.into_iter().map(|withdrawal| (withdrawal, unknown())).collect();
        sink.shared.cleanup.on_withdrawal_replies(&mut replies, Some(1), boot_time());

        sink.on_reconnect(false, |key| key == "b");

        let due: Vec<_> = sink.shared.cleanup.due_withdrawals().into_iter().map(|of| of.key).collect();
        assert_eq!(due, ["b"]);
    }

    #[test]
    fn requests_of_an_event_are_flushed() {
        let (sink, events) = sink();
        let test = TestNode::down(LEASE);
        let driver = Driver::new(
            Arc::clone(&sink.shared),
            sink.events.clone(),
            Topology::One(Arc::clone(&test.node)),
            LEASE,
        );
        let is_flushed = || is_notified(&driver.shared.wake);

        sink.on_key_event(None);
        assert!(!is_flushed());
        events.submit_requests();
        sink.on_key_event(None);

        assert!(is_flushed());
    }
}
