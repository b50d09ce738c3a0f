//! [`Attempt`], one attempt that runs: its lease and its steps.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backend::store_call::StoreOperation;
use crate::clock::millis;
use crate::config::config;
use crate::engine::Engine;
use crate::engine::late_start::LateStart;
use crate::engine::renewed_lease::{LeaseRenewal, RenewedLease};
use crate::engine::store_calls::CallFailure;
use crate::error::{Error, LossCause, Result};
use crate::idempotent::operation::{RecordOperation, UnreadableReply, decode, lease_reply, undo_of_begin};
use crate::key::{LockKey, Name};
use crate::manager::LockManager;
use crate::protocol::command::{Failure, FailureKind, ScriptReply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::idempotency::OnCrash;
use crate::protocol::idempotency::event::{IdempotencyEvent, IdempotencyReply};
use crate::protocol::idempotency::{LONGEST_RESULT, LONGEST_STEP_NAME, LONGEST_STEPS, MAX_STEPS, StepResult};
use crate::protocol::owner_lease::OwnerTerms;
use crate::sync::lock;
use crate::telemetry;
#[cfg(feature = "testing")]
use crate::testing::crash_point::CrashPoint;
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
    /// Returns the terms of the lease of an attempt with a record.
    ///
    /// With [`OnCrash::Fail`], no other attempt starts as long as the record exists. Otherwise one
    /// may start once the lease is over.
    fn owner_terms(&self) -> OwnerTerms {
        let validity = if self.on_crash == OnCrash::Fail { self.ttl } else { self.lease };
        OwnerTerms { lease: self.lease, validity, ends: BootInstant::NEVER }
    }
}

/// One attempt that runs.
pub(super) struct Attempt {
    pub(super) manager: LockManager,
    /// Without a record, it has no end.
    pub(super) lease: Arc<RenewedLease>,
    pub(super) token: Token,
    pub(super) number: u32,
    pub(super) terms: RecordTerms,
    /// Whether there is a record; `false` if the server was unavailable at the start.
    pub(super) is_recorded: bool,
    /// Whether its start was sent twice, and the one without a reply may take effect late.
    pub(super) may_start_late: bool,
    has_run: AtomicBool,
    /// Whether the record has given the body an error.
    has_refused: AtomicBool,
    steps: Arc<Mutex<Steps>>,
}

/// Without the manager: its `Debug` text has all locks of the process.
impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, number) = (&self.lease.key, &self.number);
        f.debug_struct("Attempt").field("key", key).field("number", number).finish_non_exhaustive()
    }
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

impl Steps {
    /// Returns whether a step may not be in the store yet. If it `is_answered`, that ends now.
    fn take_unconfirmed(&mut self, name: &str, is_answered: bool) -> bool {
        let Some(at) = self.unconfirmed.iter().position(|unconfirmed| unconfirmed == name) else {
            return false;
        };
        if is_answered {
            self.unconfirmed.remove(at);
        }
        true
    }

    /// Returns the number of steps that the record has or may get: a step that runs counts.
    fn count(&self) -> usize {
        self.done.len() + self.begun.iter().filter(|begun| !self.done.contains_key(*begun)).count()
    }
}

impl Attempt {
    /// Creates an attempt whose `begin` was sent at `sent`, and starts to renew its lease.
    pub(super) fn new(
        manager: &LockManager,
        of: (&LockKey, &Name),
        token: Token,
        terms: RecordTerms,
        sent: BootInstant,
        (number, done): (u32, BTreeMap<String, StepResult>),
    ) -> Self {
        let bytes = done.values().flatten().map(Vec::len).sum();
        let lease = RenewedLease::new(manager.engine(), of, terms.owner_terms(), token, sent);
        let renewal = IdempotencyEvent::Renew { token, lease: millis(terms.lease), ttl: millis(terms.ttl) };
        let operation = Arc::new(RecordOperation(renewal));
        lease.start_renewal(LeaseRenewal { operation, decode: lease_reply });
        Self {
            manager: manager.clone(),
            lease,
            token,
            number,
            terms,
            is_recorded: true,
            may_start_late: false,
            has_run: AtomicBool::new(false),
            has_refused: AtomicBool::new(false),
            steps: Arc::new(Mutex::new(Steps { done, bytes, ..Steps::default() })),
        }
    }

    /// Creates an attempt without a record: the server is unavailable.
    pub(super) fn without_record(manager: &LockManager, of: (&LockKey, &Name), terms: RecordTerms) -> Self {
        let engine = manager.engine();
        let endless = OwnerTerms { lease: Duration::MAX, validity: Duration::MAX, ends: BootInstant::NEVER };
        let token = engine.tokens.next();
        Self {
            manager: manager.clone(),
            lease: RenewedLease::new(engine, of, endless, token, engine.now()),
            token,
            number: 1,
            terms,
            is_recorded: false,
            may_start_late: false,
            has_run: AtomicBool::new(false),
            has_refused: AtomicBool::new(false),
            steps: Arc::default(),
        }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.lease.engine
    }

    pub(super) fn key(&self) -> &LockKey {
        &self.lease.key
    }

    /// Marks that the body has been started.
    pub(super) fn mark_run(&self) {
        self.has_run.store(true, Ordering::Release);
    }

    pub(super) fn has_run(&self) -> bool {
        self.has_run.load(Ordering::Acquire)
    }

    /// Marks that the body gets this error from its record.
    pub(super) fn refuse(&self, error: Error) -> Error {
        self.has_refused.store(true, Ordering::Release);
        error
    }

    pub(super) fn has_refused(&self) -> bool {
        self.has_refused.load(Ordering::Acquire)
    }

    /// Sends an event about the record of this attempt.
    pub(super) async fn send(&self, event: IdempotencyEvent) -> Result<IdempotencyReply, CallFailure> {
        let operation: Arc<dyn StoreOperation> = Arc::new(RecordOperation(event));
        let reply = self.engine().call(&self.lease.record, &operation).await?;
        decode(&reply).map_err(|_| CallFailure::Unknown(unexpected_reply()))
    }

    /// Ends the attempt at `point` as a crash does, if a test wants that.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the attempt has crashed.
    #[cfg(feature = "testing")]
    pub(super) async fn crash_at(&self, point: CrashPoint) -> Result<()> {
        let recorder = self.engine().backend.recorder();
        if !recorder.is_some_and(|recorder| recorder.takes_crash(&self.lease.record, &point)) {
            return Ok(());
        }
        let lost = self.lease.lose(LossCause::Expired);
        // The lease is over at once, so that the test need not wait.
        let _ = self.send(IdempotencyEvent::EndLease { token: self.token }).await;
        Err(lost)
    }

    /// Begins a step. Returns its stored result, if an earlier attempt has completed it.
    ///
    /// # Errors
    ///
    /// [`Error::ResultNotStored`] if the result was not stored; [`Error::Config`] if the name is
    /// too long or used twice, or if there are too many steps; as [`RenewedLease::check`].
    pub(super) fn begin_step(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.lease.check()?;
        let mut steps = lock(&self.steps);
        if name.is_empty() || name.len() > LONGEST_STEP_NAME {
            let problem = format!(
                "a step's name has {} bytes: write one of 1 to {LONGEST_STEP_NAME} bytes",
                name.len()
            );
            return Err(config("step", problem));
        }
        if steps.begun.contains(name) {
            let problem = format!("two steps of this body have the name `{name}`: give each its own");
            return Err(config("step", problem));
        }
        if !steps.done.contains_key(name) && steps.count() >= MAX_STEPS {
            return Err(config(
                "step",
                format!("a record has at most {MAX_STEPS} steps: combine steps, or use more than one call"),
            ));
        }
        steps.begun.insert(name.to_owned());
        match steps.done.get(name) {
            Some(Some(result)) => Ok(Some(result.clone())),
            Some(None) => Err(Error::ResultNotStored { key: self.key().clone(), step: Some(name.into()) }),
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
        if self.crash_at(CrashPoint::InStep(name.to_owned())).await.is_err() {
            return std::future::pending().await; // a process that has ended returns nothing
        }
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
            telemetry::idempotent_result_not_stored(self.key(), Some(name));
        }
        let event = self.step_event(name.to_owned(), result);
        let Ok(reply) = self.send(event.clone()).await else {
            self.send_in_order(vec![event], || {});
            return Ok(());
        };
        self.on_reply(&event, &reply);
        match reply {
            IdempotencyReply::Done => Ok(()),
            _ => Err(self.lease.lose(LossCause::NotOwner)),
        }
    }

    fn step_event(&self, name: String, result: StepResult) -> IdempotencyEvent {
        IdempotencyEvent::StoreStep { token: self.token, name, result, ttl: millis(self.terms.ttl) }
    }

    /// Returns the steps that may not be in the store yet. If the attempt ended without them, the
    /// next one would repeat them.
    pub(super) fn unconfirmed_steps(&self) -> Vec<IdempotencyEvent> {
        let steps = lock(&self.steps);
        let names = steps.unconfirmed.iter();
        names.map(|name| self.step_event(name.clone(), steps.done.get(name).cloned().flatten())).collect()
    }

    /// Drops the steps that may not be in the store yet: the result of the call replaces them.
    pub(super) fn replace_steps(&self) {
        lock(&self.steps).unconfirmed.clear();
    }

    /// Handles the reply to an event.
    pub(super) fn on_reply(&self, event: &IdempotencyEvent, reply: &IdempotencyReply) {
        on_reply(&self.steps, self.key(), event, Ok(reply));
    }

    /// Sends the end of the attempt in the background, after the steps that may not be in the store
    /// yet: an end that overtook them would let the next attempt start without them.
    pub(super) fn end_in_background(&self, end: IdempotencyEvent, on_end: impl FnOnce() + Send + 'static) {
        let mut events = self.unconfirmed_steps();
        events.push(end);
        self.send_in_order(events, on_end);
    }

    /// Sends events in the background, each after the reply to the one before. The first event that
    /// is refused, or has no reply within the time to live of the record, ends the order.
    fn send_in_order(&self, events: Vec<IdempotencyEvent>, on_end: impl FnOnce() + Send + 'static) {
        let (key, record) = (self.key().clone(), Name::clone(&self.lease.record));
        let steps = Arc::clone(&self.steps);
        let order: Vec<_> = events.into_iter().map(|event| Arc::new(RecordOperation(event))).collect();
        let operations = order.iter().map(|operation| Arc::clone(operation) as Arc<dyn StoreOperation>);
        let (operations, mut order) = (operations.collect(), order.into_iter());
        let on_reply = move |reply: Result<ScriptReply, Failure>| {
            let reply = reply.and_then(|reply| decode(&reply).map_err(|_| unexpected_reply()));
            order.next().is_some_and(|operation| {
                on_reply(&steps, &key, &operation.0, reply.as_ref().map_err(|failure| &*failure.reason));
                matches!(reply, Ok(IdempotencyReply::Done))
            })
        };
        self.engine().call_in_order(record, operations, self.terms.ttl, on_reply, on_end);
    }

    /// Returns the start that may take effect after `end`, which forgets the attempt, and is to be
    /// undone then.
    pub(super) fn late_start(&self, end: &IdempotencyEvent) -> Option<LateStart> {
        let is_undone = self.may_start_late && matches!(end, IdempotencyEvent::Forget { .. });
        let (record, ttl) = (&self.lease.record, self.terms.ttl);
        is_undone.then(|| LateStart::new(self.engine(), record, undo_of_begin(self.token, ttl), ttl))
    }

    /// Sends an event until there is a reply, at most for the time to live of the record.
    pub(super) fn send_in_background(&self, event: IdempotencyEvent) {
        let (record, operation) = (Name::clone(&self.lease.record), Arc::new(RecordOperation(event)));
        self.engine().call_in_background(record, operation, self.terms.ttl, |_| {});
    }
}

/// Handles the reply to an event, or the reason why it has none: reports a result that was not
/// stored.
///
/// A step may be sent more than once, and its first reply decides: if the later ones are refused
/// because the attempt has ended by then, nothing is lost.
fn on_reply(
    steps: &Mutex<Steps>,
    key: &LockKey,
    event: &IdempotencyEvent,
    reply: Result<&IdempotencyReply, &str>,
) {
    let is_decided = match event {
        IdempotencyEvent::StoreStep { name, .. } => !lock(steps).take_unconfirmed(name, reply.is_ok()),
        _ => false,
    };
    if !is_decided {
        report_unstored(key, event, reply);
    }
}

/// Reports a result that was not stored. Without a reply, `reply` is the reason.
fn report_unstored(key: &LockKey, event: &IdempotencyEvent, reply: Result<&IdempotencyReply, &str>) {
    let step = match event {
        IdempotencyEvent::StoreStep { name, .. } => Some(&**name),
        _ => None,
    };
    let reason = match (event, reply) {
        // An attempt that the store does not have is forgotten already, and a crash has no result.
        (_, Ok(IdempotencyReply::Done))
        | (IdempotencyEvent::Forget { .. }, Ok(_))
        | (IdempotencyEvent::EndLease { .. }, _) => return,
        (_, Ok(IdempotencyReply::NotOwner)) => "another attempt or an operator owns the record",
        (_, Ok(_)) => "the record has expired",
        (_, Err(reason)) => &format!("not confirmed: {reason}"),
    };
    telemetry::idempotent_result_lost(key, step, reason);
}

/// Returns the failure of a reply that no script gives.
pub(super) fn unexpected_reply() -> Failure {
    Failure::new(
        FailureKind::Passing,
        "the server gave an unexpected reply to a script: check that no proxy changes replies",
    )
}

/// Returns the error of a reply that cannot be read.
pub(super) fn unreadable(problem: UnreadableReply, key: LockKey) -> Error {
    match problem {
        UnreadableReply::Unexpected => unexpected_reply().into_error(key),
        UnreadableReply::NoRecord => {
            Error::WrongKind { key, found: "a hash that is not the record of an idempotent call".into() }
        }
    }
}
