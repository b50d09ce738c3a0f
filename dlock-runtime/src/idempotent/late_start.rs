//! [`LateStart`], a start that may take effect after the end of its attempt.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::store_call::StoreOperation;
use crate::clock::millis;
use crate::engine::Engine;
use crate::idempotent::operation::RecordOperation;
use crate::key::Name;
use crate::protocol::idempotency::event::IdempotencyEvent;
use crate::token::Token;

/// A start that was written to a connection which was lost before the reply.
///
/// It may take effect after the attempt was forgotten. No process would renew it then, so the call
/// would count as crashed.
#[derive(Debug)]
pub(super) struct LateStart {
    engine: Weak<Engine>,
    record: Name,
    /// Forgets an attempt whose body has not run. It changes nothing if the start has not taken
    /// effect.
    undo: Arc<dyn StoreOperation>,
    /// How long to try.
    limit: Duration,
}

impl LateStart {
    /// Describes a start under `token` of a record that lives for `ttl`.
    pub(super) fn new(engine: &Arc<Engine>, record: &Name, token: Token, ttl: Duration) -> Self {
        let event = IdempotencyEvent::Forget { token, has_run: false, ttl: millis(ttl) };
        Self {
            engine: Arc::downgrade(engine),
            record: Name::clone(record),
            undo: Arc::new(RecordOperation(event)),
            limit: ttl,
        }
    }

    /// Undoes the start, now and later.
    pub(super) fn undo(self) {
        let Some(engine) = self.engine.upgrade() else { return };
        let (record, operation) = (Name::clone(&self.record), Arc::clone(&self.undo));
        engine.call_in_background(record, operation, self.limit, move |_| self.undo_later());
    }

    /// Undoes the start after [`LATE_REQUEST`]. The attempt must have been forgotten by then.
    pub(super) fn undo_later(self) {
        let Some(engine) = self.engine.upgrade() else { return };
        let sleep = engine.backend.sleep(LATE_REQUEST);
        let active = engine.active_call();
        let backend = Arc::clone(&engine.backend);
        drop(engine);
        backend.spawn(Box::pin(async move {
            sleep.await;
            if let Some(engine) = self.engine.upgrade() {
                engine.call_in_background(self.record, self.undo, self.limit, |_| {});
            }
            drop(active);
        }));
    }
}

/// How late a request can take effect that was written to a lost connection.
const LATE_REQUEST: Duration = Duration::from_secs(1);
