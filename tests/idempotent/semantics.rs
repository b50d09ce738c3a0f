//! The table of semantics, in memory and over Redis.

use std::collections::BTreeMap;
use std::time::Duration;

use dlock_runtime::idempotent::{Completion, IdempotencyState, IdempotentRecord, OnCrash};
use dlock_runtime::{Error, LockManager};
use dlock_tests::{Proxy, within};
use tokio::sync::Notify;

use super::{LEASE, LONG, PausedBody, Runs, crash, failure, server, worlds};

#[tokio::test]
async fn a_duplicate_gets_the_result_of_the_first_call() {
    for world in worlds() {
        let (one, two, runs) = (world.manager().await, world.manager().await, Runs::default());

        assert_eq!(runs.run(&one.idempotent("k")).await.expect("it runs"), (1, false));
        assert_eq!(runs.run(&one.idempotent("k")).await.expect("it is replayed"), (1, true));
        assert_eq!(runs.run(&two.idempotent("k")).await.expect("it is replayed"), (1, true));
        assert_eq!(runs.run(&two.idempotent("other")).await.expect("it runs"), (2, false));
    }
}

#[tokio::test]
async fn a_duplicate_of_a_running_call_is_rejected_or_waits() {
    for world in worlds() {
        let (one, two, runs) = (world.manager().await, world.manager().await, Runs::default());
        let paused = PausedBody::default();
        let call = one.idempotent("k");
        let first = call.run_attached(async |_| paused.run().await);
        let others = async {
            paused.begun().await;
            let rejected = runs.run(&two.idempotent("k")).await;
            let Err(Error::InProgress { remaining: Some(_), .. }) = rejected else { panic!("{rejected:?}") };
            let body = async |_| Ok::<_, Error>(8);
            assert!(two.idempotent("k").run_or_skip(body).await.expect("the store replies").is_none());
            let late = runs.run(&two.idempotent("k").wait(Duration::from_millis(50))).await;
            assert!(matches!(late, Err(Error::InProgress { .. })), "{late:?}");
            let waiting = two.idempotent("k").wait(LONG);
            let waiting = runs.run(&waiting);
            paused.end();
            assert_eq!(within(LONG, "the duplicate", waiting).await.expect("it is replayed"), (7, true));
        };
        let (first, ()) = tokio::join!(first, others);
        assert!(!first.expect("it runs").is_replayed());
        assert_eq!(runs.count(), 0);
    }
}

#[tokio::test]
async fn a_crash_is_remembered_until_its_policy_applies() {
    for world in worlds() {
        let (manager, runs) = (world.manager().await, Runs::default());
        for (key, on_crash) in
            [("fail", OnCrash::Fail), ("rerun", OnCrash::Rerun), ("resume", OnCrash::Resume)]
        {
            let call = manager.idempotent(key).on_crash(on_crash);
            crash(&call).await;
            let status = call.status().await.expect("the store replies").expect("it is remembered");
            assert_eq!((status.state(), status.attempt()), (IdempotencyState::OutcomeUnknown, 1));

            match runs.run(&call).await {
                Ok((_, is_replayed)) => assert!(on_crash != OnCrash::Fail && !is_replayed),
                Err(error) => {
                    assert!(matches!(error, Error::OutcomeUnknown { attempt: 1, .. }), "{error:?}");
                    assert!(error.to_string().contains("dlock idem resolve"), "{error}");
                    assert_eq!(on_crash, OnCrash::Fail);
                }
            }
        }
        assert_eq!(runs.count(), 2);
    }
}

#[tokio::test]
async fn another_payload_is_rejected_in_every_state() {
    for world in worlds() {
        let manager = world.manager().await;
        let call = |key: &str| manager.idempotent(key).fingerprint(&(7, "EUR"));
        let other = |key: &str| manager.idempotent(key).fingerprint(&(8, "EUR")).wait(LONG);
        let other_function = |key: &str| call(key).name("refund").wait(LONG);
        let ok = async |_| Ok::<_, Error>(1);

        call("completed").run(ok).await.expect("it runs");
        crash(&call("crashed")).await;
        let not_stored = call("not stored").run_bytes(async |_| (Completion::NotStored, 1)).await;
        not_stored.expect("it runs");
        let failing = async |record: IdempotentRecord| {
            record.step("a", async || Ok::<_, Error>(1)).await?;
            Err::<u8, _>(failure())
        };
        call("forgotten").run_attached(failing).await.expect_err("it fails");
        let running = call("running");
        let paused = PausedBody::default();
        let body = running.run_attached(async |_| paused.run().await);
        let check = async {
            paused.begun().await;
            for key in ["completed", "crashed", "not stored", "forgotten", "running"] {
                for other in [other(key), other_function(key), manager.idempotent(key)] {
                    let reused = other.run(ok).await;
                    assert!(matches!(reused, Err(Error::KeyReused { .. })), "{key}: {reused:?}");
                }
            }
            paused.end();
        };
        let (ran, ()) = tokio::join!(body, check);
        ran.expect("it runs");
    }
}

#[tokio::test]
async fn a_waiting_call_with_another_payload_gets_no_shared_result() {
    for world in worlds() {
        let manager = world.manager().await;
        let call = |amount: u8| manager.idempotent("k").fingerprint(&amount).wait(LONG);
        let slow = async |_| {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, Error>(1)
        };

        let (first, same, other) = (call(1), call(1), call(2));
        let (first, same, other) = tokio::join!(first.run(slow), same.run(slow), other.run(slow));

        assert_eq!((*first.expect("it runs").value(), same.expect("it waits").is_replayed()), (1, true));
        assert!(matches!(other, Err(Error::KeyReused { .. })), "{other:?}");
    }
}

#[tokio::test]
async fn an_error_is_forgotten_or_remembered() {
    #[derive(Debug, serde::Serialize, serde::Deserialize, PartialEq)]
    enum Problem {
        Declined,
        Timeout,
        Lock(String),
    }
    impl From<Error> for Problem {
        fn from(error: Error) -> Self {
            Self::Lock(error.to_string())
        }
    }
    for world in worlds() {
        let manager = world.manager().await;
        let call =
            manager.idempotent("k").remember_errors_if(|problem: &Problem| *problem == Problem::Declined);
        let returning = async |problem| call.run(async move |_| Err::<u8, _>(problem)).await;

        assert_eq!(returning(Problem::Timeout).await, Err(Problem::Timeout), "it is forgotten");
        assert_eq!(returning(Problem::Declined).await, Err(Problem::Declined), "it is remembered");
        assert_eq!(returning(Problem::Timeout).await, Err(Problem::Declined), "it is replayed");
        let status = call.status().await.expect("the store replies").expect("there is a record");
        assert!(status.is_error() && status.result() == Some(br#""Declined""#), "{status:?}");
        let plain = manager.idempotent("k").run(async |_| Ok::<u8, Error>(1)).await;
        assert!(matches!(plain, Err(Error::Undecodable { .. })), "{plain:?}");
    }
}

/// A body whose renewals are late, and that blocks its thread beyond the lease. It ends within the
/// same poll, while it still owns the record.
#[tokio::test]
async fn an_error_of_a_lost_attempt_is_not_remembered() {
    #[derive(Debug, serde::Serialize, serde::Deserialize, PartialEq)]
    struct Problem(String);
    impl From<Error> for Problem {
        fn from(error: Error) -> Self {
            Self(error.to_string())
        }
    }
    let server = server();
    let proxy = Proxy::in_front_of(&server);
    let attempt = async |url: String, is_late: bool| {
        let manager = LockManager::connect(&url).await.expect("the server takes managers");
        let call = manager.idempotent("k").lease(Duration::from_millis(400));
        let call = call.wait(LONG).on_crash(OnCrash::Resume).remember_errors_if(|_: &Problem| true);
        let body = async |record: IdempotentRecord| {
            if is_late {
                proxy.hold_requests();
                std::thread::sleep(Duration::from_millis(800));
                proxy.pass();
            }
            record.step("psp", async || Ok(record.attempt())).await
        };
        call.run_attached(body).await.map(|outcome| *outcome.value())
    };

    let lost = attempt(proxy.url_with(""), true).await;
    assert!(matches!(&lost, Err(Problem(text)) if text.contains("lost")), "{lost:?}");

    assert_eq!(attempt(server.url(), false).await, Ok(2), "its step runs in the next attempt");
}

#[tokio::test]
async fn completed_steps_are_replayed_to_the_next_attempt() {
    for world in worlds() {
        let (manager, runs) = (world.manager().await, Runs::default());
        let call = manager.idempotent("k");
        let attempt = async |fails: bool| {
            let runs = runs.clone();
            call.run(async move |record| {
                let charge =
                    async || Ok::<_, Error>(runs.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
                let charged = record.step("psp", charge).await?;
                let again = record.step("psp", async || Ok::<_, Error>(9)).await;
                assert!(matches!(again, Err(Error::Config { .. })), "one name, one step: {again:?}");
                if fails { Err(failure()) } else { Ok((charged, record.attempt())) }
            })
            .await
        };

        attempt(true).await.expect_err("it fails after its step");
        let status = call.status().await.expect("the store replies").expect("its step stays");
        assert_eq!((status.state(), status.steps()), (IdempotencyState::Forgotten, &["psp".to_owned()][..]));
        let outcome = attempt(false).await.expect("it runs");

        assert_eq!((outcome.into_value(), runs.count()), ((0, 2), 1));
    }
}

#[tokio::test]
async fn a_large_result_is_returned_and_never_run_again() {
    for world in worlds() {
        let (manager, runs) = (world.manager().await, Runs::default());
        let call = manager.idempotent("k");
        let largest = "x".repeat((64 << 10) - 2);

        let value = largest.clone();
        call.run(async move |_| Ok::<_, Error>(value)).await.expect("it fits");
        let again = call.run(async |_| Ok::<_, Error>(String::new())).await.expect("it is replayed");
        assert_eq!(again.into_value(), largest);
        let larger = manager.idempotent("larger");
        let value = format!("{largest}x");
        let first = larger.run(async move |_| Ok::<_, Error>(value)).await.expect("the caller gets it");
        assert_eq!(first.into_value().len(), largest.len() + 1);
        for _ in 0..2 {
            let later = runs.run(&larger).await;
            assert!(matches!(later, Err(Error::ResultNotStored { step: None, .. })), "{later:?}");
        }
        assert_eq!(runs.count(), 0);
    }
}

#[tokio::test]
async fn a_result_without_json_is_returned_and_never_run_again() {
    for world in worlds() {
        let (manager, runs) = (world.manager().await, Runs::default());
        let call = manager.idempotent("k");
        // JSON has no keys that are arrays.
        let value = BTreeMap::from([([7_u8], 1_u8)]);

        let returned = value.clone();
        let first = call.run(async move |_| Ok::<_, Error>(returned)).await.expect("the caller gets it");
        let later = runs.run(&call).await;

        assert_eq!(first.into_value(), value);
        assert!(matches!(later, Err(Error::ResultNotStored { step: None, .. })), "{later:?}");
        assert_eq!(runs.count(), 0);
    }
}

#[tokio::test]
async fn the_result_of_another_version_is_not_replayed() {
    for world in worlds() {
        let (manager, runs) = (world.manager().await, Runs::default());
        runs.run(&manager.idempotent("k").version(1)).await.expect("it runs");

        for other in [manager.idempotent("k").version(2), manager.idempotent("k").version(1).result_type("T")]
        {
            let later = runs.run(&other).await;
            assert!(matches!(later, Err(Error::Undecodable { .. })), "{later:?}");
        }
        let text = manager.idempotent("k").version(1).run(async |_| Ok::<_, Error>(String::new())).await;
        assert!(matches!(text, Err(Error::Undecodable { .. })), "{text:?}");
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn a_body_that_is_dropped_leaves_an_unknown_outcome() {
    for world in worlds() {
        let manager = world.manager().await;
        let call = manager.idempotent("k").lease(LEASE);
        crash(&call).await;

        let later = call.run(async |_| Ok::<_, Error>(1)).await;

        assert!(matches!(later, Err(Error::OutcomeUnknown { .. })), "{later:?}");
    }
}

#[tokio::test]
async fn a_caller_that_hangs_up_does_not_stop_its_body() {
    for world in worlds() {
        let manager = world.manager().await;
        let call = manager.idempotent("k");
        let paused = PausedBody::default();
        let body = paused.clone();
        let mut first = Box::pin(call.run(async move |_| body.run().await));
        tokio::select! {
            _ = &mut first => unreachable!("its body waits"),
            () = paused.begun() => {}
        }
        drop(first);
        paused.end();

        let again = call.wait(LONG).run(async |_| Ok::<_, Error>(2)).await.expect("it is replayed");

        assert_eq!((*again.value(), again.is_replayed()), (7, true));
    }
}

#[tokio::test]
async fn the_next_waiting_call_runs_after_an_error() {
    for world in worlds() {
        let (one, two, runs) = (world.manager().await, world.manager().await, Runs::default());
        let (first, entered) = (one.idempotent("k"), Notify::new());
        let failing = first.run_attached(async |_| {
            entered.notify_one();
            tokio::time::sleep(Duration::from_millis(100)).await;
            Err::<u32, _>(failure())
        });
        let waiting = async {
            entered.notified().await;
            let (same, other) = (one.idempotent("k").wait(LONG), two.idempotent("k").wait(LONG));
            let calls = [&same, &same, &other, &other].map(|call| runs.run(call));
            within(LONG, "the waiting calls", futures_util::future::join_all(calls)).await
        };

        let (failed, waiting) = tokio::join!(failing, waiting);

        failed.expect_err("it fails");
        let replayed = waiting.into_iter().map(|outcome| outcome.expect("it gets a value"));
        let (values, replayed): (Vec<_>, Vec<_>) = replayed.unzip();
        assert_eq!((values, runs.count()), (vec![1; 4], 1));
        assert_eq!(replayed.iter().filter(|is_replayed| !**is_replayed).count(), 1);
    }
}

#[tokio::test]
async fn an_operator_replaces_the_result_of_an_operator() {
    for world in worlds() {
        let (manager, runs) = (world.manager().await, Runs::default());
        let call = manager.idempotent("resolved");
        crash(&call).await;
        let crashed = call.status().await.expect("the store replies").expect("a record");
        assert_eq!((crashed.owner(), crashed.is_resolved()), (Some(manager.owner()), false));

        assert!(call.resolve("not a number").await.expect("the store replies"));
        let wrong = runs.run(&call).await.expect_err("it is no number").to_string();
        assert!(wrong.contains("dlock idem resolve --done JSON --replace"), "{wrong}");
        assert!(!call.resolve(&41).await.expect("the store replies"), "there is a result");
        assert!(call.resolve_or_replace(&41).await.expect("the store replies"));

        assert_eq!(runs.run(&call).await.expect("it is replayed"), (41, true));
        let resolved = call.status().await.expect("the store replies").expect("a record");
        assert_eq!((resolved.owner(), resolved.is_resolved()), (None, true));
        let of_body = manager.idempotent("completed");
        assert_eq!(runs.run(&of_body).await.expect("it runs"), (1, false));
        assert!(!of_body.resolve_or_replace(&42).await.expect("the store replies"), "a body stored it");
        assert_eq!(runs.run(&of_body).await.expect("it is replayed"), (1, true));
    }
}

#[tokio::test]
async fn a_reused_key_names_what_differs() {
    for world in worlds() {
        let (manager, runs) = (world.manager().await, Runs::default());
        let call = manager.idempotent("k").name("shop::charge").fingerprint(&1);
        runs.run(&call).await.expect("it runs");

        let payload = runs.run(&call.clone().fingerprint(&2)).await.expect_err("another payload").to_string();
        let function = runs.run(&call.name("shop::refund")).await.expect_err("another function").to_string();

        assert!(payload.contains("fingerprint differs") && !payload.contains("function"), "{payload}");
        assert!(function.contains("function `shop::charge`"), "{function}");
        assert!(!function.contains("fingerprint"), "{function}");
    }
}

/// The operator does not know the `ttl` of the function.
#[tokio::test]
async fn a_resolved_call_is_stored_at_least_as_long_as_before() {
    const DAY: Duration = Duration::from_secs(86_400);
    for world in worlds() {
        let manager = world.manager().await;
        crash(&manager.idempotent("k").ttl(30 * DAY)).await;
        let of_operator = manager.idempotent("k");

        for json in [41, 42] {
            assert!(of_operator.resolve_or_replace(&json).await.expect("the store replies"));
            let status = of_operator.status().await.expect("the store replies").expect("a record");
            assert!(status.ttl() > 29 * DAY, "{:?}", status.ttl());
        }
        crash(&manager.idempotent("short").ttl(DAY / 24)).await;
        let longer = manager.idempotent("short");
        assert!(longer.resolve(&41).await.expect("the store replies"));
        let status = longer.status().await.expect("the store replies").expect("a record");
        assert!(status.ttl() > 23 * DAY / 24, "{:?}", status.ttl());
    }
}

#[tokio::test]
async fn an_operator_resolves_or_forgets_a_crash() {
    for world in worlds() {
        let (manager, runs) = (world.manager().await, Runs::default());
        let (done, undone) = (manager.idempotent("done"), manager.idempotent("undone"));
        crash(&done).await;
        crash(&undone).await;

        assert!(done.resolve(&41).await.expect("the store replies"));
        assert!(!done.resolve(&42).await.expect("the store replies"), "there is a result");
        assert!(!done.forget_unless_completed().await.expect("the store replies"), "there is a result");
        assert!(undone.forget_unless_completed().await.expect("the store replies"));
        assert!(!undone.forget_unless_completed().await.expect("the store replies"), "it is gone");

        assert_eq!(runs.run(&done).await.expect("it is replayed"), (41, true));
        assert_eq!(runs.run(&undone).await.expect("it runs"), (1, false));
        assert!(done.forget().await.expect("the store replies"));
        assert!(!done.forget().await.expect("the store replies"), "it is gone");
    }
}
