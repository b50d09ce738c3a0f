//! [`Elections`], the terms of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::engine::Engine;
use crate::engine::acquisition::AcquisitionRef;
use crate::guard::FencingToken;
use crate::key::{LockKey, Name};
use crate::sync::lock;
use crate::telemetry;

/// The elections of one manager.
#[derive(Debug)]
pub(crate) struct Elections {
    named: Mutex<HashMap<Name, Weak<Election>>>,
    is_closed: watch::Sender<bool>,
}

/// The election of one name in this process.
#[derive(Debug)]
pub(super) struct Election {
    /// The lock of the term of this process.
    term: watch::Sender<Option<AcquisitionRef>>,
    /// Whether the term is to end.
    resigns: watch::Sender<bool>,
    is_closed: watch::Receiver<bool>,
}

impl Default for Elections {
    fn default() -> Self {
        Self { named: Mutex::default(), is_closed: watch::Sender::new(false) }
    }
}

impl Elections {
    /// Returns the election of the lock `key`.
    pub(super) fn of(&self, key: &LockKey) -> Arc<Election> {
        let mut named = lock(&self.named);
        if let Some(election) = named.get(key.name()).and_then(Weak::upgrade) {
            return election;
        }
        named.retain(|_, election| election.strong_count() > 0);
        let election = Arc::new(Election {
            term: watch::Sender::new(None),
            resigns: watch::Sender::new(false),
            is_closed: self.is_closed.subscribe(),
        });
        named.insert(Name::clone(key.name()), Arc::downgrade(&election));
        election
    }

    /// Ends all terms of this process: the manager is shut down.
    pub(crate) fn close(&self) {
        self.is_closed.send_replace(true);
    }
}

impl Election {
    /// Records that this process leads, until the returned value is dropped.
    pub(super) fn lead(
        self: &Arc<Self>,
        key: &LockKey,
        lock: &AcquisitionRef,
        number: FencingToken,
    ) -> LocalTerm {
        self.resigns.send_replace(false);
        self.term.send_replace(Some(lock.clone()));
        LocalTerm { election: Arc::clone(self), key: key.clone(), number }
    }

    pub(super) fn is_leading(&self, engine: &Engine) -> bool {
        let is_valid = |term: &AcquisitionRef| term.0.check_valid(engine.now()).is_ok();
        !engine.is_forked() && self.term.borrow().as_ref().is_some_and(is_valid)
    }

    /// Waits until this process starts or ends a term.
    pub(super) fn changes(&self) -> watch::Receiver<Option<AcquisitionRef>> {
        self.term.subscribe()
    }

    pub(super) fn request_resignation(&self) {
        self.resigns.send_replace(true);
    }

    /// Ends the term of this process, if there is one, and waits for its end.
    pub(super) async fn resign(&self) {
        let mut term = self.term.subscribe();
        if term.borrow_and_update().is_some() {
            self.request_resignation();
            let _ = term.wait_for(Option::is_none).await;
        }
    }

    /// Waits until the term is to end: this process resigns, or the manager is shut down.
    pub(super) async fn resigned(&self) {
        let (mut resigns, mut is_closed) = (self.resigns.subscribe(), self.is_closed.clone());
        tokio::select! {
            _ = resigns.wait_for(|resigns| *resigns) => {}
            _ = is_closed.wait_for(|is_closed| *is_closed) => {}
        }
    }

    /// Sleeps for `time`, or until the manager is shut down.
    pub(super) async fn sleep_unless_closed(&self, engine: &Engine, time: Duration) {
        let mut is_closed = self.is_closed.clone();
        tokio::select! {
            () = engine.backend.sleep(time) => {}
            _ = is_closed.wait_for(|is_closed| *is_closed) => {}
        }
    }
}

/// The term of this process. Dropping it records its end.
#[derive(Debug)]
pub(super) struct LocalTerm {
    election: Arc<Election>,
    key: LockKey,
    number: FencingToken,
}

impl Drop for LocalTerm {
    fn drop(&mut self) {
        self.election.term.send_replace(None);
        telemetry::term_ended(&self.key, self.number.get());
    }
}
