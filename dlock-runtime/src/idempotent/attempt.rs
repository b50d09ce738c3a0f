//! [`Attempt`], one attempt that runs: its lease and its steps.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::store_call::StoreOperation;
use crate::config::config;
use crate::engine::Engine;
use crate::engine::store_calls::CallFailure;
use crate::error::{Error, LossCause, Result};
use crate::idempotent::operation::{RecordOperation, decode};
use crate::idempotent::options::OnCrash;
use crate::key::{LockKey, Name};
use crate::manager::LockManager;
use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::idempotency::event::{IdempotencyEvent, IdempotencyReply};
use crate::protocol::idempotency::{LONGEST_RESULT, LONGEST_STEP_NAME, LONGEST_STEPS, MAX_STEPS, StepResult};
use crate::sync::lock;
use crate::telemetry;
#[cfg(feature = "testing")]
use crate::testing::crash_point::CrashPoint;
use crate::timer::Timer;
use crate::token::Token;

/// The terms of a record: how long it is leased and stored, how large it is, and what a crash does.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordTerms {
    pub(super) lease: Duration,
    pub(super) ttl: Duration,
    pub(super) on_crash: OnCrash,
    /// The longest result that is stored, in bytes.
    pub(super) longest_result: usize,
}

impl RecordTerms {
    /// Returns when a body must stop whose record was extended by a request sent at `sent`.
    ///
    /// With [`OnCrash::Fail`], no other attempt starts as long as the record exists. Otherwise one
    /// may start once the lease is over.
    fn deadline(&self, sent: BootInstant) -> BootInstant {
        let term = if self.on_crash == OnCrash::Fail { self.ttl } else { self.lease };
        Deadline::of_lease(sent, term).at()
    }
}

/// One attempt that runs.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) manager: LockManager,
    pub(super) key: LockKey,
    /// The name of the record in the store.
    pub(super) record: Name,
    pub(super) token: Token,
    pub(super) number: u32,
    pub(super) terms: RecordTerms,
    /// Whether there is a record; `false` if the server was unavailable at the start.
    pub(super) is_recorded: bool,
    started: BootInstant,
    /// When the body must stop, in nanoseconds of the engine's clock.
    deadline: AtomicU64,
    loss: Mutex<Option<LossCause>>,
    lost: Notify,
    has_run: AtomicBool,
    /// Notified when the lease need not be renewed any more.
    renewal_ended: Arc<Notify>,
    steps: Mutex<Steps>,
    /// Whether a test has the attempt crash.
    #[cfg(feature = "testing")]
    has_crashed: AtomicBool,
}

/// The steps of an attempt.
#[derive(Debug, Default)]
struct Steps {
    /// Those that earlier attempts have completed.
    done: BTreeMap<String, StepResult>,
    /// Those that this attempt has begun.
    begun: HashSet<String>,
    /// Those of this attempt whose results may not be in the store yet, in their order.
    unconfirmed: Vec<String>,
    /// The bytes of all stored results.
    bytes: usize,
}

impl Attempt {
    /// Creates an attempt whose `begin` was sent at `sent`.
    pub(super) fn new(
        manager: &LockManager,
        (key, record): (&LockKey, &Name),
        token: Token,
        terms: RecordTerms,
        sent: BootInstant,
        (number, done): (u32, BTreeMap<String, StepResult>),
    ) -> Self {
        let bytes = done.values().flatten().map(Vec::len).sum();
        Self {
            manager: manager.clone(),
            key: key.clone(),
            record: Name::clone(record),
            token,
            number,
            terms,
            is_recorded: true,
            started: sent,
            deadline: AtomicU64::new(terms.deadline(sent).nanos()),
            loss: Mutex::default(),
            lost: Notify::new(),
            has_run: AtomicBool::new(false),
            renewal_ended: Arc::default(),
            steps: Mutex::new(Steps { done, bytes, ..Steps::default() }),
            #[cfg(feature = "testing")]
            has_crashed: AtomicBool::new(false),
        }
    }

    /// Returns the same attempt without a record: the server is unavailable.
    pub(super) fn without_record(self) -> Self {
        Self { is_recorded: false, ..self }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        self.manager.engine()
    }

    /// Marks that the body has been started.
    pub(super) fn mark_run(&self) {
        self.has_run.store(true, Ordering::Release);
    }

    pub(super) fn has_run(&self) -> bool {
        self.has_run.load(Ordering::Acquire)
    }

    /// Checks that the body may continue.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if another attempt may have started, the record is gone or resolved, or the
    /// time of a shutdown is over.
    pub(super) fn check(&self) -> Result<()> {
        let engine = self.engine();
        engine.in_own_process(Some(&self.key))?;
        if engine.calls.is_aborted() {
            return Err(self.lost_error(LossCause::Shutdown));
        }
        #[cfg(feature = "testing")]
        if self.has_crashed.load(Ordering::Acquire) {
            return Err(self.lost_error(LossCause::Expired));
        }
        if !self.is_recorded {
            return Ok(());
        }
        if let Some(cause) = *lock(&self.loss) {
            return Err(self.lost_error(cause));
        }
        if engine.now() < self.deadline() { Ok(()) } else { Err(self.lost_error(LossCause::Expired)) }
    }

    fn deadline(&self) -> BootInstant {
        BootInstant::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Waits until the deadline, as it is now. Without a record there is none.
    async fn wait_for_deadline(&self) {
        if !self.is_recorded {
            return std::future::pending().await;
        }
        let engine = self.engine();
        engine.backend.sleep(self.deadline().since(engine.now())).await;
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
                () = self.engine().calls.aborted() => {}
                () = self.wait_for_deadline() => {} // renewals move it
            }
        }
    }

    fn lost_error(&self, cause: LossCause) -> Error {
        let held = self.engine().now().since(self.started);
        Error::Lost { key: self.key.clone(), held, cause, completed: false }
    }

    fn mark_lost(&self, cause: LossCause) {
        *lock(&self.loss) = Some(cause);
        self.lost.notify_waiters();
    }

    /// Sends an event about the record of this attempt.
    pub(super) async fn send(&self, event: IdempotencyEvent) -> Result<IdempotencyReply, CallFailure> {
        let operation: Arc<dyn StoreOperation> = Arc::new(RecordOperation(event));
        let reply = self.engine().call(&self.record, &operation).await?;
        decode(&reply).ok_or_else(|| CallFailure::Unknown(unexpected_reply()))
    }

    /// Ends the renewal of the lease.
    pub(super) fn end_renewal(&self) {
        self.renewal_ended.notify_one();
    }

    /// Renews the lease from now on, until the renewal is ended or the attempt is dropped.
    pub(super) fn start_renewal(self: &Arc<Self>) {
        let (attempt, ended) = (Arc::downgrade(self), Arc::clone(&self.renewal_ended));
        self.engine().backend.spawn(Box::pin(renew(attempt, ended, self.terms.lease / 3)));
    }

    /// Renews the lease once. Returns the pause before the next renewal; `None` if the record is
    /// not this attempt's any more.
    async fn renew_once(&self) -> Option<Duration> {
        let RecordTerms { lease, ttl, .. } = self.terms;
        let (sent, token) = (self.engine().now(), self.token);
        let renewed = self.send(IdempotencyEvent::Renew { token, lease: millis(lease), ttl: millis(ttl) });
        match renewed.await {
            Ok(IdempotencyReply::Done) => {
                self.deadline.fetch_max(self.terms.deadline(sent).nanos(), Ordering::AcqRel);
                Some(lease / 3)
            }
            Ok(_) => {
                self.mark_lost(LossCause::NotOwner);
                None
            }
            Err(_) => {
                if self.check().is_err() {
                    self.lost.notify_waiters();
                }
                Some((lease / 12).min(LONGEST_RENEWAL_PAUSE))
            }
        }
    }

    /// Ends the attempt at `point` as a crash does, if a test wants that.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the attempt has crashed.
    #[cfg(feature = "testing")]
    pub(super) async fn crash_at(&self, point: CrashPoint) -> Result<()> {
        let recorder = self.engine().backend.recorder();
        if !recorder.is_some_and(|recorder| recorder.takes_crash(&self.record, &point)) {
            return Ok(());
        }
        self.has_crashed.store(true, Ordering::Release);
        self.lost.notify_waiters();
        // The lease is over at once, so that the test need not wait.
        let _ = self.send(IdempotencyEvent::EndLease { token: self.token }).await;
        Err(self.lost_error(LossCause::Expired))
    }

    /// Begins a step. Returns its stored result, if an earlier attempt has completed it.
    ///
    /// # Errors
    ///
    /// [`Error::ResultNotStored`] if the result was not stored; [`Error::Config`] if the name is
    /// too long or used twice, or if there are too many steps; as [`check`](Self::check).
    pub(super) fn begin_step(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.check()?;
        let mut steps = lock(&self.steps);
        if name.is_empty() || name.len() > LONGEST_STEP_NAME {
            let problem =
                format!("the name of a step has 1 to {LONGEST_STEP_NAME} bytes, not {}", name.len());
            return Err(config("step", problem));
        }
        if !steps.begun.insert(name.to_owned()) {
            let problem = format!("two steps of this body have the name `{name}`: give each its own");
            return Err(config("step", problem));
        }
        match steps.done.get(name) {
            Some(Some(result)) => Ok(Some(result.clone())),
            Some(None) => Err(Error::ResultNotStored { key: self.key.clone(), step: Some(name.into()) }),
            None if steps.done.len() >= MAX_STEPS => {
                Err(config("step", format!("a record has at most {MAX_STEPS} steps")))
            }
            None => Ok(None),
        }
    }

    /// Stores the result of a step. Without a reply, it is stored in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the record belongs to another attempt.
    pub(super) async fn store_step(&self, name: &str, result: StepResult) -> Result<()> {
        if !self.is_recorded {
            return Ok(());
        }
        #[cfg(feature = "testing")]
        self.crash_at(CrashPoint::InStep(name.to_owned())).await?;
        let result = {
            let mut steps = lock(&self.steps);
            let has_room =
                |bytes: &Vec<u8>| bytes.len() <= LONGEST_RESULT && steps.bytes + bytes.len() <= LONGEST_STEPS;
            let result = result.filter(has_room);
            steps.bytes += result.as_ref().map_or(0, Vec::len);
            steps.done.insert(name.to_owned(), result.clone());
            steps.unconfirmed.push(name.to_owned());
            result
        };
        if result.is_none() {
            telemetry::idempotent_result_not_stored(&self.key, Some(name));
        }
        let event = self.step_event(name.to_owned(), result);
        match self.send(event.clone()).await {
            Ok(IdempotencyReply::Done) => {
                lock(&self.steps).unconfirmed.retain(|unconfirmed| unconfirmed != name);
                Ok(())
            }
            Ok(_) => {
                self.mark_lost(LossCause::NotOwner);
                Err(self.lost_error(LossCause::NotOwner))
            }
            Err(_) => {
                self.send_in_background(event, |_| {});
                Ok(())
            }
        }
    }

    fn step_event(&self, name: String, result: StepResult) -> IdempotencyEvent {
        IdempotencyEvent::StoreStep { token: self.token, name, result, ttl: millis(self.terms.ttl) }
    }

    /// Returns the steps that may not be in the store yet. A record that is forgotten without them
    /// would be deleted.
    pub(super) fn unconfirmed_steps(&self) -> Vec<IdempotencyEvent> {
        let steps = lock(&self.steps);
        let names = steps.unconfirmed.iter();
        names.map(|name| self.step_event(name.clone(), steps.done.get(name).cloned().flatten())).collect()
    }

    /// Sends events in the background, each after the reply to the one before. `on_end` gets the
    /// last reply: that to the last event, or the first that is not `Done`.
    pub(super) fn send_in_order(
        &self,
        events: Vec<IdempotencyEvent>,
        on_end: impl FnOnce(Option<IdempotencyReply>) + Send + 'static,
    ) {
        let record = Name::clone(&self.record);
        send_in_order(self.engine(), record, events.into(), self.terms.ttl, Box::new(on_end));
    }

    /// Sends an event until there is a reply, which `on_end` gets; `None` if there is none within
    /// the time to live of the record.
    pub(super) fn send_in_background(
        &self,
        event: IdempotencyEvent,
        on_end: impl FnOnce(Option<IdempotencyReply>) + Send + 'static,
    ) {
        let (record, operation) = (Name::clone(&self.record), Arc::new(RecordOperation(event)));
        self.engine().call_in_background(record, operation, self.terms.ttl, |reply| {
            on_end(reply.as_ref().and_then(decode));
        });
    }
}

/// Sends `events` as [`Attempt::send_in_order`] does.
fn send_in_order(
    engine: &Arc<Engine>,
    record: Name,
    mut events: VecDeque<IdempotencyEvent>,
    limit: Duration,
    on_end: Box<dyn FnOnce(Option<IdempotencyReply>) + Send>,
) {
    let Some(event) = events.pop_front() else { return on_end(None) };
    let (weak, key) = (Arc::downgrade(engine), Name::clone(&record));
    engine.call_in_background(key, Arc::new(RecordOperation(event)), limit, move |reply| {
        let reply = reply.as_ref().and_then(decode);
        match weak.upgrade() {
            Some(engine) if !events.is_empty() && reply == Some(IdempotencyReply::Done) => {
                send_in_order(&engine, record, events, limit, on_end);
            }
            _ => on_end(reply),
        }
    });
}

/// Returns the failure of a reply that no script gives.
pub(super) fn unexpected_reply() -> Failure {
    Failure::new(FailureKind::Passing, "the server gave an unexpected reply")
}

/// Renews the lease of `attempt`. Holds nothing alive while it sleeps.
async fn renew(attempt: Weak<Attempt>, ended: Arc<Notify>, mut pause: Duration) {
    loop {
        tokio::select! {
            biased;
            () = ended.notified() => return,
            () = Timer::new(pause) => {}
        }
        let Some(attempt) = attempt.upgrade() else { return };
        match attempt.renew_once().await {
            Some(next) => pause = next,
            None => return,
        }
    }
}

/// Returns a duration in whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The longest pause between renewals without a reply.
const LONGEST_RENEWAL_PAUSE: Duration = Duration::from_secs(1);
