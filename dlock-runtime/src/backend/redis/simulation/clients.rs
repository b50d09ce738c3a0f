//! The clients of a run: they connect, acquire locks in many ways, hold them for a while, and shut
//! down.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use crate::backend::redis::simulation::invariants::Holding;
use crate::backend::redis::simulation::model::{
    FAULTS_END, Profile, RedisSimulation, drifts, name, sim_time,
};
use crate::backend::redis::simulation::parameters::Parameters;
use crate::lock::Lock;
use crate::manager::LockManager;
use crate::options::ReleaseMode;
use crate::{LockGuard, OnLost};

/// The process of a client.
pub(super) async fn client(simulation: Rc<RedisSimulation>, number: usize) -> turmoil::Result {
    drifts(&simulation, number);
    let start = {
        let mut starts = simulation.starts.borrow_mut();
        starts[number] += 1;
        starts[number]
    };
    let mut parameters = Parameters::new(simulation.seed, 100 * (number as u64 + 1) + start);
    let locks = connected(&simulation, number).await;
    let tasks: Vec<_> = (0..simulation.profile.tasks)
        .map(|_| {
            let parameters = Parameters::new(parameters.next(), 0);
            let task =
                Task { simulation: Rc::clone(&simulation), locks: locks.clone(), client: number, parameters };
            tokio::task::spawn_local(task.run_rounds())
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let mut task =
        Task { simulation: Rc::clone(&simulation), locks: locks.clone(), client: number, parameters };
    task.last_round().await;
    drop(task);
    let grace = Duration::from_millis(200);
    simulation.note(|| format!("{} shuts down", name(number)));
    let limit = grace + simulation.profile.response_timeout * 2 + SECOND_WITHDRAWAL;
    simulation.within("shutting down", limit, locks.shutdown(grace)).await;
    drop(locks);
    sleep(Duration::from_millis(50)).await; // the last commands are sent
    simulation.done.set(simulation.done.get() + 1);
    Ok(())
}

/// Connects, with as many attempts as necessary.
async fn connected(simulation: &RedisSimulation, number: usize) -> LockManager {
    let Profile { url, connect_timeout, response_timeout, .. } = &simulation.profile;
    loop {
        let limit = *connect_timeout * 2 + *response_timeout;
        match simulation.within("connecting", limit, LockManager::connect(url)).await {
            Some(Ok(locks)) => {
                simulation.note(|| format!("{} is connected as {}", name(number), locks.id()));
                return locks;
            }
            failed => simulation.note(|| format!("{} is not connected: {failed:?}", name(number))),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

struct Task {
    simulation: Rc<RedisSimulation>,
    locks: LockManager,
    client: usize,
    parameters: Parameters,
}

impl Task {
    async fn run_rounds(mut self) {
        while sim_time() < FAULTS_END {
            self.round().await;
            let pause = self
                .parameters
                .millis(0, u64::try_from(self.simulation.profile.pause.as_millis()).unwrap_or(1));
            sleep(pause).await;
        }
    }

    /// After the last fault, every waiter is granted its lock.
    async fn last_round(&mut self) {
        for key in 0..self.simulation.profile.keys {
            let lock = self.locks.lock(format!("k{key}")).wait(FINAL_WAIT).lease(Duration::from_millis(500));
            let acquired = self.simulation.within("the final acquire", FINAL_WAIT, lock.acquire()).await;
            match acquired {
                Some(Ok(guard)) => {
                    let mut holding = Holding::enter(&self.simulation, self.client, key, &guard);
                    sleep(Duration::from_millis(10)).await;
                    holding.refresh(&guard);
                    drop(holding);
                    drop(guard);
                }
                failed => {
                    self.simulation.violated(format!(
                        "J5: {} was not granted its lock after the faults: {failed:?}",
                        name(self.client)
                    ));
                }
            }
        }
    }

    async fn round(&mut self) {
        let simulation = Rc::clone(&self.simulation);
        let (key, wait) = (self.parameters.below(simulation.profile.keys), simulation.profile.wait);
        let lock = self.lock(key);
        let limit = wait;
        match self.parameters.below(100) {
            0..45 => {
                let acquired = simulation.within("acquiring", limit, lock.wait(wait).acquire()).await;
                self.hold_guard(key, "acquired", acquired).await;
            }
            45..55 => {
                let limit = simulation.profile.response_timeout * 2;
                match simulation.within("trying", limit, lock.try_acquire()).await {
                    Some(Ok(Some(guard))) => self.hold_guard(key, "got", Some(Ok(guard))).await,
                    other => simulation.note(|| format!("{} tried k{key}: {other:?}", name(self.client))),
                }
            }
            55..62 => {
                // A dropped future acquires nothing afterwards.
                let cutoff = self.parameters.millis(0, 200);
                let acquired = tokio::time::timeout(cutoff, lock.wait(wait).acquire()).await;
                self.hold_guard(key, "acquired at once", acquired.ok()).await;
            }
            62..94 => self.run_body(key, lock.wait(wait)).await,
            _ => {
                let limit = simulation.profile.response_timeout * 2;
                let inspected =
                    simulation.within("inspecting", limit, self.locks.inspect(format!("k{key}"))).await;
                simulation.note(|| format!("{} inspects k{key}: {inspected:?}", name(self.client)));
                drop(simulation.within("checking readiness", limit, self.locks.ready()).await);
            }
        }
    }

    fn lock(&mut self, key: u64) -> Lock {
        let Profile { lease, renewed, .. } = self.simulation.profile;
        let parameters = &mut self.parameters;
        let mut lock = self.locks.lock(format!("k{key}")).lease(lease).renew(parameters.chance(renewed));
        if parameters.chance(15) {
            lock = lock.max_hold(lease.mul_f64(1.2));
        }
        if parameters.chance(10) {
            lock = lock.min_hold(lease.mul_f64(0.3));
        }
        if parameters.chance(30) {
            lock = lock.release_mode(ReleaseMode::Background);
        }
        lock.backoff(Duration::from_millis(5), Duration::from_millis(50))
    }

    /// Holds an acquired lock, and releases it.
    async fn hold_guard(&mut self, key: u64, how: &str, acquired: Option<crate::Result<LockGuard>>) {
        let simulation = Rc::clone(&self.simulation);
        let guard = match acquired {
            Some(Ok(guard)) => guard,
            failed => {
                return simulation.note(|| format!("{} has not {how} k{key}: {failed:?}", name(self.client)));
            }
        };
        let mut holding = Holding::enter(&simulation, self.client, key, &guard);
        hold(&simulation, &mut self.parameters, &guard, &mut holding).await;
        drop(holding);
        if self.parameters.chance(50) {
            let limit = simulation.profile.response_timeout * 2;
            let released = simulation.within("releasing", limit, guard.release()).await;
            simulation.note(|| format!("{} has released k{key}: {released:?}", name(self.client)));
        }
    }

    /// Runs a body under the lock.
    async fn run_body(&mut self, key: u64, lock: Lock) {
        let (simulation, client) = (Rc::clone(&self.simulation), self.client);
        let parameters = &mut self.parameters;
        let (lock, stops) =
            if parameters.chance(80) { (lock, true) } else { (lock.on_lost(OnLost::Finish), false) };
        let ran = lock.run(async |guard| {
            let mut holding = Holding::enter(&simulation, client, key, guard);
            holding.stops = stops;
            hold(&simulation, parameters, guard, &mut holding).await;
        });
        let ran = ran.await;
        simulation.note(|| format!("{} ran under k{key}: {ran:?}", name(client)));
    }
}

/// Holds a lock for a while, and checks it at intervals.
async fn hold(
    simulation: &RedisSimulation,
    parameters: &mut Parameters,
    guard: &LockGuard,
    holding: &mut Holding<'_>,
) {
    let limit = simulation.profile.response_timeout * 2;
    let until =
        sim_time() + parameters.millis(0, u64::try_from(simulation.profile.work.as_millis()).unwrap_or(1));
    if parameters.chance(50) {
        if let Some(Ok(token)) = simulation.within("requesting a token", limit, guard.fencing_token()).await {
            holding.has_token(token.get());
        }
        holding.refresh(guard);
    }
    if parameters.chance(10) {
        let lease = simulation.profile.lease * 2;
        let _ = simulation.within("extending", limit, guard.extend(lease)).await;
    }
    let stays = parameters.chance(simulation.profile.stays);
    while holding.refresh(guard) && (sim_time() < until || stays && sim_time() < FAULTS_END) {
        sleep(parameters.millis(1, 60)).await;
    }
}

/// A late effect is cleaned up by a second withdrawal after this time.
const SECOND_WITHDRAWAL: Duration = Duration::from_secs(1);

/// By then every waiter has been granted its lock, including cleanup after crashed clients.
const FINAL_WAIT: Duration = Duration::from_secs(8);
