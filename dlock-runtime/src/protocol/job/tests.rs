use super::begin::*;
use super::job_record::*;
use crate::token::Token;

const LEASE: u64 = 3_000;
const TICK: u64 = 10_000;

fn owner(number: u64) -> Token {
    Token::of_numbers(1, number).expect("a small number")
}

fn request(number: u64, kind: BeginKind) -> BeginRequest {
    BeginRequest {
        kind,
        owner: owner(number),
        node: "a".to_owned(),
        spec: "every 10000 ms".to_owned(),
        lease: LEASE,
        overlap: Overlap::Skip,
        crashed: CrashedRun::Rerun,
        retries: 0,
        min_hold: 0,
    }
}

/// A call of the slot's own window by a caller that does not catch up.
fn tick(number: u64, slot: u64) -> BeginRequest {
    request(number, BeginKind::Tick { slot, window: (slot - TICK / 2, slot + TICK / 2), previous: None })
}

/// A call of any time.
fn late_tick(number: u64, slot: u64) -> BeginRequest {
    request(number, BeginKind::Tick { slot, window: (0, u64::MAX), previous: None })
}

fn started(reply: BeginReply) -> RunGrant {
    let BeginReply::Run(grant) = reply else { panic!("it does not run: {reply:?}") };
    grant
}

fn ended(record: &mut JobRecord, now: u64, number: u64, result: RunResult) -> OwnerReply {
    record.finish(now, FinishRequest { owner: owner(number), result, error: String::new(), missed: None })
}

/// A record whose slot 10,000 succeeded.
fn after_one_run() -> JobRecord {
    let mut record = JobRecord::default();
    started(record.begin(10_000, &tick(1, 10_000)));
    assert_eq!(ended(&mut record, 10_001, 1, RunResult::Succeeded), OwnerReply::Owner);
    record
}

#[test]
fn one_call_of_a_tick_runs_it() {
    let mut record = after_one_run();

    assert_eq!(record.begin(10_002, &tick(2, 10_000)), BeginReply::Skip(SkipReason::Done));
    assert_eq!(started(record.begin(15_000, &tick(3, 20_000))).slot, 20_000, "5 s early");
    assert_eq!(ended(&mut record, 15_001, 3, RunResult::Succeeded), OwnerReply::Owner);
    assert_eq!(record.begin(20_000, &tick(4, 20_000)), BeginReply::Skip(SkipReason::Done));
}

#[test]
fn a_running_tick_is_skipped_by_others() {
    let mut record = JobRecord::default();
    started(record.begin(10_000, &tick(1, 10_000)));

    let running = SkipReason::Running { lease_left: LEASE - 1_000 };
    assert_eq!(record.begin(11_000, &tick(2, 10_000)), BeginReply::Skip(running));
}

#[test]
fn a_repeated_request_gets_the_same_run() {
    let mut record = JobRecord::default();
    let first = started(record.begin(10_000, &tick(1, 10_000)));

    assert_eq!(started(record.begin(10_400, &tick(1, 10_000))), first);
    assert_eq!(record.counters.runs, 1);
}

#[test]
fn a_call_outside_the_window_is_of_another_tick() {
    let mut record = JobRecord::default();

    assert_eq!(record.begin(4_999, &tick(1, 10_000)), BeginReply::OtherTick);
    assert_eq!(record.begin(15_000, &tick(1, 10_000)), BeginReply::OtherTick);
    assert_eq!(record, JobRecord::default(), "it changes nothing");
}

#[test]
fn older_slots_are_late() {
    let mut record = after_one_run();
    started(record.begin(20_000, &tick(2, 20_000)));

    let late = BeginReply::Skip(SkipReason::Late { slot: 20_000 });
    assert_eq!(record.begin(20_001, &late_tick(3, 10_000)), late);
}

/// The clock of the server steps back by an hour: its ticks have run.
#[test]
fn no_slot_runs_again_after_the_clock_stepped_back() {
    let hour = 3_600_000;
    let mut record = JobRecord::default();
    for (number, slot) in (1..=5).map(|n| (n, hour + n * TICK)) {
        started(record.begin(slot, &tick(number, slot)));
        ended(&mut record, slot + 1, number, RunResult::Succeeded);
    }
    for (number, slot) in (1..360).map(|n| (n + 10, n * TICK)) {
        let late = BeginReply::Skip(SkipReason::Late { slot: hour + 5 * TICK });
        assert_eq!(record.begin(slot, &tick(number, slot)), late);
    }
}

#[test]
fn a_crashed_run_runs_again_only_with_rerun() {
    for (crashed, expected) in [(CrashedRun::Rerun, Some(2)), (CrashedRun::Skip, None)] {
        let mut record = JobRecord::default();
        started(record.begin(10_000, &tick(1, 10_000)));
        let again = BeginRequest { crashed, ..tick(2, 10_000) };

        assert!(matches!(
            record.begin(12_999, &again),
            BeginReply::Skip(SkipReason::Running { lease_left: 1 })
        ));
        let reply = record.begin(13_000, &again);

        let attempt = if let BeginReply::Run(grant) = reply { Some(grant.attempt) } else { None };
        assert_eq!(attempt, expected, "{reply:?}");
        assert_eq!(record.history[0].result, RunResult::Lost);
        assert_eq!(ended(&mut record, 13_001, 1, RunResult::Succeeded), OwnerReply::NotOwner, "too late");
    }
}

#[test]
fn a_failed_run_is_retried_so_many_times() {
    let mut record = JobRecord::default();
    for attempt in 1..=3 {
        let grant =
            started(record.begin(10_000, &BeginRequest { retries: 2, ..tick(u64::from(attempt), 10_000) }));
        assert_eq!(grant.attempt, attempt);
        ended(&mut record, 10_000, u64::from(attempt), RunResult::Failed);
    }

    let fourth = record.begin(10_000, &BeginRequest { retries: 2, ..tick(4, 10_000) });
    assert_eq!(fourth, BeginReply::Skip(SkipReason::Done));
    assert_eq!((record.counters.failures, record.counters.runs), (3, 3));
}

#[test]
fn a_late_end_counts_if_no_other_run_began() {
    let mut record = JobRecord::default();
    started(record.begin(10_000, &tick(1, 10_000)));

    assert_eq!(ended(&mut record, 14_999, 1, RunResult::Succeeded), OwnerReply::Owner);
    assert_eq!(record.begin(14_999, &tick(2, 10_000)), BeginReply::Skip(SkipReason::Done));
}

#[test]
fn an_overlapping_tick_is_skipped_once_and_for_all() {
    let mut record = JobRecord::default();
    started(record.begin(10_000, &tick(1, 10_000)));
    record.renew(12_000, owner(1), 10_000);

    let overlap = BeginReply::Skip(SkipReason::Overlap { lease_left: 2_000 });
    assert_eq!(record.begin(20_000, &tick(2, 20_000)), overlap);
    let late = BeginReply::Skip(SkipReason::Late { slot: 10_000 });
    assert_eq!(record.begin(20_000, &tick(3, 20_000)), late);
    ended(&mut record, 21_000, 1, RunResult::Succeeded);
    assert_eq!(record.begin(22_000, &tick(4, 20_000)), late, "it was decided");
    assert_eq!(record.counters.skips, 1);
}

#[test]
fn the_first_waiting_tick_runs_next() {
    let queued = |number, slot| BeginRequest { overlap: Overlap::QueueOne, ..late_tick(number, slot) };
    let mut record = JobRecord::default();
    started(record.begin(10_000, &queued(1, 10_000)));
    record.renew(12_000, owner(1), 100_000);

    for asked in [20_000, 29_900] {
        assert!(matches!(record.begin(asked, &queued(2, 20_000)), BeginReply::Wait { .. }));
    }
    assert!(matches!(record.begin(30_000, &queued(3, 30_000)), BeginReply::Skip(SkipReason::Overlap { .. })));
    ended(&mut record, 31_000, 1, RunResult::Succeeded);
    assert_eq!(started(record.begin(31_001, &queued(2, 20_000))).slot, 20_000);
    ended(&mut record, 31_002, 2, RunResult::Succeeded);
    assert!(matches!(record.begin(31_003, &queued(4, 30_000)), BeginReply::Skip(SkipReason::Late { .. })));
}

/// Its call was dropped, or its process ended. A clock that stepped back does not extend its wait.
#[test]
fn a_waiting_tick_that_is_not_asked_for_loses_its_place() {
    let queued = |number, slot| BeginRequest { overlap: Overlap::QueueOne, ..late_tick(number, slot) };
    for (next, is_replaced) in [(24_999, false), (25_000, true), (29_000, true), (19_999, true)] {
        let mut record = JobRecord::default();
        started(record.begin(10_000, &queued(1, 10_000)));
        record.renew(12_000, owner(1), 100_000);
        assert!(matches!(record.begin(20_000, &queued(2, 20_000)), BeginReply::Wait { .. }));

        let reply = record.begin(next, &queued(3, 30_000));

        assert_eq!(matches!(reply, BeginReply::Wait { .. }), is_replaced, "at {next}: {reply:?}");
        ended(&mut record, 31_000, 1, RunResult::Succeeded);
        let (runs, late) = if is_replaced { (30_000, 20_000) } else { (20_000, 30_000) };
        if is_replaced {
            let reply = record.begin(31_001, &queued(4, late));
            assert!(matches!(reply, BeginReply::Skip(SkipReason::Late { .. })), "at {next}: {reply:?}");
        }
        assert_eq!(started(record.begin(31_002, &queued(5, runs))).slot, runs, "at {next}");
        assert_eq!(record.counters.skips, 1, "at {next}");
    }
}

/// The run ends between two requests of the call that waits. A call that was dropped keeps its
/// place while it could still ask. Missed slots are never skipped.
#[test]
fn no_newer_tick_starts_before_the_one_that_waits() {
    let queued = |number, slot| BeginRequest { overlap: Overlap::QueueOne, ..late_tick(number, slot) };
    let missed = |number, slot| BeginRequest { kind: BeginKind::Missed { slot }, ..queued(number, slot) };
    let (overlap, running) = (SkipReason::Overlap { lease_left: 0 }, SkipReason::Running { lease_left: 0 });
    for (newer, refused) in [(queued(4, 40_000), overlap), (missed(4, 40_000), running)] {
        for (asked, skips) in [(39_800, 1), (35_001, 1), (35_000, 2)] {
            let mut record = JobRecord::default();
            started(record.begin(10_000, &queued(1, 10_000)));
            record.renew(12_000, owner(1), 100_000);
            assert!(matches!(record.begin(29_000, &queued(2, 20_000)), BeginReply::Wait { .. }));
            let skipped = record.begin(30_000, &queued(3, 30_000));
            assert!(matches!(skipped, BeginReply::Skip(SkipReason::Overlap { .. })), "{skipped:?}");
            assert!(matches!(record.begin(asked, &queued(2, 20_000)), BeginReply::Wait { .. }));
            ended(&mut record, 39_950, 1, RunResult::Succeeded);

            let reply = record.begin(40_000, &newer);

            if skips == 1 {
                assert_eq!(reply, BeginReply::Skip(refused), "asked for at {asked}");
                assert_eq!(started(record.begin(40_001, &queued(2, 20_000))).slot, 20_000);
                let skipped = record.counters.skips - skips;
                assert_eq!(skipped, u64::from(refused == overlap), "asked for at {asked}");
            } else {
                assert_eq!(started(reply).slot, 40_000, "no process asks for the one that waits");
                assert_eq!((record.waiting, record.counters.skips), (None, skips));
            }
        }
    }
}

/// The job runs every second. The call that waits crashes, and then the active run ends.
#[test]
fn ticks_behind_a_waiting_one_that_crashed_are_skipped() {
    let queued = |number, slot| BeginRequest { overlap: Overlap::QueueOne, ..late_tick(number, slot) };
    let mut record = JobRecord::default();
    started(record.begin(9_000, &queued(1, 9_000)));
    assert!(matches!(record.begin(10_050, &queued(2, 10_000)), BeginReply::Wait { .. }));
    ended(&mut record, 10_100, 1, RunResult::Succeeded);
    for slot in (11_000..=15_000).step_by(1_000) {
        let overlap = BeginReply::Skip(SkipReason::Overlap { lease_left: 0 });
        assert_eq!(record.begin(slot, &queued(slot, slot)), overlap);
    }

    // The first requests after the end of its place are for decided ticks, the newest first.
    for slot in [15_000, 13_000, 11_000] {
        let late = BeginReply::Skip(SkipReason::Late { slot: 9_000 });
        assert_eq!(record.begin(15_050, &queued(slot + 1, slot)), late);
    }
    assert_eq!(started(record.begin(16_000, &queued(3, 16_000))).slot, 16_000);
    assert_eq!((record.counters.skips, record.waiting), (6, None), "the one that waited, and five for it");
}

/// Its call was dropped. The newer tick counts it as missed.
#[test]
fn a_waiting_tick_that_a_newer_one_passes_is_not_skipped() {
    let queued = |number, slot| BeginRequest { overlap: Overlap::QueueOne, ..late_tick(number, slot) };
    let mut record = JobRecord::default();
    started(record.begin(10_000, &queued(1, 10_000)));
    record.renew(12_000, owner(1), 100_000);
    assert!(matches!(record.begin(20_000, &queued(2, 20_000)), BeginReply::Wait { .. }));
    ended(&mut record, 31_000, 1, RunResult::Succeeded);

    let grant = started(record.begin(40_000, &queued(3, 40_000)));

    assert_eq!((grant.counted, record.counters.skips), (10_000, 0));
    assert_eq!(record.waiting, None);
}

/// It is skipped by a pause that sees it, by the end of a pause, or by a replica with another
/// schedule.
#[test]
fn a_waiting_tick_that_is_skipped_never_starts() {
    let queued = |number, slot| BeginRequest { overlap: Overlap::QueueOne, ..late_tick(number, slot) };
    let seen: fn(&mut JobRecord) = |record| {
        record.set_paused(20_001, true);
        let paused = BeginReply::Skip(SkipReason::Paused);
        assert_eq!(record.begin(20_002, &late_tick(2, 20_000)), paused);
        record.set_paused(20_003, false);
    };
    let unseen: fn(&mut JobRecord) = |record| {
        record.set_paused(20_001, true);
        record.set_paused(20_003, false);
    };
    let of_other: fn(&mut JobRecord) = |record| {
        let skipped = record.begin(20_002, &late_tick(3, 20_000));
        assert!(matches!(skipped, BeginReply::Skip(SkipReason::Overlap { .. })), "{skipped:?}");
    };
    for (skips, is_seen) in [(seen, true), (unseen, false), (of_other, true)] {
        let mut record = JobRecord::default();
        started(record.begin(10_000, &queued(1, 10_000)));
        record.renew(12_000, owner(1), 100_000);
        assert!(matches!(record.begin(20_000, &queued(2, 20_000)), BeginReply::Wait { .. }));

        skips(&mut record);

        ended(&mut record, 20_004, 1, RunResult::Succeeded);
        let late = BeginReply::Skip(SkipReason::Late { slot: 10_000 });
        assert_eq!(record.begin(20_005, &queued(2, 20_000)), late, "seen: {is_seen}");
        assert_eq!(record.counters.skips, 1, "seen: {is_seen}");
        assert_eq!(started(record.begin(30_000, &queued(4, 30_000))).slot, 30_000);
    }
}

/// The first reply was lost. If another request found that the lease is over, the run was lost.
#[test]
fn a_repeated_end_is_the_end_of_its_owner() {
    for result in [RunResult::Succeeded, RunResult::Failed, RunResult::Lost, RunResult::Unstarted] {
        let mut record = JobRecord::default();
        started(record.begin(10_000, &tick(1, 10_000)));
        assert_eq!(ended(&mut record, 10_001, 1, result), OwnerReply::Owner);
        let before = record.clone();

        assert_eq!(ended(&mut record, 10_002, 1, result), OwnerReply::Owner, "{result:?}");
        assert_eq!(record, before);
        started(record.begin(20_000, &tick(2, 20_000)));
        assert_eq!(ended(&mut record, 20_001, 1, result), OwnerReply::Owner, "{result:?}, later");
        assert_eq!(ended(&mut record, 20_001, 3, result), OwnerReply::NotOwner, "{result:?} of another");
    }
}

#[test]
fn a_newer_tick_cancels_the_active_run() {
    let cancelling =
        |number, slot| BeginRequest { overlap: Overlap::CancelPrevious, ..late_tick(number, slot) };
    let mut record = JobRecord::default();
    started(record.begin(10_000, &cancelling(1, 10_000)));
    record.renew(12_000, owner(1), 100_000);

    assert!(matches!(record.begin(20_000, &cancelling(2, 20_000)), BeginReply::Wait { .. }));
    assert_eq!(record.renew(20_001, owner(1), LEASE), OwnerReply::Cancelled);
    ended(&mut record, 20_002, 1, RunResult::Cancelled);
    assert_eq!(started(record.begin(20_003, &cancelling(2, 20_000))).slot, 20_000);
}

#[test]
fn paused_ticks_neither_run_nor_count_as_missed() {
    let mut record = after_one_run();
    record.set_paused(11_000, true);

    assert_eq!(record.begin(20_000, &tick(2, 20_000)), BeginReply::Skip(SkipReason::Paused));
    record.set_paused(31_000, false);
    assert!(matches!(record.begin(31_001, &tick(3, 30_000)), BeginReply::Skip(SkipReason::Late { .. })));
    assert_eq!(started(record.begin(40_000, &tick(4, 40_000))).counted, 31_000);
}

/// Its run failed, crashed, or was given back.
#[test]
fn a_tick_from_before_the_end_of_a_pause_never_starts_again() {
    let again = |number| BeginRequest { retries: 3, ..request(number, BeginKind::Slot { slot: 10_000 }) };
    let ends = [RunResult::Failed, RunResult::Lost, RunResult::Unstarted].map(Some);
    for (end, is_seen) in ends.into_iter().chain([None]).flat_map(|end| [(end, true), (end, false)]) {
        let mut record = JobRecord::default();
        started(record.begin(10_000, &again(1)));
        if let Some(end) = end {
            ended(&mut record, 10_001, 1, end);
        }
        record.set_paused(10_002, true);
        if is_seen {
            assert_eq!(record.begin(20_000, &again(2)), BeginReply::Skip(SkipReason::Paused));
        }

        record.set_paused(50_000, false);

        assert!(!record.may_run_again(50_001, 3, true), "{end:?}, seen: {is_seen}");
        let done = BeginReply::Skip(SkipReason::Done);
        assert_eq!(record.begin(50_001, &again(3)), done, "{end:?}, seen: {is_seen}");
        assert_eq!(started(record.begin(60_000, &tick(4, 60_000))).attempt, 1);
    }
}

#[test]
fn a_run_that_is_active_at_the_end_of_a_pause_may_run_again() {
    let again = |number| request(number, BeginKind::Slot { slot: 10_000 });
    let mut record = JobRecord::default();
    started(record.begin(10_000, &tick(1, 10_000)));
    record.set_paused(10_001, true);
    record.set_paused(10_000 + LEASE - 1, false);

    assert_eq!(started(record.begin(10_000 + LEASE, &again(2))).attempt, 2);
}

#[test]
fn a_tick_that_started_early_may_run_again_after_a_pause() {
    let failing = |number, slot| BeginRequest { retries: 1, ..tick(number, slot) };
    let mut record = JobRecord::default();
    started(record.begin(15_500, &failing(1, 20_000)));
    ended(&mut record, 15_501, 1, RunResult::Failed);
    record.set_paused(15_502, true);
    record.set_paused(19_999, false);

    assert_eq!(started(record.begin(20_000, &failing(2, 20_000))).attempt, 2);
}

#[test]
fn missed_slots_run_before_the_current_one() {
    let mut record = after_one_run();
    let current = |number| {
        request(number, BeginKind::Tick { slot: 50_000, window: (0, u64::MAX), previous: Some(40_000) })
    };

    assert_eq!(record.begin(50_000, &current(2)), BeginReply::Missed { since: 10_000, is_running: false });
    for (number, slot) in [(3, 30_000), (4, 40_000)] {
        assert_eq!(started(record.begin(50_000, &request(number, BeginKind::Missed { slot }))).slot, slot);
        ended(&mut record, 50_000, number, RunResult::Succeeded);
    }
    let grant = started(record.begin(50_000, &current(5)));
    assert_eq!((grant.slot, grant.counted), (50_000, 10_000), "they are counted as missed");
    let end = FinishRequest {
        owner: owner(5),
        result: RunResult::Succeeded,
        error: String::new(),
        missed: Some((10_000, 3)),
    };
    let mut counted = JobRecord { counted: 20_000, ..record.clone() };
    counted.finish(50_001, end.clone());
    assert_eq!((counted.counters.missed, counted.counted), (0, 20_000), "another count was first");
    assert_eq!(record.finish(50_001, end), OwnerReply::Owner);
    assert_eq!((record.counters.missed, record.counted), (3, 50_000));
}

/// A runner receives no reply to its request for slot 30,000, so the run is given back.
#[test]
fn a_missed_slot_that_is_given_back_runs_first() {
    let missed = |number, slot| request(number, BeginKind::Missed { slot });
    let current = |number| {
        request(number, BeginKind::Tick { slot: 50_000, window: (0, u64::MAX), previous: Some(40_000) })
    };
    for is_next_skipped in [false, true] {
        let mut record = after_one_run();
        assert_eq!(
            record.begin(45_000, &current(2)),
            BeginReply::Missed { since: 10_000, is_running: false }
        );
        started(record.begin(45_000, &missed(3, 30_000)));
        if is_next_skipped {
            let skipped = record.begin(45_001, &request(4, BeginKind::Slot { slot: 40_000 }));
            assert!(matches!(skipped, BeginReply::Skip(SkipReason::Overlap { .. })), "{skipped:?}");
        }
        ended(&mut record, 45_002, 3, RunResult::Unstarted);

        assert_eq!(
            record.begin(45_003, &current(5)),
            BeginReply::Missed { since: 29_999, is_running: false }
        );

        let grant = started(record.begin(45_003, &missed(6, 30_000)));
        assert_eq!((grant.slot, grant.attempt), (30_000, 1), "skipped: {is_next_skipped}");
        ended(&mut record, 45_004, 6, RunResult::Succeeded);
        let next = record.begin(45_005, &missed(7, 40_000));
        assert_eq!(matches!(next, BeginReply::Run(_)), !is_next_skipped, "{next:?}");
        ended(&mut record, 45_006, 7, RunResult::Succeeded);
        assert_eq!(started(record.begin(45_007, &current(8))).slot, 50_000);
    }
}

/// Its run may be given back. Otherwise, the current slot is skipped, or starts before it.
#[test]
fn a_missed_slot_that_runs_is_not_caught_up() {
    let missed = |number| request(number, BeginKind::Missed { slot: 20_000 });
    let current = |number| {
        request(number, BeginKind::Tick { slot: 30_000, window: (0, u64::MAX), previous: Some(20_000) })
    };
    for result in [RunResult::Succeeded, RunResult::Unstarted] {
        let mut record = after_one_run();
        started(record.begin(30_000, &missed(2)));

        assert_eq!(record.begin(30_001, &current(3)), BeginReply::Missed { since: 19_999, is_running: true });
        let running = BeginReply::Skip(SkipReason::Running { lease_left: LEASE - 2 });
        assert_eq!(record.begin(30_002, &missed(4)), running);
        ended(&mut record, 30_003, 2, result);
        if result == RunResult::Unstarted {
            assert_eq!(
                record.begin(30_004, &current(5)),
                BeginReply::Missed { since: 19_999, is_running: false }
            );
            started(record.begin(30_005, &missed(6)));
            ended(&mut record, 30_006, 6, RunResult::Succeeded);
        }
        assert_eq!(started(record.begin(30_007, &current(7))).slot, 30_000, "{result:?}");
        assert_eq!(record.counters.skips, 0, "{result:?}");
    }
}

/// A timer calls the job of a runner. Otherwise, the runner finds its next slot skipped or passed.
#[test]
fn a_call_without_a_runner_skips_no_tick_for_a_missed_slot_that_runs() {
    for overlap in [Overlap::Skip, Overlap::QueueOne, Overlap::CancelPrevious] {
        let mut record = after_one_run();
        started(record.begin(29_000, &request(2, BeginKind::Missed { slot: 20_000 })));

        let of_timer = record.begin(30_000, &BeginRequest { overlap, ..late_tick(3, 30_000) });

        assert_eq!(of_timer, BeginReply::Missed { since: 19_999, is_running: true }, "{overlap:?}");
        ended(&mut record, 30_001, 2, RunResult::Succeeded);
        assert_eq!(started(record.begin(30_002, &late_tick(4, 30_000))).slot, 30_000, "{overlap:?}");
        assert_eq!((record.counters.skips, record.waiting), (0, None), "{overlap:?}");
    }
}

/// Slot 30,000 does not run after the pause, and a process that runs the latest one asks for no
/// other.
#[test]
fn a_missed_slot_that_runs_after_a_pause_is_waited_for() {
    let next = BeginKind::Tick { slot: 40_000, window: (0, u64::MAX), previous: Some(30_000) };
    let mut record = after_one_run();
    started(record.begin(30_000, &request(2, BeginKind::Missed { slot: 20_000 })));
    record.set_paused(30_001, true);
    record.set_paused(30_002, false);

    let waited_for = BeginReply::Missed { since: 19_999, is_running: true };
    assert_eq!(record.begin(30_003, &request(3, next)), waited_for);

    ended(&mut record, 30_004, 2, RunResult::Succeeded);
    assert_eq!(started(record.begin(30_005, &request(4, next))).slot, 40_000);
}

/// Otherwise, a fleet would end each missed slot at once, and one that hangs would never end.
#[test]
fn only_ticks_that_are_due_later_cancel_a_missed_slot_that_runs() {
    let cancelling = |number, kind| {
        let overlap = Overlap::CancelPrevious;
        BeginRequest { overlap, ..request(number, kind) }
    };
    let tick = |slot| BeginKind::Tick { slot, window: (0, u64::MAX), previous: Some(slot - TICK) };
    for missed in [20_000, 30_000] {
        let mut record = after_one_run();
        started(record.begin(45_000, &cancelling(2, BeginKind::Missed { slot: missed })));
        let waits = BeginReply::Missed { since: missed - 1, is_running: true };

        assert_eq!(record.begin(45_001, &cancelling(3, tick(40_000))), waits);
        assert_eq!(record.renew(45_002, owner(2), 6 * LEASE), OwnerReply::Owner);

        assert_eq!(record.begin(50_000, &cancelling(4, tick(50_000))), waits);
        assert_eq!(record.renew(50_001, owner(2), LEASE), OwnerReply::Cancelled);
        ended(&mut record, 50_002, 2, RunResult::Cancelled);
        let since = BeginReply::Missed { since: missed, is_running: false };
        assert_eq!(record.begin(50_003, &cancelling(5, tick(50_000))), since);
    }
}

/// A tick was delayed, and the run before it started meanwhile.
#[test]
fn a_slot_of_a_caller_cancels_each_run() {
    let cancelling =
        |number, kind| BeginRequest { overlap: Overlap::CancelPrevious, ..request(number, kind) };
    let tick = BeginKind::Tick { slot: 20_000, window: (0, u64::MAX), previous: None };
    for (kind, expected) in
        [(tick, OwnerReply::Owner), (BeginKind::Slot { slot: 20_000 }, OwnerReply::Cancelled)]
    {
        let mut record = JobRecord::default();
        started(record.begin(20_001, &cancelling(1, BeginKind::Slot { slot: 10_000 })));

        let waits = record.begin(20_002, &cancelling(2, kind));

        assert_eq!(waits, BeginReply::Wait { lease_left: LEASE - 1 });
        // The call waits, whatever it was at first.
        record.begin(20_003, &cancelling(2, BeginKind::Slot { slot: 20_000 }));
        assert_eq!(record.renew(20_004, owner(1), LEASE), expected, "{kind:?}");
    }
}

/// Otherwise, a newer slot is skipped for its second attempt, or starts before it.
#[test]
fn a_missed_slot_is_open_until_its_last_attempt_has_ended() {
    let current = BeginKind::Tick { slot: 30_000, window: (0, u64::MAX), previous: Some(20_000) };
    let ends = [RunResult::Failed, RunResult::Lost];
    for (end, crashed) in ends.into_iter().zip([CrashedRun::Skip, CrashedRun::Rerun]) {
        for overlap in [Overlap::Skip, Overlap::QueueOne, Overlap::CancelPrevious] {
            let of = |number, kind| BeginRequest { overlap, crashed, retries: 1, ..request(number, kind) };
            let mut record = after_one_run();
            started(record.begin(30_000, &of(2, BeginKind::Missed { slot: 20_000 })));
            ended(&mut record, 30_001, 2, end);

            let waits = |is_running| BeginReply::Missed { since: 19_999, is_running };
            assert_eq!(record.begin(30_002, &of(3, current)), waits(false), "{end:?} {overlap:?}");
            let again = started(record.begin(30_003, &of(4, BeginKind::Slot { slot: 20_000 })));
            assert_eq!(again.attempt, 2);
            assert_eq!(record.begin(30_004, &of(5, current)), waits(true), "{end:?} {overlap:?}");
            ended(&mut record, 30_005, 4, end);

            assert_eq!(started(record.begin(30_006, &of(6, current))).slot, 30_000);
        }
    }
}

/// The next slot on time counts the slots before it, also the one that ran late.
#[test]
fn a_missed_slot_that_runs_again_counts_no_missed_slots() {
    let mut record = after_one_run();
    started(record.begin(45_000, &request(2, BeginKind::Missed { slot: 40_000 })));
    ended(&mut record, 45_001, 2, RunResult::Lost);
    let again = request(3, BeginKind::Slot { slot: 40_000 });

    let grant = started(record.begin(45_002, &again));
    let repeated = started(record.begin(45_003, &again));

    assert_eq!((grant.attempt, grant.counted, repeated.counted), (2, 40_000, 40_000));
    ended(&mut record, 45_004, 3, RunResult::Succeeded);
    assert_eq!(started(record.begin(50_000, &late_tick(4, 50_000))).counted, 10_000);
}

/// The process of a requested run has crashed. Another one read the record before the failure.
#[test]
fn no_newer_missed_slot_passes_one_that_is_open() {
    for end in [RunResult::Failed, RunResult::Lost, RunResult::Unstarted] {
        let of = |number, kind| BeginRequest { retries: 1, ..request(number, kind) };
        let newer = |number| of(number, BeginKind::Missed { slot: 30_000 });
        let mut record = after_one_run();
        started(record.begin(45_000, &of(2, BeginKind::Missed { slot: 20_000 })));
        ended(&mut record, 45_001, 2, end);
        record.request_run(45_002);
        started(record.begin(45_002, &of(3, BeginKind::Requested)));
        let crashed = 45_002 + LEASE;

        assert!(!record.may_run_again(crashed - 1, 1, true), "{end:?}: it runs");
        assert!(record.may_run_again(crashed, 1, true), "{end:?}");
        let waits = BeginReply::Skip(SkipReason::Running { lease_left: 0 });
        assert_eq!(record.begin(crashed, &newer(4)), waits, "{end:?}");
        assert!(record.may_run_again(crashed, 1, true), "{end:?}");

        started(record.begin(crashed, &of(5, BeginKind::Slot { slot: 20_000 })));
        ended(&mut record, crashed + 1, 5, RunResult::Succeeded);
        assert_eq!(started(record.begin(crashed + 2, &newer(6))).slot, 30_000, "{end:?}");
    }
}

/// Newer ticks replace it, as without `catch_up`.
#[test]
fn a_failed_slot_that_was_not_missed_is_caught_up() {
    let current = BeginKind::Tick { slot: 20_000, window: (0, u64::MAX), previous: Some(10_000) };
    let mut record = JobRecord::default();
    started(record.begin(10_000, &tick(1, 10_000)));
    ended(&mut record, 10_001, 1, RunResult::Failed);

    let next = record.begin(20_000, &BeginRequest { retries: 3, ..request(2, current) });

    assert_eq!(started(next).slot, 20_000);
}

/// A pause ended after it was given back, or the job was not known when it was due.
#[test]
fn a_slot_that_never_starts_again_is_not_caught_up() {
    let current = |number| {
        request(number, BeginKind::Tick { slot: 20_000, window: (0, u64::MAX), previous: Some(10_000) })
    };
    for is_paused in [true, false] {
        let mut record = JobRecord::default();
        record.register(if is_paused { 5_000 } else { 10_000 }, "every 10000 ms");
        started(record.begin(10_000, &tick(1, 10_000)));
        ended(&mut record, 10_001, 1, RunResult::Unstarted);
        record.set_paused(10_002, is_paused);
        record.set_paused(10_003, false);

        assert_eq!(started(record.begin(20_000, &current(2))).slot, 20_000, "paused: {is_paused}");
    }
}

#[test]
fn a_lost_run_is_not_missed() {
    let mut record = after_one_run();
    started(record.begin(30_000, &tick(2, 30_000)));

    let grant = started(record.begin(50_000, &late_tick(3, 50_000)));

    assert_eq!(grant.counted, 30_000, "its own start has reported the slots before it");
    let repeated = started(record.begin(50_001, &late_tick(3, 50_000)));
    assert_eq!(repeated.counted, 30_000);
    let end = FinishRequest {
        owner: owner(3),
        result: RunResult::Succeeded,
        error: String::new(),
        missed: Some((30_000, 1)),
    };
    assert_eq!(record.finish(50_002, end), OwnerReply::Owner);
    assert_eq!(record.counters.missed, 1, "those before the lost run are in its event only");
}

#[test]
fn slots_before_the_job_was_seen_are_not_missed() {
    let mut record = JobRecord::default();
    let first = request(1, BeginKind::Tick { slot: 50_000, window: (0, u64::MAX), previous: Some(40_000) });

    assert_eq!(started(record.begin(50_000, &first)).counted, 50_000);
}

/// Returns a request of a process whose schedule is due every minute.
fn minutely(number: u64, kind: BeginKind) -> BeginRequest {
    BeginRequest { spec: "every 60000 ms".to_owned(), ..request(number, kind) }
}

/// By the new schedule, slots were due that were none of the old one.
#[test]
fn slots_before_a_schedule_was_seen_are_not_missed() {
    let tick = |previous| BeginKind::Tick { slot: 240_000, window: (0, u64::MAX), previous };
    for is_registered in [true, false] {
        let mut record = after_one_run();
        record.register(20_000, "every 10000 ms");
        assert_eq!(
            (record.known, record.caught_up(0, false)),
            (Some(10_000), 10_000),
            "its schedule is the same"
        );
        if is_registered {
            record.register(200_000, "every 60000 ms");
            assert_eq!(record.caught_up(0, false), 200_000);
        }

        let now = if is_registered { 240_000 } else { 250_000 };
        let since = if is_registered { 200_000 } else { 250_000 };
        let grant = started(record.begin(now, &minutely(2, tick(Some(180_000)))));

        assert_eq!((grant.slot, grant.counted), (240_000, since), "registered: {is_registered}");
        ended(&mut record, now + 1, 2, RunResult::Succeeded);
        let next = BeginKind::Tick { slot: 360_000, window: (0, u64::MAX), previous: Some(300_000) };
        let missed = BeginReply::Missed { since: since.max(240_000), is_running: false };
        assert_eq!(record.begin(360_000, &minutely(3, next)), missed, "later ones are missed");
    }
}

/// During a deployment, old and new processes ask in turn.
#[test]
fn each_change_of_the_schedule_counts() {
    let mut record = after_one_run();

    record.begin(20_000, &minutely(2, BeginKind::Requested));
    assert_eq!((record.known, &*record.spec), (Some(20_000), "every 60000 ms"));
    assert_eq!(record.begin(30_000, &late_tick(3, 10_000)), BeginReply::Skip(SkipReason::Done));
    assert_eq!((record.known, &*record.spec), (Some(30_000), "every 10000 ms"), "also if it does not run");

    let before = record.clone();
    assert_eq!(record.begin(30_001, &minutely(1, BeginKind::Requested)), BeginReply::Skip(SkipReason::Done));
    assert_eq!(record.begin(30_002, &minutely(4, tick(4, 10_000).kind)), BeginReply::OtherTick);
    let chosen = BeginRequest { spec: String::new(), ..request(5, BeginKind::Slot { slot: 10_000 }) };
    assert_eq!(record.begin(30_003, &chosen), BeginReply::Skip(SkipReason::Done));
    assert_eq!(record, before, "an end, a call for another tick, and a slot of a caller change no schedule");
}

/// Otherwise, the first tick of the new schedule would be skipped for it.
#[test]
fn a_missed_slot_of_another_schedule_is_waited_for() {
    let next = BeginKind::Tick { slot: 60_000, window: (0, u64::MAX), previous: Some(0) };
    let mut record = after_one_run();
    started(record.begin(59_000, &request(2, BeginKind::Missed { slot: 20_000 })));

    let waits = BeginReply::Missed { since: 60_000, is_running: true };
    assert_eq!(record.begin(60_000, &minutely(3, next)), waits);

    ended(&mut record, 60_001, 2, RunResult::Succeeded);
    assert_eq!(started(record.begin(60_002, &minutely(4, next))).slot, 60_000);
}

/// A process read them before a process with another schedule registered. Otherwise, the ticks of
/// the new schedule would wait for each of them.
#[test]
fn a_missed_slot_of_another_schedule_starts_only_again() {
    let missed = |number, slot| request(number, BeginKind::Missed { slot });
    for result in [RunResult::Succeeded, RunResult::Unstarted] {
        let mut record = after_one_run();
        started(record.begin(58_000, &missed(2, 20_000)));
        record.register(59_000, "every 60000 ms");
        ended(&mut record, 59_001, 2, result);

        let again = record.begin(59_002, &missed(3, 20_000));
        assert_eq!(matches!(again, BeginReply::Run(_)), result == RunResult::Unstarted, "{again:?}");
        ended(&mut record, 59_003, 3, RunResult::Succeeded);
        let late = BeginReply::Skip(SkipReason::Late { slot: 20_000 });
        for (number, slot) in [(4, 30_000), (5, 50_000)] {
            assert_eq!(record.begin(59_004, &missed(number, slot)), late, "{result:?}");
        }

        // Both processes ask in turn, and each of their ticks starts.
        for (number, slot) in (0..4).map(|n| (6 + 2 * n, 60_000 + n * 60_000)) {
            let kind = BeginKind::Tick { slot, window: (0, u64::MAX), previous: Some(slot - 60_000) };
            assert_eq!(started(record.begin(slot, &minutely(number, kind))).slot, slot);
            ended(&mut record, slot + 1, number, RunResult::Succeeded);
            let (number, slot) = (number + 1, slot + TICK);
            let kind = BeginKind::Tick { slot, window: (0, u64::MAX), previous: Some(slot - TICK) };
            assert_eq!(started(record.begin(slot, &request(number, kind))).slot, slot);
            ended(&mut record, slot + 1, number, RunResult::Succeeded);
        }
    }
}

#[test]
fn a_requested_run_changes_neither_slot_nor_missed() {
    let mut record = after_one_run();
    let before = (record.slot, record.counted, record.state);

    assert_eq!(
        record.begin(11_000, &request(2, BeginKind::Requested)),
        BeginReply::Skip(SkipReason::NotRequested)
    );
    record.request_run(12_000);
    assert_eq!(started(record.begin(12_001, &request(3, BeginKind::Requested))).slot, 12_000);
    assert!(
        matches!(record.begin(12_002, &request(4, BeginKind::Requested)), BeginReply::Skip(_)),
        "one of them"
    );
    ended(&mut record, 12_003, 3, RunResult::Failed);

    assert_eq!((record.slot, record.counted, record.state), before);
    assert!(record.history[0].is_requested);
}

#[test]
fn a_slot_too_far_ahead_is_refused() {
    let mut record = JobRecord::default();

    let refused = record.begin(1_000, &late_tick(1, 1_001 + FURTHEST_AHEAD));
    assert_eq!(refused, BeginReply::Skip(SkipReason::Ahead));
    started(record.begin(1_000, &late_tick(2, 1_000 + FURTHEST_AHEAD)));
}

#[test]
fn reset_ends_a_slot_that_is_ahead() {
    let mut record = JobRecord::default();
    started(record.begin(1_000, &late_tick(1, 1_000 + FURTHEST_AHEAD)));
    assert!(matches!(record.begin(10_000, &tick(2, 10_000)), BeginReply::Skip(SkipReason::Late { .. })));

    record.reset(11_000);

    assert_eq!(ended(&mut record, 11_001, 1, RunResult::Succeeded), OwnerReply::NotOwner);
    assert!(matches!(record.begin(11_002, &tick(3, 10_000)), BeginReply::Skip(SkipReason::Late { .. })));
    started(record.begin(20_000, &tick(4, 20_000)));
}

#[test]
fn the_history_keeps_the_latest_runs() {
    let mut record = JobRecord::default();
    for number in 1..=HISTORY as u64 + 10 {
        started(record.begin(number * TICK, &tick(number, number * TICK)));
        ended(&mut record, number * TICK + 1, number, RunResult::Succeeded);
    }

    assert_eq!(record.history.len(), HISTORY);
    assert_eq!(record.history[0].slot, (HISTORY as u64 + 10) * TICK);
}

#[test]
fn a_run_that_did_not_start_is_given_back() {
    let mut record = JobRecord::default();
    started(record.begin(10_000, &tick(1, 10_000)));
    ended(&mut record, 10_001, 1, RunResult::Unstarted);

    assert_eq!(record.begin(10_002, &tick(1, 10_000)), BeginReply::Skip(SkipReason::Done), "a late request");
    assert_eq!(started(record.begin(10_003, &tick(2, 10_000))).attempt, 1);
    assert_eq!((record.counters.runs, record.history.len()), (1, 0));
}

#[test]
fn reset_keeps_what_operators_see() {
    let mut record = JobRecord::default();
    record.register(1_000, "every 10000 ms");
    started(record.begin(10_000, &tick(1, 10_000)));
    ended(&mut record, 10_001, 1, RunResult::Succeeded);
    record.is_paused = true;
    let before = record.clone();

    record.reset(11_000);

    assert_eq!((record.known, record.counted, record.decided()), (Some(11_000), 11_000, 11_000));
    assert!(record.is_paused && record.counters.runs == 1 && record.history.len() == 1, "{record:?}");
    assert_eq!((record.counters, record.fence), (before.counters, before.fence));
    assert_eq!((&record.history, &record.succeeded), (&before.history, &before.succeeded));
    record.register(20_000, "every 10000 ms");
    assert_eq!(record.known, Some(11_000), "slots after the reset can be missed");
}

#[test]
fn reset_keeps_a_slot_that_started_early() {
    let mut record = JobRecord::default();
    started(record.begin(15_500, &tick(1, 20_000)));
    ended(&mut record, 15_501, 1, RunResult::Succeeded);

    record.reset(15_502);

    let late = record.begin(20_000, &tick(2, 20_000));
    assert!(matches!(late, BeginReply::Skip(SkipReason::Late { .. })), "{late:?}");
}

/// A body that kills its process does so in every replica.
#[test]
fn a_tick_that_crashes_again_and_again_is_given_up() {
    for (retries, attempts) in [(0, 2), (1, 2), (3, 4)] {
        let mut record = JobRecord::default();
        let again = |number| BeginRequest { retries, ..late_tick(number, 10_000) };
        let mut now = 10_000;
        for attempt in 1..=attempts {
            assert_eq!(started(record.begin(now, &again(u64::from(attempt)))).attempt, attempt, "{retries}");
            now += LEASE;
        }

        assert!(record.may_run_again(now, retries, true), "its loss must be recorded");
        assert_eq!(record.begin(now, &again(9)), BeginReply::Skip(SkipReason::Done), "{retries} retries");
        assert!(!record.may_run_again(now, retries, true), "{retries} retries");
    }
}

#[test]
fn no_newer_slot_starts_within_the_min_hold() {
    let holding = |number, slot| BeginRequest { min_hold: 15_000, ..late_tick(number, slot) };
    let mut record = after_one_run();

    let skipped = BeginReply::Skip(SkipReason::Overlap { lease_left: 15_000 - 500 });
    assert_eq!(record.begin(10_500, &holding(2, 10_400)), skipped);
    assert_eq!(started(record.begin(25_000, &holding(4, 20_000))).slot, 20_000);
    assert_eq!(record.counters.skips, 1);
}

#[test]
fn a_min_hold_ends_when_the_clock_steps_back_or_the_body_did_not_start() {
    let holding = |number, slot| BeginRequest { min_hold: 15_000, ..late_tick(number, slot) };
    let mut record = after_one_run();
    assert_eq!(started(record.begin(5_000, &holding(2, 20_000))).slot, 20_000, "the clock stepped back");

    let mut record = JobRecord::default();
    started(record.begin(10_000, &tick(1, 10_000)));
    ended(&mut record, 10_001, 1, RunResult::Unstarted);
    assert_eq!(started(record.begin(10_002, &holding(2, 20_000))).slot, 20_000);
}

/// One process runs them, one after the other.
#[test]
fn missed_slots_and_the_current_one_after_them_have_no_min_hold() {
    let mut record = after_one_run();
    for (number, slot) in [(2, 20_000), (3, 30_000)] {
        let missed = BeginKind::Missed { slot };
        let request = BeginRequest { kind: missed, min_hold: 15_000, ..late_tick(number, slot) };
        assert_eq!(started(record.begin(40_000, &request)).slot, slot);
        ended(&mut record, 40_000, number, RunResult::Succeeded);
    }

    let current = BeginRequest { min_hold: 15_000, ..tick(4, 40_000) };
    assert_eq!(started(record.begin(40_001, &current)).slot, 40_000);
}

#[test]
fn a_tick_waits_for_the_end_of_the_min_hold() {
    for overlap in [Overlap::QueueOne, Overlap::CancelPrevious] {
        let holding = |number, slot| BeginRequest { min_hold: 15_000, overlap, ..late_tick(number, slot) };
        let mut record = after_one_run();

        let waits = BeginReply::Wait { lease_left: 5_000 };
        assert_eq!(record.begin(20_000, &holding(2, 20_000)), waits, "{overlap:?}");
        assert_eq!(started(record.begin(25_000, &holding(2, 20_000))).slot, 20_000, "{overlap:?}");
    }
}

/// The clock of the server steps back, and a run did not start.
#[test]
fn fencing_tokens_of_runs_only_increase() {
    let mut record = JobRecord::default();
    let first = started(record.begin(10_000, &tick(1, 10_000))).fence;
    assert_eq!(first, 10_000_000, "microseconds of the server's clock");
    assert_eq!(started(record.begin(10_001, &tick(1, 10_000))).fence, first, "the same run");
    ended(&mut record, 10_002, 1, RunResult::Succeeded);
    let second = started(record.begin(9_000, &late_tick(2, 20_000))).fence;
    assert_eq!(second, first + 1);
    record.reset(9_001);
    assert!(started(record.begin(9_002, &late_tick(3, 30_000))).fence > second);
}

#[test]
fn only_a_known_job_can_be_requested() {
    let mut record = JobRecord::default();
    assert!(!record.request_run(10_000));
    assert_eq!(record, JobRecord::default(), "it changes nothing");

    record.register(10_000, "every 10000 ms");

    assert!(record.request_run(12_000));
    assert_eq!((record.known, &*record.spec, record.request), (Some(10_000), "every 10000 ms", Some(12_000)));
}
