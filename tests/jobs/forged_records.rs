//! Records that other clients of the server change, and names that could be taken for records.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, LossCause, scheduled};
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

/// Values that no script writes into a number of a record. From the last one on, a fencing token
/// would not rise.
#[tokio::test]
async fn a_record_with_a_forged_number_starts_no_body() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (job, schedule) = (manager.job("report"), every(Duration::from_secs(1)));
    let values = ["", "x", "-1", "1.5", "0x10", " 7", "inf", "nan", "1e308", "9007199254740991"];
    for field in ["fe", "s", "sk", "co", "k", "cr", "hn", "rr"] {
        for value in values {
            job.run(&schedule, async |_| Ok::<_, Error>(())).await.expect("the record is valid");
            let record = record_of(&server);
            server.call(&["HSET", &record, field, value]);
            let bodies = AtomicU64::new(0);
            let body = async |_| {
                bodies.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Error>(())
            };

            let is_refused = |error: Option<Error>| match error {
                Some(Error::FencingCounter { problem, .. }) => {
                    field == "fe" && problem.contains("delete that field") && problem.contains(&record)
                }
                Some(Error::WrongKind { .. }) => field != "fe",
                _ => false,
            };

            assert!(is_refused(job.run(&schedule, body).await.err()), "{field}={value}");
            assert!(is_refused(job.status().await.err()), "{field}={value}");
            assert!(is_refused(job.run_now().await.err()), "{field}={value}");
            assert_eq!(bodies.load(Ordering::Relaxed), 0, "{field}={value}");
            assert_eq!(server.call(&["HGET", &record, field]).text(), Some(value), "it is left as it is");
            server.call(&["DEL", &record]);
        }
    }
}

#[scheduled(name = "report", every = "1h", guard = lease, manager = locks)]
async fn fenced(locks: LockManager) -> Result<Option<u64>, Error> {
    Ok(Some(lease.fencing_token().get()))
}

/// Tokens follow the server's clock. The last one below the limit is issued once.
#[tokio::test]
async fn fencing_tokens_of_a_job_rise_up_to_the_last() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let next = async || {
        let token = fenced(manager.clone()).await.map(|token| token.expect("the tick is due"));
        server.call(&["HDEL", &record_of(&server), "s", "t"]); // the tick is due again
        token
    };

    let mut last = 0;
    for _ in 0..5 {
        let token = next().await.expect("the record is valid");
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    server.call(&["HSET", &record_of(&server), "fe", &(last + 60_000_000).to_string()]);
    assert_eq!(next().await.ok(), Some(last + 60_000_001), "the clock is behind the last token");
    server.call(&["HSET", &record_of(&server), "fe", "9007199254740988"]);
    assert_eq!(next().await.ok(), Some(9_007_199_254_740_989));
    assert_eq!(next().await.ok(), Some(9_007_199_254_740_990));
    for _ in 0..2 {
        let spent = next().await.expect_err("there is no next token").to_string();
        let counter = format!("field `fe` of its record `{}`", record_of(&server));
        assert!(spent.contains("no further fencing token") && spent.contains(&counter), "{spent}");
    }
    server.call(&["HDEL", &record_of(&server), "fe"]); // as the error says
    assert!(next().await.is_ok_and(|token| token > last));
}

/// Otherwise, no operation could read what the last run has written.
#[tokio::test]
async fn a_job_at_the_limit_of_its_numbers_is_readable() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let job = manager.job("report");
    for (field, starts) in [("fe", false), ("cr", true), ("hn", true)] {
        assert!(run(&manager, "report", &every(Duration::from_secs(1))).await.is_some());
        let record = record_of(&server);
        server.call(&["HDEL", &record, "s", "t"]); // the tick is due again
        server.call(&["HSET", &record, field, "9007199254740990"]);

        let ran = job.run(&every(Duration::from_secs(1)), async |_| Ok::<_, Error>(())).await;

        assert_eq!(ran.is_ok(), starts, "{field}: {ran:?}");
        assert!(starts || matches!(ran, Err(Error::FencingCounter { .. })), "{field}: {ran:?}");
        assert!(matches!(job.status().await, Ok(Some(_))), "{field}");
        assert!(job.history(9).await.is_ok() && job.pause().await.is_ok(), "{field}");
        assert!(job.reset().await.is_ok(), "{field}");
        server.call(&["DEL", &record]);
    }
}

/// Records below and above the limit of their size, whose replies are larger than those of locks.
#[tokio::test]
async fn a_large_record_disturbs_no_lock() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let held = manager.lock("order:7").lease(LONG).acquire().await.expect("it is free");
    assert!(run(&manager, "report", &every(LONG_PERIOD)).await.is_some());
    let record = record_of(&server);
    for (size, is_record) in [(60_000, true), (70_000, true), (200_000, true), (300_000, false)] {
        server.call(&["HSET", &record, "zz", &"x".repeat(size)]);

        let shown = manager.job("report").status().await;
        let is_expected = if is_record {
            matches!(shown, Ok(Some(_)))
        } else {
            matches!(shown, Err(Error::WrongKind { .. }))
        };
        assert!(is_expected, "{size}: {shown:?}");
        held.extend(LONG).await.expect("it is held");
    }
    let unreadable = "redis.call('HSET', KEYS[1], 'zz', '\\255\\254')";
    server.call(&["EVAL", unreadable, "1", &record]);
    assert!(matches!(manager.job("report").status().await, Err(Error::WrongKind { .. })));
}
