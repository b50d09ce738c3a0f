//! What the clients of a run do: they connect, want locks in many ways, hold them for a while, and go.
//!
//! Not here: what they must not see (`judges`).

use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use crate::backend::redis::simulation::draws::Draws;
use crate::backend::redis::simulation::judges::Holding;
use crate::backend::redis::simulation::world::{CALM, Profile, World, drifts, name, sim_time};
use crate::lock::Lock;
use crate::manager::LockManager;
use crate::options::ReleaseMode;
use crate::{LockGuard, OnLost};

/// The process of a client.
pub(super) async fn client(world: Rc<World>, number: usize) -> turmoil::Result {
    drifts(&world, number);
    let start = {
        let mut starts = world.starts.borrow_mut();
        starts[number] += 1;
        starts[number]
    };
    let mut draws = Draws::new(world.seed, 100 * (number as u64 + 1) + start);
    let locks = connected(&world, number).await;
    let tasks: Vec<_> = (0..world.profile.tasks)
        .map(|_| {
            let draws = Draws::new(draws.next(), 0);
            let task = Task { world: Rc::clone(&world), locks: locks.clone(), client: number, draws };
            tokio::task::spawn_local(task.rounds())
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let mut task = Task { world: Rc::clone(&world), locks: locks.clone(), client: number, draws };
    task.last_round().await;
    drop(task);
    let grace = Duration::from_millis(200);
    world.note(|| format!("{} shuts down", name(number)));
    let limit = grace + world.profile.response_timeout * 2 + SAID_AGAIN;
    world.within("shutting down", limit, locks.shutdown(grace)).await;
    drop(locks);
    sleep(Duration::from_millis(50)).await; // what is said last goes out
    world.done.set(world.done.get() + 1);
    Ok(())
}

/// Connects, however often it takes.
async fn connected(world: &World, number: usize) -> LockManager {
    let Profile { url, connect_timeout, response_timeout, .. } = &world.profile;
    loop {
        let limit = *connect_timeout * 2 + *response_timeout;
        match world.within("connecting", limit, LockManager::connect(url)).await {
            Some(Ok(locks)) => {
                world.note(|| format!("{} is connected as {}", name(number), locks.id()));
                return locks;
            }
            failed => world.note(|| format!("{} is not connected: {failed:?}", name(number))),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

struct Task {
    world: Rc<World>,
    locks: LockManager,
    client: usize,
    draws: Draws,
}

impl Task {
    async fn rounds(mut self) {
        while sim_time() < CALM {
            self.round().await;
            let pause =
                self.draws.millis(0, u64::try_from(self.world.profile.pause.as_millis()).unwrap_or(1));
            sleep(pause).await;
        }
    }

    /// Once all is well, whoever asks gets his turn.
    async fn last_round(&mut self) {
        for key in 0..self.world.profile.keys {
            let lock = self.locks.lock(format!("k{key}")).wait(AT_LAST).lease(Duration::from_millis(500));
            let acquired = self.world.within("acquiring at last", AT_LAST, lock.acquire()).await;
            match acquired {
                Some(Ok(guard)) => {
                    let mut holding = Holding::enter(&self.world, self.client, key, &guard);
                    sleep(Duration::from_millis(10)).await;
                    holding.looks(&guard);
                    drop(holding);
                    drop(guard);
                }
                failed => {
                    self.world.violated(format!("J5: {} had no turn at last: {failed:?}", name(self.client)));
                }
            }
        }
    }

    async fn round(&mut self) {
        let world = Rc::clone(&self.world);
        let (key, wait) = (self.draws.below(world.profile.keys), world.profile.wait);
        let lock = self.lock(key);
        let limit = wait;
        match self.draws.below(100) {
            0..45 => {
                let acquired = world.within("acquiring", limit, lock.wait(wait).acquire()).await;
                self.has(key, "acquired", acquired).await;
            }
            45..55 => {
                let limit = world.profile.response_timeout * 2;
                match world.within("trying", limit, lock.try_acquire()).await {
                    Some(Ok(Some(guard))) => self.has(key, "got", Some(Ok(guard))).await,
                    other => world.note(|| format!("{} tried k{key}: {other:?}", name(self.client))),
                }
            }
            55..62 => {
                // Whoever gives up in the middle of it wants nothing any more.
                let retry_state = self.draws.millis(0, 200);
                let acquired = tokio::time::timeout(retry_state, lock.wait(wait).acquire()).await;
                self.has(key, "acquired at once", acquired.ok()).await;
            }
            62..94 => self.runs(key, lock.wait(wait)).await,
            _ => {
                let limit = world.profile.response_timeout * 2;
                let inspected =
                    world.within("inspecting", limit, self.locks.inspect(format!("k{key}"))).await;
                world.note(|| format!("{} sees at k{key}: {inspected:?}", name(self.client)));
                drop(world.within("asking whether it is ready", limit, self.locks.ready()).await);
            }
        }
    }

    fn lock(&mut self, key: u64) -> Lock {
        let Profile { lease, renewed, .. } = self.world.profile;
        let draws = &mut self.draws;
        let mut lock = self.locks.lock(format!("k{key}")).lease(lease).renew(draws.chance(renewed));
        if draws.chance(15) {
            lock = lock.max_hold(lease.mul_f64(1.2));
        }
        if draws.chance(10) {
            lock = lock.min_hold(lease.mul_f64(0.3));
        }
        if draws.chance(30) {
            lock = lock.release_mode(ReleaseMode::Background);
        }
        lock.backoff(Duration::from_millis(5), Duration::from_millis(50))
    }

    /// Holds what was acquired, and lets go of it.
    async fn has(&mut self, key: u64, how: &str, acquired: Option<crate::Result<LockGuard>>) {
        let world = Rc::clone(&self.world);
        let guard = match acquired {
            Some(Ok(guard)) => guard,
            failed => {
                return world.note(|| format!("{} has not {how} k{key}: {failed:?}", name(self.client)));
            }
        };
        let mut holding = Holding::enter(&world, self.client, key, &guard);
        hold(&world, &mut self.draws, &guard, &mut holding).await;
        drop(holding);
        if self.draws.chance(50) {
            let limit = world.profile.response_timeout * 2;
            let released = world.within("releasing", limit, guard.release()).await;
            world.note(|| format!("{} has released k{key}: {released:?}", name(self.client)));
        }
    }

    /// Runs a body under the lock.
    async fn runs(&mut self, key: u64, lock: Lock) {
        let (world, client) = (Rc::clone(&self.world), self.client);
        let draws = &mut self.draws;
        let (lock, stops) =
            if draws.chance(80) { (lock, true) } else { (lock.on_lost(OnLost::Finish), false) };
        let ran = lock.run(async |guard| {
            let mut holding = Holding::enter(&world, client, key, guard);
            holding.stops = stops;
            hold(&world, draws, guard, &mut holding).await;
        });
        let ran = ran.await;
        world.note(|| format!("{} ran under k{key}: {ran:?}", name(client)));
    }
}

/// Holds a lock for a while, and looks now and then.
async fn hold(world: &World, draws: &mut Draws, guard: &LockGuard, holding: &mut Holding<'_>) {
    let limit = world.profile.response_timeout * 2;
    let until = sim_time() + draws.millis(0, u64::try_from(world.profile.work.as_millis()).unwrap_or(1));
    if draws.chance(50) {
        if let Some(Ok(token)) = world.within("asking for a token", limit, guard.fencing_token()).await {
            holding.has_token(token.get());
        }
        holding.looks(guard);
    }
    if draws.chance(10) {
        let lease = world.profile.lease * 2;
        let _ = world.within("extending", limit, guard.extend(lease)).await;
    }
    let stays = draws.chance(world.profile.stays);
    while holding.looks(guard) && (sim_time() < until || stays && sim_time() < CALM) {
        sleep(draws.millis(1, 60)).await;
    }
}

/// What arrives late is given back once more after so long.
const SAID_AGAIN: Duration = Duration::from_secs(1);

/// By then whoever waits has had his turn, with all that is left of crashed clients.
const AT_LAST: Duration = Duration::from_secs(8);
