//! [`JobCall`], one call of a tick: it begins, runs the body, and reports its end.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::store_call::StoreOperation;
use crate::clock::millis;
use crate::config::config;
use crate::engine::late_start::StartUndo;
use crate::engine::renewed_lease::{LeaseRenewal, RenewedLease};
use crate::engine::store_calls::{ActiveCall, CallFailure};
use crate::error::{Error, LossCause, Result};
use crate::guard::FencingToken;
use crate::key::{LockKey, Name};
use crate::printable::prefix;
use crate::protocol::command::{Failure, ScriptReply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::job::begin::{BeginKind, BeginReply, BeginRequest, RunGrant, SkipReason};
use crate::protocol::job::job_record::{
    FinishRequest, JobRecord, LONGEST_EARLY, OwnerReply, RunResult, WaitingSlot,
};
use crate::protocol::owner_lease::OwnerTerms;
use crate::scheduled::job_store::{JobStore, LONG_TTL, SHORTEST_TTL, read_reply, record_name, unusable};
use crate::scheduled::operation::{
    JobAnswer, JobOperation, JobRequest, RecordBefore, decode, lease_reply, undo_of_run,
};
use crate::scheduled::run_lease::RunLease;
use crate::scheduled::run_output::RunOutput;
use crate::scheduled::schedule::Schedule;
use crate::scheduled::tick::Tick;
use crate::telemetry;
use crate::token::Token;

tokio::task_local! {
    /// The record of the job whose body this task runs.
    static RUNNING: Name;
}

/// A job and a schedule that were checked.
#[derive(Clone, Debug)]
pub(super) struct JobCall {
    pub(super) store: JobStore,
    pub(super) schedule: Schedule,
    pub(super) key: LockKey,
    pub(super) record: Name,
    /// Whether the instants of the schedule are the slots. If not, the caller chooses them.
    has_instants: bool,
    lease: Duration,
    /// The schedule as text; empty without instants.
    spec: String,
}

/// The decision about a tick.
#[derive(Debug)]
pub(super) enum TickDecision {
    /// It runs here.
    Run(JobExecution),
    /// It does not run here.
    Skipped { slot: u64, reason: SkipReason, is_requested: bool },
    /// Missed slots before `slot` must run or end first.
    Missed { slot: u64 },
}

impl JobCall {
    /// Returns the call for the ticks of `schedule`.
    pub(super) fn new(store: &JobStore, schedule: &Schedule) -> Result<Self> {
        schedule.check_instants()?;
        let spec = schedule.checked()?.to_string();
        Self::of_slots(store, schedule).map(|call| Self { has_instants: true, spec, ..call })
    }

    /// Returns the call for slots that the caller chooses. `schedule` only gives the options.
    pub(super) fn of_slots(store: &JobStore, schedule: &Schedule) -> Result<Self> {
        let key = store.checked_key()?.clone();
        let (engine, record) = (store.manager.engine(), record_name(&key));
        if RUNNING.try_with(|running| *running == record).unwrap_or_default() {
            let problem = format!(
                "`{key}` calls itself, and would skip each tick, which runs already: give the annotated function to `Jobs::add_scheduled`, or `Jobs::add` the body without `#[scheduled]`"
            );
            return Err(config("job", problem));
        }
        engine.uses(key.namespace());
        schedule.checked()?;
        Ok(Self {
            record,
            spec: String::new(),
            key,
            lease: schedule.lease.unwrap_or(engine.lease),
            store: store.clone(),
            schedule: schedule.clone(),
            has_instants: false,
        })
    }

    /// Begins the current tick, or the one that an earlier call with this `waiting` has waited for.
    /// `caught_up`: missed slots from this one on must run first; if `None`, none.
    ///
    /// # Errors
    ///
    /// As [`Job::run`](crate::scheduled::Job::run).
    pub(super) async fn begin_current(
        &self,
        caught_up: Option<u64>,
        waiting: &mut Option<WaitingSlot>,
    ) -> Result<TickDecision> {
        if let Some(WaitingSlot { slot, .. }) = *waiting {
            // No other call asks for it, and newer ticks are skipped for it.
            let begun = self.try_begin(BeginKind::Slot { slot }, waiting).await?;
            return begun.ok_or_else(|| unusable(&self.key));
        }
        let engine = self.store.manager.engine();
        for _ in 0..LONGEST_CORRECTION {
            let now = self.store.manager.server_clock().now(engine);
            let Some(kind) = self.tick_at(now, caught_up)? else { break };
            if let Some(begun) = self.try_begin(kind, waiting).await? {
                return Ok(begun);
            }
            // The reply has corrected the clock.
        }
        let reason =
            "the server's clock stepped during the call, or the schedule has no tick yet: try again".into();
        Err(Error::Unavailable { key: Some(self.key.clone()), reason })
    }

    /// Records that this replica has the job, and returns the record.
    pub(super) async fn register(&self) -> Result<Box<JobRecord>> {
        let request = JobRequest::Register { spec: self.spec.clone() };
        let reply = self.store.send_with(request, self.ttl_of(BeginKind::Requested)).await?;
        let JobAnswer::Registered { record, spec_before } = reply.answer else {
            return Err(unusable(&self.key));
        };
        self.report_schedule(&spec_before);
        Ok(record)
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// Begins a given slot.
    pub(super) async fn begin(&self, kind: BeginKind) -> Result<TickDecision> {
        let begun = self.try_begin(kind, &mut None).await?;
        begun.ok_or_else(|| unusable(&self.key))
    }

    /// Returns the tick to which a call at `now` belongs, and the times between which it does.
    fn tick_at(&self, now: u64, caught_up: Option<u64>) -> Result<Option<BeginKind>> {
        let calendar = self.schedule.checked()?;
        let Some(slot) = calendar.tick_at(now) else { return Ok(None) };
        let early = |tick: u64| millis(calendar.early_of(tick));
        let from = slot - early(slot).min(slot);
        let until = calendar.next_after(slot).map_or(i64::MAX.unsigned_abs(), |next| next - early(next));
        let previous = slot.checked_sub(1).and_then(|before| calendar.last_before(before));
        let previous = previous.filter(|previous| caught_up.is_some_and(|caught_up| *previous >= caught_up));
        Ok(Some(BeginKind::Tick { slot, window: (from, until), previous }))
    }

    /// Asks the store, again while an active run must end first: then the slot is in `waiting`.
    /// Returns `None` if, by the server's clock, the call belongs to another tick.
    async fn try_begin(
        &self,
        mut kind: BeginKind,
        waiting: &mut Option<WaitingSlot>,
    ) -> Result<Option<TickDecision>> {
        let engine = self.store.manager.engine();
        let owner = engine.tokens.next();
        let ttl = self.ttl_of(kind);
        let mut undo = StartUndo::new(engine, &self.record, || undo_of_run(owner, ttl), self.lease);
        let operation_of = |kind| -> Arc<dyn StoreOperation> {
            Arc::new(JobOperation { request: JobRequest::Begin(self.request(kind, owner)), ttl })
        };
        let mut operation = operation_of(kind);
        let (mut may_start_late, mut is_reported) = (false, false);
        loop {
            if engine.is_closed() {
                return Err(Error::Shutdown { key: Some(self.key.clone()) });
            }
            let sent = engine.now();
            undo.is_armed = true;
            let (reply, is_resent) = engine.call_noting_resend(&self.record, &operation).await;
            // The first of two is written to a connection that is lost.
            may_start_late |= is_resent;
            let reply = match reply {
                Ok(reply) => read_reply(&reply, &self.key),
                Err(failure) => {
                    undo.is_armed = may_start_late || matches!(failure, CallFailure::Unknown(_));
                    return Err(failure.into_failure().into_error(self.key.clone()));
                }
            };
            // Without a fencing token, nothing has begun.
            let has_begun = !matches!(reply, Ok(_) | Err(Error::FencingCounter { .. }));
            undo.is_armed = may_start_late || has_begun;
            let reply = reply?;
            self.store.manager.server_clock().learn(engine, reply.now);
            let JobAnswer::Begin { reply: begun, before } = reply.answer else {
                return Err(unusable(&self.key));
            };
            // A call for another tick begins again, and one that waits asks again.
            if begun != BeginReply::OtherTick && !is_reported {
                self.report_differences(&before, begun, reply.now);
                is_reported = true;
            }
            return Ok(Some(match begun {
                BeginReply::OtherTick => return Ok(None),
                BeginReply::Wait { .. } => {
                    *waiting = Some(WaitingSlot { slot: slot_of(kind), asked: reply.now });
                    if let BeginKind::Tick { slot, .. } = kind {
                        // The call keeps its tick, even if it waits until the next one is due.
                        kind = BeginKind::Slot { slot };
                        operation = operation_of(kind);
                    }
                    engine.backend.sleep(WAIT_INTERVAL).await;
                    continue;
                }
                BeginReply::Missed { .. } => TickDecision::Missed { slot: slot_of(kind) },
                BeginReply::Skip(reason) => {
                    telemetry::job_skipped(&self.key, reason_text(reason));
                    TickDecision::Skipped { slot: slot_of(kind), reason, is_requested: before.is_requested }
                }
                BeginReply::Run(grant) => {
                    undo.is_armed = false;
                    TickDecision::Run(self.execution(kind, owner, grant, (sent, ttl)))
                }
            }));
        }
    }

    /// Returns how long the record lives after a request, at least: three periods from its slot on,
    /// the lease, and the `min_hold`. A slot that a caller chose may be delivered again much later.
    fn ttl_of(&self, kind: BeginKind) -> u64 {
        let slot = match kind {
            BeginKind::Requested => self.store.manager.server_clock().now(self.store.manager.engine()),
            BeginKind::Tick { .. } | BeginKind::Slot { .. } | BeginKind::Missed { .. } => slot_of(kind),
        };
        let period = self.schedule.checked().map(|calendar| calendar.period_at(slot)).unwrap_or_default();
        let shortest = if self.has_instants { SHORTEST_TTL } else { LONG_TTL };
        let longest = millis(period).saturating_mul(3).max(shortest);
        longest.max(millis(self.lease)).max(self.min_hold())
    }

    fn min_hold(&self) -> u64 {
        millis(self.schedule.min_hold)
    }

    fn request(&self, kind: BeginKind, owner: Token) -> BeginRequest {
        BeginRequest {
            kind,
            owner,
            node: self.store.manager.id(),
            spec: self.spec.clone(),
            lease: millis(self.lease),
            overlap: self.schedule.overlap,
            crashed: self.schedule.on_crash,
            retries: self.schedule.retries(),
            min_hold: self.min_hold(),
        }
    }

    /// Reports that the request before, if there was one, had another schedule.
    fn report_schedule(&self, before: &str) {
        if self.has_instants && !before.is_empty() && before != self.spec {
            telemetry::schedule_mismatched(&self.key, &self.spec, before);
        }
    }

    /// Reports that another replica asked with another schedule, or wrote with another clock.
    fn report_differences(&self, before: &RecordBefore, begun: BeginReply, now: u64) {
        self.report_schedule(&before.spec);
        let ahead = Duration::from_millis(before.decided.saturating_sub(now));
        // Callers may choose slots that are ahead, unless that keeps others from their slots.
        let is_late = matches!(begun, BeginReply::Skip(SkipReason::Late { .. }));
        if is_late && ahead > Duration::from_millis(LONGEST_EARLY) {
            telemetry::job_slot_ahead(&self.key, ahead);
        }
    }

    fn execution(
        &self,
        kind: BeginKind,
        owner: Token,
        grant: RunGrant,
        (sent, ttl): (BootInstant, u64),
    ) -> JobExecution {
        let (slot, counted) = (grant.slot, grant.counted);
        let counts_missed =
            self.has_instants && matches!(kind, BeginKind::Tick { .. } | BeginKind::Slot { .. });
        let missed = match self.schedule.checked() {
            Ok(calendar) if counts_missed => calendar.between(counted, slot, 0, MOST_MISSED).1,
            _ => 0,
        };
        let is_requested = kind == BeginKind::Requested;
        let lease = self.start_lease(owner, (sent, ttl));
        let of_run = RunLease::new(&lease, FencingToken::new(grant.fence));
        let tick = Tick { slot, attempt: grant.attempt, missed, is_requested, lease: of_run };
        let counts = counts_missed.then_some((counted, missed));
        telemetry::job_started(&self.key, slot, grant.attempt);
        if missed > 0 {
            telemetry::job_missed(&self.key, missed);
        }
        let active = self.store.manager.engine().active_call();
        JobExecution { lease, owner, ttl, tick, counts, end: RunEnd::None, _active: active }
    }

    /// Starts to renew the lease that a request sent at `sent` has begun.
    fn start_lease(&self, owner: Token, (sent, ttl): (BootInstant, u64)) -> Arc<RenewedLease> {
        let engine = self.store.manager.engine();
        let max_hold = self.schedule.max_hold;
        let ends = max_hold.map_or(BootInstant::NEVER, |max_hold| engine.now().plus(max_hold));
        let terms = OwnerTerms { lease: self.lease, validity: self.lease, ends };
        let lease = RenewedLease::new(engine, (&self.key, &self.record), terms, owner, sent);
        let request = JobRequest::Renew { owner, lease: millis(self.lease) };
        let operation = Arc::new(JobOperation { request, ttl });
        lease.start_renewal(LeaseRenewal { operation, decode: lease_reply });
        lease
    }
}

/// A run that has started.
///
/// If it is dropped before the end of its body, it is recorded as failed.
#[derive(Debug)]
pub(super) struct JobExecution {
    lease: Arc<RenewedLease>,
    owner: Token,
    ttl: u64,
    pub(super) tick: Tick,
    /// The slots that were missed before it: from where they are counted, and their number.
    counts: Option<(u64, u64)>,
    end: RunEnd,
    _active: ActiveCall,
}

/// How far the end of a run is reported.
#[derive(Debug)]
enum RunEnd {
    None,
    /// The report is on its way.
    Sending(Arc<dyn StoreOperation>),
    Reported,
}

impl JobExecution {
    /// Runs the body, and reports its end. If the lease is lost, the output is that of
    /// [`Error::Lost`].
    pub(super) async fn body<R, F>(mut self, body: F, output: &RunOutput<R>) -> R
    where
        F: AsyncFnOnce(Tick) -> R,
    {
        let body = RUNNING.scope(Name::clone(&self.lease.record), body(self.tick.clone()));
        let (result, text, value) = match self.lease.run_while_valid(body).await {
            Ok(value) => match (output.failure)(&value) {
                None => (RunResult::Succeeded, String::new(), value),
                Some(failure) => {
                    // The body may have stopped because a check told it that its lease is lost.
                    let loss = self.lease.check().err();
                    (loss.as_ref().map_or(RunResult::Failed, result_of_loss), failure, value)
                }
            },
            Err(lost) => (result_of_loss(&lost), lost.to_string(), (output.of_error)(lost)),
        };
        self.finish(result, &text).await;
        value
    }

    /// Reports the end. Without a reply, it is sent in the background.
    async fn finish(&mut self, result: RunResult, error: &str) {
        self.lease.end();
        let failure = (result != RunResult::Succeeded).then_some(error);
        telemetry::job_finished(&self.lease.key, self.tick.slot, result_text(result), failure);
        let operation = self.end_operation(result, error);
        self.end = RunEnd::Sending(Arc::clone(&operation));
        let reply = self.lease.engine.call(&self.lease.record, &operation).await;
        self.end = RunEnd::Reported;
        match reply {
            Ok(reply) => report_end(&self.lease.key, Ok(reply), false),
            Err(failure) => {
                self.send_in_background(operation, matches!(failure, CallFailure::Unknown(_)));
            }
        }
    }

    fn end_operation(&self, result: RunResult, error: &str) -> Arc<dyn StoreOperation> {
        let error = prefix(error, LONGEST_ERROR).to_owned();
        let end = FinishRequest { owner: self.owner, result, error, missed: self.counts };
        Arc::new(JobOperation { request: JobRequest::Finish(end), ttl: self.ttl })
    }

    /// Sends the end in the background. `may_be_recorded`: it was sent before.
    fn send_in_background(&self, operation: Arc<dyn StoreOperation>, may_be_recorded: bool) {
        let (record, limit) = (Name::clone(&self.lease.record), Duration::from_millis(self.ttl));
        let key = self.lease.key.clone();
        let report = move |reply| report_end(&key, reply, may_be_recorded);
        self.lease.engine.call_in_background(record, operation, limit, report);
    }
}

impl Drop for JobExecution {
    fn drop(&mut self) {
        if self.lease.engine.is_forked() {
            return;
        }
        self.lease.end();
        match std::mem::replace(&mut self.end, RunEnd::Reported) {
            RunEnd::None => {}
            RunEnd::Sending(operation) => return self.send_in_background(operation, true),
            RunEnd::Reported => return,
        }
        let problem = if std::thread::panicking() {
            "the body panicked"
        } else {
            "the call was dropped before its end"
        };
        telemetry::job_finished(
            &self.lease.key,
            self.tick.slot,
            result_text(RunResult::Failed),
            Some(problem),
        );
        let operation = self.end_operation(RunResult::Failed, problem);
        self.send_in_background(operation, false);
    }
}

/// Reports an end that was not recorded. `may_be_recorded`: an earlier request without a reply may
/// have recorded it, and another run has ended since.
fn report_end(key: &LockKey, reply: Result<ScriptReply, Failure>, may_be_recorded: bool) {
    match reply.map(|reply| decode(&reply).map(|reply| reply.answer)) {
        Ok(Some(JobAnswer::Owner(OwnerReply::Owner))) => {}
        Ok(Some(JobAnswer::Owner(_))) if may_be_recorded => {}
        Ok(Some(JobAnswer::Owner(_))) => {
            telemetry::job_end_ignored(key, "another run or an operator has replaced it");
        }
        Ok(_) => telemetry::job_end_ignored(key, "its record is invalid"),
        Err(failure) => telemetry::job_end_ignored(key, &format!("not confirmed: {}", failure.reason)),
    }
}

/// Returns how a run ended whose body was stopped by `loss`.
fn result_of_loss(loss: &Error) -> RunResult {
    match loss {
        Error::Lost { cause: LossCause::Cancelled, .. } => RunResult::Cancelled,
        Error::Lost { cause: LossCause::Expired | LossCause::NotOwner, .. } => RunResult::Lost,
        _ => RunResult::Failed,
    }
}

/// Returns the slot that a request names; 0 if it names none.
fn slot_of(kind: BeginKind) -> u64 {
    match kind {
        BeginKind::Tick { slot, .. } | BeginKind::Slot { slot, .. } | BeginKind::Missed { slot } => slot,
        BeginKind::Requested => 0,
    }
}

fn reason_text(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::Paused => "paused",
        SkipReason::Running { .. } => "running",
        SkipReason::Done => "done",
        SkipReason::Late { .. } => "late",
        SkipReason::Overlap { .. } => "overlap",
        SkipReason::NotRequested => "not requested",
        SkipReason::Ahead => "ahead",
    }
}

fn result_text(result: RunResult) -> &'static str {
    match result {
        RunResult::Succeeded => "succeeded",
        RunResult::Failed => "failed",
        RunResult::Cancelled => "cancelled",
        RunResult::Lost => "lost",
        RunResult::Unstarted => "unstarted",
    }
}

/// How often a tick that waits for the active run asks.
const WAIT_INTERVAL: Duration = Duration::from_millis(200);

/// How often a call corrects its clock: once, and again if the server's clock steps meanwhile.
const LONGEST_CORRECTION: usize = 4;

/// The largest number of missed ticks that are counted at a time.
const MOST_MISSED: u64 = 100_000;

/// The longest stored text of an error, in bytes.
const LONGEST_ERROR: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockManager;
    use crate::protocol::command::FailureKind;
    use crate::protocol::job::begin::{CrashedRun, Overlap};
    use crate::protocol::job::job_record::SlotState;
    use crate::scheduled::schedule::FailedRun;
    use crate::telemetry::tests::emitted;

    const MINUTE: u64 = 60_000;
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn call_of(schedule: &Schedule) -> JobCall {
        let manager = LockManager::in_new_memory();
        JobCall::new(&JobStore::new(&manager, "report"), schedule).expect("a valid schedule")
    }

    fn every(period: Duration) -> Schedule {
        Schedule::every(period).expect("a valid period")
    }

    /// The first request may have recorded the end, and only its reply was lost.
    #[test]
    fn an_end_that_may_be_recorded_is_not_reported_as_replaced() {
        let key = LockKey::new("job:report").expect("a key");
        let reply = |answer| Ok(ScriptReply::Array(["1", answer].map(ScriptReply::text).to_vec()));
        let lost = || Err(Failure::new(FailureKind::Passing, "no reply"));
        for (reply, may_be_recorded, is_reported) in [
            (reply("owner"), false, false),
            (reply("not_owner"), false, true),
            (reply("not_owner"), true, false),
            (reply("no_fence"), true, true),
            (lost(), true, true),
        ] {
            let events = emitted(|| report_end(&key, reply.clone(), may_be_recorded));

            assert_eq!(events.len(), usize::from(is_reported), "{reply:?} {may_be_recorded}");
        }
    }

    /// Such as one that a metric shows.
    #[tokio::test(start_paused = true)]
    async fn a_tick_that_outlives_its_run_keeps_no_manager() {
        let manager = LockManager::in_new_memory();
        let held = manager.lock("secret").acquire().await.expect("it is free");
        let ran = manager.job("report").run(&every(DAY), async |tick| Ok::<_, Error>(tick)).await;
        let tick = ran.expect("memory is there").expect("it is due");

        let shown = format!("{tick:?}");
        assert!(shown.len() < 300 && !shown.contains("secret"), "{shown}");
        let ended = tick.lease().check();
        assert!(matches!(ended, Err(Error::Lost { cause: LossCause::Released, .. })), "{ended:?}");
        assert_eq!(tick.lease().remaining(), Duration::ZERO);
        drop(held);
        let engine = Arc::downgrade(manager.engine());
        drop(manager);
        assert!(engine.upgrade().is_none());
    }

    /// It was written to a connection that was lost, and arrives after its undo.
    #[tokio::test(start_paused = true)]
    async fn a_start_that_takes_effect_after_its_undo_is_undone() {
        let call = call_of(&every(Duration::from_millis(MINUTE)));
        let engine = call.store.manager.engine();
        let (owner, kind) = (engine.tokens.next(), BeginKind::Slot { slot: MINUTE });
        let ttl = call.ttl_of(kind);
        let record = async || call.store.read().await.expect("memory is there");

        let mut undo = StartUndo::new(engine, &call.record, || undo_of_run(owner, ttl), call.lease);
        undo.is_armed = true;
        drop(undo);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(record().await.is_none());
        let request = JobRequest::Begin(call.request(kind, owner));
        let start: Arc<dyn StoreOperation> = Arc::new(JobOperation { request, ttl });
        engine.call(&call.record, &start).await.expect("memory is there");

        assert!(record().await.is_some_and(|record| record.run.is_some()));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let record = record().await.expect("a record");
        assert!(record.run.is_none() && record.state == SlotState::Unstarted, "{record:?}");
    }

    /// A call belongs to a tick from 10 s before it to 10 s before the next one.
    #[test]
    fn a_call_belongs_to_one_tick() {
        let call = call_of(&every(Duration::from_millis(MINUTE)));
        let tick_at = |now, caught_up| call.tick_at(now, caught_up).expect("a valid schedule");
        let tick = |minute: u64, previous| {
            let window = ((minute * MINUTE).saturating_sub(10_000), (minute + 1) * MINUTE - 10_000);
            Some(BeginKind::Tick { slot: minute * MINUTE, window, previous })
        };

        assert_eq!(tick_at(11 * MINUTE - 10_001, None), tick(10, None));
        assert_eq!(tick_at(11 * MINUTE - 10_000, None), tick(11, None));
        assert_eq!(tick_at(11 * MINUTE, None), tick(11, None));
        assert_eq!(tick_at(0, Some(0)), tick(0, None), "the first tick has none before it");
        // Missed slots from the second argument on run first.
        assert_eq!(tick_at(11 * MINUTE, Some(0)), tick(11, Some(10 * MINUTE)));
        assert_eq!(tick_at(11 * MINUTE, Some(10 * MINUTE)), tick(11, Some(10 * MINUTE)));
        assert_eq!(tick_at(11 * MINUTE, Some(10 * MINUTE + 1)), tick(11, None));
    }

    #[test]
    fn a_record_lives_for_three_periods_and_at_least_a_week() {
        let slot = 1_795_651_200_000; // 2026-11-26 00:00 UTC
        let monthly = Schedule::cron("0 0 1 * *").expect("valid");
        for (schedule, days) in [
            (every(Duration::from_secs(1)), 7),
            (every(2 * DAY), 7),
            (every(3 * DAY), 9),
            (monthly.clone(), 90),
            (monthly.min_hold(100 * DAY), 100),
            (every(DAY).lease(10 * DAY), 10),
        ] {
            let call = call_of(&schedule);
            for kind in [BeginKind::Missed { slot }, BeginKind::Tick { slot, window: (0, 0), previous: None }]
            {
                assert_eq!(Duration::from_millis(call.ttl_of(kind)), days * DAY, "{schedule:?}");
            }
        }
        assert_eq!(call_of(&every(3 * DAY)).ttl_of(BeginKind::Requested), millis(9 * DAY));
    }

    #[test]
    fn a_request_has_the_options_of_the_schedule() {
        let schedule = every(DAY)
            .lease(Duration::from_secs(5))
            .min_hold(Duration::from_secs(7))
            .overlap(Overlap::QueueOne)
            .on_crash(CrashedRun::Skip)
            .on_error(FailedRun::Retry(3));
        let call = call_of(&schedule);
        let owner = call.store.manager.engine().tokens.next();

        let expected = BeginRequest {
            kind: BeginKind::Requested,
            owner,
            node: call.store.manager.id(),
            spec: "every 86400000 ms".to_owned(),
            lease: 5_000,
            overlap: Overlap::QueueOne,
            crashed: CrashedRun::Skip,
            retries: 3,
            min_hold: 7_000,
        };
        assert_eq!(call.request(BeginKind::Requested, owner), expected);
        assert_eq!(call.lease(), Duration::from_secs(5));
    }

    #[test]
    fn a_run_ends_as_its_lease_was_lost() {
        let key = LockKey::new("job").expect("a valid key");
        let ended = |cause| {
            let loss =
                Error::Lost { key: key.clone(), held: Duration::ZERO, cause, completed: false, reason: None };
            result_text(result_of_loss(&loss))
        };

        assert_eq!(ended(LossCause::Cancelled), "cancelled");
        assert_eq!([LossCause::Expired, LossCause::NotOwner].map(ended), ["lost"; 2]);
        assert_eq!([LossCause::MaxHold, LossCause::Shutdown].map(ended), ["failed"; 2]);
        assert_eq!([RunResult::Succeeded, RunResult::Unstarted].map(result_text), ["succeeded", "unstarted"]);
    }

    #[test]
    fn each_reason_to_skip_has_a_text() {
        let lease_left = 1;
        for (reason, text) in [
            (SkipReason::Paused, "paused"),
            (SkipReason::Running { lease_left }, "running"),
            (SkipReason::Done, "done"),
            (SkipReason::Late { slot: 1 }, "late"),
            (SkipReason::Overlap { lease_left }, "overlap"),
            (SkipReason::NotRequested, "not requested"),
            (SkipReason::Ahead, "ahead"),
        ] {
            assert_eq!(reason_text(reason), text);
        }
    }
}
