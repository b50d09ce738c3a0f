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
use crate::error::{Error, LossCause, Result};
use crate::key::{LockKey, Name};
use crate::protocol::command::ScriptReply;
use crate::protocol::deadline::BootInstant;
use crate::protocol::owner_lease::{LeaseReply, OwnerLease, OwnerTerms};
use crate::sync::lock;
use crate::token::Token;

/// How a lease is renewed at the server.
#[derive(Clone, Debug)]
pub(crate) struct LeaseRenewal {
    pub(crate) operation: Arc<dyn StoreOperation>,
    /// Reads the reply. Returns `None` if no script gives it.
    pub(crate) decode: fn(&ScriptReply) -> Option<LeaseReply>,
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
        let (mut body, mut lost) = (pin!(body), pin!(self.lost()));
        poll_fn(|cx| {
            // After a pause of any length, the body of a lost lease is not polled again.
            if let Err(error) = self.check() {
                return Poll::Ready(Err(error));
            }
            if let Poll::Ready(output) = body.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            lost.as_mut().poll(cx).map(Err)
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
        Error::Lost { key: self.key.clone(), held, cause, completed: false }
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
            let reply = self.engine.call(&self.record, &renewal.operation).await.ok();
            let reply = reply.as_ref().and_then(renewal.decode);
            let now = self.engine.now();
            lock(&self.owner).on_renewal_ended(reply, (sent, now));
        }
        let is_lost = self.check().is_err();
        if is_lost {
            self.lost.notify_waiters();
        }
        !is_lost
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
