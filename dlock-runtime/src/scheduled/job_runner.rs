//! [`JobRunner`], the runner of one job in one replica.
//!
//! Each tick has a task of its own, so that a newer tick can replace a body that still runs. The
//! task also repeats the tick after a failure or a crash of any replica.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::millis;
use crate::error::{Error, Result};
use crate::global::in_current_manager;
use crate::protocol::job::begin::{BeginKind, CrashedRun, SkipReason};
use crate::protocol::job::job_record::{JobRecord, SlotState, WaitingSlot};
use crate::scheduled::catch_up::CatchUp;
use crate::scheduled::job_call::{JobCall, JobExecution, TickDecision};
use crate::scheduled::run_output::RunOutput;
use crate::scheduled::tick::Tick;
use crate::telemetry;
use crate::timer::Timer;

/// A body, which is called once per run. Its error is a text.
pub(super) type Body =
    Box<dyn Fn(Tick) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

pub(super) struct JobRunner {
    call: JobCall,
    body: Body,
}

/// The next event of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunnerEvent {
    Tick,
    Check,
}

impl JobRunner {
    pub(super) fn new(call: JobCall, body: Body) -> Self {
        Self { call, body }
    }

    /// Runs the job until it is stopped or fails. Also returns the tasks whose bodies still run,
    /// and end when that value is dropped.
    pub(super) async fn run(self, stop: watch::Receiver<bool>) -> (Result<()>, JoinSet<Result<()>>) {
        let mut tasks = JoinSet::new();
        let result = Arc::new(self).start_tasks(&mut tasks, stop).await;
        (result, tasks)
    }

    /// Spawns a task for each tick and each check, until the job is stopped or fails.
    async fn start_tasks(
        self: Arc<Self>,
        tasks: &mut JoinSet<Result<()>>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<()> {
        let engine = self.call.store.manager.engine();
        let started = engine.now();
        let Some(record) = self.register(&stop).await? else { return Ok(()) };
        // When it started, by the server's clock, which is known only now.
        let began = self.now().saturating_sub(millis(engine.now().since(started)));
        let delayed = self.delayed_tick(began, &record);
        // Later ticks run the ones that are missed before them.
        let before = delayed.unwrap_or(self.now() + 1);
        tasks.spawn(in_current_manager(Arc::clone(&self).on_start(record, before, stop.clone())));
        let mut last_tick = delayed.map_or(began, |tick| tick - 1);
        let mut next_check = self.now() + self.check_interval();
        loop {
            // The clock may have been corrected to long before them.
            last_tick = self.not_ahead(last_tick);
            next_check = next_check.min(self.now() + self.check_interval());
            let (event, at, tick) = match self.next_tick(last_tick) {
                Some((tick, at)) if at <= next_check => (RunnerEvent::Tick, at, tick),
                _ => (RunnerEvent::Check, next_check, last_tick),
            };
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                Some(ended) = tasks.join_next() => {
                    ended.unwrap_or(Ok(()))?;
                    continue; // it may have corrected the clock
                }
                () = self.sleep_towards(at) => {
                    if self.now() < at {
                        continue;
                    }
                }
            }
            if self.call.store.manager.engine().is_closed() {
                return Err(Error::Shutdown { key: Some(self.call.key.clone()) });
            }
            if event == RunnerEvent::Tick {
                // Ticks that passed while this process was frozen are not asked for one by one.
                last_tick = tick.max(self.last_tick_before_now());
                tasks.spawn(in_current_manager(Arc::clone(&self).on_tick(last_tick, stop.clone())));
            } else {
                tasks.spawn(in_current_manager(Arc::clone(&self).on_check(stop.clone())));
                // Ticks do not delay checks, which carry out requests and repeat runs.
                next_check = self.now() + self.check_interval();
            }
        }
    }

    /// Returns `last_tick`, or now if the clock was corrected to long before that tick.
    fn not_ahead(&self, last_tick: u64) -> u64 {
        let now = self.now();
        let early = self.call.schedule.checked().map(|calendar| calendar.early_of(last_tick));
        if last_tick > now + millis(early.unwrap_or_default()) { now } else { last_tick }
    }

    fn last_tick_before_now(&self) -> u64 {
        let calendar = self.call.schedule.checked();
        calendar.ok().and_then(|calendar| calendar.last_before(self.now())).unwrap_or_default()
    }

    /// Returns the last tick before `time` if its delay by `spread` has not passed, so it is not
    /// missed yet. A tick from before the job was first seen with its schedule does not run.
    fn delayed_tick(&self, time: u64, record: &JobRecord) -> Option<u64> {
        let last = self.call.schedule.checked().ok()?.last_before(time)?;
        let (tick, at) = self.next_tick(last.checked_sub(1)?)?;
        (at > time && Some(tick) > record.known).then_some(tick)
    }

    /// Returns the first tick after `last`, and when this runner asks for it.
    fn next_tick(&self, last: u64) -> Option<(u64, u64)> {
        let calendar = self.call.schedule.checked().ok()?;
        let tick = calendar.next_after(last)?;
        let period = calendar.period_at(tick);
        // Later requests may arrive within the early time of the next tick, and belong to that one.
        let belongs = period.saturating_sub(calendar.early_of(tick + millis(period)));
        let longest = belongs.saturating_sub((period / 10).min(LONGEST_MARGIN)).min(period / 2);
        Some((tick, tick + self.delay_of(tick, longest)))
    }

    /// Returns the delay of a tick by `spread`, which is the same in all replicas, and at most
    /// `longest`.
    fn delay_of(&self, tick: u64, longest: Duration) -> u64 {
        let spread = millis(self.call.schedule.spread.min(longest));
        let seed = self.call.key.as_str().bytes().fold(tick, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
        });
        if spread == 0 { 0 } else { (seed ^ (seed >> 32)) % spread }
    }

    fn now(&self) -> u64 {
        let manager = &self.call.store.manager;
        manager.server_clock().now(manager.engine())
    }

    fn reruns(&self) -> bool {
        self.call.schedule.on_crash == CrashedRun::Rerun
    }

    fn check_interval(&self) -> u64 {
        millis(self.call.lease())
    }

    /// Sleeps until `at`, and at most for [`LONGEST_SLEEP`]: a timer does not count the time that
    /// the machine is suspended, and a reply about another job may correct the clock.
    async fn sleep_towards(&self, at: u64) {
        let left = Duration::from_millis(at.saturating_sub(self.now()));
        Timer::new(left.min(LONGEST_SLEEP)).await;
    }

    /// Registers the job, and returns its record. Tries again while the server is unavailable.
    /// Returns `None` if the runner is stopped.
    async fn register(&self, stop: &watch::Receiver<bool>) -> Result<Option<Box<JobRecord>>> {
        while let Some(registered) = unless_stopped(stop, self.call.register()).await {
            if let Some(record) = self.passing(registered)? {
                return Ok(Some(record));
            }
            self.pause(Duration::from_millis(RETRY_MILLIS), stop).await;
        }
        Ok(None)
    }

    /// Runs what is left from before the start: ticks that are missed before the time `before`, a
    /// tick that failed or crashed, and a requested run.
    async fn on_start(
        self: Arc<Self>,
        record: Box<JobRecord>,
        before: u64,
        stop: watch::Receiver<bool>,
    ) -> Result<()> {
        if self.missed(&record, before)?.is_empty() {
            return self.check(record, &stop).await;
        }
        while let Some(pause) = self.catch_up(before, &stop).await? {
            self.pause(Duration::from_millis(pause), &stop).await;
            if *stop.borrow() {
                return Ok(());
            }
        }
        self.on_check(stop).await
    }

    /// Runs a requested run, and a tick whose process crashed.
    async fn on_check(self: Arc<Self>, stop: watch::Receiver<bool>) -> Result<()> {
        let record = self.passing(self.call.store.read().await)?;
        match record.flatten() {
            Some(record) => self.check(record, &stop).await,
            None => Ok(()),
        }
    }

    /// Runs a requested run, and a tick whose process crashed. If the lease of a run ends before
    /// the next check, checks again then.
    async fn check(&self, mut record: Box<JobRecord>, stop: &watch::Receiver<bool>) -> Result<()> {
        let next_check = self.now() + self.check_interval();
        while let Some(lease_end) = record.lease_end().filter(|end| (self.now()..next_check).contains(end)) {
            self.pause(Duration::from_millis(lease_end + 1 - self.now().min(lease_end)), stop).await;
            if *stop.borrow() {
                return Ok(());
            }
            match self.passing(self.call.store.read().await)?.flatten() {
                Some(read) => record = read,
                None => return Ok(()),
            }
        }
        self.repeat(&record, stop).await?;
        self.run_requested(record.request.is_some(), stop).await
    }

    /// Runs the current tick, unless another replica does. `tick` is the one that was due: each
    /// reply corrects the clock, which may now be some milliseconds before it.
    async fn on_tick(self: Arc<Self>, tick: u64, stop: watch::Receiver<bool>) -> Result<()> {
        let last = self.next_tick(tick).map_or(u64::MAX, |(_, at)| at);
        // Missed ticks up to here have run, or do not run.
        let mut caught_up = (self.call.schedule.catch_up != CatchUp::None).then_some(0);
        let (mut waiting, mut is_unanswered) = (None, false);
        loop {
            let mut pause = RETRY_MILLIS;
            let begun = self.call.begin_current(caught_up, &mut waiting);
            let Some(begun) = unless_stopped(&stop, begun).await else { break };
            match self.passing(begun)? {
                Some(TickDecision::Missed { slot }) => {
                    let Some(left) = self.catch_up(slot, &stop).await? else {
                        caught_up = Some(slot);
                        continue;
                    };
                    pause = left;
                }
                Some(begun) => return self.follow(begun, is_unanswered, &stop).await,
                None => is_unanswered = true,
            }
            // The server is unavailable, or another replica runs missed ticks.
            let retry = self.now() + pause;
            // Until then, a tick that waits keeps its place, and newer ones are skipped for it.
            let is_waiting = waiting.is_some_and(|waiting: WaitingSlot| waiting.is_live(retry));
            if retry >= last && !is_waiting {
                break;
            }
            self.pause(Duration::from_millis(pause), &stop).await;
        }
        Ok(())
    }

    /// Runs the last tick again if it failed or crashed, and then the ticks that are missed before
    /// the time `before`. Returns after how many milliseconds to try again: another replica, which
    /// may crash, is running one, or the server is unavailable. Returns `None` if none is left.
    async fn catch_up(&self, before: u64, stop: &watch::Receiver<bool>) -> Result<Option<u64>> {
        let Some(record) = self.passing(self.call.store.read().await)? else {
            return Ok(Some(RETRY_MILLIS));
        };
        let Some(record) = record else { return Ok(None) };
        let lease_left = record.lease_end().map_or(0, |end| end.saturating_sub(self.now()));
        if lease_left > 0 {
            return Ok(Some(RETRY_MILLIS.min(lease_left + 1)));
        }
        if let Some(kind) = self.repetition(&record)?
            && !self.run_slot(kind, stop).await?
        {
            return Ok(Some(RETRY_MILLIS));
        }
        for slot in self.missed(&record, before)? {
            if !self.run_slot(BeginKind::Missed { slot }, stop).await? {
                return Ok(Some(RETRY_MILLIS));
            }
        }
        Ok(None)
    }

    /// Returns the slots before the time `before` that are missed and run, in order.
    fn missed(&self, record: &JobRecord, before: u64) -> Result<Vec<u64>> {
        let calendar = self.call.schedule.checked()?;
        let since = record.caught_up(self.call.schedule.retries(), self.reruns());
        Ok(self.call.schedule.catch_up.slots(calendar, since, before, self.now()))
    }

    /// Runs a slot before newer ones, and again while it may be repeated. Returns `false` if it
    /// must be asked for again: another replica is running a slot, or the server is unavailable.
    async fn run_slot(&self, kind: BeginKind, stop: &watch::Receiver<bool>) -> Result<bool> {
        let retries = self.call.schedule.retries();
        let reruns = self.reruns();
        loop {
            let begun = unless_stopped(stop, self.call.begin(kind)).await;
            let Some(begun) = begun else { return Ok(false) };
            let attempt = match self.passing(begun)? {
                Some(TickDecision::Run(execution)) => {
                    let attempt = execution.tick.attempt();
                    if self.run_body(execution).await.is_ok() {
                        return Ok(true);
                    }
                    attempt
                }
                Some(TickDecision::Skipped { reason: SkipReason::Running { .. }, .. }) | None => {
                    return Ok(false);
                }
                Some(_) => return Ok(true),
            };
            if attempt <= retries {
                self.pause(Duration::from_millis(RETRY_MILLIS), stop).await;
            } else if !reruns || attempt > 1 {
                return Ok(true);
            } // else its lease may be lost: the record says whether it runs again
        }
    }

    /// Runs the last tick again if it has failed or its lease is over, and this runner may.
    async fn repeat(&self, record: &JobRecord, stop: &watch::Receiver<bool>) -> Result<()> {
        let Some(kind) = self.repetition(record)? else { return Ok(()) };
        let begun = unless_stopped(stop, self.call.begin(kind)).await;
        match begun.map(|begun| self.passing(begun)).transpose()?.flatten() {
            Some(begun) => self.follow(begun, false, stop).await,
            None => Ok(()),
        }
    }

    /// Returns the request to run the last tick again; `None` if this runner may not.
    fn repetition(&self, record: &JobRecord) -> Result<Option<BeginKind>> {
        let retries = self.call.schedule.retries();
        let reruns = self.reruns();
        if !record.may_run_again(self.now(), retries, reruns) {
            return Ok(None);
        }
        // A missed slot that was given back is one again.
        let current = self.call.schedule.checked()?.tick_at(self.now());
        let is_missed = record.state == SlotState::Unstarted && current > Some(record.slot);
        let slot = record.slot;
        Ok(Some(if is_missed { BeginKind::Missed { slot } } else { again(slot) }))
    }

    async fn run_requested(&self, is_requested: bool, stop: &watch::Receiver<bool>) -> Result<()> {
        if !is_requested {
            return Ok(());
        }
        let begun = unless_stopped(stop, self.call.begin(BeginKind::Requested)).await;
        let begun = begun.map(|begun| self.passing(begun)).transpose()?.flatten();
        if let Some(TickDecision::Run(execution)) = begun {
            let _ = self.run_body(execution).await;
        }
        Ok(())
    }

    /// Runs a tick, and again while it may be repeated. If another replica runs it, checks that
    /// replica once per lease. `is_unanswered`: the request before `begun` had no reply, so the
    /// active run may be its own, which is given back.
    async fn follow(
        &self,
        mut begun: TickDecision,
        mut is_unanswered: bool,
        stop: &watch::Receiver<bool>,
    ) -> Result<()> {
        let retries = self.call.schedule.retries();
        let reruns = self.reruns();
        loop {
            let (slot, mut pause) = match begun {
                TickDecision::Run(execution) => {
                    let tick = execution.tick.clone();
                    match self.run_body(execution).await {
                        Err(_) if tick.attempt() <= retries => (tick.slot(), RETRY_MILLIS),
                        _ => return Ok(()),
                    }
                }
                TickDecision::Skipped { slot, reason: SkipReason::Running { lease_left }, .. }
                    if slot > 0 && (reruns || retries > 0 || is_unanswered) =>
                {
                    (slot, if is_unanswered { UNDO_MILLIS.min(lease_left + 1) } else { lease_left + 1 })
                }
                TickDecision::Skipped { is_requested, .. } => {
                    return self.run_requested(is_requested, stop).await;
                }
                TickDecision::Missed { .. } => return Ok(()),
            };
            is_unanswered = false;
            begun = loop {
                self.pause(Duration::from_millis(pause), stop).await;
                let next = unless_stopped(stop, self.call.begin(again(slot))).await;
                let Some(next) = next else { return Ok(()) };
                if let Some(begun) = self.passing(next)? {
                    break begun;
                }
                (is_unanswered, pause) = (true, RETRY_MILLIS);
            };
        }
    }

    /// Runs the body of one run. A panic is a failure.
    async fn run_body(&self, execution: JobExecution) -> Result<(), String> {
        let body = async |tick: Tick| {
            let mut body = match catch_unwind(AssertUnwindSafe(|| (self.body)(tick))) {
                Ok(body) => body,
                Err(panic) => return Err(panic_text(&*panic)),
            };
            poll_fn(|cx| {
                let polled = catch_unwind(AssertUnwindSafe(|| body.as_mut().poll(cx)));
                polled.unwrap_or_else(|panic| Poll::Ready(Err(panic_text(&*panic))))
            })
            .await
        };
        let output = RunOutput {
            failure: |output: &Result<_, String>| output.as_ref().err().cloned(),
            of_error: |error| Err(error.to_string()),
        };
        execution.body(body, &output).await
    }

    /// Returns `None` for a failure that may pass, which is an event: the runner tries again, and
    /// returns no error.
    fn passing<T>(&self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ Error::Unavailable { .. }) => {
                telemetry::task_unavailable(&error, self.call.store.manager.engine().event_limits());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sleeps, or returns when the runner is stopped.
    async fn pause(&self, time: Duration, stop: &watch::Receiver<bool>) {
        let _ = unless_stopped(stop, Timer::new(time)).await;
    }
}

/// Waits for a future, or drops it and returns `None` when the runner is stopped. A run that a
/// dropped request begins is given back.
async fn unless_stopped<F: Future>(stop: &watch::Receiver<bool>, future: F) -> Option<F::Output> {
    let mut stop = stop.clone();
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => None,
        value = future => Some(value),
    }
}

/// Returns the request to run a slot again, at any time.
fn again(slot: u64) -> BeginKind {
    BeginKind::Slot { slot }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the body panicked: {}", text.unwrap_or("no message"))
}

/// The pause after a failure, in milliseconds.
const RETRY_MILLIS: u64 = 1_000;

/// The longest sleep of a runner before it reads the clock again. A tick is late by at most this
/// after a suspend. One wake-up per job in this time costs some microseconds.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// How long a runner waits for the run of a request without a reply to be given back, in
/// milliseconds. That happens 1 s after the request, and once more after the first retry.
const UNDO_MILLIS: u64 = 2_000;

/// How long before the early time of the next tick a delayed tick starts: a tenth of its period,
/// and at most this.
const LONGEST_MARGIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockManager;
    use crate::scheduled::job_store::JobStore;
    use crate::scheduled::schedule::Schedule;
    use crate::scheduled::tests::late_requests::{Fixture, Loss};
    use crate::scheduled::tick::to_millis;

    const MINUTE: u64 = 60_000;
    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the runner of `schedule`, at the server's time `now`.
    fn runner_at(schedule: &Schedule, now: u64) -> JobRunner {
        let manager = LockManager::in_new_memory();
        manager.server_clock().learn(manager.engine(), now);
        let call = JobCall::new(&JobStore::new(&manager, "report"), schedule).expect("a valid schedule");
        JobRunner::new(call, Box::new(|_| Box::pin(async { Ok(()) })))
    }

    /// Returns a runner of `manager`, whose body sleeps for `time`.
    fn runner_of(manager: &LockManager, schedule: &Schedule, time: Duration) -> Arc<JobRunner> {
        let call = JobCall::new(&JobStore::new(manager, "report"), schedule).expect("a valid schedule");
        let body: Body = Box::new(move |_| {
            Box::pin(async move {
                Timer::new(time).await;
                Ok(())
            })
        });
        Arc::new(JobRunner::new(call, body))
    }

    fn minutely() -> Schedule {
        Schedule::every(Duration::from_millis(MINUTE)).expect("a valid period")
    }

    /// A tick may be asked for up to 10 s early, by the server's clock.
    #[tokio::test(start_paused = true)]
    async fn ticks_are_counted_from_now_after_the_clock_stepped_back() {
        let last = 11 * MINUTE;
        for (now, expected) in [
            (last - MINUTE, last - MINUTE),
            (last - 10_001, last - 10_001),
            (last - 10_000, last),
            (last, last),
            (last + 5_000, last),
            (last + 10 * MINUTE, last),
        ] {
            assert_eq!(runner_at(&minutely(), now).not_ahead(last), expected, "at {now}");
        }
    }

    /// When the tick was due, a reply about another job corrected the clock to 5 ms before it. The
    /// first request gets no reply, or another replica runs a missed tick.
    #[tokio::test(start_paused = true)]
    async fn a_tick_is_asked_for_each_second_after_a_correction() {
        let (_stop, is_stopped) = watch::channel(false);
        let catching_up = minutely().catch_up(CatchUp::Latest);
        for (schedule, missed) in [(minutely(), 0), (catching_up, 1)] {
            let fixture = Fixture::new();
            let first = fixture.until_before(Duration::from_millis(MINUTE), Duration::from_millis(5)).await;
            let ran = fixture.other.job("report").run(&schedule, async |_| Ok::<_, Error>(())).await;
            assert!(ran.is_ok_and(|ran| ran.is_some()));
            let tick = first + (1 + missed) * MINUTE;
            tokio::time::sleep(Duration::from_millis(tick - first)).await;
            let other = runner_of(&fixture.other, &schedule, 3 * SECOND);
            if missed == 0 {
                fixture.backend.lose(&[Some(Loss::Never); 2]);
            }

            let runner = runner_of(&fixture.manager, &schedule, Duration::ZERO);
            let (caught_up, ended) = tokio::join!(
                other.catch_up(tick, &is_stopped),
                Arc::clone(&runner).on_tick(tick, is_stopped.clone())
            );

            assert!(matches!(caught_up, Ok(None)) && ended.is_ok());
            assert!(runner.now() < tick + 5_000, "{missed} missed");
            let slots: Vec<_> = fixture.runs().await.iter().map(|run| to_millis(run.slot)).collect();
            let expected: Vec<_> = (0..=1 + missed).map(|minute| Some(first + minute * MINUTE)).collect();
            assert_eq!(slots, expected);
        }
    }

    /// As after a suspend of the machine, or a step of the server's clock, before the tick.
    #[tokio::test(start_paused = true)]
    async fn a_tick_that_passed_in_a_sleep_starts_within_ten_seconds() {
        let (fixture, hour) = (Fixture::new(), 60 * MINUTE);
        let hourly = Schedule::every(Duration::from_millis(hour)).expect("valid").lease(6 * 3_600 * SECOND);
        let tick = fixture.until_before(Duration::from_millis(hour), 1_800 * SECOND).await;
        let runner = runner_of(&fixture.manager, &hourly, Duration::ZERO);
        let runner = Arc::into_inner(runner).expect("it is the only one");
        let (stop, is_stopped) = watch::channel(false);
        let running = tokio::spawn(runner.run(is_stopped));
        tokio::time::sleep(60 * SECOND).await;
        assert!(fixture.runs().await.is_empty());

        let manager = &fixture.manager;
        manager.server_clock().learn(manager.engine(), tick + 7 * hour);
        tokio::time::sleep(10 * SECOND).await;

        // The store's clock has not stepped, so this is its current tick.
        let slots: Vec<_> = fixture.runs().await.iter().map(|run| to_millis(run.slot)).collect();
        assert_eq!(slots, [Some(tick - hour)]);
        stop.send_replace(true);
        assert!(running.await.is_ok_and(|(ended, _)| ended.is_ok()));
    }

    /// The server's clock was two days ahead when the slot started. It is asked for again.
    #[tokio::test(start_paused = true)]
    async fn a_slot_far_ahead_of_the_clock_fails_no_runner() {
        let (fixture, (_stop, is_stopped)) = (Fixture::new(), watch::channel(false));
        let runner = runner_of(&fixture.manager, &minutely(), Duration::ZERO);
        let slot = runner.now() + 2 * 24 * 60 * MINUTE;

        assert!(matches!(runner.run_slot(again(slot), &is_stopped).await, Ok(true)));

        assert!(fixture.runs().await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_that_passed_in_a_freeze_are_one() {
        for (now, last) in [(11 * MINUTE, 11), (12 * MINUTE - 1, 11), (1_000 * MINUTE, 1_000)] {
            assert_eq!(runner_at(&minutely(), now).last_tick_before_now(), last * MINUTE, "at {now}");
        }
    }

    /// The replicas of a fleet agree on the delay, also while a new version is deployed.
    #[test]
    fn the_delay_of_a_tick_is_the_same_in_all_versions() {
        let spread = minutely().spread(Duration::from_secs(10));
        let runner = runner_at(&spread, 0);
        let delays = |longest| {
            [1, 2, 3].map(|minute| runner.delay_of(minute * MINUTE, Duration::from_millis(longest)))
        };

        assert_eq!(delays(30_000), [9_761, 8_670, 2_879]);
        assert_eq!(delays(5_000), [4_761, 3_670, 2_879], "it is at most as long as the second argument");
        assert_eq!(delays(0), [0; 3]);
        assert_eq!(runner.next_tick(MINUTE), Some((2 * MINUTE, 2 * MINUTE + delays(10_000)[1])));
        let no_spread = runner_at(&minutely(), 0);
        assert_eq!(no_spread.next_tick(MINUTE), Some((2 * MINUTE, 2 * MINUTE)));
    }

    #[test]
    fn a_tick_is_delayed_by_less_than_half_of_its_period() {
        let hourly = Schedule::cron("0 * * * *").expect("valid").spread(Duration::from_secs(24 * 3_600));
        let runner = runner_at(&hourly, 0);
        let delays = (0..100).map(|hour| {
            let (tick, at) = runner.next_tick(hour * 60 * MINUTE).expect("a next tick");
            assert_eq!(tick, (hour + 1) * 60 * MINUTE);
            at - tick
        });

        let longest = delays.max().expect("there are delays");

        assert!((25 * MINUTE..30 * MINUTE).contains(&longest), "{longest}");
    }

    /// The request arrives some milliseconds after it is sent, and must still belong to its tick.
    #[test]
    fn a_delayed_tick_ends_before_the_next_one_can_start() {
        for (period, margin) in [(1_000, 100), (10_000, 1_000), (20_000, 1_000), (21_000, 500)] {
            let every = Schedule::every(Duration::from_millis(period)).expect("valid");
            let runner = runner_at(&every.spread(Duration::from_millis(period / 2)), 0);
            let early = (period / 2).min(10_000);
            let delays = (1..5_000).map(|number| {
                let (tick, at) = runner.next_tick(number * period).expect("a next tick");
                at - tick
            });

            let longest = delays.max().expect("there are delays");

            assert!(longest + margin <= period - early, "{period}: {longest}");
            assert!(longest >= period / 2 - 2 * margin, "{period}: {longest}");
        }
    }

    #[test]
    fn a_panic_is_the_text_of_a_failure() {
        let texts: [(Box<dyn std::any::Any + Send>, &str); 3] =
            [(Box::new("a"), "a"), (Box::new("b".to_owned()), "b"), (Box::new(7), "no message")];
        for (panic, text) in texts {
            assert_eq!(panic_text(&*panic), format!("the body panicked: {text}"));
        }
    }
}
