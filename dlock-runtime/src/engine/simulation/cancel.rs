//! Drops every public future at every await, in every state of the network, and checks that nothing
//! is left.
//!
//! | phase | from the n-th request on, for each n |
//! |---|---|
//! | answered | no fault |
//! | sent | the server executes requests, and its replies arrive after the call was dropped |
//! | before it is sent | requests arrive after the call was dropped |
//! | cut | there is no connection |
//!
//! A call is polled 0, 1, 2, ... times and then dropped, until it completes first, or waits for
//! another call. Then the network recovers, another process acquires the lock in time, and nothing
//! is left in the server and in the engine. See `tests/cancel.rs` for the same with a real server.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::calls::Caller;
use super::fault_profile::FaultProfile;
use super::model::{EngineSimulation, Event};
use super::network::{HeldUp, MS, TIMEOUT};
use crate::__private::{Body, Call, Callsite};
use crate::sync::lock;
use crate::{LockGuard, Options, ReleaseMode, in_current_scope};

/// A public future and its setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Future {
    Acquire,
    AcquireOfHeld,
    AcquireWithRetries,
    TryAcquire,
    TryAcquireOfHeld,
    Run,
    RunOfHeld,
    RunInBackground,
    RunMinHold,
    RunNested,
    RunSpawned,
    Annotated,
    AnnotatedAcquire,
    Release,
    ReleaseMinHold,
    FencingToken,
    Extend,
    Lost,
    ForceRelease,
    Inspect,
    Ready,
    Shutdown,
}

const FUTURES: [Future; 22] = [
    Future::Acquire,
    Future::AcquireOfHeld,
    Future::AcquireWithRetries,
    Future::TryAcquire,
    Future::TryAcquireOfHeld,
    Future::Run,
    Future::RunOfHeld,
    Future::RunInBackground,
    Future::RunMinHold,
    Future::RunNested,
    Future::RunSpawned,
    Future::Annotated,
    Future::AnnotatedAcquire,
    Future::Release,
    Future::ReleaseMinHold,
    Future::FencingToken,
    Future::Extend,
    Future::Lost,
    Future::ForceRelease,
    Future::Inspect,
    Future::Ready,
    Future::Shutdown,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkPhase {
    Answered,
    Sent,
    BeforeSent,
    Cut,
}

/// How a call ended after its polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallEnd {
    Dropped,
    Completed,
    /// It waits for another call.
    Waiting,
}

impl Future {
    fn holds_before(self) -> bool {
        matches!(self, Self::Release | Self::ReleaseMinHold | Self::FencingToken | Self::Extend | Self::Lost)
    }

    fn is_held_elsewhere(self) -> bool {
        matches!(
            self,
            Self::AcquireOfHeld
                | Self::AcquireWithRetries
                | Self::TryAcquireOfHeld
                | Self::RunOfHeld
                | Self::ForceRelease
        )
    }

    async fn make(self, caller: Caller, held: Option<LockGuard>) {
        let Caller { net, manager, .. } = &caller;
        let millis = Duration::from_millis;
        let lock = manager.lock("key:0").lease(LEASE);
        let body = async |_: &LockGuard| net.sleep(2 * MS).await;
        match (self, held) {
            (Self::Acquire, _) => drop(lock.acquire().await),
            (Self::AcquireOfHeld, _) => drop(lock.wait(LONG).acquire().await),
            (Self::AcquireWithRetries, _) => {
                drop(lock.retry(3).backoff(millis(2), millis(4)).acquire().await);
            }
            (Self::TryAcquire | Self::TryAcquireOfHeld, _) => drop(lock.try_acquire().await),
            (Self::Run, _) => drop(lock.run(body).await),
            (Self::RunOfHeld, _) => drop(lock.wait(LONG).run(body).await),
            (Self::RunInBackground, _) => drop(lock.release_mode(ReleaseMode::Background).run(body).await),
            (Self::RunMinHold, _) => drop(lock.min_hold(millis(50)).run(body).await),
            (Self::RunNested, _) => {
                let inner = lock.clone().wait(LONG);
                let both = async |_: &LockGuard| {
                    let _ = futures_util::future::join(inner.run(body), inner.run(body)).await;
                };
                drop(lock.run(both).await);
            }
            (Self::RunSpawned, _) => {
                let inner = lock.clone().wait(LONG);
                let spawned = async |_: &LockGuard| {
                    let net = std::sync::Arc::clone(net);
                    let inside = in_current_scope(async move {
                        let _ = inner.run(async |_| net.sleep(2 * MS).await).await;
                    });
                    super::executor::spawn(caller.process, inside);
                    caller.net.sleep(MS).await;
                };
                drop(lock.run(spawned).await);
            }
            (Self::Annotated, _) => {
                let call = Call::under(manager, &SITE).key("key:0");
                let mut body = std::pin::pin!(Body::Future { future: net.sleep(2 * MS) });
                drop(call.run(body.as_mut(), |()| true).await);
            }
            (Self::AnnotatedAcquire, _) => {
                let call = Call::under(manager, &SITE).key("key:0");
                drop(call.acquire().await);
            }
            (Self::Release | Self::ReleaseMinHold, Some(guard)) => drop(guard.release().await),
            (Self::FencingToken, Some(guard)) => drop(guard.fencing_token().await),
            (Self::Extend, Some(guard)) => drop(guard.extend(LEASE).await),
            (Self::Lost, Some(guard)) => drop(guard.lost().await),
            (Self::ForceRelease, _) => drop(manager.force_release("key:0").await),
            (Self::Inspect, _) => drop(manager.inspect("key:0").await),
            (Self::Ready, _) => drop(manager.ready().await),
            (Self::Shutdown, _) => manager.shutdown(millis(100)).await,
            (_, None) => unreachable!("the guard was acquired before"),
        }
    }
}

/// Makes a call and drops it after `polls` polls.
fn drop_after(polls: u64, future: Future, phase: NetworkPhase, from: u64) -> Result<CallEnd, String> {
    let profile = FaultProfile { lease: 2_000, min_hold: 60, ..FaultProfile::faultless() };
    let mut simulation = EngineSimulation::new(polls, profile.clone(), false);
    let (caller, other) = (simulation.caller(0), simulation.caller(1));
    let (own_guard, other_guard) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(None)));
    for (is_held, caller, slot) in
        [(future.holds_before(), &caller, &own_guard), (future.is_held_elsewhere(), &other, &other_guard)]
    {
        if is_held {
            let mut request = caller.manager.lock("key:0").lease(LEASE);
            if future == Future::ReleaseMinHold {
                request = request.min_hold(Duration::from_millis(50));
            }
            let slot = Rc::clone(slot);
            let take = async move { *slot.borrow_mut() = request.acquire().await.ok() };
            simulation.tasks.add(caller.process, Box::pin(take));
            simulation.run_until(100 * MS, true)?;
        }
    }
    {
        let mut state = lock(&simulation.net.state);
        let from = state.packets + 1 + from;
        state.held_up = match phase {
            NetworkPhase::Answered | NetworkPhase::Cut => None,
            NetworkPhase::Sent => Some((from, HeldUp::Replies)),
            NetworkPhase::BeforeSent => Some((from, HeldUp::Requests)),
        };
        if phase == NetworkPhase::Cut {
            let (time, process) = (simulation.net.now() + from * MS, 0);
            state.schedule(time, Event::Disconnect { process, back_in: 3 * TIMEOUT, moved: false });
        }
    }

    let is_done = Rc::new(Cell::new(false));
    let (done, held) = (Rc::clone(&is_done), own_guard.borrow_mut().take());
    let call = async move {
        future.make(caller, held).await;
        done.set(true);
    };
    let task = simulation.tasks.add(0, Box::pin(call));
    simulation.tasks.get_mut(task).expect("it was added").drop_after_polls = Some(polls);
    simulation.run_until(simulation.net.now() + 4 * TIMEOUT, true)?;
    let ended = match (is_done.get(), simulation.tasks.get_mut(task).is_some()) {
        (true, _) => CallEnd::Completed,
        (false, true) => CallEnd::Waiting,
        (false, false) => CallEnd::Dropped,
    };
    drop(simulation.tasks.take(task));

    lock(&simulation.net.state).held_up = None;
    drop(other_guard.borrow_mut().take());
    let since = simulation.net.now();
    let next = async move {
        let taken = other.manager.lock("key:0").lease(LEASE).wait(LONG).acquire().await;
        let bound = if phase == NetworkPhase::Answered { 200 * MS } else { 2_500 * MS };
        other.net.check_time(1, "the next acquisition", since, bound);
        match taken {
            Ok(guard) => drop(guard.release().await),
            Err(error) => other.net.violation(format!("the next acquisition fails: {error}")),
        }
    };
    simulation.tasks.add(1, Box::pin(next));
    simulation.run_until(simulation.net.now() + 10_000 * MS, true)?;
    simulation.check_end(&profile)?;
    Ok(ended)
}

#[test]
fn every_public_future_leaves_nothing_wherever_it_is_dropped() {
    let (mut drops, mut runs) = (0, 0);
    for future in FUTURES {
        for phase in [NetworkPhase::Answered, NetworkPhase::Sent, NetworkPhase::BeforeSent, NetworkPhase::Cut]
        {
            for from in 0..if phase == NetworkPhase::Answered { 1 } else { MAX_REQUESTS } {
                for polls in 0.. {
                    let ended = drop_after(polls, future, phase, from).unwrap_or_else(|wrong| {
                        panic!("{future:?}, {phase:?} from {from}, {polls} polls: {wrong}")
                    });
                    runs += 1;
                    if ended != CallEnd::Dropped {
                        break;
                    }
                    drops += 1;
                    assert!(polls < MAX_POLLS, "{future:?} is polled forever");
                }
            }
        }
    }
    println!("cancelled: {} futures dropped at {drops} awaits, in {runs} runs", FUTURES.len());
    assert!(drops > 600, "{drops}");
}

static SITE: Callsite = Callsite::new("annotated", Options::new().lease(LEASE));

const LEASE: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

/// No call sends more requests before it waits for another call.
const MAX_REQUESTS: u64 = 5;

const MAX_POLLS: u64 = 200;
