//! Timers of other libraries, which call the annotated function.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, scheduled};
use tokio_cron_scheduler::{Job, JobScheduler};

use super::{SECOND, redis};

/// The calls and ticks of the replicas of a test.
#[derive(Default)]
struct Log {
    calls: AtomicU32,
    slots: Mutex<Vec<u64>>,
}

#[scheduled(name = "report", every = "1s", manager = locks, tick = tick)]
async fn report(locks: LockManager, log: &Log) -> Result<Option<u64>, Error> {
    log.slots.lock().unwrap_or_else(PoisonError::into_inner).push(tick.slot());
    Ok(Some(tick.slot()))
}

/// Calls the function, as each replica does.
async fn call(locks: LockManager, log: Arc<Log>) {
    log.calls.fetch_add(1, Ordering::Relaxed);
    report(locks, &log).await.expect("the store is available");
}

/// Asserts that each tick of about `ticks` seconds ran once, although two replicas called it.
fn assert_once(log: &Log, ticks: usize) {
    let slots = log.slots.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), slots.len(), "a tick ran twice: {slots:?}");
    let calls = log.calls.load(Ordering::Relaxed) as usize;
    assert!(slots.len() >= ticks && calls > slots.len(), "{calls} calls, {slots:?}");
}

const SPAN: Duration = Duration::from_millis(4_500);

#[tokio::test]
async fn a_cron_library_in_each_replica_runs_each_tick_once() {
    let (server, log) = (redis(), Arc::new(Log::default()));
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let locks = LockManager::connect(&server.url()).await.expect("the server takes managers");
        let replica = JobScheduler::new().await.expect("it needs no store");
        let log = Arc::clone(&log);
        let job = Job::new_async("* * * * * *", move |_, _| Box::pin(call(locks.clone(), Arc::clone(&log))));
        replica.add(job.expect("a valid expression")).await.expect("it is new");
        replica.start().await.expect("it has not started");
        replicas.push(replica);
    }

    tokio::time::sleep(SPAN).await;
    for mut replica in replicas {
        replica.shutdown().await.expect("it runs");
    }

    assert_once(&log, 3);
}

#[tokio::test]
async fn an_interval_in_each_replica_runs_each_tick_once() {
    let (server, log) = (redis(), Arc::new(Log::default()));
    let replica = async |offset: Duration| {
        let locks = LockManager::connect(&server.url()).await.expect("the server takes managers");
        let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + offset, SECOND);
        loop {
            interval.tick().await;
            call(locks.clone(), Arc::clone(&log)).await;
        }
    };

    let replicas = futures_util::future::join(replica(Duration::ZERO), replica(Duration::from_millis(300)));
    // They do not end by themselves.
    let _ = tokio::time::timeout(SPAN, replicas).await;

    assert_once(&log, 3);
}
