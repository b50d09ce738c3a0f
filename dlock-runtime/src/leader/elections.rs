//! [`Elections`], the terms of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;

use crate::engine::Engine;
use crate::engine::acquisition::AcquisitionRef;
use crate::fork::ForkDetector;
use crate::guard::FencingToken;
use crate::key::{LockKey, Name};
use crate::sync::lock;
use crate::telemetry;

/// The elections of one manager.
#[derive(Debug, Default)]
pub(crate) struct Elections {
    named: Mutex<HashMap<Name, Weak<Election>>>,
}

/// The election of one name in this process.
#[derive(Debug)]
pub(super) struct Election {
    /// The term of this process.
    term: watch::Sender<Option<ActiveTerm>>,
}

impl Elections {
    /// Returns the election of the lock `key`.
    pub(super) fn of(&self, key: &LockKey) -> Arc<Election> {
        let mut named = lock(&self.named);
        if let Some(election) = named.get(key.name()).and_then(Weak::upgrade) {
            return election;
        }
        named.retain(|_, election| election.strong_count() > 0);
        let election = Arc::new(Election { term: watch::Sender::new(None) });
        named.insert(Name::clone(key.name()), Arc::downgrade(&election));
        election
    }

    /// Holds the lock of these elections, as another thread may at a `fork`.
    #[cfg(test)]
    pub(crate) fn lock_all(&self) -> impl Sized + '_ {
        lock(&self.named)
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
        let active = ActiveTerm { acquisition: lock.clone(), resigns: Arc::new(watch::Sender::new(false)) };
        self.term.send_replace(Some(active.clone()));
        let fork = ForkDetector::new();
        LocalTerm { election: Arc::clone(self), key: key.clone(), number, active, fork }
    }

    pub(super) fn is_leading(&self, engine: &Engine) -> bool {
        let is_valid = |term: &ActiveTerm| term.acquisition.0.check_valid(engine.now()).is_ok();
        self.term.borrow().as_ref().is_some_and(is_valid)
    }

    /// Waits until this process starts or ends a term.
    pub(super) fn changes(&self) -> watch::Receiver<Option<ActiveTerm>> {
        self.term.subscribe()
    }

    /// Ends the term of this process, if there is one, and waits for its end.
    pub(super) async fn resign(&self) {
        let mut term = self.term.subscribe();
        let active = term.borrow_and_update().clone();
        if let Some(active) = active {
            active.request_resignation();
            let _ = term.wait_for(|term| term.as_ref().is_none_or(|term| !term.is(&active))).await;
        }
    }
}

/// One term of this process.
#[derive(Clone, Debug)]
pub(super) struct ActiveTerm {
    pub(super) acquisition: AcquisitionRef,
    /// Whether the term is to end. Each term has its own, so that a term that has ended cannot end
    /// a newer one.
    resigns: Arc<watch::Sender<bool>>,
}

impl ActiveTerm {
    pub(super) fn request_resignation(&self) {
        self.resigns.send_replace(true);
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.resigns, &other.resigns)
    }
}

/// The term that a call of `lead` has. Dropping it records its end.
#[derive(Debug)]
pub(super) struct LocalTerm {
    election: Arc<Election>,
    key: LockKey,
    number: FencingToken,
    active: ActiveTerm,
    fork: ForkDetector,
}

impl LocalTerm {
    pub(super) fn active(&self) -> &ActiveTerm {
        &self.active
    }

    /// Waits until the term is to end: this process resigns, or the manager is shut down.
    pub(super) async fn resigned(&self, engine: &Engine) {
        let mut resigns = self.active.resigns.subscribe();
        tokio::select! {
            _ = resigns.wait_for(|resigns| *resigns) => {}
            () = engine.calls.closed.wait() => {}
        }
    }
}

impl Drop for LocalTerm {
    fn drop(&mut self) {
        if self.fork.is_forked() {
            return; // before any mutex: the term is that of the parent
        }
        // Another call of `lead` may have begun a term since this one was lost.
        self.election.term.send_if_modified(|term| term.take_if(|term| term.is(&self.active)).is_some());
        telemetry::term_ended(&self.key, self.number.get());
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::{LockGuard, LockManager};

    /// Acquires a lock in memory, and begins a term on it.
    fn leading() -> (LocalTerm, LockGuard) {
        let locks = LockManager::in_new_memory();
        let acquiring = locks.lock("indexer").acquire().now_or_never();
        let guard = acquiring.expect("it does not wait").expect("it is free");
        let hold = guard.held().expect("there is a hold");
        let number = guard.fencing_token().now_or_never().expect("it does not wait").expect("it is held");
        let election = locks.elections().of(guard.key());
        (election.lead(guard.key(), hold.acquired(), number), guard)
    }

    #[test]
    fn a_forked_process_does_not_end_the_term_of_its_parent() {
        let (leading, _guard) = leading();
        let election = Arc::clone(&leading.election);

        leading.fork.simulate_fork();
        drop(leading);

        assert!(election.term.borrow().is_some());
    }

    #[test]
    fn a_term_lasts_until_it_is_dropped() {
        let (leading, guard) = leading();
        let election = Arc::clone(&leading.election);
        let engine = &guard.held().expect("there is a hold").engine;
        let mut resigning = Box::pin(election.resign());
        assert!(election.is_leading(engine));
        assert!(resigning.as_mut().now_or_never().is_none(), "it waits for the end of the term");
        assert!(leading.resigned(engine).now_or_never().is_some());

        drop(leading);

        assert!(!election.is_leading(engine) && election.term.borrow().is_none());
        assert!(resigning.now_or_never().is_some());
    }

    #[test]
    fn an_election_is_kept_while_it_is_used() {
        let elections = Elections::default();
        let of = |name| elections.of(&LockKey::named("leader", name, "").expect("a valid name"));
        let used = of("used");
        drop(of("unused"));

        let _another = of("another");

        assert!(Arc::ptr_eq(&used, &of("used")), "its term would not be found");
        assert_eq!(lock(&elections.named).len(), 2, "unused ones are removed");
    }
}
