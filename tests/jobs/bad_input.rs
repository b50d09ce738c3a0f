//! Invalid schedules and names are typed errors that say what to write.

use std::time::{Duration, SystemTime};

use dlock_runtime::Error;
use dlock_runtime::scheduled::{CatchUp, Jobs, Schedule};
use dlock_tests::QuorumFleet;

use super::{SECOND, every, in_memory, run};

/// Returns the text of the error of a call with this schedule.
async fn refusal(schedule: Schedule) -> String {
    let manager = in_memory().await;
    let refused = manager.job("report").run(&schedule, async |_| Ok::<_, Error>(())).await;
    let refused = refused.expect_err("it is refused");
    assert!(matches!(refused, Error::Config { .. }), "{refused:?}");
    refused.to_string()
}

#[tokio::test]
async fn invalid_schedules_are_configuration_errors() {
    let expression = |text: &str| Schedule::cron(text).expect_err("it is invalid").to_string();
    assert!(expression("0 0 30 2 *").contains("never matches"));
    assert!(expression("0 0 2 * * *").contains("write five fields"));
    assert!(Schedule::every(Duration::from_millis(999)).is_err());

    assert!(refusal(Schedule::cron("0 2 * * *").expect("valid").tz("Europe/Berln")).await.contains("IANA"));
    assert!(refusal(every(SECOND).tz("UTC")).await.contains("has no time zone"));
    assert!(refusal(every(SECOND).catch_up(CatchUp::all(0, SECOND))).await.contains("1 and 1,000"));
    assert!(
        refusal(every(SECOND * 2).catch_up(CatchUp::all(5, SECOND)))
            .await
            .contains("shorter than the period")
    );
    let reaches_the_next = refusal(every(SECOND * 60).min_hold(SECOND * 51)).await;
    assert!(reaches_the_next.contains("use at most 50s"), "{reaches_the_next}");
    assert!(refusal(every(SECOND).min_hold(SECOND * 400 * 86_400)).await.contains("365 days"));
    let longest = every(SECOND * 366 * 86_400).min_hold(SECOND * 365 * 86_400);
    assert!(run(&in_memory().await, "report", &longest).await.is_some());
    assert!(refusal(every(SECOND).spread(SECOND)).await.contains("half of the period"));
    assert!(refusal(every(SECOND).lease(Duration::from_millis(99))).await.contains("lease"));
    assert!(refusal(every(SECOND).max_hold(Duration::from_millis(99))).await.contains("max_hold"));
}

#[tokio::test]
async fn a_slot_over_a_day_ahead_is_refused() {
    let manager = in_memory().await;
    let ahead = SystemTime::now() + Duration::from_secs(25 * 60 * 60);

    let refused = manager.job("import").run_slot(ahead, &every(SECOND), async |_| Ok::<_, Error>(())).await;

    assert!(refused.expect_err("it is refused").to_string().contains("one day ahead"));
}

#[tokio::test]
async fn invalid_names_are_refused() {
    let manager = in_memory().await;
    for name in ["", "a##b"] {
        assert!(matches!(manager.job(name).history(1).await, Err(Error::InvalidKey { .. })), "{name}");
    }
    let runner = Jobs::new(manager).add("", every(SECOND), |_| async { Ok::<_, Error>(()) });
    assert!(matches!(runner.run_until(std::future::pending()).await, Err(Error::InvalidKey { .. })));
}

#[tokio::test]
async fn an_invalid_schedule_of_a_runner_is_reported_with_its_job() {
    let body = |_| async { Ok::<_, Error>(()) };
    let runner = Jobs::new(in_memory().await).add("whole", every(SECOND), body);
    let runner = runner.add("broken", every(SECOND).min_hold(SECOND), body);

    let refused = runner.run_until(std::future::pending()).await.expect_err("it is refused");

    assert!(refused.to_string().contains("min_hold: job `broken`: "), "{refused}");
}

#[tokio::test]
async fn two_jobs_of_one_name_are_refused() {
    let body = |_| async { Ok::<_, Error>(()) };
    let runner = Jobs::new(in_memory().await).add("a", every(SECOND), body).add("a", every(SECOND), body);

    let refused = runner.run_until(std::future::pending()).await.expect_err("it is refused");

    assert!(refused.to_string().contains("two jobs of this runner have the name `a`"), "{refused}");
}

#[tokio::test]
async fn a_quorum_keeps_no_jobs() {
    let quorum = QuorumFleet::start(3).await;
    let manager = quorum.manager("").await;

    let refused = manager.job("report").run(&every(SECOND), async |_| Ok::<_, Error>(())).await;

    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_calls_itself_is_refused() {
    let manager = in_memory().await;
    let (job, schedule) = (manager.job("same"), every(Duration::from_secs(60)));

    let refused = job.run(&schedule, async |_| job.run(&schedule, async |_| Ok::<_, Error>(())).await).await;

    let text = refused.expect_err("the inner call is refused").to_string();
    assert!(text.contains("`job:same` calls itself") && text.contains("without `#[scheduled]`"), "{text}");
}

#[tokio::test]
async fn options_at_their_bounds_are_accepted() {
    let minute = SECOND * 60;
    let millisecond = Duration::from_millis(1);
    let (all, longest) = (CatchUp::all, SECOND * 365 * 86_400);
    let hourly = || Schedule::cron("0 * * * *").expect("valid");
    for (accepted, refused, part) in [
        (every(minute).catch_up(all(1, minute)), every(minute).catch_up(all(0, minute)), "catch_up"),
        (every(minute).catch_up(all(1_000, minute)), every(minute).catch_up(all(1_001, minute)), "catch_up"),
        (
            every(minute).catch_up(all(1, minute)),
            every(minute).catch_up(all(1, millisecond * 59_999)),
            "catch_up",
        ),
        (every(minute).min_hold(50 * SECOND), every(minute).min_hold(50 * SECOND + millisecond), "min_hold"),
        (hourly().min_hold(longest), hourly().min_hold(longest + millisecond), "min_hold"),
        (every(minute).spread(minute / 2), every(minute).spread(minute / 2 + millisecond), "spread"),
        (hourly().max_hold(millisecond * 100), hourly().max_hold(millisecond * 99), "max_hold"),
        (hourly().lease(millisecond * 100), hourly().lease(millisecond * 99), "lease"),
    ] {
        run(&in_memory().await, "report", &accepted).await;
        assert!(refusal(refused).await.contains(part), "{part}: {accepted:?}");
    }
    // The window of a cron expression has no period to compare with.
    run(&in_memory().await, "report", &hourly().catch_up(all(1, millisecond))).await;
}
