//! Records the events of a backend, instead of the engine.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::backend::event_effects::EventEffects;
use crate::backend::{BackendEvents, Request};
use crate::key::Name;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Grant;
use crate::sync::lock;
use crate::token::Token;

/// The events so far, one line each, such as `reply order:7 Owner`.
#[derive(Debug)]
pub(crate) struct RecordedEvents {
    lines: Mutex<Vec<String>>,
    /// The replies so far, and the keys of their requests.
    pub(crate) replies: Mutex<Vec<(Name, Reply)>>,
    due: Mutex<BootInstant>,
    in_use: Mutex<BTreeSet<Name>>,
    /// Whether each event submits a request.
    submits: Mutex<bool>,
    /// How often the deadlines were checked.
    checks: AtomicUsize,
    pub(crate) more: Notify,
}

impl RecordedEvents {
    /// Creates the receiver of a backend's events. It is dropped with the returned value.
    pub(crate) fn attach(attach: impl FnOnce(Weak<dyn BackendEvents>)) -> Arc<Self> {
        let recorded = Arc::new(Self {
            lines: Mutex::default(),
            replies: Mutex::default(),
            due: Mutex::new(BootInstant::NEVER),
            in_use: Mutex::default(),
            submits: Mutex::default(),
            checks: AtomicUsize::default(),
            more: Notify::new(),
        });
        let receiver: Weak<Self> = Arc::downgrade(&recorded);
        attach(receiver);
        recorded
    }

    /// Returns the events since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.lines))
    }

    /// Returns the keys and reasons of refused requests.
    pub(crate) fn refused(&self) -> Vec<(String, String)> {
        let replies = lock(&self.replies);
        let refused = replies.iter().filter_map(|(key, reply)| match reply {
            Reply::Refused(failure) => Some((key.to_string(), failure.reason.to_string())),
            _ => None,
        });
        refused.collect()
    }

    /// Sets the next deadline.
    pub(crate) fn set_due(&self, due: BootInstant) {
        *lock(&self.due) = due;
    }

    /// Marks `key` as one that a call holds or waits for.
    pub(crate) fn set_in_use(&self, key: &str) {
        lock(&self.in_use).insert(key.into());
    }

    /// Returns how often the deadlines were checked.
    pub(crate) fn checks(&self) -> usize {
        self.checks.load(Ordering::SeqCst)
    }

    /// From now on, each event reports that it has submitted a request.
    pub(crate) fn submit_requests(&self) {
        *lock(&self.submits) = true;
    }

    fn add(&self, line: String, effects: &mut EventEffects) {
        if *lock(&self.submits) {
            effects.note_request();
        }
        lock(&self.lines).push(line);
        self.more.notify_one();
    }
}

impl BackendEvents for RecordedEvents {
    /// A command whose outcome is unknown must be cleaned up.
    fn on_reply(
        &self,
        request: Request,
        reply: Reply,
        _sent: BootInstant,
        now: BootInstant,
        effects: &mut EventEffects,
    ) -> Vec<(Name, Token)> {
        let Request { key, token, recipient, .. } = request;
        lock(&self.replies).push((key.clone(), reply.clone()));
        self.add(format!("reply {key} {reply:?}"), effects);
        let is_unknown = matches!(reply, Reply::Unknown(_));
        if let Some(recipient) = recipient {
            effects.answer(recipient, reply, now);
        }
        if is_unknown { vec![(key, token)] } else { Vec::new() }
    }

    fn on_grant(
        &self,
        key: &Name,
        _token: Token,
        grant: Grant,
        _now: BootInstant,
        effects: &mut EventEffects,
    ) {
        self.add(format!("grant {key} {:?}", grant.lease), effects);
    }

    fn on_invalidation(&self, key: Option<&Name>, _now: BootInstant, effects: &mut EventEffects) {
        self.add(format!("invalidation {}", key.map_or("*", |key| key)), effects);
    }

    fn on_reconnect(
        &self,
        moved: bool,
        concerns: &dyn Fn(&str) -> bool,
        _now: BootInstant,
        effects: &mut EventEffects,
    ) {
        let in_use = lock(&self.in_use).clone();
        let concerned: Vec<_> = in_use.iter().filter(|key| concerns(key)).collect();
        self.add(format!("reconnect moved={moved} {concerned:?}"), effects);
    }

    fn on_timeout(&self, now: BootInstant, effects: &mut EventEffects) -> BootInstant {
        self.checks.fetch_add(1, Ordering::SeqCst);
        let due = self.due();
        if due > now {
            return due;
        }
        self.set_due(BootInstant::NEVER);
        self.add(format!("timeout {:?}", due.since(BootInstant::START)), effects);
        BootInstant::NEVER
    }

    fn due(&self) -> BootInstant {
        *lock(&self.due)
    }

    fn is_in_use(&self, key: &Name) -> bool {
        lock(&self.in_use).contains(key)
    }

    #[cfg(feature = "testing")]
    fn waiting(&self, key: &Name) -> usize {
        lock(&self.in_use).contains(key).into()
    }
}
