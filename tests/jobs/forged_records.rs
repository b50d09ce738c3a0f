//! Records that other clients of the server change, and names that could be taken for records.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, LossCause};
use dlock_tests::within;

use super::rules::record_of;
use super::{LONG, LONG_PERIOD, every, redis, run};

#[tokio::test]
async fn no_job_is_the_record_of_another() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let names = ["a", "a:runs", "a:job", "job:a", "a#", "leader:a", "a##"];
    for name in names {
        match manager.job(name).run(&every(LONG_PERIOD), async |_| Ok::<_, Error>(())).await {
            Ok(ran) => assert_eq!(ran, Some(()), "{name} has run before"),
            Err(error) => {
                assert!(name.contains("##") && matches!(error, Error::InvalidKey { .. }), "{error}");
            }
        }
    }

    // No lock has the name of a record, and a lock whose name begins like one is another key.
    assert!(matches!(manager.lock("job:a##job").acquire().await, Err(Error::InvalidKey { .. })));
    let _lock = manager.lock("job:a").acquire().await.expect("it is free");
    assert_eq!(manager.job("a").history(9).await.expect("a record").len(), 1);
    let _term = manager.lock("leader:a").acquire().await.expect("it is free");
}

/// Another owner is written into the record of a run.
#[tokio::test]
async fn a_body_whose_record_is_taken_over_stops() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (job, schedule) = (manager.job("report"), every(LONG_PERIOD).lease(Duration::from_secs(1)));

    let forged = async |_| -> Result<(), Error> {
        server.call(&["HSET", &record_of(&server), "o", "0000000000000000"]);
        std::future::pending().await
    };
    let lost = within(LONG, "the loss", job.run(&schedule, forged)).await;

    assert!(matches!(lost, Err(Error::Lost { cause: LossCause::NotOwner, .. })), "{lost:?}");
}

/// A script that copied such a value would block the server, and its reply would be too long.
#[tokio::test]
async fn a_huge_record_is_not_copied() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    assert!(run(&manager, "report", &every(LONG_PERIOD)).await.is_some());
    let record = record_of(&server);
    let many = "for n = 1, 200 do redis.call('HSET', KEYS[1], 'x' .. n, '') end";
    for huge in ["redis.call('HSET', KEYS[1], 'sp', string.rep('x', 2^23))", many] {
        server.call(&["EVAL", huge, "1", &record]);

        let job = manager.job("report");
        let refused = job.run(&every(LONG_PERIOD), async |_| Ok::<_, Error>(())).await;
        assert!(matches!(refused, Err(Error::WrongKind { .. })), "{refused:?}");
        assert!(matches!(job.history(1).await, Err(Error::WrongKind { .. })));
        assert!(matches!(job.pause().await, Err(Error::WrongKind { .. })));
        server.call(&["DEL", &record]);
    }
}

#[tokio::test]
async fn a_record_that_is_no_record_starts_no_body() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (job, schedule) = (manager.job("report"), every(Duration::from_secs(1)));
    assert!(run(&manager, "report", &schedule).await.is_some());
    let record = record_of(&server);
    let bodies = AtomicU64::new(0);
    let changes: [&[&str]; 4] = [
        &["HSET", &record, "s", "x"],
        &["HSET", &record, "s", "1", "o", "x", "le", "x"],
        &["HSET", &record, "s", "1", "o", "x", "le", "1", "rs", "1", "st", "1", "nd", "n", "hn", "x"],
        &["RPUSH", &record, "x"],
    ];
    for change in changes {
        if change[0] != "HSET" {
            server.call(&["DEL", &record]);
        }
        server.call(change);
        let body = async |_| {
            bodies.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Error>(())
        };

        let refused = job.run(&schedule, body).await.expect_err("it is no record");

        assert!(matches!(refused, Error::WrongKind { .. }), "{change:?}: {refused:?}");
        assert!(job.history(9).await.is_err(), "{change:?}");
    }
    assert_eq!(bodies.load(Ordering::Relaxed), 0);
}
