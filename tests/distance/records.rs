//! Idempotent calls, scheduled jobs, and leaders with leases of a few round trips.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_runtime::idempotent::OnCrash;
use dlock_runtime::scheduled::Schedule;
use dlock_runtime::{Error, LockManager};
use dlock_tests::acl::{WITH_JOBS, WITH_RECORDS, documented_besides};
use dlock_tests::within;
use futures_util::future::join_all;
use tokio::sync::mpsc;

use super::{Far, LONG, millis};

/// Each round trip and a lease of about three of them, in milliseconds.
const DISTANCES: [(u64, u64); 2] = [(300, 1_200), (450, 1_500)];

/// Returns how long a body takes: a lease that is not renewed ends before it.
const fn body(lease: u64) -> Duration {
    millis(lease * 3 / 2)
}

/// Two managers that act for two processes, and connected before the server became distant.
async fn managers(far: &Far, round_trip: u64) -> [LockManager; 2] {
    far.server.allow(documented_besides(WITH_RECORDS));
    far.server.allow(documented_besides(WITH_JOBS));
    let url = far.proxy.url_with("?response_timeout=2s");
    let connect = async || LockManager::connect(&url).await.expect("the server accepts connections");
    let managers = [connect().await, connect().await];
    far.proxy.round_trip(millis(round_trip));
    managers
}

#[tokio::test]
async fn idempotent_calls_run_once_and_duplicates_get_the_result() {
    const CALLS: usize = 30;
    let all = DISTANCES.map(|(round_trip, lease)| async move {
        let far = Far::start_near();
        let managers = &managers(&far, round_trip).await;
        let runs = &AtomicU64::new(0);
        let calls = (0..CALLS * 2).map(|number| async move {
            // With this policy, a duplicate runs as soon as the lease is over.
            let call = managers[number % 2].idempotent(format!("charge:{}", number / 2));
            let call = call.lease(millis(lease)).on_crash(OnCrash::Rerun);
            let work = async |_| {
                tokio::time::sleep(body(lease)).await;
                Ok::<_, Error>(runs.fetch_add(1, Ordering::SeqCst))
            };
            Ok((number / 2, call.wait(LONG).run_attached(work).await?.into_value()))
        });

        let ended: Result<Vec<_>, Error> =
            within(LONG, "the calls", join_all(calls)).await.into_iter().collect();

        let ended = ended.unwrap_or_else(|error| panic!("{round_trip} ms, {lease} ms: {error}"));
        assert_eq!(runs.load(Ordering::SeqCst), CALLS as u64, "{round_trip} ms, {lease} ms");
        let equal = ended.chunks(2).all(|both| both[0] == both[1]);
        assert!(equal, "{round_trip} ms, {lease} ms: {ended:?}");
    });
    join_all(all).await;
}

#[tokio::test]
async fn a_tick_runs_once_and_its_lease_is_renewed() {
    let all = DISTANCES.map(|(round_trip, lease)| async move {
        let far = Far::start_near();
        let managers = managers(&far, round_trip).await;
        let schedule =
            Schedule::every(Duration::from_secs(3_600)).expect("a valid period").lease(millis(lease));
        let runs = managers.iter().map(|manager| {
            let work = async |_| {
                tokio::time::sleep(body(lease)).await;
                Ok::<_, Error>(())
            };
            let job = manager.job("report");
            let schedule = &schedule;
            async move { job.run(schedule, work).await }
        });

        let ran: Result<Vec<_>, Error> = within(LONG, "the runs", join_all(runs)).await.into_iter().collect();

        let ran = ran.unwrap_or_else(|error| panic!("{round_trip} ms, {lease} ms: {error}"));
        assert_eq!(ran.iter().flatten().count(), 1, "{round_trip} ms, {lease} ms");
    });
    join_all(all).await;
}

#[tokio::test]
async fn a_leader_stays_and_hands_off() {
    let all = DISTANCES.map(|(round_trip, lease)| async move {
        let far = Far::start_near();
        let managers = managers(&far, round_trip).await;
        let (started, mut terms) = mpsc::unbounded_channel();
        let leading = managers.each_ref().map(|manager| {
            let (leader, started) = (manager.leader("mailer").lease(millis(lease)), started.clone());
            async move {
                leader
                    .lead(|term| {
                        started.send(term.number().get()).expect("the receiver is open");
                        async move {
                            tokio::time::sleep(body(lease)).await;
                            term.resign().await;
                        }
                    })
                    .await
            }
        });
        let ended = async {
            let mut next = async || within(LONG, "a term", terms.recv()).await.expect("it leads");
            let first = next().await;
            let begun = tokio::time::Instant::now();
            let second = next().await;
            assert!(second > first, "{round_trip} ms: {second} after {first}");
            assert!(begun.elapsed() >= body(lease), "{round_trip} ms: the first term was lost");
        };
        tokio::select! {
            () = ended => {}
            led = join_all(leading) => panic!("{round_trip} ms: {led:?}"),
        }
    });
    join_all(all).await;
}
