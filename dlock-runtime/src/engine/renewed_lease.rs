//! [`RenewedLease`], the lease of a body that runs under a record, renewed while it runs.
//!
//! `protocol::owner_lease` decides when it is renewed and when it is lost.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
#[cfg(feature = "scheduled")]
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::store_call::StoreOperation;
use crate::engine::Engine;
use crate::engine::store_calls::CallFailure;
use crate::error::{Error, LossCause, Result};
use crate::fork::in_one_process;
use crate::key::{LockKey, Name};
use crate::protocol::command::{Failure, ScriptReply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::owner_lease::{LeaseReply, OwnerLease, OwnerTerms};
use crate::sync::lock;
use crate::telemetry;
use crate::token::Token;

/// How a lease is renewed at the server.
#[derive(Clone, Debug)]
pub(crate) struct LeaseRenewal {
    pub(crate) operation: Arc<dyn StoreOperation>,
    /// Reads the reply, or returns why the lease was not renewed.
    pub(crate) decode: fn(&ScriptReply) -> Result<LeaseReply, Failure>,
}

/// The lease of one body.
#[derive(Debug)]
pub(crate) struct RenewedLease {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: LockKey,
    /// The name of the record in the store.
    pub(crate) record: Name,
    /// When the request that began it was sent.
    started: BootInstant,
    owner: Mutex<OwnerLease>,
    /// Why the last renewal failed.
    renewal_failure: Mutex<Option<Arc<str>>>,
    lost: Notify,
    /// Notified when the lease need not be renewed any more.
    ended: Arc<Notify>,
}

impl RenewedLease {
    /// Creates the lease of `token`, which a request sent at `sent` has begun.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        (key, record): (&LockKey, &Name),
        terms: OwnerTerms,
        token: Token,
        sent: BootInstant,
    ) -> Arc<Self> {
        let owner = OwnerLease::new(terms, sent, engine.tokens.place(token.number()));
        Arc::new(Self {
            engine: Arc::clone(engine),
            key: key.clone(),
            record: Name::clone(record),
            started: sent,
            owner: Mutex::new(owner),
            renewal_failure: Mutex::default(),
            lost: Notify::new(),
            ended: Arc::default(),
        })
    }

    /// Renews the lease from now on, until it [ends](Self::end), is lost, or is dropped.
    pub(crate) fn start_renewal(self: &Arc<Self>, renewal: LeaseRenewal) {
        let (lease, ended) = (Arc::downgrade(self), Arc::clone(&self.ended));
        self.engine.backend.spawn(Box::pin(renew(lease, ended, renewal)));
    }

    /// Ends the renewal, and the lease for what the body has left behind.
    pub(crate) fn end(&self) {
        self.ended.notify_one();
        lock(&self.owner).mark_lost(LossCause::Released);
        self.lost.notify_waiters();
    }

    /// Checks that the body may continue.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if another owner may exist, `max_hold` has passed, or the time of a shutdown
    /// is over; [`Error::Unavailable`] in a forked process.
    pub(crate) fn check(&self) -> Result<()> {
        self.engine.in_own_process(Some(&self.key))?;
        // Not with the lease locked: in memory, reading the time wakes tasks.
        let now = self.engine.now();
        let loss = lock(&self.owner).loss_at(now);
        match loss {
            Some(cause) => Err(self.lost_error(cause)),
            None if self.engine.calls.aborted.is_set() => Err(self.lost_error(LossCause::Shutdown)),
            None => Ok(()),
        }
    }

    /// Returns how long the body may continue unless the lease is renewed; zero if it may not.
    #[cfg(feature = "scheduled")]
    pub(crate) fn remaining(&self) -> Duration {
        if self.check().is_err() {
            return Duration::ZERO;
        }
        let ends = lock(&self.owner).ends();
        ends.since(self.engine.now())
    }

    /// Marks the lease as lost, and returns the error.
    #[cfg(feature = "idempotent")]
    pub(crate) fn lose(&self, cause: LossCause) -> Error {
        lock(&self.owner).mark_lost(cause);
        self.lost.notify_waiters();
        self.lost_error(cause)
    }

    /// Polls `body` while the lease is valid, and drops it at a loss.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub(crate) async fn run_while_valid<B: Future>(&self, body: B) -> Result<B::Output> {
        let (mut body, mut lost) = (pin!(body), in_one_process(self.lost()));
        poll_fn(|cx| {
            // After a pause of any length, the body of a lost lease is not polled again.
            if let Err(error) = self.check() {
                return Poll::Ready(Err(error));
            }
            if let Poll::Ready(output) = body.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            Pin::new(&mut lost).poll(cx).map(Err)
        })
        .await
    }

    /// Waits until the body must stop, and returns the error.
    async fn lost(&self) -> Error {
        loop {
            let lost = self.lost.notified();
            if let Err(error) = self.check() {
                return error;
            }
            let ends = lock(&self.owner).ends(); // a renewal moves it
            tokio::select! {
                () = lost => {}
                () = self.engine.calls.aborted.wait() => {}
                () = self.sleep_until(ends) => {}
            }
        }
    }

    fn lost_error(&self, cause: LossCause) -> Error {
        let held = self.engine.now().since(self.started);
        let reason = if cause == LossCause::Expired { lock(&self.renewal_failure).clone() } else { None };
        Error::Lost { key: self.key.clone(), held, cause, completed: false, reason }
    }

    fn sleep_until(&self, at: BootInstant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        if at == BootInstant::NEVER {
            return Box::pin(std::future::pending());
        }
        self.engine.backend.sleep(at.since(self.engine.now()))
    }

    /// Renews the lease once. Returns `false` if it is lost.
    async fn renew_once(&self, renewal: &LeaseRenewal) -> bool {
        if self.check().is_ok() {
            let sent = self.engine.now();
            let reply = self.engine.call(&self.record, &renewal.operation).await;
            let reply = reply.map_err(CallFailure::into_failure).and_then(|reply| (renewal.decode)(&reply));
            let now = self.engine.now();
            let reply = self.note_renewal(reply, now);
            lock(&self.owner).on_renewal_ended(reply, (sent, now));
        }
        let is_lost = self.check().is_err();
        if is_lost {
            self.lost.notify_waiters();
        }
        !is_lost
    }

    /// Records the end, at `now`, of a renewal. A failure is an event, and the reason if the lease
    /// expires before another renewal succeeds.
    fn note_renewal(&self, reply: Result<LeaseReply, Failure>, now: BootInstant) -> Option<LeaseReply> {
        let limits = self.engine.event_limits().0;
        let reason = reply.as_ref().err().map(|failure| Arc::clone(&failure.reason));
        match &reason {
            None => limits.on_renewed(),
            // It is not repeated.
            Some(_) if lock(&self.owner).loss_at(now) == Some(LossCause::Released) => {}
            Some(reason) => {
                if let Some(suppressed) = limits.admit_failed_renewal(reason, now) {
                    telemetry::renewal_failed(reason, suppressed);
                }
            }
        }
        *lock(&self.renewal_failure) = reason;
        reply.ok()
    }
}

/// Renews a lease. Does not keep it alive while it sleeps.
async fn renew(lease: Weak<RenewedLease>, ended: Arc<Notify>, renewal: LeaseRenewal) {
    loop {
        let sleep = lease.upgrade().map(|lease| {
            let next = lock(&lease.owner).next_renewal();
            lease.sleep_until(next)
        });
        let Some(sleep) = sleep else { return };
        tokio::select! {
            biased;
            () = ended.notified() => return,
            () = sleep => {}
        }
        let Some(lease) = lease.upgrade() else { return };
        if !lease.renew_once(&renewal).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::time::{Instant, advance, sleep};

    use super::*;
    use crate::LockManager;
    use crate::backend::tests::test_operation::TestOperation;
    use crate::engine::call::unusable_reply;

    const SECOND: Duration = Duration::from_secs(1);

    const LEASE: Duration = Duration::from_secs(10);

    /// Reads the reply of the renewal of a [`Fixture`].
    fn decode(reply: &ScriptReply) -> Result<LeaseReply, Failure> {
        match reply {
            ScriptReply::Int(0) => Ok(LeaseReply::Lost(LossCause::NotOwner)),
            ScriptReply::Int(_) => Ok(LeaseReply::Renewed),
            _ => Err(unusable_reply()),
        }
    }

    /// A lease of 10 s, which began now.
    struct Fixture {
        lease: Arc<RenewedLease>,
        renewal: Arc<TestOperation>,
        count: Arc<AtomicU64>,
        started: Instant,
    }

    impl Fixture {
        /// `last`: the number of renewals before the record is lost. `ends`: its `max_hold`.
        fn new(last: u64, ends: Option<Duration>) -> Self {
            let locks = LockManager::in_new_memory();
            let (engine, key) = (locks.engine(), LockKey::new("job:7").expect("a key"));
            let now = engine.now();
            let ends = ends.map_or(BootInstant::NEVER, |ends| now.plus(ends));
            let terms = OwnerTerms { lease: LEASE, validity: LEASE, ends };
            let token = engine.tokens.next();
            let lease = RenewedLease::new(engine, (&key, key.name()), terms, token, now);
            let count = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&count);
            let renewal = TestOperation::with_effect(move |_, _| {
                ScriptReply::Int((counted.fetch_add(1, Ordering::Relaxed) < last).into())
            });
            Self { lease, renewal, count, started: Instant::now() }
        }

        /// Starts to renew it.
        fn renewed(self) -> Self {
            let operation = Arc::clone(&self.renewal) as Arc<dyn StoreOperation>;
            self.lease.start_renewal(LeaseRenewal { operation, decode });
            self
        }

        fn count(&self) -> u64 {
            self.count.load(Ordering::Relaxed)
        }

        /// Runs a body that takes `time`. Returns whether it completed or why it was stopped, and
        /// when.
        async fn run(&self, time: Duration) -> (Result<(), LossCause>, Duration) {
            let ran = self.lease.run_while_valid(sleep(time)).await;
            (ran.map_err(|error| cause(&error)), self.started.elapsed())
        }
    }

    fn cause(error: &Error) -> LossCause {
        let &Error::Lost { cause, completed: false, .. } = error else { panic!("{error:?}") };
        cause
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_lease_outlasts_its_terms() {
        let fixture = Fixture::new(u64::MAX, None).renewed();

        let ran = fixture.run(10 * LEASE).await;

        assert_eq!(ran, (Ok(()), 10 * LEASE));
        assert!((10..=100).contains(&fixture.count()), "{}", fixture.count());
        assert!(fixture.lease.check().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_without_renewal_stops_its_body_before_it_expires() {
        let fixture = Fixture::new(0, None);

        let (ran, after) = fixture.run(10 * LEASE).await;

        assert_eq!(ran, Err(LossCause::Expired));
        assert!(after <= LEASE && after > LEASE * 9 / 10, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn max_hold_ends_a_lease_that_is_renewed() {
        let fixture = Fixture::new(u64::MAX, Some(3 * LEASE)).renewed();

        let ran = fixture.run(10 * LEASE).await;

        assert!(matches!(ran, (Err(LossCause::MaxHold), after) if after.as_secs() == 30), "{ran:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_renewal_stops_the_body() {
        let fixture = Fixture::new(2, None).renewed();

        let (ran, after) = fixture.run(10 * LEASE).await;

        assert_eq!((ran, fixture.count()), (Err(LossCause::NotOwner), 3));
        assert!(after < 2 * LEASE, "{after:?}");
        sleep(10 * LEASE).await;
        assert_eq!(fixture.count(), 3, "it is not renewed any more");
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_lease_stops_what_its_body_left_behind() {
        let fixture = Fixture::new(u64::MAX, None).renewed();
        let mut left = Box::pin(fixture.run(10 * LEASE));
        assert!(left.as_mut().now_or_never().is_none());

        fixture.lease.end();

        assert_eq!(left.await, (Err(LossCause::Released), Duration::ZERO));
        sleep(10 * LEASE).await;
        assert_eq!(fixture.count(), 0, "it is not renewed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_that_is_over_stops_the_body() {
        let fixture = Fixture::new(u64::MAX, None).renewed();
        let mut body = Box::pin(fixture.run(10 * LEASE));
        assert!(body.as_mut().now_or_never().is_none());

        fixture.lease.engine.calls.aborted.set();

        assert_eq!(body.await, (Err(LossCause::Shutdown), Duration::ZERO));
    }

    /// A body that is not polled for longer than its lease must not continue.
    #[tokio::test(start_paused = true)]
    async fn a_body_is_not_polled_after_its_lease() {
        let fixture = Fixture::new(u64::MAX, None);
        let polls = AtomicU64::new(0);
        let body = poll_fn(|_| {
            polls.fetch_add(1, Ordering::Relaxed);
            Poll::<()>::Pending
        });
        let mut running = Box::pin(fixture.lease.run_while_valid(body));
        assert!(running.as_mut().now_or_never().is_none());

        advance(LEASE + SECOND).await;
        let ran = running.now_or_never().expect("it is stopped");

        let Err(Error::Lost { held, key, .. }) = &ran else { panic!("{ran:?}") };
        assert_eq!((held.as_secs(), key.as_str(), polls.into_inner()), (11, "job:7", 1));
    }

    #[cfg(feature = "scheduled")]
    #[tokio::test(start_paused = true)]
    async fn the_remaining_lease_is_zero_after_a_loss() {
        let fixture = Fixture::new(u64::MAX, None);
        let remaining = fixture.lease.remaining();
        assert!(remaining <= LEASE && remaining > LEASE * 9 / 10, "{remaining:?}");

        advance(SECOND).await;
        assert_eq!(fixture.lease.remaining() + SECOND, remaining);
        fixture.lease.end();

        assert_eq!(fixture.lease.remaining(), Duration::ZERO);
    }

    #[cfg(feature = "idempotent")]
    #[tokio::test(start_paused = true)]
    async fn a_lost_lease_keeps_its_first_cause() {
        let fixture = Fixture::new(u64::MAX, None);
        let mut body = Box::pin(fixture.run(10 * LEASE));
        assert!(body.as_mut().now_or_never().is_none());

        assert_eq!(cause(&fixture.lease.lose(LossCause::NotOwner)), LossCause::NotOwner);
        fixture.lease.end();

        assert_eq!(body.await, (Err(LossCause::NotOwner), Duration::ZERO));
    }
}
