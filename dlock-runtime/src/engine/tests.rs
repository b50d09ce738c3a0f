//! The engine over a backend that only records the requests that it is given, and over memory.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backend::event_effects::EventEffects;
use crate::backend::store_call::StoreOperation;
use crate::backend::tests::test_operation::TestOperation;
use crate::backend::{BackendEvents as _, Request};
use crate::clock::{Clock, SetClock, TokioClock, boot_time};
use crate::engine::acquire_future::AcquireFuture;
use crate::engine::acquisition::SharedAcquisition;
use crate::engine::hold_guard::{HoldGuard, LossTimer};
use crate::engine::pending_release::{ReleaseReport, ReleasedBy};
use crate::engine::store_calls::{CallFailure, MAX_BACKGROUND_BYTES, MAX_BACKGROUND_CALLS};
use crate::engine::throttle_tests::Fixture;
use crate::error::LossCause;
use crate::key::{LockKey, Name};
use crate::options::Options;
use crate::protocol::command::{Command, Failure, FailureKind, RecordInfo, Reply, ScriptReply};
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::key_state::{EventContext, KeyState};
use crate::telemetry::tests::emitted;
use crate::token::Token;
use crate::{Error, Lock, LockGuard, LockManager, OnLost};

const LEASE: Duration = Duration::from_secs(30);

/// Counts how often it is woken.
#[derive(Default)]
pub(in crate::engine) struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(in crate::engine) fn counters(count: usize) -> Vec<Arc<CountingWaker>> {
    (0..count).map(|_| Arc::default()).collect()
}

pub(in crate::engine) fn woken(counters: &[Arc<CountingWaker>]) -> Vec<usize> {
    counters.iter().map(|counter| counter.0.load(Ordering::SeqCst)).collect()
}

fn name(key: &str) -> Name {
    Name::clone(LockKey::new(key).expect("a key").name())
}

fn failure(kind: FailureKind) -> Failure {
    Failure::new(kind, "the server said no")
}

/// Reports the reply to a request, and returns what must be cleaned up.
fn answer(fixture: &Fixture, request: Request, reply: Reply) -> Vec<(Name, Token)> {
    answer_at(boot_time(), fixture, request, reply)
}

/// Like [`answer`], at `now`.
fn answer_at(now: BootInstant, fixture: &Fixture, request: Request, reply: Reply) -> Vec<(Name, Token)> {
    let mut effects = EventEffects::default();
    let orphaned = fixture.engine.on_reply(request, reply, now, now, &mut effects);
    effects.run();
    orphaned
}

#[test]
fn only_an_unconfirmed_release_is_cleaned_up() {
    let (key, token) = (name("order:7"), Token::of_numbers(1, 7).expect("a token"));
    let passing = || failure(FailureKind::Passing);
    for (command, reply, is_orphaned) in [
        (Command::RELEASE, Reply::Owner, false),
        (Command::RELEASE, Reply::NotOwner, false),
        (Command::RELEASE, Reply::Unknown(passing()), true),
        (Command::RELEASE, Reply::Refused(passing()), true),
        (Command::Withdraw, Reply::Unknown(passing()), true),
        (Command::Call, Reply::Unknown(passing()), false),
        (Command::Call, Reply::Refused(passing()), false),
        (Command::Call, Reply::Called(ScriptReply::Nil), false),
    ] {
        let (fixture, shown) = (Fixture::new(), format!("{command:?} {reply:?}"));

        let orphaned = answer(&fixture, Request::new(Name::clone(&key), token, command), reply);

        let expected = is_orphaned.then(|| (Name::clone(&key), token));
        assert_eq!(orphaned, Vec::from_iter(expected), "{shown}");
        assert!(fixture.sent().is_empty(), "{shown}");
    }
}

#[test]
fn a_grant_that_no_task_waits_for_is_passed_on() {
    let (fixture, key) = (Fixture::new(), name("order:7"));
    let grant = Grant { lease: LEASE, fleet_hold: FleetHold::UNKNOWN };
    let report = |token, now| {
        let mut effects = EventEffects::default();
        fixture.engine.on_grant(&key, token, grant, now, &mut effects);
        effects.run();
        fixture.sent().into_iter().map(|request| (request.token, request.command)).collect::<Vec<_>>()
    };
    let (own, of_another) = (fixture.engine.tokens.next(), Token::of_numbers(2, 7).expect("a token"));
    let start = boot_time();

    assert_eq!(report(of_another, start), [], "it belongs to another manager");
    for _ in 0..100 {
        assert_eq!(report(own, start), [(own, Command::Withdraw)]);
    }
    assert_eq!(report(own, start), [], "a client that floods gets no more");
    assert_eq!(report(own, start.plus(Duration::from_secs(1))), [(own, Command::Withdraw)]);
}

#[test]
fn requests_are_tracked_after_the_first_verification() {
    let (fixture, start) = (Fixture::new(), boot_time());
    let held = fixture.hold("order:7", LEASE, start);
    let is_tracked = || {
        drop(fixture.engine.request_for_holder(&held, Command::Fence));
        fixture.sent().iter().map(|request| request.is_tracked).collect::<Vec<_>>()
    };
    assert_eq!(is_tracked(), [false], "it was not verified yet");

    let sent = fixture.tick(start.plus(Duration::from_millis(200)));

    let sent: Vec<_> = sent.iter().map(|request| (request.command, request.is_tracked)).collect();
    assert_eq!(sent, [(Command::Verify, true)]);
    assert_eq!(is_tracked(), [true]);
}

#[test]
fn a_key_is_in_use_while_a_task_holds_it() {
    let (fixture, start) = (Fixture::new(), boot_time());

    let held = fixture.hold("order:7", LEASE, start);

    assert!(fixture.engine.is_in_use(&name("order:7")));
    assert!(!fixture.engine.is_in_use(&name("order:8")));
    assert!(!fixture.engine.is_kept(&name("order:7")) && !fixture.engine.is_kept(&name("order:8")));
    drop(held);
}

#[cfg(feature = "testing")]
#[tokio::test]
async fn the_calls_that_wait_for_a_key_are_counted() {
    let locks = LockManager::in_new_memory();
    let lock = locks.lock("order:7").wait(LEASE);
    let held = lock.acquire().await.expect("it is free");
    let waiting = || locks.engine().waiting(held.key().name());
    assert_eq!(waiting(), 0);

    let calls: Vec<_> = (0..2)
        .map(|_| {
            let mut call = Box::pin(lock.acquire());
            assert!(call.as_mut().now_or_never().is_none());
            call
        })
        .collect();

    assert_eq!(waiting(), 2);
    drop(calls);
    assert_eq!(waiting(), 0);
}

#[test]
fn max_hold_leaves_the_lock_to_its_body_until_the_lease_ends() {
    let (fixture, start) = (Fixture::new(), boot_time());
    let max_hold = Duration::from_secs(1);
    let options = Options { lease: Some(LEASE), ..Options::new() }.max_hold(max_hold);
    let held = fixture.hold_by("order:7", options, start);
    assert_eq!(held.left_by_max_hold(start), None, "it is held");
    let deadline = Deadline::of_lease(start, LEASE).at();

    fixture.tick(start.plus(max_hold));

    let just_before = BootInstant::from_nanos(deadline.nanos() - 1);
    assert_eq!(held.left_by_max_hold(just_before), None);
    assert_eq!(held.left_by_max_hold(deadline), Some(LossCause::Expired));
    let (first, second) = (held.end(deadline), held.end(deadline));
    assert!(first.was_granted && first.left.is_some() && second.left.is_none(), "it is released once");
    assert_eq!(held.left_by_max_hold(deadline), Some(LossCause::Released));
    assert_eq!(held.check_valid(deadline), Err((LossCause::MaxHold, max_hold)), "the loss stays visible");
}

fn operation() -> Arc<dyn StoreOperation> {
    Arc::new(TestOperation::default())
}

/// Ticks until `held` is renewed, and reports `reply`. Returns the time of the reply.
fn reply_to_renewal(fixture: &Fixture, start: BootInstant, reply: &Reply) -> BootInstant {
    let is_renewal = |request: &Request| matches!(request.command, Command::Renew { .. });
    for seconds in 0..LEASE.as_secs() {
        let now = start.plus(Duration::from_secs(seconds));
        if let Some(renewal) = fixture.tick(now).into_iter().find(is_renewal) {
            let mut effects = EventEffects::default();
            fixture.engine.on_reply(renewal, reply.clone(), now, now, &mut effects);
            effects.run();
            return now;
        }
    }
    panic!("it is not renewed");
}

#[test]
fn a_loss_has_the_reason_of_the_last_renewal() {
    let refused = || Reply::Refused(failure(FailureKind::Passing));
    for (replies, reason) in [
        (vec![refused()], Some("the server said no")),
        (vec![Reply::Unknown(failure(FailureKind::Passing))], Some("the server said no")),
        (vec![refused(), Reply::Owner], None),
    ] {
        for is_ticked in [false, true] {
            let (fixture, start) = (Fixture::new(), boot_time());
            let held = fixture.hold("order:7", LEASE, start);
            for reply in &replies {
                reply_to_renewal(&fixture, start, reply);
            }

            let over = start.plus(2 * LEASE);
            if is_ticked {
                fixture.tick(over);
            }
            let loss = fixture.engine.check_hold(&held, over);

            assert!(matches!(loss, Err((LossCause::Expired, _))), "{replies:?}: {loss:?}");
            assert_eq!(held.loss_reason(LossCause::Expired).as_deref(), reason, "{replies:?} {is_ticked}");
            assert_eq!(held.loss_reason(LossCause::NotOwner), None);
        }
    }
}

#[test]
fn a_late_renewal_ends_the_reason_of_an_earlier_failure() {
    let (fixture, start) = (Fixture::new(), boot_time());
    let held = fixture.hold("order:7", LEASE, start);
    let failed = reply_to_renewal(&fixture, start, &Reply::Refused(failure(FailureKind::Passing)));
    let sent = failed.plus(LEASE / 3);
    let is_renewal = |request: &Request| matches!(request.command, Command::Renew { .. });
    let renewal = fixture.tick(sent).into_iter().find(is_renewal).expect("it is repeated");
    assert!(fixture.engine.check_hold(&held, start.plus(LEASE)).is_err());

    let mut effects = EventEffects::default();
    fixture.engine.on_reply(renewal, Reply::Owner, sent, start.plus(LEASE), &mut effects);
    effects.run();

    assert_eq!(fixture.engine.check_hold(&held, start.plus(LEASE)), Ok(()));
    assert!(fixture.engine.check_hold(&held, sent.plus(LEASE)).is_err());
    assert_eq!(held.loss_reason(LossCause::Expired), None);
}

#[test]
fn a_failed_renewal_is_an_event_if_it_is_repeated() {
    for (key, is_own, kind, is_event) in [
        ("order:7", true, FailureKind::Passing, true),
        ("order:7", true, FailureKind::WrongKind, false),
        ("order:7", false, FailureKind::Passing, false), // another task holds the lock since
        ("order:8", false, FailureKind::Passing, false), // released before the reply
    ] {
        let (fixture, now) = (Fixture::new(), boot_time());
        let held = fixture.hold("order:7", LEASE, now);
        let own = fixture.engine.with_key_now(now, &name("order:7"), |state, _| state.token_of(&held));
        let token = if is_own { own.expect("it is held") } else { fixture.engine.tokens.next() };
        let renewal = Request::new(name(key), token, Command::Renew { lease: LEASE });

        answer(&fixture, renewal, Reply::Refused(failure(kind)));

        let next = fixture.engine.event_limits.admit_failed_renewal(&failure(kind).reason, now);
        assert_eq!(next.is_none(), is_event, "{key} {is_own} {kind:?}");
    }
}

/// The time to live is set over the connection that renews the hold, so that no renewal runs later.
#[test]
fn the_rest_of_a_min_hold_follows_the_renewals_of_its_hold() {
    for (is_verified, is_lost) in [(true, false), (true, true), (false, false)] {
        let (fixture, now) = (Fixture::new(), boot_time());
        let options = Options { min_hold: Some(2 * LEASE), ..Options::new() };
        let held = fixture.hold_by("order:7", options, now);
        if is_verified {
            let verified = fixture.tick(now.plus(Duration::from_millis(200)));
            assert!(matches!(verified[..], [Request { command: Command::Verify, .. }]), "{verified:?}");
        }

        if is_lost {
            let lose = |state: &mut KeyState<_>, cx: &mut EventContext<'_, _>| {
                state.mark_all_lost(LossCause::Shutdown, cx);
            };
            fixture.engine.with_key_now(now, held.key.name(), lose);
        } else {
            drop(fixture.engine.release(&held, true, ReleasedBy::Guard, ReleaseReport::None, now));
        }

        let sent = fixture.sent();
        let [Request { command: Command::SetTtl { .. }, is_tracked, .. }] = sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!(is_tracked, is_verified, "lost: {is_lost}");
    }
}

/// The call holds no lock yet, and waits for longer.
#[test]
fn an_unconfirmed_grant_before_its_hold_is_no_event() {
    let (fixture, key) = (Fixture::new(), LockKey::new("order:7").expect("a key"));
    let options = Options { wait: Some(LEASE), ..Options::new() };
    let _waiting = AcquireFuture::join(&fixture.engine, key.clone(), &options, None, None);
    let next = || <[Request; 1]>::try_from(fixture.sent()).map(|[request]| request).expect("one is sent");
    answer(&fixture, next(), Reply::Contended);
    let enqueue = next();
    let token = enqueue.token;
    answer(&fixture, enqueue, Reply::Queued { ttl: None });
    let (now, mut effects) = (boot_time(), EventEffects::default());
    fixture.engine.on_grant(key.name(), token, Grant::NONE, now, &mut effects);
    effects.run();
    let confirmation = next();
    assert_eq!(
        (confirmation.token, confirmation.command),
        (token, Command::Renew { lease: fixture.engine.lease })
    );

    answer(&fixture, confirmation, Reply::Unknown(failure(FailureKind::Passing)));

    let reason = failure(FailureKind::Passing).reason;
    assert_eq!(fixture.engine.event_limits.admit_failed_renewal(&reason, now), Some(0));
}

#[test]
fn a_late_failure_under_another_token_is_no_reason() {
    let (fixture, start) = (Fixture::new(), boot_time());
    let held = fixture.hold("order:7", LEASE, start);
    let failed = reply_to_renewal(&fixture, start, &Reply::Refused(failure(FailureKind::Passing)));
    let other = fixture.engine.tokens.next();
    let renewal = Request::new(name("order:7"), other, Command::Renew { lease: LEASE });

    answer_at(failed, &fixture, renewal, Reply::Refused(Failure::new(FailureKind::Passing, "late")));

    assert!(fixture.engine.check_hold(&held, start.plus(2 * LEASE)).is_err());
    assert_eq!(held.loss_reason(LossCause::Expired).as_deref(), Some("the server said no"));
}

#[test]
fn a_failed_renewal_is_forgotten_with_its_hold() {
    let mut kept = Vec::new();
    for end in ["loss", "release", "renewal", "hold"] {
        let (fixture, start) = (Fixture::new(), boot_time());
        let held = fixture.hold("order:7", LEASE, start);
        let failed = reply_to_renewal(&fixture, start, &Reply::Refused(failure(FailureKind::Passing)));
        match end {
            "loss" => drop(fixture.tick(start.plus(2 * LEASE))),
            "release" => {
                fixture.engine.release(&held, true, ReleasedBy::Guard, ReleaseReport::None, failed);
            }
            "renewal" => drop(reply_to_renewal(&fixture, start, &Reply::Owner)),
            _ => {}
        }
        let shard = fixture.engine.shards.of_key("order:7").0;
        kept.extend(shard.read(|slots| !slots.renewal_failures.is_empty()).then_some(end));
    }

    assert_eq!(kept, ["hold"]);
}

#[test]
fn a_later_hold_has_no_reason_of_an_earlier_one() {
    let (fixture, start) = (Fixture::new(), boot_time());
    fixture.hold("order:7", LEASE, start);
    let refused = Reply::Refused(failure(FailureKind::Passing));
    reply_to_renewal(&fixture, start, &refused);
    fixture.tick(start.plus(2 * LEASE)); // it is lost

    let next = fixture.hold("order:7", LEASE, start.plus(3 * LEASE));

    assert!(fixture.engine.check_hold(&next, start.plus(5 * LEASE)).is_err());
    assert_eq!(next.loss_reason(LossCause::Expired), None);
}

#[test]
fn a_call_returns_the_reply_or_whether_it_may_have_run() {
    let ended = |reply| {
        let (fixture, key, operation) = (Fixture::new(), name("order:7"), operation());
        let mut call = pin!(fixture.engine.call(&key, &operation));
        assert!(call.as_mut().now_or_never().is_none());
        let [request] = <[Request; 1]>::try_from(fixture.sent()).expect("one is sent");
        assert!(request.command == Command::Call && request.call.is_some() && *request.key == *key);
        assert_eq!(answer(&fixture, request, reply), []);
        call.now_or_never().expect("it has its reply")
    };

    let refused = ended(Reply::Refused(failure(FailureKind::Lasting)));
    let unknown = ended(Reply::Unknown(failure(FailureKind::Lasting)));
    let unusable = ended(Reply::Owner);

    assert!(matches!(ended(Reply::Called(ScriptReply::Int(7))), Ok(ScriptReply::Int(7))));
    assert!(
        matches!(&refused, Err(CallFailure::Refused(of)) if of.kind == FailureKind::Lasting),
        "{refused:?}"
    );
    assert!(
        matches!(&unknown, Err(CallFailure::Unknown(of)) if of.kind == FailureKind::Lasting),
        "{unknown:?}"
    );
    assert!(
        matches!(&unusable, Err(CallFailure::Unknown(of)) if of.kind == FailureKind::Passing),
        "{unusable:?}"
    );
}

#[test]
fn only_a_repeatable_call_is_sent_again() {
    for is_repeatable in [false, true] {
        let (fixture, key) = (Fixture::new(), name("order:7"));
        let operation: Arc<dyn StoreOperation> =
            Arc::new(TestOperation { is_repeatable, ..TestOperation::default() });
        let mut call = pin!(fixture.engine.call_noting_resend(&key, &operation));
        assert!(call.as_mut().now_or_never().is_none());
        let [request] = <[Request; 1]>::try_from(fixture.sent()).expect("one is sent");

        answer(&fixture, request, Reply::Unknown(failure(FailureKind::Passing).with_connection_lost()));

        let ended = call.now_or_never(); // the time in which it is sent again is over at once
        let Some((Err(CallFailure::Unknown(_)), is_resent)) = ended else { panic!("{ended:?}") };
        assert_eq!(is_resent, is_repeatable);
    }
}

/// A call in the background, on tokio's paused clock.
struct BackgroundCall {
    fixture: Fixture,
    ended: oneshot::Receiver<Result<ScriptReply, Failure>>,
}

impl BackgroundCall {
    fn start(limit: Duration) -> Self {
        let fixture = Fixture::with_clock(Clock::Tokio(Arc::new(TokioClock::new())));
        let (end, ended) = oneshot::channel();
        fixture.engine.call_in_background(name("order:7"), operation(), limit, |reply| {
            let _ = end.send(reply);
        });
        Self { fixture, ended }
    }

    /// Waits for the next request. Returns it, and how long that took.
    async fn next(&self) -> (Request, Duration) {
        let started = Instant::now();
        loop {
            if let Some(request) = self.fixture.sent().pop() {
                return (request, started.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn fail(&self, request: Request, kind: FailureKind) {
        answer(&self.fixture, request, Reply::Unknown(failure(kind)));
    }

    /// Waits for the end, and returns its reply.
    async fn end(self) -> Result<ScriptReply, Failure> {
        let reply = self.ended.await.expect("it ends");
        tokio::time::sleep(10 * LEASE).await;
        assert!(self.fixture.sent().is_empty(), "it has ended");
        reply
    }
}

#[tokio::test(start_paused = true)]
async fn a_background_call_is_sent_until_it_has_a_reply() {
    let call = BackgroundCall::start(Duration::from_secs(60));
    let (mut request, _) = call.next().await;

    for pause in [50, 100, 200, 400, 800, 1_000, 1_000] {
        call.fail(request, FailureKind::Passing);
        let (next, after) = call.next().await;
        // The timer and the test each round up to whole milliseconds.
        let earliest = Duration::from_millis(pause);
        assert!(after >= earliest && after <= earliest + Duration::from_millis(3), "{pause}: {after:?}");
        request = next;
    }
    answer(&call.fixture, request, Reply::Called(ScriptReply::Int(7)));

    assert!(matches!(call.end().await, Ok(ScriptReply::Int(7))));
}

#[tokio::test(start_paused = true)]
async fn a_background_call_ends_at_a_permanent_failure() {
    let call = BackgroundCall::start(Duration::from_secs(60));
    let (request, _) = call.next().await;

    call.fail(request, FailureKind::Lasting);

    assert!(call.end().await.is_err_and(|last| last.reason == failure(last.kind).reason));
}

#[tokio::test(start_paused = true)]
async fn a_background_call_ends_at_its_limit() {
    let call = BackgroundCall::start(Duration::from_millis(120));
    for _ in 0..2 {
        let (request, _) = call.next().await;
        call.fail(request, FailureKind::Passing);
    }
    let (request, _) = call.next().await;

    call.fail(request, FailureKind::Passing); // 150 ms after its start

    assert!(call.end().await.is_err_and(|last| last.reason == failure(last.kind).reason));
}

#[tokio::test(start_paused = true)]
async fn background_calls_beyond_the_bounds_end_without_a_reply() {
    for (bytes, admitted) in [(0, MAX_BACKGROUND_CALLS), (MAX_BACKGROUND_BYTES / 2, 2)] {
        let fixture = Fixture::new();
        let calls: Vec<_> = (0..=admitted)
            .map(|_| {
                let (end, ended) = oneshot::channel();
                let on_end = |reply: Result<ScriptReply, Failure>| {
                    let _ = end.send(reply.is_ok());
                };
                let arguments = vec![vec![0; bytes], Vec::new()];
                let operation = Arc::new(TestOperation { arguments, ..TestOperation::default() });
                fixture.engine.call_in_background(name("order:7"), operation, LEASE, on_end);
                ended
            })
            .collect();

        let ended: Vec<_> = calls.into_iter().map(futures_util::FutureExt::now_or_never).collect();

        assert_eq!(ended.iter().position(Option::is_some), Some(admitted), "{bytes} bytes");
        assert!(matches!(ended.last(), Some(Some(Ok(false)))), "{bytes} bytes");
    }
}

/// Those that wait for their turn are in memory too.
#[tokio::test(start_paused = true)]
async fn background_calls_in_order_count_with_the_sum_of_their_bytes() {
    let fixture = Fixture::new();
    let sizes = [0, MAX_BACKGROUND_BYTES / 4, MAX_BACKGROUND_BYTES / 4];
    let orders: Vec<_> = (0..3)
        .map(|_| {
            let (replies, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let (count_reply, count_end) = (Arc::clone(&replies), Arc::clone(&ends));
            let operations = sizes.map(|bytes| -> Arc<dyn StoreOperation> {
                Arc::new(TestOperation { arguments: vec![vec![0; bytes]], ..TestOperation::default() })
            });
            let on_reply = move |reply: Result<ScriptReply, Failure>| {
                assert!(reply.is_err());
                count_reply.fetch_add(1, Ordering::SeqCst);
                true
            };
            let on_end = move || _ = count_end.fetch_add(1, Ordering::SeqCst);
            fixture.engine.call_in_order(name("order:7"), operations.into(), LEASE, on_reply, on_end);
            (replies, ends)
        })
        .collect();

    let seen =
        orders.iter().map(|(replies, ends)| (replies.load(Ordering::SeqCst), ends.load(Ordering::SeqCst)));

    assert_eq!(seen.collect::<Vec<_>>(), [(0, 0), (0, 0), (1, 1)], "the third is refused, and ends once");
}

/// A task that moves to another runtime waits by the clock of that one.
#[test]
fn a_loss_timer_of_a_runtime_that_is_ahead_is_not_late() {
    let paused = || {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime can be made")
    };
    let (first, second, locks) = (paused(), paused(), LockManager::in_new_memory());
    let (mut timer, hour) = (LossTimer::default(), Duration::from_secs(3_600));
    let mut elapsed = poll_fn(|cx| timer.poll(locks.engine(), cx));
    let _guard = first.block_on(async {
        tokio::time::advance(hour).await;
        let guard = locks.lock("order:7").lease(LEASE).acquire().await.expect("it is free");
        assert!((&mut elapsed).now_or_never().is_none());
        guard
    });

    let waited = second.block_on(async { tokio::time::timeout(LEASE, elapsed).await });

    assert!(waited.is_ok(), "the renewal is due within a lease");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_the_last_hold_and_call() {
    for (of_guards, of_call) in [([2, 4], 3), ([2, 3], 5), ([0, 0], 1), ([1, 1], 0)] {
        let locks = LockManager::in_new_memory();
        let held = [locks.lock("a"), locks.lock("b")].map(|lock| lock.acquire().now_or_never());
        let held = held.map(|held| held.expect("it does not wait").expect("it is free"));
        let (call, start) = (locks.engine().active_call(), Instant::now());
        let at = |seconds| tokio::time::sleep_until(start + Duration::from_secs(seconds));
        for (guard, seconds) in held.into_iter().zip(of_guards) {
            let at = at(seconds);
            tokio::spawn(async move {
                at.await;
                drop(guard);
            });
        }
        let at = at(of_call);
        tokio::spawn(async move {
            at.await;
            drop(call);
        });

        locks.shutdown(LEASE).await;

        let last = of_guards.into_iter().max().max(Some(of_call)).map(Duration::from_secs);
        assert_eq!(Some(start.elapsed()), last, "{of_guards:?} {of_call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_what_outlasts_its_deadline() {
    let locks = LockManager::in_new_memory();
    let guard = locks.lock("order:7").acquire().await.expect("it is free");
    let (engine, start) = (Arc::clone(locks.engine()), Instant::now());
    let call = engine.active_call();
    let (closed, aborted) = (async { (engine.calls.closed.wait().await, start.elapsed()).1 }, async {
        (engine.calls.aborted.wait().await, start.elapsed()).1
    });
    let grace = Duration::from_secs(2);
    assert!(!engine.calls.closed.is_set() && !engine.calls.aborted.is_set());

    let ((), closed, aborted, cause) = tokio::join!(locks.shutdown(grace), closed, aborted, guard.lost());

    assert_eq!((closed, aborted, cause), (Duration::ZERO, grace, LossCause::Shutdown));
    assert_eq!(start.elapsed(), grace + engine.rules.response_timeout, "it does not wait for ever");
    assert!(engine.calls.closed.is_set() && engine.calls.aborted.is_set());
    engine.calls.aborted.wait().now_or_never().expect("it has happened");
    drop(call);
}

/// The task that holds the lock drives `memory://`, and must not run what is due far later.
#[tokio::test(start_paused = true)]
async fn a_lease_of_a_month_lasts_a_month() {
    let day = Duration::from_secs(24 * 60 * 60);
    let locks = LockManager::in_new_memory();
    let lock = locks.lock("order:7").lease(30 * day).renew(false);

    let ran = lock.run(async |_| tokio::time::sleep(29 * day).await).await;
    let stopped = lock.run(async |_| pending::<()>().await).await;

    assert!(ran.is_ok(), "{ran:?}");
    assert!(
        matches!(&stopped, Err(Error::Lost { cause: LossCause::Expired, held, .. }) if *held > 29 * day),
        "{stopped:?}"
    );
}

#[tokio::test]
async fn a_nested_call_knows_its_depth() {
    let locks = LockManager::in_new_memory();
    let lock = locks.lock("order:7");
    let depth = |guard: &crate::LockGuard| guard.held().expect("it is held").depth();

    let depths = lock.run(async |outer| {
        let inner = lock.run(async |middle| {
            let innermost = lock.run(async |inner| depth(inner)).await;
            (depth(middle), innermost.expect("it joins"))
        });
        (depth(outer), inner.await.expect("it joins"))
    });

    assert_eq!(depths.await.expect("it is free"), (0, (1, 2)));
}

/// Each manager has a lock of that name.
#[tokio::test]
async fn a_hold_of_another_manager_is_not_joined() {
    let (locks, others) = (LockManager::in_new_memory(), LockManager::in_new_memory());

    let nested = locks
        .lock("order:7")
        .run(async |_| others.lock("order:7").run(async |_| others.inspect("order:7").await).await);

    let seen = nested.await.expect("it is free").expect("it is free there").expect("memory replies");
    assert!(seen.is_some_and(|seen| seen.is_held_here()), "it holds its own lock");
}

#[test]
fn a_dropped_engine_closes_its_backend_unless_forked() {
    for is_forked in [false, true] {
        let (fixture, start) = (Fixture::new(), boot_time());
        let held = fixture.hold("order:7", LEASE, start);
        let Fixture { engine, recorder } = fixture;
        if is_forked {
            engine.fork.simulate_fork();
        }

        drop(engine);

        assert_eq!(recorder.is_closed(), !is_forked);
        let references = if is_forked { 2 } else { 1 };
        assert_eq!(SharedAcquisition::strong_count(&held), references, "keys of the parent are leaked");
    }
}

/// The waiting task drives `memory://`, so its timer must follow the deadline of the key.
#[tokio::test(start_paused = true)]
async fn a_waiting_task_is_woken_if_its_key_is_due_earlier() {
    let locks = LockManager::in_new_memory();
    let lock = locks.lock("order:7").wait(LEASE);
    let (held, counters) = (lock.acquire().await.expect("it is free"), counters(1));
    let waker = Waker::from(Arc::clone(&counters[0]));
    let mut waiting = pin!(lock.acquire());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let report = |event: &dyn Fn(&mut EventEffects)| {
        let mut effects = EventEffects::default();
        event(&mut effects);
        effects.run();
    };
    let (engine, key) = (locks.engine(), held.key().name());

    report(&|effects| engine.on_invalidation(Some(key), engine.now(), effects));
    assert_eq!(woken(&counters), [0], "no deadline has changed");
    report(&|effects| engine.on_reconnect(true, &|_| false, engine.now(), effects));
    assert_eq!(woken(&counters), [0], "another server");
    report(&|effects| engine.on_reconnect(true, &|_| true, engine.now(), effects));
    assert_eq!(woken(&counters), [1], "its lease is renewed earlier");
}

/// No thread keeps the time of `memory://`: the waiting task does.
#[tokio::test(start_paused = true)]
async fn a_waiting_task_acquires_the_lock_when_its_lease_expires() {
    let second = Duration::from_secs(1);
    let lock = LockManager::in_new_memory().lock("order:7").lease(10 * second).renew(false);
    let (held, start) = (lock.acquire().await.expect("it is free"), Instant::now());

    let refused = lock.clone().wait(4 * second).acquire().await;
    assert!(refused.is_err_and(|error| error.is_contended()));
    assert_eq!(start.elapsed(), 4 * second);
    let next = lock.clone().wait(60 * second).acquire().await;

    assert!(next.is_ok() && held.check().is_err_and(|error| error.is_lost()), "{next:?}");
    assert!(start.elapsed() >= 10 * second && start.elapsed() < 11 * second, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_body_outlasts_the_lease_that_it_has_extended() {
    let second = Duration::from_secs(1);
    let lock = LockManager::in_new_memory().lock("order:7").lease(10 * second).renew(false);

    let ran = lock.run(async |guard| {
        tokio::time::sleep(5 * second).await;
        guard.extend(60 * second).await.expect("it is held");
        tokio::time::sleep(30 * second).await;
    });

    assert!(ran.await.is_ok());
}

/// A task that was granted the lock, and has not run, did no work that `min_hold` protects.
#[tokio::test(start_paused = true)]
async fn a_grant_to_a_dropped_call_is_released_at_once() {
    let lock = LockManager::in_new_memory().lock("order:7");
    let held = lock.acquire().await.expect("it is free");
    let mut waiting = Box::pin(lock.clone().min_hold(LEASE).wait(LEASE).acquire());
    assert!(waiting.as_mut().now_or_never().is_none());

    drop(held);
    assert!(lock.try_acquire().await.expect("memory replies").is_none(), "it was granted");
    drop(waiting);

    assert!(lock.try_acquire().await.expect("memory replies").is_some());
}

#[tokio::test(start_paused = true)]
async fn nested_calls_of_one_body_wait_for_each_other() {
    let lock = LockManager::in_new_memory().lock("order:7").wait(LEASE);
    let start = Instant::now();
    let nested = || lock.run(async |_| tokio::time::sleep(Duration::from_secs(2)).await);

    let ran = lock.run(async |_| tokio::join!(nested(), nested())).await;

    assert!(matches!(ran, Ok((Ok(()), Ok(())))), "{ran:?}");
    assert_eq!(start.elapsed(), Duration::from_secs(4));
}

/// Returns a manager whose clock stands still, and its requests.
fn with_set_clock() -> (Fixture, LockManager, Arc<SetClock>) {
    let clock = Arc::<SetClock>::default();
    let fixture = Fixture::with_clock(Clock::Set(Arc::clone(&clock)));
    let locks = LockManager::over(Arc::clone(&fixture.engine));
    (fixture, locks, clock)
}

fn at(seconds: u64) -> BootInstant {
    BootInstant::START.plus(Duration::from_secs(seconds))
}

/// Replies to the one request that was sent, at a number of seconds.
fn reply_at(seconds: u64, fixture: &Fixture, reply: Reply) {
    let [request] = <[Request; 1]>::try_from(fixture.sent()).expect("one is sent");
    answer_at(at(seconds), fixture, request, reply);
}

/// Acquires a lock at 0 s.
fn acquired(fixture: &Fixture, lock: &Lock) -> LockGuard {
    let mut acquired = pin!(lock.acquire());
    assert!(acquired.as_mut().now_or_never().is_none());
    reply_at(0, fixture, Reply::Owner);
    acquired.now_or_never().expect("it has its reply").expect("it is free")
}

/// Returns the warnings and errors that `tell` emits.
fn problems(tell: impl FnOnce()) -> Vec<String> {
    let mut lines = emitted(tell);
    lines.retain(|line| line.starts_with("WARN ") || line.starts_with("ERROR "));
    lines
}

const FAILED: &str = r#"WARN dlock.release_failed lock.key=order:7 lock.reason="the server said no""#;

/// Returns the event of a lock that was lost after a number of seconds.
fn lost(cause: LossCause, seconds: u64) -> String {
    format!("ERROR dlock.lost lock.key=order:7 lock.held_ms={seconds}000 lock.cause={cause:?}")
}

#[test]
fn the_reply_to_a_release_whose_future_was_dropped_is_an_event() {
    let unknown = || Reply::Unknown(failure(FailureKind::Passing));
    for (reply, event) in [
        (unknown(), Some(FAILED.to_owned())),
        (Reply::NotOwner, Some(lost(LossCause::NotOwner, 1))),
        (Reply::Owner, None),
    ] {
        for is_guard in [true, false] {
            let (fixture, locks, _) = with_set_clock();
            let lock = locks.lock("order:7").lease(LEASE);

            let events = problems(|| {
                if is_guard {
                    assert!(acquired(&fixture, &lock).release().now_or_never().is_none());
                } else {
                    let mut call = Box::pin(lock.run(async |_| ()));
                    assert!(call.as_mut().now_or_never().is_none());
                    reply_at(0, &fixture, Reply::Owner);
                    assert!(call.as_mut().now_or_never().is_none());
                }
                reply_at(1, &fixture, reply.clone());
            });

            assert_eq!(events, Vec::from_iter(event.clone()), "{reply:?} {is_guard}");
        }
    }
}

#[test]
fn a_hold_lost_while_a_request_is_sent_again_is_lost_by_its_cause() {
    let (fixture, locks, clock) = with_set_clock();
    let guard = acquired(&fixture, &locks.lock("order:7").lease(LEASE));
    let mut extended = pin!(guard.extend(LEASE));
    assert!(extended.as_mut().now_or_never().is_none());
    let [request] = <[Request; 1]>::try_from(fixture.sent()).expect("one is sent");
    clock.set(at(1).nanos());
    let [verification] = <[Request; 1]>::try_from(fixture.tick(at(1))).expect("it verifies the hold");
    answer_at(at(1), &fixture, verification, Reply::NotOwner);

    let broken = Reply::Unknown(failure(FailureKind::Passing).with_connection_lost());
    answer_at(at(1), &fixture, request, broken);

    let error = extended.now_or_never().expect("it waits for no reply").expect_err("the hold is lost");
    let Error::Lost { cause, held, .. } = error else { panic!("{error:?}") };
    assert_eq!((cause, held), (LossCause::NotOwner, Duration::from_secs(1)));
}

#[test]
fn a_key_that_expired_before_the_reply_to_a_release_is_no_loss() {
    let expired = "the lease expired before the server replied";
    let expired = format!(r#"WARN dlock.release_failed lock.key=order:7 lock.reason="{expired}""#);
    for (seconds, event) in [(29, lost(LossCause::NotOwner, 29)), (30, expired)] {
        for end in ["drop of a guard", "release of a guard", "call"] {
            let (fixture, locks, clock) = with_set_clock();
            let lock = locks.lock("order:7").lease(LEASE);
            let reply = || {
                clock.set(at(seconds).nanos());
                reply_at(seconds, &fixture, Reply::NotOwner);
            };

            let events = problems(|| match end {
                "drop of a guard" => {
                    drop(acquired(&fixture, &lock));
                    reply();
                }
                "release of a guard" => {
                    let mut release = pin!(acquired(&fixture, &lock).release());
                    assert!(release.as_mut().now_or_never().is_none());
                    reply();
                    let ended = release.now_or_never().expect("it has its reply");
                    assert_eq!(ended.is_err_and(|error| error.is_unavailable()), seconds == 30);
                }
                _ => {
                    let mut call = pin!(lock.run(async |_| ()));
                    assert!(call.as_mut().now_or_never().is_none());
                    reply_at(0, &fixture, Reply::Owner);
                    assert!(call.as_mut().now_or_never().is_none());
                    reply();
                    assert!(call.now_or_never().expect("it has its reply").is_ok());
                }
            });

            let is_reported = end != "release of a guard"; // its error says the same
            assert_eq!(events.len(), usize::from(is_reported), "{end} {seconds}: {events:?}");
            assert!(events.iter().all(|line| line.starts_with(&event)), "{end} {seconds}: {events:?}");
        }
    }
}

#[test]
fn a_hold_that_ends_after_its_lease_reports_its_loss() {
    let ends = ["drop of a guard", "release of a guard", "drop of a call"];
    for (end, is_ticked) in ends.into_iter().flat_map(|end| [(end, true), (end, false)]) {
        let (fixture, locks, clock) = with_set_clock();
        let lock = locks.lock("order:7").lease(LEASE);
        let late = || {
            clock.set(at(40).nanos());
            if is_ticked {
                fixture.tick(at(40));
            }
        };

        let events = problems(|| {
            if end == "drop of a call" {
                let mut call = Box::pin(lock.run(async |_| pending::<()>().await));
                assert!(call.as_mut().now_or_never().is_none());
                reply_at(0, &fixture, Reply::Owner);
                assert!(call.as_mut().now_or_never().is_none());
                late();
                drop(call);
            } else {
                let guard = acquired(&fixture, &lock);
                late();
                if end == "drop of a guard" {
                    drop(guard);
                } else {
                    let released = guard.release().now_or_never().expect("it waits for no reply");
                    assert!(released.is_err_and(|error| error.is_lost()));
                }
            }
            reply_at(40, &fixture, Reply::NotOwner);
        });

        assert_eq!(events, [lost(LossCause::Expired, 40)], "{end} {is_ticked}");
    }
}

/// No renewal is sent after `max_hold`, so the lease expires in any case.
#[test]
fn an_overlap_after_max_hold_has_no_failed_renewal_as_its_reason() {
    for is_ticked in [true, false] {
        let (fixture, locks, clock) = with_set_clock();
        let lock = locks.lock("order:7").lease(LEASE).max_hold(Duration::from_secs(40));
        let (end, ended) = oneshot::channel::<()>();
        let mut call = Box::pin(lock.run(async |_| {
            let _ = ended.await;
            if is_ticked {
                fixture.tick(at(42));
            }
            clock.set(at(60).nanos());
        }));
        assert!(call.as_mut().now_or_never().is_none());
        reply_at(0, &fixture, Reply::Owner);
        assert!(call.as_mut().now_or_never().is_none());
        for reply in [Reply::Owner, Reply::Owner, Reply::Refused(failure(FailureKind::Passing))] {
            reply_to_renewal(&fixture, at(0), &reply);
        }

        drop(end);
        let ran = call.now_or_never().expect("it waits for no reply");

        let Err(Error::Lost { cause: LossCause::Expired, completed: true, reason, .. }) = ran else {
            panic!("{is_ticked}: {ran:?}")
        };
        assert_eq!(reason, None, "{is_ticked}");
    }
}

#[test]
fn the_owner_of_another_manager_is_looked_up_in_time() {
    let other = Token::of_numbers(8, 1).expect("a token").process();
    for (passed, is_asked) in [(999_999_999, true), (1_000_000_000, false)] {
        let (fixture, locks, clock) = with_set_clock();
        let mut inspected = pin!(locks.inspect("order:7"));
        assert!(inspected.as_mut().now_or_never().is_none());
        let [request] = <[Request; 1]>::try_from(fixture.sent()).expect("one is sent");
        let record = RecordInfo { holder: Some(other), waiters: 2, ttl: Some(LEASE), fence: None };

        clock.set(passed);
        answer(&fixture, request, Reply::Info(Some(record)));
        let seen = inspected.now_or_never().expect("it does not wait for longer");

        let commands: Vec<_> = fixture.sent().iter().map(|request| request.command).collect();
        assert_eq!(commands, Vec::from_iter(is_asked.then_some(Command::Call)), "{passed} ns");
        let seen = seen.expect("there is a reply").expect("it is held");
        assert_eq!((seen.waiters(), seen.owner(), seen.is_held_here()), (2, None, false));
    }
}

#[test]
fn the_owner_of_the_own_manager_needs_no_request() {
    let (fixture, locks, _) = with_set_clock();
    let (own, key) = (fixture.engine.tokens.process(), LockKey::new("order:7").expect("a key"));

    let owner = locks.owner_of(own, &key, BootInstant::START).now_or_never().expect("it is known");

    assert!(owner.is_some_and(|owner| owner == locks.owner()) && fixture.sent().is_empty());
}

#[test]
fn a_manager_is_ready_if_the_server_replies() {
    let passing = || failure(FailureKind::Passing);
    for (reply, is_ready) in
        [(Reply::Owner, true), (Reply::Unknown(passing()), false), (Reply::Refused(passing()), false)]
    {
        let (fixture, locks, _) = with_set_clock();
        let name = Name::from(locks.namespace());
        let mut pinged = pin!(fixture.engine.query(&name, Command::Ping));
        assert!(pinged.as_mut().now_or_never().is_none());
        let [request] = <[Request; 1]>::try_from(fixture.sent()).expect("one is sent");
        assert_eq!(request.command, Command::Ping);

        answer(&fixture, request, reply);

        let replied = pinged.now_or_never().expect("it has its reply");
        assert_eq!(matches!(replied, Ok(Reply::Owner)), is_ready, "{replied:?}");
        let late = locks.ready().now_or_never().expect("the backend has no patience");
        assert!(
            late.is_err_and(|error| error.to_string().contains("no reply from the server within 500 ms"))
        );
    }
}

#[tokio::test]
async fn a_manager_that_was_shut_down_is_not_ready() {
    let locks = LockManager::in_new_memory();
    assert!(locks.ready().await.is_ok() && !locks.is_shut_down());

    locks.shutdown(Duration::ZERO).await;

    assert!(locks.is_shut_down());
    assert!(matches!(locks.ready().await, Err(Error::Shutdown { key: None })));
    assert!(matches!(locks.lock("order:7").acquire().await, Err(Error::Shutdown { key: Some(_) })));
}

/// A forked process neither has the lock nor releases it. A body that may not be stopped continues.
#[tokio::test]
async fn a_fork_inside_a_body_ends_it_unless_it_runs_to_its_end() {
    for (on_lost, waits, expected) in [
        (OnLost::Abort, true, Err(false)),
        (OnLost::Abort, false, Err(true)),
        (OnLost::Finish, true, Ok(7)),
        (OnLost::Finish, false, Ok(7)),
    ] {
        let locks = LockManager::in_new_memory();
        let engine = Arc::clone(locks.engine());

        let lock = locks.lock("order:7").on_lost(on_lost);
        let ran = lock.run(async |_| {
            engine.fork.simulate_fork();
            if waits {
                tokio::task::yield_now().await;
            }
            7
        });

        let ended = ran.await.map_err(|error| match error {
            Error::Lost { cause: LossCause::Forked, completed, .. } => completed,
            error => panic!("{error:?}"),
        });
        assert_eq!(ended, expected, "{on_lost:?} {waits}");
    }
}

#[tokio::test]
async fn a_loss_error_says_whether_the_body_has_completed() {
    let guard = LockManager::in_new_memory().lock("order:7").acquire().await.expect("it is free");
    let held: &HoldGuard = guard.held().expect("it is held");
    let loss = (LossCause::Expired, LEASE);

    for is_completed in [false, true] {
        let error = held.lost_error(loss, is_completed);
        let Error::Lost { key, held, cause, completed, reason: None } = error else { panic!("{error:?}") };
        assert_eq!(
            (key.as_str(), held, cause, completed),
            ("order:7", LEASE, LossCause::Expired, is_completed)
        );
    }
}

#[test]
fn the_backend_learns_of_earlier_deadlines_only() {
    let (fixture, start) = (Fixture::new(), boot_time());
    let late = fixture.hold("late", LEASE, start);
    assert_eq!(fixture.recorder.take_earlier().last(), Some(&fixture.engine.due()));

    let early = fixture.hold("early", Duration::from_secs(1), start);
    let due = fixture.engine.due();
    assert!(fixture.recorder.take_earlier().contains(&due));
    fixture.tick(due);

    assert!(fixture.engine.due() > due);
    assert!(fixture.recorder.take_earlier().is_empty(), "it returns them");
    drop((late, early));
}

#[cfg(any(feature = "idempotent", feature = "scheduled"))]
#[test]
fn a_quorum_keeps_no_records() {
    use crate::engine::Engine;
    use crate::engine::throttle_tests::RequestRecorder;
    use crate::protocol::ProtocolConfig;
    use crate::token::TokenSource;

    let recorder = Arc::new(RequestRecorder::of_quorum());
    let (tokens, rules) = (TokenSource::of_process(1), ProtocolConfig::DEFAULT);
    let locks = LockManager::over(Arc::new(Engine::new(recorder, Clock::Boot, tokens, rules, LEASE)));
    let key = LockKey::new("order:7").expect("a key");

    for refused in [locks.check_store("job", "jobs"), locks.check_records(&key, "job", "jobs")] {
        let Err(Error::Config { part, problem }) = refused else { panic!("{refused:?}") };
        assert!(
            &*part == "job" && problem.contains("a quorum keeps no records of jobs"),
            "{part}: {problem}"
        );
    }
}

/// A late command is withdrawn twice, 1 s apart: `settle` may end after each response timeout.
#[test]
fn a_shutdown_releases_what_is_left_and_waits_for_the_cleanup() {
    let (fixture, start) = (Fixture::new(), boot_time());
    let held = fixture.hold("order:7", LEASE, start);

    let ended = fixture.engine.shutdown(Duration::ZERO).now_or_never();

    assert!(ended.is_some(), "the backend has no patience");
    let commands: Vec<_> = fixture.sent().iter().map(|request| request.command).collect();
    assert!(matches!(commands[..], [command] if command.is_release()), "{commands:?}");
    assert_eq!(held.check_valid(start).map_err(|(cause, _)| cause), Err(LossCause::Shutdown));
    assert_eq!(fixture.recorder.settled(), 3);
}

#[test]
fn a_shutdown_of_a_forked_process_does_nothing() {
    let fixture = Fixture::new();
    let _held = fixture.hold("order:7", LEASE, boot_time());
    fixture.engine.fork.simulate_fork();

    assert!(fixture.engine.shutdown(LEASE).now_or_never().is_some());

    assert!(!fixture.engine.is_closed() && fixture.sent().is_empty());
    assert_eq!(fixture.recorder.settled(), 0);
}

#[tokio::test(start_paused = true)]
async fn call_chains_that_wait_for_each_other_are_a_deadlock() {
    let locks = LockManager::in_new_memory();
    let lock = |key: &str| locks.lock(key.to_owned()).wait(LEASE);
    let nested = async |outer: &str, inner: &str| {
        let ran = lock(outer).run(async |_| {
            tokio::task::yield_now().await;
            lock(inner).run(async |_| ()).await
        });
        ran.await.expect("it is free")
    };

    let start = Instant::now();
    let ended = tokio::join!(nested("a", "b"), nested("b", "a"));

    // The call whose wait closes the cycle is rejected, and the other one acquires the lock.
    let ((Ok(()), Err(rejected)) | (Err(rejected), Ok(()))) = &ended else { panic!("{ended:?}") };
    let Error::Deadlock { key, held } = rejected else { panic!("{rejected:?}") };
    assert!(matches!((key.as_str(), held.as_str()), ("a", "b") | ("b", "a")), "{ended:?}");
    assert_eq!(start.elapsed(), Duration::ZERO);
    let apart = tokio::join!(nested("a", "c"), nested("b", "c"));
    assert!(matches!(apart, (Ok(()), Ok(()))), "{apart:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_here_after_its_body_for_its_min_hold() {
    let locks = LockManager::in_new_memory();
    let lock = locks.lock("order:7").min_hold(Duration::from_secs(10));
    let seen = async || locks.inspect("order:7").await.expect("memory replies");

    let inside = lock.run(async |_| seen().await).await.expect("it is free").expect("it is held");
    let after = seen().await.expect("it is kept");

    assert!(inside.is_held_here() && !inside.is_kept_here());
    assert!(after.is_held_here() && after.is_kept_here());
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(seen().await.is_none(), "it is free");
}
