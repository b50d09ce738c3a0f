//! Jobs behind sentinels and in a cluster, as the user of the guide with the fewest permissions.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use dlock_runtime::scheduled::{FailedRun, RunOutcome, Schedule};
use dlock_runtime::{Error, LockManager};
use dlock_tests::acl::{self, BEHIND_SENTINELS, IN_A_CLUSTER, WITH_JOBS};
use dlock_tests::sentinel::End;
use dlock_tests::{ClusterFleet, RedisServer, SentinelFleet, until, within};
use tokio::time::Instant;

use super::{LONG, every, run};

/// A period of which no test sees the end.
fn daily() -> Schedule {
    every(Duration::from_secs(24 * 60 * 60)).on_error(FailedRun::Retry(1))
}

/// Creates the user of the guide, with the permissions for jobs and for this deployment.
fn give_user(server: &RedisServer, deployment: &str) {
    let rules: Vec<_> =
        acl::documented_besides(WITH_JOBS).chain(acl::documented_besides(deployment)).collect();
    acl::give_user(server, acl::USER, &[], &rules);
}

/// Does everything that a job can do, from two managers.
async fn live_through(a: &LockManager, b: &LockManager, name: &str) {
    let failed = a.job(name).run(&daily(), async |_| Err::<(), _>(Error::from(empty_key()))).await;
    assert!(matches!(failed, Err(Error::InvalidKey { .. })), "{name}: {failed:?}");
    assert_eq!(run(b, name, &daily()).await.map(|tick| tick.attempt()), Some(2), "{name}");
    assert_eq!(run(a, name, &daily()).await, None, "{name}");
    let (long, job) = (daily().lease(Duration::from_secs(2)), a.job(name));
    let renewed = job.run_slot(SystemTime::now() + LONG, &long, async |tick| {
        let end = || Instant::now() + tick.lease().remaining();
        let first = end();
        until("a renewal", async || end() > first + Duration::from_millis(250)).await;
        Ok::<_, Error>(())
    });
    assert_eq!(renewed.await.expect(name), Some(()));
    let job = b.job(name);
    job.pause().await.expect(name);
    job.resume().await.expect(name);
    job.run_now().await.expect(name);
    assert!(job.status().await.expect(name).expect("it is known").is_requested, "{name}");
    let outcomes: Vec<_> = job.history(9).await.expect(name).iter().map(|run| run.outcome).collect();
    assert_eq!(outcomes, [RunOutcome::Succeeded, RunOutcome::Succeeded, RunOutcome::Failed], "{name}");
    job.reset().await.expect(name);
}

fn empty_key() -> dlock_runtime::InvalidKey {
    dlock_runtime::LockKey::new("").expect_err("an empty key is invalid")
}

async fn two_managers(url: &str) -> (LockManager, LockManager) {
    let connect = async || LockManager::connect(&acl::as_user(url)).await.expect("the user may connect");
    (connect().await, connect().await)
}

#[tokio::test]
async fn the_documented_user_can_run_jobs() {
    let server = RedisServer::start();
    acl::give_user(&server, acl::USER, &[], &acl::documented_besides(WITH_JOBS).collect::<Vec<_>>());
    let (a, b) = two_managers(&server.url()).await;

    live_through(&a, &b, "report").await;
}

/// Each command that the guide names for jobs is one that jobs need.
#[tokio::test]
async fn a_job_without_one_of_its_commands_is_a_config_error() {
    let server = RedisServer::start();
    for denied in acl::documented_besides(WITH_JOBS) {
        let others: Vec<_> = acl::documented_besides(WITH_JOBS).filter(|rule| *rule != denied).collect();
        acl::give_user(&server, acl::USER, &[], &others);
        let (a, _) = two_managers(&server.url()).await;
        let name = format!("without{denied}");

        // Without it, the size of a record is unknown.
        let is_optional = denied == "+memory|usage";
        let all = async {
            let body = async |_| Ok::<_, Error>(());
            a.job(&name).run(&daily(), body).await?;
            a.job(&name).reset().await?;
            a.job(&name).status().await
        };

        let ended = all.await;
        assert_eq!(ended.is_ok(), is_optional, "{denied}: {ended:?}");
        assert!(is_optional || matches!(ended, Err(Error::Config { .. })), "{denied}: {ended:?}");
    }
}

#[tokio::test]
async fn jobs_work_in_every_slot_of_a_cluster() {
    let fleet = ClusterFleet::start();
    fleet.servers().iter().for_each(|server| give_user(server, IN_A_CLUSTER));
    let (a, b) = two_managers(&fleet.url_with("")).await;
    let mut names: BTreeMap<usize, String> = BTreeMap::new();
    for number in 0..100 {
        let name = format!("report-{number}");
        let part = fleet.part(&format!("job:{name}##job"));
        names.entry(part).or_insert(name);
    }
    assert_eq!(names.len(), fleet.masters().len(), "{names:?}");

    let names = names.values().map(String::as_str).chain(["{tag}:1", "a{b", "{}x", "x{y}z", "a:runs"]);
    futures_util::future::join_all(names.map(|name| live_through(&a, &b, name))).await;
}

#[tokio::test]
async fn a_tick_runs_once_across_a_failover_of_sentinels() {
    let mut fleet = SentinelFleet::start().await;
    give_user(fleet.master(), BEHIND_SENTINELS);
    fleet.replicas().for_each(|server| give_user(server, BEHIND_SENTINELS));
    let (a, b) = two_managers(&fleet.url_with("")).await;
    live_through(&a, &b, "report").await;
    assert!(run(&a, "nightly", &daily()).await.is_some());
    let copied = fleet.master().call(&["WAIT", "2", "5000"]);
    assert_eq!(copied.integer(), Some(2));

    fleet.break_master(End::Order);
    fleet.switched().await;
    let after = async {
        loop {
            match b.job("nightly").run(&daily(), async |_| Ok::<_, Error>(())).await {
                Err(Error::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                ran => return ran.expect("the user may run jobs"),
            }
        }
    };

    assert_eq!(within(LONG, "the new master", after).await, None, "it has run");
    assert!(run(&b, "another", &daily()).await.is_some());
}
