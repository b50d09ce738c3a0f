//! [`Elections`], the terms of this process.
//!
//! The release of a term belongs to no caller: [`LocalTerm`] begins it when it is dropped, by
//! `lead` or with its future, and a task waits for the reply. `lead` and each `resign` receive the
//! outcome as [`TermState::Ended`], whichever of them is dropped meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;

use crate::engine::Engine;
use crate::engine::acquisition::SharedAcquisition;
use crate::error::{Error, LossCause, Result};
use crate::fork::{ForkDetector, InOneProcess};
use crate::guard::{FencingToken, LockGuard};
use crate::key::{LockKey, Name};
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::telemetry;

/// The elections of one manager.
#[derive(Debug, Default)]
pub(crate) struct Elections {
    named: Mutex<HashMap<Name, Arc<Election>>>,
}

/// The election of one name in this process.
#[derive(Debug)]
pub(super) struct Election {
    /// The call of `lead` that contends. With two, the release of one would hand the lock off to
    /// the other, and a process that has resigned would lead.
    candidate: tokio::sync::Mutex<()>,
    /// The term of this process. After its end, until its lock is free.
    term: watch::Sender<Option<ActiveTerm>>,
}

impl Elections {
    /// Returns the election of the lock `key`.
    pub(super) fn of(&self, key: &LockKey, now: BootInstant) -> Arc<Election> {
        let mut named = lock(&self.named);
        if let Some(election) = named.get(key.name()) {
            return Arc::clone(election);
        }
        named.retain(|_, election| Arc::strong_count(election) > 1 || election.unreleased(now).is_some());
        let (candidate, term) = (tokio::sync::Mutex::new(()), watch::Sender::new(None));
        let election = Arc::new(Election { candidate, term });
        named.insert(Name::clone(key.name()), Arc::clone(&election));
        election
    }

    /// Holds the lock of these elections, as another thread may at a `fork`.
    #[cfg(test)]
    pub(crate) fn lock_all(&self) -> impl Sized + '_ {
        lock(&self.named)
    }
}

impl Election {
    /// Waits until no other call of `lead` contends, and lets the caller contend until the returned
    /// value is dropped. Returns `None` if the manager is shut down.
    pub(super) async fn candidate(&self, engine: &Engine) -> Result<Option<InOneProcess<impl Sized>>> {
        tokio::select! {
            candidate = self.candidate.lock() => Ok(Some(InOneProcess::new(candidate))),
            () = engine.calls.closed.wait() => Ok(None),
        }
    }

    /// Registers a term of this process under `guard`, which was acquired with `lease`, so that
    /// `resign` ends it. It lasts until the returned value is dropped.
    ///
    /// It has no number until [`LocalTerm::start`], so watches are not notified before.
    pub(super) fn register(self: &Arc<Self>, guard: LockGuard, lease: Duration) -> LocalTerm {
        let Some(hold) = guard.held() else { unreachable!("the guard was made of a hold") };
        let (acquisition, engine) = (SharedAcquisition::clone(hold.acquired()), Arc::clone(&hold.engine));
        let active = ActiveTerm { acquisition, state: Arc::new(watch::Sender::new(TermState::Active)) };
        self.term.send_if_modified(|term| {
            *term = Some(active.clone());
            false
        });
        let (election, fork) = (Arc::clone(self), ForkDetector::new());
        LocalTerm { election, guard: Some(guard), engine, lease, number: OnceLock::new(), active, fork }
    }

    /// Returns the number of the term of this process if it leads at `now`.
    pub(super) fn number(&self, now: BootInstant) -> Option<FencingToken> {
        let is_valid = |term: &&ActiveTerm| term.acquisition.check_valid(now).is_ok();
        let number = self.term.borrow().as_ref().filter(is_valid)?.acquisition.fencing_token();
        number.map(FencingToken::new)
    }

    /// Returns a receiver that is notified when this process has started a term, and when it has
    /// released the lock of one.
    pub(super) fn changes(&self) -> watch::Receiver<Option<ActiveTerm>> {
        self.term.subscribe()
    }

    /// Ends the term of this process, if there is one, and waits until its lock is released.
    pub(super) async fn resign(&self, now: BootInstant) -> Result<()> {
        let Some(term) = self.unreleased(now) else { return Ok(()) };
        term.request_resignation();
        term.released().await
    }

    /// Returns the term whose lock may not be free at `now`.
    fn unreleased(&self, now: BootInstant) -> Option<ActiveTerm> {
        self.term.borrow().as_ref().filter(|term| !term.state.borrow().is_free(now)).cloned()
    }
}

/// One term of this process.
#[derive(Clone, Debug)]
pub(super) struct ActiveTerm {
    pub(super) acquisition: SharedAcquisition,
    /// Each term has its own, so that a term that has ended cannot end a newer one.
    state: Arc<watch::Sender<TermState>>,
}

/// The state of a term of this process.
#[derive(Clone, Debug)]
enum TermState {
    Active,
    /// The body is to be dropped.
    Resigning,
    /// The release has ended with this result. If the server has not confirmed that the lock is
    /// not held, it is free from this time on, when its lease has expired.
    Ended(Result<()>, BootInstant),
}

impl TermState {
    fn is_free(&self, now: BootInstant) -> bool {
        matches!(self, Self::Ended(_, free_from) if *free_from <= now)
    }
}

impl ActiveTerm {
    pub(super) fn request_resignation(&self) {
        self.state.send_if_modified(|state| {
            let is_active = matches!(state, TermState::Active);
            if is_active {
                *state = TermState::Resigning;
            }
            is_active
        });
    }

    /// Waits until the lock is released, and returns the result.
    pub(super) async fn released(&self) -> Result<()> {
        let mut states = self.state.subscribe();
        loop {
            if let TermState::Ended(released, _) = &*states.borrow_and_update() {
                return released.clone();
            }
            let _ = states.changed().await; // `self` has the sender
        }
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

/// The term that a call of `lead` has. Dropping it ends the term and releases its lock.
#[derive(Debug)]
pub(super) struct LocalTerm {
    election: Arc<Election>,
    /// `Some` until it is dropped.
    guard: Option<LockGuard>,
    engine: Arc<Engine>,
    lease: Duration,
    /// Set when its body starts.
    number: OnceLock<FencingToken>,
    active: ActiveTerm,
    fork: ForkDetector,
}

impl LocalTerm {
    pub(super) fn active(&self) -> &ActiveTerm {
        &self.active
    }

    pub(super) fn guard(&self) -> &LockGuard {
        let Some(guard) = &self.guard else { unreachable!("only the drop takes it") };
        guard
    }

    /// Records that the body of the term starts with this number.
    pub(super) fn start(&self, number: FencingToken) {
        telemetry::term_started(self.guard().key(), self.number.get_or_init(|| number).get());
        self.election.term.send_modify(|_| {}); // watches can read the number now
    }

    /// Waits until the term is to end: this process resigns, or the manager is shut down.
    pub(super) async fn resigned(&self) {
        let mut states = self.active.state.subscribe();
        tokio::select! {
            _ = states.wait_for(|state| !matches!(state, TermState::Active)) => {}
            () = self.engine.calls.closed.wait() => {}
        }
    }
}

impl Drop for LocalTerm {
    fn drop(&mut self) {
        if self.fork.is_forked() {
            return; // before any mutex: the term is that of the parent
        }
        let Some(guard) = self.guard.take() else { return };
        if let Some(number) = self.number.get() {
            telemetry::term_ended(guard.key(), number.get());
        }
        let release = TermRelease {
            election: Arc::clone(&self.election),
            term: self.active.clone(),
            key: guard.key().clone(),
            engine: Arc::clone(&self.engine),
            lease: self.lease,
            released: None,
        };
        let mut released = Box::pin(release.run(guard));
        // Polled here, so that the request is sent even if no task runs any more.
        if (&mut released).now_or_never().is_none() {
            self.engine.backend.spawn(Box::pin(InOneProcess::new(released)));
        }
    }
}

/// The release of the lock of a term. Dropping it publishes the outcome.
struct TermRelease {
    election: Arc<Election>,
    term: ActiveTerm,
    key: LockKey,
    engine: Arc<Engine>,
    lease: Duration,
    /// `None` until there is an outcome.
    released: Option<Result<()>>,
}

impl TermRelease {
    async fn run(mut self, guard: LockGuard) {
        let released = guard.release().await;
        let limits = self.engine.event_limits();
        self.released = Some(released.inspect_err(|error| telemetry::task_unavailable(error, limits)));
    }
}

impl Drop for TermRelease {
    fn drop(&mut self) {
        let unknown = || {
            let reason = "the runtime ended before the server replied to the release".into();
            Err(Error::Unavailable { key: Some(self.key.clone()), reason })
        };
        let released = self.released.take().unwrap_or_else(unknown);
        // After another loss, a renewal without a reply may have extended the lease.
        let is_free = matches!(
            released,
            Ok(()) | Err(Error::Lost { cause: LossCause::NotOwner, .. } | Error::WrongKind { .. })
        );
        let now = self.engine.now();
        // The server may have extended the lease until now, and nothing extends it later.
        let free_from = if is_free { now } else { now.plus(self.lease) };
        self.term.state.send_replace(TermState::Ended(released, free_from));
        // Another call of `lead` may have begun a term since this one was lost.
        let is_over = |term: &mut ActiveTerm| is_free && term.is(&self.term);
        self.election.term.send_if_modified(|term| term.take_if(is_over).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockManager;

    /// Acquires a lock in memory, and begins a term on it.
    fn leading() -> (LocalTerm, LockManager) {
        let locks = LockManager::in_new_memory();
        let acquiring = locks.lock("indexer").acquire().now_or_never();
        let guard = acquiring.expect("it does not wait").expect("it is free");
        let number = guard.fencing_token().now_or_never().expect("it does not wait").expect("it is held");
        let election = locks.elections().of(guard.key(), locks.engine().now());
        let leading = election.register(guard, LEASE);
        leading.start(number);
        (leading, locks)
    }

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn a_forked_process_does_not_end_the_term_of_its_parent() {
        let (leading, _locks) = leading();
        let election = Arc::clone(&leading.election);

        leading.fork.simulate_fork();
        drop(leading);

        assert!(election.term.borrow().is_some());
    }

    #[test]
    fn a_term_lasts_until_it_is_dropped() {
        let (leading, locks) = leading();
        let (election, now) = (Arc::clone(&leading.election), locks.engine().now());
        let (mut first, mut second) = (Box::pin(election.resign(now)), Box::pin(election.resign(now)));
        assert!(election.number(now).is_some() && leading.resigned().now_or_never().is_none());
        assert!(first.as_mut().now_or_never().is_none(), "it waits for the end of the term");
        assert!(second.as_mut().now_or_never().is_none());
        assert!(leading.resigned().now_or_never().is_some());

        drop(leading);

        assert!(election.number(now).is_none() && election.term.borrow().is_none());
        for resigning in [first, second] {
            assert!(matches!(resigning.now_or_never(), Some(Ok(()))));
        }
        assert!(matches!(election.resign(now).now_or_never(), Some(Ok(()))), "it does not lead");
        assert!(
            locks.lock("indexer").try_acquire().now_or_never().expect("no wait").expect("memory").is_some()
        );
    }

    /// As if the future of `lead` had been dropped, and another call had acquired the lock.
    #[test]
    fn the_late_end_of_a_lost_term_keeps_the_newer_one() {
        let (lost, locks) = leading();
        let election = Arc::clone(&lost.election);
        let freed = locks.force_release("indexer").now_or_never().expect("it does not wait");
        assert!(freed.expect("memory replies"));
        let extended = lost.guard().extend(LEASE).now_or_never().expect("it does not wait");
        assert!(extended.is_err_and(|error| error.is_lost()));
        let acquiring = locks.lock("indexer").acquire().now_or_never();
        let guard = acquiring.expect("it does not wait").expect("it is free");
        let number = guard.fencing_token().now_or_never().expect("it does not wait").expect("it is held");
        let newer = election.register(guard, LEASE);
        newer.start(number);

        drop(lost);

        assert_eq!(election.number(locks.engine().now()), Some(number));
    }

    /// The reply to a release does not arrive.
    #[test]
    fn an_unconfirmed_release_fails_resignations_until_the_lease_ends() {
        let (leading, locks) = leading();
        let election = Arc::clone(&leading.election);
        let (engine, now) = (Arc::clone(locks.engine()), locks.engine().now());
        let mut resigning = Box::pin(election.resign(now));
        assert!(resigning.as_mut().now_or_never().is_none());
        let mut leading = leading;
        let key = leading.guard().key().clone();
        let (term, guard) = (leading.active.clone(), leading.guard.take());

        drop(TermRelease {
            election: Arc::clone(&election),
            term,
            key: key.clone(),
            engine,
            lease: LEASE,
            released: None,
        });

        let is_unknown = |ended: Option<Result<()>>| matches!(ended, Some(Err(Error::Unavailable { key: Some(of), .. })) if of == key);
        assert!(is_unknown(resigning.now_or_never()));
        drop((leading, election, guard));
        let of = |name: &str| {
            let key = LockKey::named("leader", name, "").expect("a valid name");
            locks.elections().of(&key, now)
        };
        let _others = (of("a"), of("b"));
        let election = locks.elections().of(&key, now);
        assert!(is_unknown(election.resign(now.plus(LEASE / 2)).now_or_never()), "it may be held");
        assert!(
            matches!(election.resign(now.plus(LEASE * 2)).now_or_never(), Some(Ok(()))),
            "it has expired"
        );
    }

    #[test]
    fn an_election_is_kept_while_it_is_used() {
        let elections = Elections::default();
        let of = |name| {
            let key = LockKey::named("leader", name, "").expect("a valid name");
            elections.of(&key, BootInstant::START)
        };
        let used = of("used");
        drop(of("unused"));

        let _another = of("another");

        assert!(Arc::ptr_eq(&used, &of("used")), "its term would not be found");
        assert_eq!(lock(&elections.named).len(), 2, "unused ones are removed");
    }
}
