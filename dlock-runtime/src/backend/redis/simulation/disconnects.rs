//! Records why clients closed connections: the reasons of the events `dlock.disconnected`.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

use crate::telemetry::set_subscriber;

thread_local! {
    static REASONS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// While it exists, the reasons of this thread are recorded.
pub(in crate::backend::redis) struct Reasons {
    _default: DefaultGuard,
    /// The guard is of this thread.
    _local: Rc<()>,
}

impl Reasons {
    pub(in crate::backend::redis) fn record() -> Self {
        REASONS.take();
        Self { _default: set_subscriber(Disconnects), _local: Rc::default() }
    }

    /// Returns the reasons so far.
    pub(in crate::backend::redis) fn taken(self) -> Vec<String> {
        drop(self);
        REASONS.take()
    }
}

struct Disconnects;

impl Subscriber for Disconnects {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.name() == "dlock.disconnected"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Reason);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Reason;

impl Visit for Reason {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "reason" {
            REASONS.with_borrow_mut(|reasons| reasons.push(value.to_owned()));
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
