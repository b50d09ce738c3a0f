//! Histories that each judge must reject, and histories that all judges must accept.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Terms, Violation, exclusion, fencing, judge, liveness};
use crate::clock::Moment;
use crate::history::{Answered, Event, History, Phase, Scanned, View, What};

/// Events of the lock `a`, in milliseconds, of processes 1 and 2. The test numbers the calls.
#[derive(Default)]
struct Plot(Vec<Event>);

impl Plot {
    fn at(mut self, ms: u64, process: u32, what: What) -> Self {
        self.0.push(Event { at: moment(ms), process, task: 0, key: "a".to_owned(), what });
        self
    }

    /// Starts a call at `began` and enters at `enter`, with a deadline 400 ms later.
    fn enter(self, (began, enter): (u64, u64), process: u32, call: u64) -> Self {
        self.at(began, process, What::Try { call, limit: 2_000 })
            .at(enter, process, outcome(call, Answered::Granted))
            .at(enter, process, What::Enter { call, deadline: moment(enter + 400) })
    }

    fn poll(self, ms: u64, process: u32, call: u64, deadline: u64) -> Self {
        self.at(ms, process, What::Poll { call, deadline: moment(deadline) })
    }

    fn exit(self, ms: u64, process: u32, call: u64) -> Self {
        self.at(ms, process, What::Exit { call })
    }

    fn token(self, ms: u64, process: u32, call: u64, token: u64) -> Self {
        self.at(ms, process, What::Token { call, token })
    }

    fn fault(self, ms: u64, row: &str) -> Self {
        let (what, to) = ("it breaks".to_owned(), "server".to_owned());
        self.at(ms, 9, What::Fault { row: row.to_owned(), what, to })
    }

    fn heal(self, ms: u64, row: &str) -> Self {
        self.at(ms, 9, What::Heal { row: row.to_owned() })
    }

    fn write(self, ms: u64, turn: u64, token: u64, accepted: bool) -> Self {
        self.at(ms, 1, What::Write { call: 1, token, turn, accepted, highest: 0 })
    }

    fn resources(self, ms: u64, phase: Phase, counts: &[(&str, u64)]) -> Self {
        let counts: BTreeMap<_, _> =
            counts.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect();
        self.at(ms, 1, What::Resources { phase, counts })
    }

    fn scan(self, ms: u64, quiet: bool, keys: &[(&str, i64)]) -> Self {
        let keys = keys.iter().map(|(name, ttl)| Scanned { name: (*name).to_owned(), ttl: *ttl }).collect();
        self.at(ms, 9, What::Scan { keys, quiet })
    }

    /// An event without effect that ends the history.
    fn end(self, ms: u64) -> Self {
        self.at(ms, 9, What::Said { text: "the end".to_owned() })
    }

    fn history(self) -> History {
        History::of(self.0)
    }

    /// Returns the violations that the judges find.
    fn judged(self) -> Vec<Violation> {
        judge(&self.history(), &terms())
    }

    /// Checks that only `judge` rejects the history, with a violation that contains `text`.
    #[track_caller]
    fn refused_by(self, judge: &str, text: &str) {
        let seen = self.judged();
        assert!(!seen.is_empty(), "nothing was seen");
        assert!(seen.iter().all(|seen| seen.judge == judge), "another judge: {seen:?}");
        assert!(seen.iter().any(|seen| seen.text.contains(text)), "not `{text}`: {seen:?}");
    }

    #[track_caller]
    fn passes(self) {
        assert_eq!(self.judged(), []);
    }
}

fn terms() -> Terms {
    let ms = Duration::from_millis;
    Terms { lease: ms(400), grant_lease: ms(400), late: ms(20), secrets: vec!["sesame".to_owned()] }
}

fn moment(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

fn outcome(call: u64, answer: Answered) -> What {
    What::Outcome { call, answer, text: String::new() }
}

#[test]
fn consecutive_holds_pass() {
    let taken = Plot::default().enter((0, 1), 1, 1).token(2, 1, 1, 7).poll(3, 1, 1, 401).exit(10, 1, 1);
    let taken = taken.enter((5, 11), 2, 1).token(12, 2, 1, 8).exit(20, 2, 1);

    taken.write(3, 1, 7, true).write(13, 2, 8, true).write(14, 3, 7, false).end(1_000).passes();
}

#[test]
fn j1_two_overlapping_holds_are_rejected() {
    let twice = Plot::default().enter((0, 1), 1, 1).exit(100, 1, 1).enter((0, 50), 2, 1).exit(60, 2, 1);

    twice.refused_by("J1", "call 1 of process 1 holds `a` and call 1 of process 2");
}

#[test]
fn j1_a_renewed_hold_is_valid_to_its_new_deadline() {
    let renewed =
        Plot::default().enter((0, 1), 1, 1).at(100, 1, What::Renewed { call: 1, deadline: moment(500) });

    renewed.exit(490, 1, 1).enter((300, 450), 2, 1).exit(460, 2, 1).refused_by("J1", "holds `a`");
}

#[test]
fn j1_a_hold_ends_at_its_deadline() {
    let stopped = Plot::default().enter((0, 1), 1, 1).at(10, 1, What::Stopped).enter((0, 410), 2, 1);

    let gone_on = stopped.exit(420, 2, 1).at(900, 1, What::Continued);
    gone_on.at(905, 1, What::Lost { call: 1, cause: "expired".to_owned() }).passes();
}

#[test]
fn j1_a_hold_that_expired_during_a_stop_overlaps_nothing() {
    // If the deadline passed before the first check, the history has only the start of the call as
    // deadline.
    for deadline in [0, 400] {
        let stopped = Plot::default().at(0, 1, What::Try { call: 1, limit: 2_000 }).at(10, 1, What::Stopped);
        let another = stopped.enter((0, 490), 2, 1).at(500, 1, What::Continued);

        let late = another.at(501, 1, outcome(1, Answered::Granted));
        let late = late.at(501, 1, What::Enter { call: 1, deadline: moment(deadline) });
        late.at(502, 1, What::Lost { call: 1, cause: "expired".to_owned() }).exit(600, 2, 1).passes();
    }
}

#[test]
fn j1_a_hold_entered_late_without_a_stop_overlaps() {
    let late = Plot::default().at(0, 1, What::Try { call: 1, limit: 2_000 }).enter((0, 410), 2, 1);
    let late = late.at(550, 1, outcome(1, Answered::Granted));

    let late = late.at(550, 1, What::Enter { call: 1, deadline: moment(400) }).exit(600, 1, 1);
    let history = late.exit(700, 2, 1).history();

    // J2 also rejects this, unless threads may be late by that much.
    assert_eq!(exclusion::violations(&View::of(&history)).len(), 1);
}

#[test]
fn j1_a_killed_process_holds_nothing() {
    let killed = Plot::default().enter((0, 1), 1, 1).fault(9, "P1").at(10, 1, What::Gone { killed: true });

    killed.enter((0, 390), 2, 1).exit(395, 2, 1).passes();
}

#[test]
fn j1_an_overlap_across_a_losing_fault_passes() {
    let flushed = Plot::default().enter((0, 1), 1, 1).fault(10, "S17c").heal(11, "S17c");
    let flushed = flushed.enter((0, 50), 2, 1).exit(60, 2, 1).exit(100, 1, 1).history();

    let view = View::of(&flushed);
    let overlaps = exclusion::overlaps(&view);

    assert_eq!(overlaps.iter().map(|overlap| overlap.row).collect::<Vec<_>>(), [Some("S17c")]);
    assert_eq!(overlaps[0].lasted, Duration::from_millis(10));
    assert_eq!(exclusion::violations(&view), [""; 0]);
}

#[test]
fn j1_a_fault_that_loses_nothing_explains_no_overlap() {
    let frozen = Plot::default().enter((0, 1), 1, 1).fault(10, "S7").heal(11, "S7");

    frozen.enter((0, 50), 2, 1).exit(60, 2, 1).exit(100, 1, 1).refused_by("J1", "holds `a`");
}

#[test]
fn j1_a_fault_that_ended_before_explains_no_overlap() {
    let flushed = Plot::default().fault(1, "S17c").heal(2, "S17c").enter((10, 20), 1, 1);

    flushed.enter((10, 50), 2, 1).exit(60, 2, 1).exit(100, 1, 1).refused_by("J1", "holds `a`");
}

#[test]
fn j2_a_poll_after_the_deadline_is_rejected() {
    let late = Plot::default().enter((0, 1), 1, 1).poll(430, 1, 1, 401).exit(431, 1, 1);

    late.refused_by("J2", "polled 29ms after its deadline");
}

#[test]
fn j2_an_entry_after_the_deadline_is_rejected() {
    let late = Plot::default().at(0, 1, What::Try { call: 1, limit: 2_000 }).at(
        450,
        1,
        outcome(1, Answered::Granted),
    );
    let late = late.at(450, 1, What::Enter { call: 1, deadline: moment(400) });

    late.exit(451, 1, 1).refused_by("J2", "entered 50ms after its deadline");
}

#[test]
fn j2_an_unreported_loss_is_rejected() {
    Plot::default()
        .enter((0, 1), 1, 1)
        .end(800)
        .refused_by("J2", "still considered valid 399ms after its deadline");
}

#[test]
fn j2_a_loss_that_is_reported_late_is_rejected() {
    let late =
        Plot::default().enter((0, 1), 1, 1).at(600, 1, What::Lost { call: 1, cause: "expired".to_owned() });

    late.refused_by("J2", "over 199ms after its deadline");
}

#[test]
fn j2_a_stop_excuses_one_poll_and_no_second() {
    let stopped =
        || Plot::default().enter((0, 1), 1, 1).at(390, 1, What::Stopped).at(900, 1, What::Continued);
    let once = || stopped().poll(901, 1, 1, 401);

    once().at(905, 1, What::Lost { call: 1, cause: "expired".to_owned() }).passes();
    let history = once().history();
    assert_eq!(super::deadline::excused(&View::of(&history), &terms()).len(), 1);
    once().poll(910, 1, 1, 401).exit(911, 1, 1).refused_by("J2", "polled 509ms after its deadline");
}

#[test]
fn j2_a_stall_excuses_lateness_up_to_its_length() {
    let late = || {
        Plot::default().enter((0, 1), 1, 1).at(600, 1, What::Lost { call: 1, cause: "expired".to_owned() })
    };
    let stalled = |since, until| late().at(until, 1, What::Stalled { since: moment(since) });

    stalled(450, 590).passes();
    stalled(450, 550).refused_by("J2", "over 199ms after its deadline");
    // A stop during which the process was also stalled counts once.
    stalled(450, 550).at(450, 1, What::Stopped).at(550, 1, What::Continued).refused_by("J2", "over 199ms");
}

#[test]
fn j2_a_poll_before_the_renewed_deadline_passes() {
    Plot::default().enter((0, 1), 1, 1).poll(500, 1, 1, 700).exit(501, 1, 1).passes();
}

#[test]
fn j3_a_falling_token_is_rejected() {
    let falls = Plot::default().enter((0, 1), 1, 1).token(2, 1, 1, 8).exit(3, 1, 1).enter((3, 4), 2, 1);

    falls
        .token(5, 2, 1, 7)
        .exit(6, 2, 1)
        .refused_by("J3", "with token 8, and later call 1 of process 2 holds `a` with token 7");
}

#[test]
fn j3_a_repeated_token_is_rejected() {
    let twice = Plot::default().enter((0, 1), 1, 1).token(2, 1, 1, 8).exit(3, 1, 1).enter((3, 4), 2, 1);

    twice.token(5, 2, 1, 8).exit(6, 2, 1).refused_by("J3", "with token 8");
}

#[test]
fn j3_tokens_of_two_locks_are_not_compared() {
    let mut other = Plot::default().enter((0, 1), 1, 1).token(2, 1, 1, 8).exit(3, 1, 1);
    for event in &mut other.0 {
        event.key = "b".to_owned();
    }

    other.enter((3, 4), 1, 2).token(5, 1, 2, 7).exit(6, 1, 2).passes();
}

#[test]
fn j4_an_accepted_stale_write_is_a_violation() {
    let stale = Plot::default().write(1, 1, 7, true).write(2, 2, 8, true).write(3, 3, 7, true);

    stale.refused_by("J4", "write 3 of `a` with token 7 (call 1 of process 1) was accepted after 8");
}

#[test]
fn j4_writes_are_judged_in_the_order_of_the_resource() {
    let stamped_late = Plot::default().write(1, 2, 8, true).write(9, 1, 7, true);

    stamped_late.passes();
}

#[test]
fn j4_a_refused_valid_write_is_a_violation() {
    Plot::default().write(1, 1, 7, true).write(2, 2, 8, false).refused_by("J4", "was rejected after 7");
}

#[test]
fn j4_a_write_after_an_unrecorded_one_may_be_refused() {
    Plot::default().write(1, 1, 7, true).write(2, 3, 8, false).passes();
}

#[test]
fn j4_stale_writes_are_counted() {
    let refused = Plot::default().write(1, 1, 8, true).write(2, 2, 7, false).write(3, 3, 8, true).history();
    let taken = Plot::default().write(1, 1, 8, true).write(2, 2, 7, true).history();

    assert_eq!(fencing::stale(&View::of(&refused)), fencing::Stale { attempted: 1, refused: 1 });
    assert_eq!(fencing::stale(&View::of(&taken)), fencing::Stale { attempted: 1, refused: 0 });
}

/// Process 1 is killed at 10 ms while process 2 waits, which enters at `enter`.
fn killed(enter: u64) -> Plot {
    let killed = Plot::default().enter((0, 1), 1, 1);
    let to = "1".to_owned();
    let killed = killed.at(9, 9, What::Fault { row: "P1".to_owned(), what: "kill -9".to_owned(), to });
    killed.at(10, 1, What::Gone { killed: true }).heal(11, "P1").enter((5, enter), 2, 1).exit(enter + 1, 2, 1)
}

#[test]
fn j5_a_late_entry_after_a_kill_is_rejected() {
    killed(700).refused_by("J5", "and is killed, and the next waiter enters 690ms later");
}

#[test]
fn j5_an_entry_a_lease_after_a_kill_passes() {
    let history = killed(415).history();

    assert_eq!(liveness::after_crashes(&View::of(&history), &terms()), [Duration::from_millis(405)]);
    killed(415).passes();
}

#[test]
fn j5_a_release_without_a_next_entry_is_rejected() {
    let forgotten =
        Plot::default().enter((0, 1), 1, 1).at(5, 2, What::Try { call: 1, limit: 2_000 }).exit(10, 1, 1);

    forgotten.end(1_000).refused_by("J5", "and releases, and the next waiter has not entered after 990ms");
}

#[test]
fn j5_a_hand_off_is_measured() {
    let handed =
        Plot::default().enter((0, 1), 1, 1).exit(10, 1, 1).enter((5, 17), 2, 1).exit(20, 2, 1).history();

    assert_eq!(liveness::after_releases(&View::of(&handed), &terms()), [Duration::from_millis(7)]);
}

#[test]
fn j5_a_wait_during_a_server_fault_passes() {
    let frozen =
        Plot::default().enter((0, 1), 1, 1).at(5, 2, What::Try { call: 1, limit: 2_000 }).exit(10, 1, 1);

    frozen.fault(12, "S7").end(1_000).passes();
}

#[test]
fn j5_a_lock_without_waiters_may_stay_free() {
    Plot::default().enter((0, 1), 1, 1).exit(10, 1, 1).enter((1_500, 1_501), 2, 1).exit(1_502, 2, 1).passes();
}

#[test]
fn j6_a_key_without_a_ttl_is_rejected_at_any_time() {
    Plot::default().scan(1, false, &[("dlock:a", -1)]).refused_by("J6", "`dlock:a` has no TTL");
}

#[test]
fn j6_a_counter_without_a_ttl_is_rejected() {
    Plot::default().scan(1, true, &[("{dlock:a}##token", -1)]).refused_by("J6", "has no TTL");
}

#[test]
fn j6_a_lock_that_remains_after_a_quiet_time_is_rejected() {
    Plot::default()
        .scan(1, true, &[("dlock:a", 100)])
        .refused_by("J6", "`dlock:a` remains for another 100 ms");
}

#[test]
fn j6_counters_may_remain_and_locks_may_exist_during_work() {
    Plot::default()
        .scan(1, false, &[("dlock:a", 100)])
        .scan(2, true, &[("{dlock:a}##token", 600_000)])
        .passes();
}

#[test]
fn j7_leaked_resources_are_rejected() {
    let base = || {
        Plot::default().resources(0, Phase::Base, &[("descriptors", 20), ("tasks", 5), ("subscriptions", 1)])
    };

    base().resources(9, Phase::End, &[("descriptors", 24)]).refused_by("J7", "had 20 descriptors and has 24");
    base().resources(9, Phase::End, &[("tasks", 10)]).refused_by("J7", "had 5 tasks and has 10");
    base()
        .resources(9, Phase::End, &[("subscriptions", 2)])
        .refused_by("J7", "had 1 subscriptions and has 2");
    base().resources(9, Phase::End, &[("threads", 1)]).refused_by("J7", "had 0 threads and has 1");
}

#[test]
fn j7_a_process_without_leaks_passes() {
    let base = Plot::default().resources(0, Phase::Base, &[("descriptors", 20), ("tasks", 5)]);

    base.resources(9, Phase::End, &[("descriptors", 18), ("tasks", 5)]).passes();
}

#[test]
fn j8_a_call_without_a_result_is_rejected() {
    let asked = Plot::default().at(0, 1, What::Try { call: 1, limit: 500 });

    asked.end(700).refused_by("J8", "call 1 of process 1 for `a` has no result after 700ms");
}

#[test]
fn j8_a_late_result_is_rejected() {
    let late = Plot::default().at(0, 1, What::Try { call: 1, limit: 500 }).at(
        621,
        1,
        outcome(1, Answered::Contended),
    );

    late.refused_by("J8", "ended with Contended after 621ms, its limit is 500ms");
}

#[test]
fn j8_two_results_are_rejected() {
    let twice =
        Plot::default().at(0, 1, What::Try { call: 1, limit: 500 }).at(1, 1, outcome(1, Answered::Contended));

    twice.at(2, 1, outcome(1, Answered::Unavailable)).refused_by("J8", "has 2 results");
}

#[test]
fn j8_a_result_of_an_unexpected_type_is_rejected() {
    let other =
        Plot::default().at(0, 1, What::Try { call: 1, limit: 500 }).at(1, 1, outcome(1, Answered::Other));

    other.refused_by("J8", "of an unexpected type");
}

#[test]
fn j8_a_killed_process_owes_no_result_a_stopped_one_a_later() {
    let killed =
        Plot::default().at(0, 1, What::Try { call: 1, limit: 500 }).at(9, 1, What::Gone { killed: true });
    killed.end(2_000).passes();

    let stopped = Plot::default().at(0, 1, What::Try { call: 1, limit: 500 }).at(9, 1, What::Stopped);
    stopped.at(1_009, 1, What::Continued).at(1_400, 1, outcome(1, Answered::Contended)).passes();
}

#[test]
fn j9_a_secret_in_an_error_is_rejected() {
    let text = "redis://:sesame@127.0.0.1 is away".to_owned();
    let told = Plot::default().at(0, 1, What::Try { call: 1, limit: 500 });

    let told = told.at(1, 1, What::Outcome { call: 1, answer: Answered::Unavailable, text });
    told.refused_by("J9", "discloses the secret `sesame`");
}

#[test]
fn j9_a_secret_in_a_log_is_rejected() {
    let text = "AUTH sesame".to_owned();

    Plot::default().at(0, 1, What::Said { text }).refused_by("J9", "discloses the secret");
}

#[test]
fn j9_a_text_without_a_secret_passes() {
    Plot::default().at(0, 1, What::Said { text: "open, please".to_owned() }).passes();
}
