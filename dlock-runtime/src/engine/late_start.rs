//! [`LateStart`], a start of a record's run that may take effect after its end, and [`StartUndo`],
//! which undoes one whose reply is missing.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::store_call::StoreOperation;
use crate::engine::Engine;
use crate::key::Name;

/// A start that was written to a connection which was lost before the reply.
///
/// It may take effect after it was undone. No process would renew it then, so the run would count
/// as crashed.
#[derive(Debug)]
pub(crate) struct LateStart {
    engine: Weak<Engine>,
    record: Name,
    /// Gives back a run whose body has not started. It changes nothing if the start has not taken
    /// effect.
    undo: Arc<dyn StoreOperation>,
    /// How long to try.
    limit: Duration,
}

impl LateStart {
    /// Describes a start of `record` that `undo` undoes.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        record: &Name,
        undo: Arc<dyn StoreOperation>,
        limit: Duration,
    ) -> Self {
        Self { engine: Arc::downgrade(engine), record: Name::clone(record), undo, limit }
    }

    /// Undoes the start, now and later.
    pub(crate) fn undo(self) {
        let Some(engine) = self.engine.upgrade() else { return };
        let (record, operation) = (Name::clone(&self.record), Arc::clone(&self.undo));
        engine.call_in_background(record, operation, self.limit, move |_| self.undo_later());
    }

    /// Undoes the start after [`LATE_REQUEST`]. The run must have been given back by then.
    pub(crate) fn undo_later(self) {
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

/// Undoes a start whose reply is missing, if it is dropped while it is armed.
pub(crate) struct StartUndo<'a, F: Fn() -> Arc<dyn StoreOperation>> {
    engine: &'a Arc<Engine>,
    record: &'a Name,
    /// Returns what undoes the start. Few starts need it.
    undo: F,
    /// How long to try.
    limit: Duration,
    pub(crate) is_armed: bool,
}

impl<'a, F: Fn() -> Arc<dyn StoreOperation>> StartUndo<'a, F> {
    /// Returns the undo of a start of `record` that is not sent yet.
    pub(crate) fn new(engine: &'a Arc<Engine>, record: &'a Name, undo: F, limit: Duration) -> Self {
        Self { engine, record, undo, limit, is_armed: false }
    }
}

impl<F: Fn() -> Arc<dyn StoreOperation>> Drop for StartUndo<'_, F> {
    fn drop(&mut self) {
        if self.is_armed && !self.engine.is_forked() {
            LateStart::new(self.engine, self.record, (self.undo)(), self.limit).undo();
        }
    }
}

/// How late a request can take effect that was written to a lost connection.
const LATE_REQUEST: Duration = Duration::from_secs(1);
