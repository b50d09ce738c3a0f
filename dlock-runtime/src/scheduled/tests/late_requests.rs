//! Requests that are written to a connection which is lost before the reply, and take effect later
//! or never.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::backend::event_effects::EventEffects;
use crate::backend::memory::{Memory, MemoryStore};
use crate::backend::{Backend, BackendEvents, Capabilities, EventReceiver, Request};
use crate::clock::millis;
use crate::engine::Engine;
use crate::error::Error;
use crate::manager::LockManager;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::job::begin::{BeginKind, SkipReason};
use crate::protocol::job::job_record::SlotState;
use crate::scheduled::job_call::{JobCall, TickDecision};
use crate::scheduled::job_store::JobStore;
use crate::scheduled::schedule::Schedule;
use crate::scheduled::tick::to_millis;
use crate::scheduled::{CatchUp, CrashedRun, JobRun, Jobs, Overlap, RunOutcome};
use crate::sync::lock;
use crate::timer::Timer;
use crate::token::TokenSource;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The fate of a request whose connection is lost before the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduled) enum Loss {
    /// It takes effect 500 ms later.
    Late,
    /// It takes no effect.
    Never,
}

/// A connection to a store in memory that is lost on demand.
#[derive(Debug)]
pub(in crate::scheduled) struct LossyBackend {
    memory: Arc<Memory>,
    store: Arc<MemoryStore>,
    events: EventReceiver,
    /// The losses of the next requests; `None`: the request gets a reply.
    losses: Mutex<VecDeque<Option<Loss>>>,
    lost: Mutex<Vec<Request>>,
}

impl LossyBackend {
    pub(in crate::scheduled) fn lose(&self, losses: &[Option<Loss>]) {
        lock(&self.losses).extend(losses);
    }
}

impl Backend for LossyBackend {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn attach(&self, events: Weak<dyn BackendEvents>) {
        self.events.attach(Weak::clone(&events));
        self.memory.attach(events);
    }

    fn submit(&self, request: Request) {
        let Some(loss) = lock(&self.losses).pop_front().flatten() else {
            return self.memory.submit(request);
        };
        if loss == Loss::Late {
            let late = request.for_one_of_many();
            let (memory, store) = (Arc::clone(&self.memory), Arc::clone(&self.store));
            tokio::spawn(async move {
                Timer::new(SECOND / 2).await;
                memory.submit(late);
                memory.flush(store.clock().now(), &mut EventEffects::default());
            });
        }
        lock(&self.lost).push(request);
    }

    fn flush(&self, now: BootInstant, effects: &mut EventEffects) {
        let lost = std::mem::take(&mut *lock(&self.lost));
        for request in lost {
            let failure = Failure::new(FailureKind::Passing, "the test lost it").with_connection_lost();
            let events = self.events.get().expect("it is attached");
            let _ = events.on_reply(request, Reply::Unknown(failure), now, now, effects);
        }
        self.memory.flush(now, effects);
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.memory.sleep(time)
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.memory.settle()
    }

    fn close(&self) {
        self.memory.close();
    }
}

/// Two processes of one store. The connection of the first can be lost.
pub(in crate::scheduled) struct Fixture {
    pub(in crate::scheduled) manager: LockManager,
    pub(in crate::scheduled) other: LockManager,
    pub(in crate::scheduled) backend: Arc<LossyBackend>,
}

impl Fixture {
    pub(in crate::scheduled) fn new() -> Self {
        let store = MemoryStore::of_name(None);
        let manager = || {
            let (tokens, rules) = (TokenSource::new(), ProtocolConfig::DEFAULT);
            let memory =
                store.join(tokens.process(), (rules.grant_lease, Duration::from_secs(60)), &"test".into());
            let backend = Arc::new(LossyBackend {
                memory,
                store: Arc::clone(&store),
                events: EventReceiver::default(),
                losses: Mutex::default(),
                lost: Mutex::default(),
            });
            let port: Arc<dyn Backend> = Arc::clone(&backend) as _;
            (LockManager::over(Engine::over(port, store.clock(), tokens, rules, SECOND * 30)), backend)
        };
        let ((manager, backend), (other, _)) = (manager(), manager());
        Self { manager, other, backend }
    }

    /// Returns the runs of the job, the first one first.
    pub(in crate::scheduled) async fn runs(&self) -> Vec<JobRun> {
        let mut runs = self.other.job("report").history(50).await.expect("memory is there");
        runs.reverse();
        runs
    }

    /// Sleeps until `before` ahead of one of the next multiples of `period`, by the clock of the
    /// store. Returns that multiple, in milliseconds.
    pub(in crate::scheduled) async fn until_before(&self, period: Duration, before: Duration) -> u64 {
        self.manager.job("report").status().await.expect("memory is there"); // the reply has the time
        let now = self.manager.server_clock().now(self.manager.engine());
        let tick = (now / millis(period) + 2) * millis(period);
        tokio::time::sleep(Duration::from_millis(tick - now - millis(before))).await;
        tick
    }
}

/// The active run ends between the two requests for the requested one.
#[tokio::test(start_paused = true)]
async fn a_begin_that_takes_effect_after_the_next_is_undone() {
    let fixture = Fixture::new();
    let (other, hourly) = (fixture.other.job("report"), every(60 * MINUTE));
    let call = JobCall::new(&JobStore::new(&fixture.manager, "report"), &hourly).expect("it is valid");
    let active = other.run(&hourly, async |_| {
        other.run_now().await?;
        fixture.backend.lose(&[Some(Loss::Late)]);
        let begun = call.begin(BeginKind::Requested).await?;
        assert!(matches!(begun, TickDecision::Skipped { reason: SkipReason::Running { .. }, .. }));
        tokio::time::sleep(SECOND / 5).await;
        Ok::<_, Error>(())
    });
    assert!(active.await.is_ok_and(|ran| ran.is_some()));
    tokio::time::sleep(2 * SECOND).await;

    let body = |_| async { Ok::<_, Error>(()) };
    let runner = Jobs::new(fixture.manager.clone()).add("report", hourly, body);
    runner.run_until(tokio::time::sleep(MINUTE)).await.expect("it ends");

    let runs = fixture.runs().await;
    let requested: Vec<_> = runs.iter().filter(|run| run.is_requested).map(|run| run.outcome).collect();
    assert_eq!(requested, [RunOutcome::Succeeded], "{runs:?}");
}

/// The connection is lost while tick 1 waits for the end of tick 0: before tick 2 is due, and so
/// shortly before that the runner asks for tick 1 again after it.
#[tokio::test(start_paused = true)]
async fn a_runner_asks_again_for_the_tick_that_waits() {
    for lost_after in [15_500, 19_500].map(Duration::from_millis) {
        let fixture = Fixture::new();
        let schedule = every(10 * SECOND).overlap(Overlap::QueueOne).lease(10 * MINUTE);
        let first = fixture.until_before(10 * SECOND, SECOND).await;
        let body = |_| async {
            tokio::time::sleep(27 * SECOND).await;
            Ok::<_, Error>(())
        };
        let runner = Jobs::new(fixture.manager.clone()).add("report", schedule, body);
        let loses = async {
            tokio::time::sleep(SECOND + lost_after).await;
            fixture.backend.lose(&[Some(Loss::Never); 2]);
            tokio::time::sleep(45 * SECOND).await;
        };

        runner.run_until(loses).await.expect("it ends");

        let slots = fixture.runs().await.into_iter().take(2);
        let slots: Vec<_> = slots.map(|run| to_millis(run.slot).expect("after 1970") - first).collect();
        assert_eq!(slots, [0, 10_000], "lost after {lost_after:?}");
    }
}

/// The first try of the undo is lost, so the run is given back after the first retry of the runner.
#[tokio::test(start_paused = true)]
async fn a_tick_whose_begin_takes_effect_late_runs_soon() {
    for on_crash in [CrashedRun::Rerun, CrashedRun::Skip] {
        let (fixture, schedule) = (Fixture::new(), every(MINUTE).on_crash(on_crash));
        let tick = fixture.until_before(MINUTE, SECOND).await;
        let body = |_| async { Ok::<_, Error>(()) };
        let runner = Jobs::new(fixture.manager.clone()).add("report", schedule, body);
        let loses = async {
            tokio::time::sleep(SECOND / 2).await;
            fixture.backend.lose(&[Loss::Late, Loss::Late, Loss::Never, Loss::Never].map(Some));
            tokio::time::sleep(5 * SECOND + SECOND / 2).await;
        };

        runner.run_until(loses).await.expect("it ends");

        let runs = fixture.runs().await;
        let ran: Vec<_> = runs.iter().map(|run| (to_millis(run.slot), run.outcome)).collect();
        assert_eq!(ran, [(Some(tick), RunOutcome::Succeeded)], "{on_crash:?}");
    }
}

/// The first missed tick is given back after the runner has given up on it: before the next tick is
/// due, and before another runner starts.
#[tokio::test(start_paused = true)]
async fn a_missed_tick_that_is_given_back_runs_before_newer_ones() {
    for runners in [&[5][..], &[2, 3]] {
        let fixture = Fixture::new();
        let schedule = every(10 * SECOND).catch_up(CatchUp::all(10, MINUTE));
        let first = fixture.until_before(10 * SECOND, SECOND).await;
        let body = |_| async { Ok::<_, Error>(()) };
        let ran = fixture.other.job("report").run(&schedule, body).await;
        assert!(ran.is_ok_and(|ran| ran.is_some()));
        tokio::time::sleep(28 * SECOND).await;
        // The record is read twice. Then the request is sent twice, and so is the first undo.
        let begin_and_undo = [Loss::Late, Loss::Late, Loss::Never, Loss::Never].map(Some);
        fixture.backend.lose(&[None; 2]);
        fixture.backend.lose(&begin_and_undo);

        for seconds in runners {
            let runner = Jobs::new(fixture.manager.clone()).add("report", schedule.clone(), body);
            runner.run_until(tokio::time::sleep(*seconds * SECOND)).await.expect("it ends");
        }

        let slots = fixture.runs().await.into_iter();
        let slots: Vec<_> = slots.map(|run| to_millis(run.slot).expect("after 1970") - first).collect();
        assert_eq!(slots, [0, 10_000, 20_000, 30_000], "runners for {runners:?} seconds");
    }
}

/// The request for the missed tick takes effect before the runner asks for the current one again,
/// and is undone after that.
#[tokio::test(start_paused = true)]
async fn a_missed_tick_that_begins_late_runs_before_the_current_one() {
    for catch_up in [CatchUp::Latest, CatchUp::all(10, MINUTE)] {
        let fixture = Fixture::new();
        let schedule = every(10 * SECOND).catch_up(catch_up);
        let first = fixture.until_before(10 * SECOND, SECOND).await;
        let body = |_| async { Ok::<_, Error>(()) };
        let ran = fixture.other.job("report").run(&schedule, body).await;
        assert!(ran.is_ok_and(|ran| ran.is_some()));
        tokio::time::sleep(20 * SECOND + SECOND / 2).await;
        // At its start, the runner reads the record twice. Its request for the missed tick takes no
        // effect, and is undone. Half a second later, it asks for the next tick, reads the record,
        // and asks for the missed one: that request is sent twice, and so is the first undo.
        let of_start = [None, None, Some(Loss::Never), Some(Loss::Never), None];
        let of_tick = [None, None, Some(Loss::Late), Some(Loss::Late), Some(Loss::Never), Some(Loss::Never)];
        fixture.backend.lose(&of_start);
        fixture.backend.lose(&of_tick);

        let runner = Jobs::new(fixture.manager.clone()).add("report", schedule, body);
        runner.run_until(tokio::time::sleep(8 * SECOND)).await.expect("it ends");

        let slots = fixture.runs().await.into_iter();
        let slots: Vec<_> = slots.map(|run| to_millis(run.slot).expect("after 1970") - first).collect();
        assert_eq!(slots, [0, 10_000, 20_000], "{catch_up:?}");
    }
}

/// Newer ticks wait for it again, instead of being skipped for it.
#[tokio::test(start_paused = true)]
async fn a_missed_tick_that_is_given_back_is_missed_when_it_starts_again() {
    for is_missed in [true, false] {
        let fixture = Fixture::new();
        let schedule = every(10 * SECOND);
        let store = JobStore::new(&fixture.manager, "report");
        let call = JobCall::new(&store, &schedule).expect("it is valid");
        assert!(call.register().await.is_ok(), "the slot is due after the first call");
        let tick = fixture.until_before(10 * SECOND, SECOND).await;
        let slot = if is_missed { tick - 10_000 } else { tick };
        let kind = if is_missed { BeginKind::Missed { slot } } else { BeginKind::Slot { slot } };
        fixture.backend.lose(&[Loss::Late, Loss::Late].map(Some));
        assert!(call.begin(kind).await.is_err_and(|error| error.is_unavailable()));
        tokio::time::sleep(3 * SECOND).await;
        let record = store.read().await.expect("memory is there").expect("it has begun");
        assert_eq!(record.state, SlotState::Unstarted);

        let body = move |_| {
            let store = store.clone();
            async move {
                let record = store.read().await.expect("memory is there").expect("it runs");
                assert_eq!((record.slot, record.began.is_none()), (slot, is_missed));
                Ok::<_, Error>(())
            }
        };
        let runner = Jobs::new(fixture.manager.clone()).add("report", schedule, body);
        runner.run_until(tokio::time::sleep(SECOND)).await.expect("it ends");

        let runs = fixture.runs().await;
        assert_eq!(runs.iter().map(|run| run.outcome).collect::<Vec<_>>(), [RunOutcome::Succeeded]);
    }
}

fn every(period: Duration) -> Schedule {
    Schedule::every(period).expect("a valid period")
}
