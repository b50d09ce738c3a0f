//! Every public future is dropped at every await, in every state that the network can be in, and leaves nothing behind.
//!
//! | phase | from the n-th request on, for each n |
//! |---|---|
//! | answered | nothing is in the way |
//! | sent | the server executes, and its replies come after the call is gone |
//! | before it is sent | requests arrive after the call is gone |
//! | cut | there is no connection |
//!
//! A call is polled 0, 1, 2, .. times and then dropped, until it ends by itself first, or waits for somebody else. Then the way is open
//! again, another process gets the lock in time, and in the end nothing is left in the server and in the engine.
//!
//! Not here: drops in bad weather (`world`), the same over a real server (`tests/cancel.rs`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::calls::Caller;
use super::network::{HeldUp, MS, TIMEOUT};
use super::weather::Weather;
use super::world::{Event, World};
use crate::__private::{Body, Call, Site};
use crate::sync::lock;
use crate::{LockGuard, Options, ReleaseMode, in_current_scope};

/// A public future, and what is around it.
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
enum AcquisitionState {
    Answered,
    Sent,
    BeforeSent,
    Cut,
}

/// How a call ended that was polled so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedAcquisition {
    Dropped,
    ByItself,
    /// It waits for somebody else.
    AcquireFuture,
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
            (_, None) => unreachable!("it was taken before"),
        }
    }
}

/// Makes a call and drops it once it has been polled so often.
fn drop_after(
    polls: u64,
    future: Future,
    phase: AcquisitionState,
    from: u64,
) -> Result<EndedAcquisition, String> {
    let weather = Weather { lease: 2_000, min_hold: 60, ..Weather::calm() };
    let mut world = World::new(polls, weather.clone(), false);
    let (caller, other) = (world.caller(0), world.caller(1));
    let (ours, theirs) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(None)));
    for (is_held, caller, slot) in
        [(future.holds_before(), &caller, &ours), (future.is_held_elsewhere(), &other, &theirs)]
    {
        if is_held {
            let mut asked = caller.manager.lock("key:0").lease(LEASE);
            if future == Future::ReleaseMinHold {
                asked = asked.min_hold(Duration::from_millis(50));
            }
            let slot = Rc::clone(slot);
            let take = async move { *slot.borrow_mut() = asked.acquire().await.ok() };
            world.tasks.add(caller.process, Box::pin(take));
            world.run_until(100 * MS, true)?;
        }
    }
    {
        let mut state = lock(&world.net.state);
        let from = state.packets + 1 + from;
        state.held_up = match phase {
            AcquisitionState::Answered | AcquisitionState::Cut => None,
            AcquisitionState::Sent => Some((from, HeldUp::Replies)),
            AcquisitionState::BeforeSent => Some((from, HeldUp::Requests)),
        };
        if phase == AcquisitionState::Cut {
            let (time, process) = (world.net.now() + from * MS, 0);
            state.at(time, Event::Cut { process, back_in: 3 * TIMEOUT, moved: false });
        }
    }

    let is_done = Rc::new(Cell::new(false));
    let (done, held) = (Rc::clone(&is_done), ours.borrow_mut().take());
    let call = async move {
        future.make(caller, held).await;
        done.set(true);
    };
    let task = world.tasks.add(0, Box::pin(call));
    world.tasks.get_mut(task).expect("it was added").cut_after = Some(polls);
    world.run_until(world.net.now() + 4 * TIMEOUT, true)?;
    let ended = match (is_done.get(), world.tasks.get_mut(task).is_some()) {
        (true, _) => EndedAcquisition::ByItself,
        (false, true) => EndedAcquisition::AcquireFuture,
        (false, false) => EndedAcquisition::Dropped,
    };
    drop(world.tasks.take(task));

    lock(&world.net.state).held_up = None;
    drop(theirs.borrow_mut().take());
    let since = world.net.now();
    let next = async move {
        let taken = other.manager.lock("key:0").lease(LEASE).wait(LONG).acquire().await;
        let bound = if phase == AcquisitionState::Answered { 200 * MS } else { 2_500 * MS };
        other.net.judge_time(1, "the next one's way to the lock", since, bound);
        match taken {
            Ok(guard) => drop(guard.release().await),
            Err(error) => other.net.wrong(format!("the next one gets {error}")),
        }
    };
    world.tasks.add(1, Box::pin(next));
    world.run_until(world.net.now() + 10_000 * MS, true)?;
    world.judge_the_end(&weather)?;
    Ok(ended)
}

#[test]
fn every_public_future_leaves_nothing_wherever_it_is_dropped() {
    let (mut drops, mut worlds) = (0, 0);
    for future in FUTURES {
        for phase in [
            AcquisitionState::Answered,
            AcquisitionState::Sent,
            AcquisitionState::BeforeSent,
            AcquisitionState::Cut,
        ] {
            for from in 0..if phase == AcquisitionState::Answered { 1 } else { MOST_REQUESTS } {
                for polls in 0.. {
                    let ended = drop_after(polls, future, phase, from).unwrap_or_else(|wrong| {
                        panic!("{future:?}, {phase:?} from {from}, {polls} polls: {wrong}")
                    });
                    worlds += 1;
                    if ended != EndedAcquisition::Dropped {
                        break;
                    }
                    drops += 1;
                    assert!(polls < MOST_POLLS, "{future:?} is polled for ever");
                }
            }
        }
    }
    println!("cancelled: {} futures dropped at {drops} awaits, in {worlds} worlds", FUTURES.len());
    assert!(drops > 600, "{drops}");
}

static SITE: Site = Site::new("annotated", Options::new().lease(LEASE));

const LEASE: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

/// No call sends more requests than this before it waits for somebody else.
const MOST_REQUESTS: u64 = 5;

const MOST_POLLS: u64 = 200;
