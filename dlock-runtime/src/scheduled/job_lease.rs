//! [`JobLease`], the lease of a run, renewed while the body runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::store_call::StoreOperation;
use crate::engine::Engine;
use crate::error::{Error, LossCause, Result};
use crate::key::{LockKey, Name};
use crate::manager::LockManager;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::job::job_record::OwnerReply;
use crate::scheduled::operation::{JobAnswer, JobOperation, JobRequest, decode};
use crate::sync::lock;
use crate::token::Token;

/// The lease of one run.
#[derive(Debug)]
pub(super) struct JobLease {
    pub(super) manager: LockManager,
    pub(super) key: LockKey,
    pub(super) record: Name,
    pub(super) owner: Token,
    pub(super) ttl: u64,
    lease: Duration,
    started: BootInstant,
    /// When the lease ends, in nanoseconds of the engine's clock.
    deadline: AtomicU64,
    /// When `max_hold` has passed.
    last: Option<BootInstant>,
    loss: Mutex<Option<LossCause>>,
    lost: Notify,
    ended: Arc<Notify>,
}

impl JobLease {
    /// Creates the lease of a run whose request was sent at `sent`, and starts to renew it.
    pub(super) fn start(
        manager: &LockManager,
        (key, record): (&LockKey, &Name),
        owner: Token,
        (lease, max_hold): (Duration, Option<Duration>),
        ttl: u64,
        sent: BootInstant,
    ) -> Arc<Self> {
        let engine = manager.engine();
        let this = Arc::new(Self {
            manager: manager.clone(),
            key: key.clone(),
            record: Name::clone(record),
            owner,
            ttl,
            lease,
            started: sent,
            deadline: AtomicU64::new(Deadline::of_lease(sent, lease).at().nanos()),
            last: max_hold.map(|max_hold| engine.now().plus(max_hold)),
            loss: Mutex::default(),
            lost: Notify::new(),
            ended: Arc::default(),
        });
        let (weak, ended) = (Arc::downgrade(&this), Arc::clone(&this.ended));
        let interval = this.next_pause(lease / 3);
        engine.backend.spawn(Box::pin(renew(weak, Arc::downgrade(engine), ended, interval)));
        this
    }

    /// Checks that the body may continue.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if another process may run the job, `max_hold` has passed, or the time of a
    /// shutdown is over.
    pub(super) fn check(&self) -> Result<()> {
        let engine = self.manager.engine();
        engine.in_own_process(Some(&self.key))?;
        let now = engine.now();
        let deadline = BootInstant::from_nanos(self.deadline.load(Ordering::Acquire));
        let cause = match *lock(&self.loss) {
            Some(cause) => cause,
            None if engine.calls.is_aborted() => LossCause::Shutdown,
            None if self.last.is_some_and(|last| now >= last) => LossCause::MaxHold,
            None if now >= deadline => LossCause::Expired,
            None => return Ok(()),
        };
        let held = now.since(self.started);
        Err(Error::Lost { key: self.key.clone(), held, cause, completed: false })
    }

    /// Waits until the body must stop, and returns the error.
    pub(super) async fn lost(&self) -> Error {
        loop {
            let lost = self.lost.notified();
            if let Err(error) = self.check() {
                return error;
            }
            tokio::select! {
                () = lost => {}
                () = self.manager.engine().calls.aborted() => {}
            }
        }
    }

    /// Returns how long the body may continue unless the lease is renewed; zero if it may not.
    pub(super) fn remaining(&self) -> Duration {
        let now = self.manager.engine().now();
        let deadline = BootInstant::from_nanos(self.deadline.load(Ordering::Acquire));
        let until = self.last.map_or(deadline, |last| deadline.min(last));
        if self.check().is_ok() { until.since(now) } else { Duration::ZERO }
    }

    /// Ends the renewal, and the lease of what the body has left behind.
    pub(super) fn end(&self) {
        lock(&self.loss).get_or_insert(LossCause::Released);
        self.ended.notify_one();
    }

    /// Returns the operation of a request about this run.
    pub(super) fn operation(&self, request: JobRequest) -> Arc<dyn StoreOperation> {
        Arc::new(JobOperation { request, ttl: self.ttl })
    }

    fn mark_lost(&self, cause: LossCause) {
        lock(&self.loss).get_or_insert(cause);
        self.lost.notify_waiters();
    }

    /// Renews the lease once. Returns the pause before the next renewal; `None` at the end.
    async fn renew_once(&self) -> Option<Duration> {
        let engine = self.manager.engine();
        if self.check().is_err() {
            self.lost.notify_waiters();
            return None;
        }
        let sent = engine.now();
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let renewal = self.operation(JobRequest::Renew { owner: self.owner, lease });
        let reply = engine.call(&self.record, &renewal).await.ok();
        match reply.as_ref().and_then(decode).map(|reply| reply.answer) {
            Some(JobAnswer::Owner(OwnerReply::Owner)) => {
                let deadline = Deadline::of_lease(sent, self.lease).at().nanos();
                self.deadline.fetch_max(deadline, Ordering::AcqRel);
                Some(self.next_pause(self.lease / 3))
            }
            Some(JobAnswer::Owner(OwnerReply::Cancelled)) => {
                self.mark_lost(LossCause::Cancelled);
                None
            }
            Some(_) => {
                self.mark_lost(LossCause::NotOwner);
                None
            }
            None => Some(self.next_pause((self.lease / 12).min(LONGEST_RETRY_PAUSE))),
        }
    }

    /// Returns a pause that ends when `max_hold` has passed, at the latest.
    fn next_pause(&self, pause: Duration) -> Duration {
        let left = self.last.map_or(Duration::MAX, |last| last.since(self.manager.engine().now()));
        pause.min(left)
    }
}

/// Renews the lease of a run. Holds nothing alive while it sleeps.
async fn renew(run: Weak<JobLease>, engine: Weak<Engine>, ended: Arc<Notify>, mut pause: Duration) {
    loop {
        let Some(sleep) = engine.upgrade().map(|engine| engine.backend.sleep(pause)) else { return };
        tokio::select! {
            biased;
            () = ended.notified() => return,
            () = sleep => {}
        }
        let Some(run) = run.upgrade() else { return };
        match run.renew_once().await {
            Some(next) => pause = next,
            None => return,
        }
    }
}

/// The longest pause between renewals without a reply.
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);
