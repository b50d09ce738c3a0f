//! The engine as the receiver of a backend's events.

use std::sync::Arc;

use crate::backend::event_effects::EventEffects;
use crate::backend::{BackendEvents, Request};
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::engine::renewal_failure::RenewalFailure;
use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::key_state::KeyState;
use crate::sync::lock;
use crate::token::Token;

impl BackendEvents for Engine {
    fn on_reply(
        &self,
        request: Request,
        reply: Reply,
        sent: BootInstant,
        now: BootInstant,
        effects: &mut EventEffects,
    ) -> Vec<(Name, Token)> {
        let Request { key, token, command, recipient, .. } = request;
        self.throttle.on_reply(command);
        self.background_releases.on_reply(recipient.as_ref());
        if command == Command::Call || command.is_release() {
            let is_orphaned = command.is_release() && matches!(reply, Reply::Unknown(_) | Reply::Refused(_));
            if let Some(to) = recipient {
                effects.answer(to, reply, now);
            }
            return if is_orphaned { vec![(key, token)] } else { Vec::new() };
        }
        if let Some(to) = recipient {
            effects.answer(to, reply.clone(), now);
        } else if matches!(command, Command::Renew { .. }) {
            self.on_renewal_reply((&key, token), &reply, (sent, now), effects);
        }
        let mut effects = Effects::new(effects);
        self.with_key_at(&key, now, &mut effects, |key_state, cx| {
            key_state.on_reply(token, command, sent, reply, cx);
        });
        let orphaned = std::mem::take(&mut effects.orphaned);
        self.report_earlier(&effects);
        orphaned
    }

    fn on_grant(&self, key: &Name, token: Token, grant: Grant, now: BootInstant, effects: &mut EventEffects) {
        if !self.tokens.has_issued(token) {
            return;
        }
        let mut effects = Effects::new(effects);
        let known =
            self.with_key_at(key, now, &mut effects, |key_state, cx| key_state.on_grant(token, grant, cx));
        if !known && lock(&self.stray_grants).may_answer(now) {
            self.submit(Request::new(Name::clone(key), token, Command::Withdraw), &mut effects);
        }
        self.report_earlier(&effects);
    }

    fn on_invalidation(&self, key: Option<&Name>, now: BootInstant, effects: &mut EventEffects) {
        let mut effects = Effects::new(effects);
        if let Some(key) = key {
            if let Some(changed) = self.calls.on_changed(key) {
                effects.tasks.notify_later(changed);
            }
            let (shard, hash) = self.shards.of_key(key);
            shard.change(&mut effects, |slots, effects| {
                if slots.table.get(key, hash).is_some() {
                    self.with_locked(slots, (key, hash), now, effects, KeyState::on_invalidation);
                }
            });
        } else {
            for key in self.keys() {
                self.with_key_at(&key, now, &mut effects, KeyState::on_invalidations_missed);
            }
        }
        self.report_earlier(&effects);
    }

    fn on_reconnect(
        &self,
        moved: bool,
        concerns: &dyn Fn(&str) -> bool,
        now: BootInstant,
        effects: &mut EventEffects,
    ) {
        let mut effects = Effects::new(effects);
        for key in self.keys().filter(|key| concerns(key)) {
            self.with_key_at(&key, now, &mut effects, |key_state, cx| key_state.on_reconnect(moved, cx));
        }
        self.report_earlier(&effects);
    }

    /// Renewals and verifications beyond the bound in flight are deferred.
    fn on_timeout(&self, now: BootInstant, effects: &mut EventEffects) -> BootInstant {
        let mut effects = Effects::new(effects);
        for _ in 0..MAX_KEYS_PER_TIMEOUT {
            let (due, shard) = self.shards.first_due();
            let Some(shard) = shard.filter(|_| due <= now) else { break };
            shard.change(&mut effects, |slots, effects| {
                let due = slots.table.first_due().filter(|(due, _)| *due <= now);
                let Some((_, key)) = due.cloned() else { return }; // another thread has handled it
                let hash = self.shards.of_key(&key).1;
                self.with_locked(slots, (&key, hash), now, effects, |key_state, cx| {
                    let later = self.throttle.defer_until(now);
                    if !later.is_some_and(|later| key_state.defer(now, later)) {
                        key_state.on_timeout(cx);
                    }
                });
            });
        }
        self.report_earlier(&effects);
        self.due()
    }

    fn due(&self) -> BootInstant {
        self.shards.first_due().0
    }

    fn is_in_use(&self, key: &Name) -> bool {
        let (shard, hash) = self.shards.of_key(key);
        shard.read(|slots| slots.table.get(key, hash).is_some())
    }

    #[cfg(feature = "testing")]
    fn waiting(&self, key: &Name) -> usize {
        let (shard, hash) = self.shards.of_key(key);
        shard.read(|slots| slots.table.get(key, hash).map_or(0, KeyState::waiting))
    }
}

impl Engine {
    /// Handles the reply to a renewal that no caller waits for. If a call holds the lock under its
    /// token, a failure is an event, and the reason if the hold is lost before another renewal
    /// succeeds.
    fn on_renewal_reply(
        &self,
        (key, token): (&Name, Token),
        reply: &Reply,
        (sent, now): (BootInstant, BootInstant),
        effects: &mut EventEffects,
    ) {
        let Some(failure) = RenewalFailure::of_reply(reply, sent) else {
            return self.event_limits.on_renewed();
        };
        let (reason, is_repeated) = (Arc::clone(&failure.reason), failure.is_repeated());
        let (shard, hash) = self.shards.of_key(key);
        // Without a hold, it is not repeated: it came after the release, or before the grant.
        let is_held = shard.read(|slots| {
            let is_held = slots.table.get(key, hash).is_some_and(|state| state.is_held_under(token));
            if is_held {
                slots.renewal_failures.record(key, failure);
            }
            is_held
        });
        if is_held
            && is_repeated
            && let Some(suppressed) = self.event_limits.admit_failed_renewal(&reason, now)
        {
            effects.log_failed_renewal(reason, suppressed);
        }
    }

    /// Reports to the backend that an event has made a deadline earlier.
    pub(super) fn report_earlier(&self, effects: &Effects<'_>) {
        debug_assert!(effects.orphaned.is_empty(), "only replies leave commands to clean up");
        if let Some(due) = effects.earlier {
            self.backend.due_earlier(due);
        }
    }
}

/// The number of keys that a timeout handles before other work can run: about a third of a
/// millisecond.
const MAX_KEYS_PER_TIMEOUT: usize = 1_024;
