//! Instants of schedules: daylight saving in three zones, leap days, the year 2100, and bad input.

use std::time::{Duration, Instant};

use dlock_calendar::{Calendar, CalendarError};
use jiff::Timestamp;

/// Parses an instant, such as `2026-03-29T01:00Z`.
fn at(text: &str) -> u64 {
    let text = text.replace('Z', ":00Z");
    let millis = text.parse::<Timestamp>().expect(&text).as_millisecond();
    u64::try_from(millis).expect("an instant after 1970")
}

fn shown(millis: u64) -> String {
    let second = i64::try_from(millis / 1_000).expect("an instant");
    Timestamp::from_second(second).expect("an instant").to_string().replace(":00Z", "Z")
}

fn cron(expression: &str, zone: &str) -> Calendar {
    Calendar::cron(expression).and_then(|calendar| calendar.tz(zone)).expect(expression)
}

/// Returns the instants after `from`, at most `count`.
fn instants(calendar: &Calendar, from: &str, count: usize) -> Vec<String> {
    std::iter::successors(calendar.next_after(at(from)), |last| calendar.next_after(*last))
        .take(count)
        .map(shown)
        .collect()
}

/// One change of the clocks: a schedule, the time before it, and the next instants.
const CHANGES: &[(&str, &str, &str, &[&str])] = &[
    // Berlin: 02:00 becomes 03:00 on 29 March, 03:00 becomes 02:00 on 25 October 2026.
    (
        "30 2 * * *",
        "Europe/Berlin",
        "2026-03-28T00:00Z",
        &["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"],
    ),
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", &["2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
    (
        "*/30 * * * *",
        "Europe/Berlin",
        "2026-03-29T00:15Z",
        &["2026-03-29T00:30Z", "2026-03-29T01:00Z", "2026-03-29T01:30Z"],
    ),
    (
        "*/30 * * * *",
        "Europe/Berlin",
        "2026-10-25T00:15Z",
        &["2026-10-25T00:30Z", "2026-10-25T01:00Z", "2026-10-25T01:30Z", "2026-10-25T02:00Z"],
    ),
    // Each time of a list or a range is a fixed time of its own.
    (
        "0 2,14 * * *",
        "Europe/Berlin",
        "2026-03-28T12:30Z",
        &["2026-03-28T13:00Z", "2026-03-29T01:00Z", "2026-03-29T12:00Z", "2026-03-30T00:00Z"],
    ),
    (
        "0 2,14 * * *",
        "Europe/Berlin",
        "2026-10-24T12:30Z",
        &["2026-10-25T00:00Z", "2026-10-25T13:00Z", "2026-10-26T01:00Z"],
    ),
    (
        "15,45 1-3 * * *",
        "Europe/Berlin",
        "2026-10-24T22:00Z",
        &[
            "2026-10-24T23:15Z",
            "2026-10-24T23:45Z",
            "2026-10-25T00:15Z",
            "2026-10-25T00:45Z",
            "2026-10-25T02:15Z",
            "2026-10-25T02:45Z",
            "2026-10-26T00:15Z",
        ],
    ),
    // Both skipped times are due at the end of the gap, which is one instant.
    (
        "15,45 1-3 * * *",
        "Europe/Berlin",
        "2026-03-29T00:30Z",
        &["2026-03-29T00:45Z", "2026-03-29T01:00Z", "2026-03-29T01:15Z", "2026-03-29T01:45Z"],
    ),
    // A time of an interval that the zone skips is no tick. A listed one is due at the end of the
    // gap.
    (
        "0 */2 * * *",
        "Europe/Berlin",
        "2026-03-28T22:30Z",
        &["2026-03-28T23:00Z", "2026-03-29T02:00Z", "2026-03-29T04:00Z"],
    ),
    (
        "0 0,2,4,6 * * *",
        "Europe/Berlin",
        "2026-03-28T22:30Z",
        &["2026-03-28T23:00Z", "2026-03-29T01:00Z", "2026-03-29T02:00Z", "2026-03-29T04:00Z"],
    ),
    // In the second pass through the repeated hour, its times have passed.
    ("15,45 2 * * *", "Europe/Berlin", "2026-10-25T01:20Z", &["2026-10-26T01:15Z", "2026-10-26T01:45Z"]),
    // New York: 02:00 becomes 03:00 on 8 March, 02:00 becomes 01:00 on 1 November 2026.
    ("15 2 * * *", "America/New_York", "2026-03-07T12:00Z", &["2026-03-08T07:00Z", "2026-03-09T06:15Z"]),
    ("15 1 * * *", "America/New_York", "2026-10-31T12:00Z", &["2026-11-01T05:15Z", "2026-11-02T06:15Z"]),
    (
        "*/30 * * * *",
        "America/New_York",
        "2026-11-01T05:15Z",
        &["2026-11-01T05:30Z", "2026-11-01T06:00Z", "2026-11-01T06:30Z"],
    ),
    // Cairo: 00:00 becomes 01:00 on 24 April 2026.
    (
        "0 */6 * * *",
        "Africa/Cairo",
        "2026-04-23T15:00Z",
        &["2026-04-23T16:00Z", "2026-04-24T03:00Z", "2026-04-24T09:00Z"],
    ),
    (
        "0 0,6,12,18 * * *",
        "Africa/Cairo",
        "2026-04-23T15:00Z",
        &["2026-04-23T16:00Z", "2026-04-23T22:00Z", "2026-04-24T03:00Z", "2026-04-24T09:00Z"],
    ),
    // Lord Howe: 02:00 becomes 02:30 on 4 October, 02:00 becomes 01:30 on 5 April 2026.
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T16:00Z", &["2026-10-03T15:30Z", "2026-10-04T15:15Z"]),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00Z", &["2026-04-04T14:45Z", "2026-04-05T15:15Z"]),
];

#[test]
fn clock_changes_follow_the_table_of_instants() {
    for (expression, zone, from, expected) in CHANGES {
        let calendar = cron(expression, zone);

        assert_eq!(instants(&calendar, from, expected.len()), *expected, "{expression} {zone} after {from}");
    }
}

/// The search backward finds the same instants as the search forward, also at changes of the
/// clocks.
#[test]
fn both_directions_find_the_same_instants() {
    for (expression, zone, from, _) in CHANGES {
        let calendar = cron(expression, zone);
        let mut before = at(from);
        for _ in 0..200 {
            let next = calendar.next_after(before).expect("it matches every day");
            assert_eq!(calendar.last_before(next), Some(next), "{expression} {zone}: {}", shown(next));
            let last = calendar.last_before(next - 1).expect("it matched the day before");
            assert_eq!(calendar.next_after(last), Some(next), "{expression} {zone}: {}", shown(last));
            before = next;
        }
    }
}

/// In and around the repeated hour, at every minute, the last instant is the one before the next.
#[test]
fn fixed_times_of_a_repeated_hour_are_found_backward() {
    let calendar = cron("15,45 2 * * *", "Europe/Berlin");
    let (first, second) = (at("2026-10-25T00:15Z"), at("2026-10-25T00:45Z"));
    for now in (at("2026-10-25T00:00Z")..at("2026-10-25T03:00Z")).step_by(60_000) {
        let expected = match now {
            now if now < first => at("2026-10-24T00:45Z"),
            now if now < second => first,
            _ => second,
        };
        assert_eq!(calendar.last_before(now).map(shown), Some(shown(expected)), "at {}", shown(now));
    }
}

#[test]
fn only_periods_are_fixed_periods() {
    let every = Calendar::every(Duration::from_secs(10)).expect("a period");

    assert_eq!(every.fixed_period(), Some(Duration::from_secs(10)));
    assert_eq!(cron("0 * * * *", "UTC").fixed_period(), None);
}

/// The days of June 2026, which starts on a Monday, that match the fields for days.
const DAYS_OF_JUNE: &[(&str, &[u8])] = &[
    // If one of the two fields starts with `*`, a day matches both, as in crontab(5).
    ("*/1 * MON-FRI", &[1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 15, 16, 17, 18, 19, 22, 23, 24, 25, 26, 29, 30]),
    ("*/2 * MON", &[1, 15, 29]),
    ("*/30,2-8 * MON", &[1, 8]),
    ("12,13 * */2", &[13]),
    ("*/2 * */3", &[3, 7, 13, 17, 21, 27]),
    ("* * */3", &[3, 6, 7, 10, 13, 14, 17, 20, 21, 24, 27, 28]),
    ("*/10 * *", &[1, 11, 21]),
    ("? * MON", &[1, 8, 15, 22, 29]),
    ("1,20 * ?", &[1, 20]),
    // Otherwise, a day matches one of them.
    ("1-31/10 * MON", &[1, 8, 11, 15, 21, 22, 29]),
    ("13 * FRI", &[5, 12, 13, 19, 26]),
    ("1 * 1-7/3", &[1, 4, 7, 8, 11, 14, 15, 18, 21, 22, 25, 28, 29]),
    // With `+`, it matches both.
    ("12,13 * +FRI", &[12]),
    ("1-7 * +MON,TUE", &[1, 2]),
    ("12 * +*", &[12]),
    // Each form of a day.
    ("L * ?", &[30]),
    ("LW * ?", &[30]),
    ("6W,21w * ?", &[5, 22]),
    ("15W,L * ?", &[15, 30]),
    ("? * MON#2", &[8]),
    ("? * tue#5,7#1", &[7, 30]),
    ("? * FRIL,0#L", &[26, 28]),
    ("? * SAT-SUN", &[6, 7, 13, 14, 20, 21, 27, 28]),
    ("? * 6-7", &[6, 7, 13, 14, 20, 21, 27, 28]),
    ("? * SUN-MON", &[1, 7, 8, 14, 15, 21, 22, 28, 29]),
    ("? * SUN-SUN", &[7, 14, 21, 28]),
];

#[test]
fn fields_for_days_follow_the_table_of_days() {
    for (fields, expected) in DAYS_OF_JUNE {
        let calendar = cron(&format!("0 0 {fields}"), "UTC");
        let (before, after) = (at("2026-05-31T23:59Z"), at("2026-07-01T00:00Z"));
        let (ticks, _) = calendar.between(before, after, 31, 31);
        let day = |tick: u64| shown(tick)["2026-06-".len()..][..2].parse::<u8>().expect("a day");

        assert_eq!(ticks.into_iter().map(day).collect::<Vec<_>>(), *expected, "{fields}");
    }
}

#[test]
fn leap_days_and_the_year_2100() {
    let leap = cron("0 0 29 2 *", "UTC");

    assert_eq!(
        instants(&leap, "2096-01-01T00:00Z", 3),
        ["2096-02-29T00:00Z", "2104-02-29T00:00Z", "2108-02-29T00:00Z"]
    );
    assert_eq!(leap.last_before(at("2103-12-31T00:00Z")).map(shown).as_deref(), Some("2096-02-29T00:00Z"));
    // A leap day is on a given day of the week once in 28 years, or in 40 around such a year.
    for day in 0..7 {
        assert_ne!(
            cron(&format!("0 0 29 2 +{day}"), "UTC").next_after(at("2080-03-01T00:00Z")),
            None,
            "{day}"
        );
    }
    let monthly = cron("0 12 28 2 *", "Asia/Tokyo");
    assert_eq!(instants(&monthly, "2100-01-01T00:00Z", 2), ["2100-02-28T03:00Z", "2101-02-28T03:00Z"]);
}

#[test]
fn calls_near_an_instant_belong_to_it() {
    let daily = cron("0 2 * * *", "UTC");
    let tick = |text: &str, millis| daily.tick_at(at(text) + millis).map(shown);

    assert_eq!(tick("2026-11-26T15:00Z", 0).as_deref(), Some("2026-11-26T02:00Z"), "not tomorrow's");
    assert_eq!(tick("2026-11-27T01:59Z", 49_999).as_deref(), Some("2026-11-26T02:00Z"));
    assert_eq!(tick("2026-11-27T01:59Z", 50_000).as_deref(), Some("2026-11-27T02:00Z"), "10 s early");
    let seconds = Calendar::every(Duration::from_secs(1)).expect("a period");
    assert_eq!(
        [1_000, 1_499, 1_500, 2_000, 2_499].map(|now| seconds.tick_at(now)),
        [1_000, 1_000, 2_000, 2_000, 2_000].map(Some)
    );
    assert_eq!(seconds.early_of(5_000), Duration::from_millis(500));
    assert_eq!(daily.early_of(at("2026-11-27T02:00Z")), Duration::from_secs(10));
}

#[test]
fn a_min_hold_ends_before_the_next_instant_can_be_early() {
    let longest = |period: u64| {
        let calendar = Calendar::every(Duration::from_secs(period)).expect("a valid period");
        calendar.longest_min_hold()
    };

    assert_eq!(longest(1), Some(Duration::from_millis(500)));
    assert_eq!(longest(300), Some(Duration::from_secs(290)));
    assert_eq!(Calendar::cron("0 2 * * *").expect("valid").longest_min_hold(), None);
}

#[test]
fn missed_instants_are_counted_and_the_latest_returned() {
    let every = Calendar::every(Duration::from_secs(10)).expect("a period");
    assert_eq!(every.between(10_000, 1_020_000, 3, 10_000), (vec![990_000, 1_000_000, 1_010_000], 100));
    assert_eq!(every.between(10_000, 20_000, 3, 10_000), (vec![], 0));
    let hourly = cron("0 * * * *", "UTC");
    let (latest, count) = hourly.between(at("2026-01-01T00:00Z"), at("2026-01-02T00:00Z"), 2, 10_000);
    assert_eq!((latest.len(), count), (2, 23));
    assert_eq!(hourly.between(at("2026-01-01T00:00Z"), at("2026-01-02T00:00Z"), 2, 5).1, 5, "the limit");
}

#[test]
fn equal_schedules_have_equal_texts() {
    assert_eq!(cron("0  2 * * *", "UTC").to_string(), "0 2 * * *");
    assert_eq!(cron("0 2 * * *", "Europe/Berlin").to_string(), "0 2 * * * Europe/Berlin");
    assert_eq!(Calendar::every(Duration::from_secs(300)).expect("a period").to_string(), "every 300000 ms");
}

#[test]
fn invalid_schedules_say_what_to_write() {
    let text = |result: Result<Calendar, CalendarError>| result.expect_err("it is invalid").to_string();
    let cron = |expression| text(Calendar::cron(expression));

    assert!(cron("").contains("is empty"), "{}", cron(""));
    assert!(cron("@daily").contains("`0 0 * * *`"), "{}", cron("@daily"));
    assert!(cron("@reboot").contains("five fields"), "{}", cron("@reboot"));
    let zone = |name: &str| text(Calendar::cron("0 2 * * *").and_then(|calendar| calendar.tz(name)));
    assert!(zone("Europe/Berln").contains("write a name such as"), "{}", zone("Europe/Berln"));
    assert!(zone("").contains("IANA"), "{}", zone(""));
    let every = |millis| text(Calendar::every(Duration::from_millis(millis)));
    assert_eq!(every(999), "every: 999ms is not between 1 s and 366 days");
    let both = Calendar::every(Duration::from_secs(5)).and_then(|calendar| calendar.tz("UTC"));
    assert!(text(both).contains("a period has no time zone"));
    let micros = Calendar::every(Duration::from_micros(1_500_500));
    assert!(text(micros).contains("whole number of milliseconds"));
}

#[test]
fn a_wrong_number_of_fields_suggests_only_valid_ones() {
    let names = "write five, for minute, hour, day of month, month, and day of week";
    let every = "; for periods under a minute, use `every`";
    let list = "has a list with a space: write five fields, and lists without spaces, such as";
    for (expression, problem) in [
        ("0 2 * *", format!("has 4 fields: {names}")),
        (
            "0 0 2 * * *",
            format!("has a field for seconds: write five fields, minute first, such as `0 2 * * *`{every}"),
        ),
        (
            "0 0 2 ? * MON 2026",
            format!(
                "has fields for seconds and years: write five fields, minute first, such as `0 2 ? * MON`{every}"
            ),
        ),
        (
            "0 2 * * * 2026",
            "has a field for years: write five fields, minute first, such as `0 2 * * *`".to_owned(),
        ),
        (
            "0 2 * * * 2026-2028",
            "has a field for years: write five fields, minute first, such as `0 2 * * *`".to_owned(),
        ),
        ("0 0 25 * * *", format!("has 6 fields: {names}")),
        ("0 2 * * * root", format!("has 6 fields: {names}")),
        ("0 2 * * * root backup", format!("has 7 fields: {names}")),
        ("0 9, 17 * * *", format!("{list} `0 9,17 * * *`")),
        ("0 8 , 20 * * *", format!("{list} `0 8,20 * * *`")),
        ("0 9, 77 * * *", format!("{list} `0 9,17 * * *`")),
        (", , , , , ,", format!("{list} `0 9,17 * * *`")),
    ] {
        let refused = Calendar::cron(expression).expect_err(expression);
        assert_eq!(refused.problem, format!("`{expression}` {problem}"));
    }
}

/// A search covers at most 400 years, and an expression without minutes or hours is not searched.
///
/// The slowest search takes 0.06 s without optimization. It takes 0.3 s if it covers 3,000 years,
/// and 75 s if a field is empty.
#[test]
fn expressions_without_an_instant_are_refused_in_time() {
    let nearest = (1..=31).map(|day| format!("{day}W")).collect::<Vec<_>>().join(",");
    let never_a_sunday = format!("0 0 {nearest},LW * +SUN");
    for never in [
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 30W 2 *",
        "0 0 30 2 +MON",
        "0 0 29 2 +MON#1",
        "59 23 1-7 * +MON#5",
        "* * 22-31 * +MON#1,TUE#2,WED#3",
        &never_a_sunday,
        ", * * * *",
        "0 , * * *",
    ] {
        let start = Instant::now();
        let problem = Calendar::cron(never).expect_err(never).problem;
        let took = start.elapsed();

        let reason =
            if never.contains(", ") { "a list with an empty value" } else { "never matches: no month" };
        assert!(problem.contains(reason), "{problem}");
        assert!(took < Duration::from_secs(2), "{never}: {took:?}");
    }
}

#[test]
fn an_invalid_field_is_named_with_its_values() {
    let cron = |expression| Calendar::cron(expression).expect_err("it is invalid").problem;

    for (expression, value, field, values) in [
        ("60 * * * *", "60", "minute", "a number from 0 to 59"),
        ("x * * * *", "x", "minute", "a number from 0 to 59"),
        ("99999 * * * *", "99999", "minute", "a number from 0 to 59"),
        ("0 25 * * *", "25", "hour", "a number from 0 to 23"),
        ("0 2,24 * * *", "24", "hour", "a number from 0 to 23"),
        ("0 8-24/2 * * *", "24", "hour", "a number from 0 to 23"),
        ("0 MON * * *", "MON", "hour", "a number from 0 to 23"),
        ("0 0 0 * *", "0", "day of month", "a number from 1 to 31"),
        ("0 0 JAN * *", "JAN", "day of month", "a number from 1 to 31"),
        ("0 0 1 13 *", "13", "month", "a number from 1 to 12, or a name from JAN to DEC"),
        ("0 0 1 SUN *", "SUN", "month", "a number from 1 to 12, or a name from JAN to DEC"),
        ("0 0 * * 8", "8", "day of week", "a number from 0 to 7, or a name from SUN to SAT"),
        ("0 0 * * FOO", "FOO", "day of week", "a number from 0 to 7, or a name from SUN to SAT"),
    ] {
        assert_eq!(cron(expression), format!("`{expression}` has `{value}` as {field}, which is {values}"));
    }
}

/// Returns the wrong text of an error, and the one text to write instead, if there is one.
fn suggestion(problem: &str) -> Option<(&str, &str)> {
    let (wrong, suggested) = problem.split_once("` has `")?.1.split_once(": write `")?;
    Some((wrong.split('`').next()?, suggested.strip_suffix('`')?))
}

#[test]
fn an_invalid_form_says_what_to_write() {
    for (expression, wrong) in [
        // A longer name.
        ("0 0 * * MONDAY", "`MONDAY` as day of week: write `MON`"),
        ("0 0 * * TUE,friday", "`friday` as day of week: write `FRI`"),
        ("0 0 * * MONDAY#2", "`MONDAY` as day of week: write `MON`"),
        ("0 0 * * MON-FRIDAY", "`FRIDAY` as day of week: write `FRI`"),
        ("0 0 * * FRIDAYL", "`FRIDAY` as day of week: write `FRI`"),
        ("0 0 1 January *", "`January` as month: write `JAN`"),
        // A list with an empty part, or with a part that is all.
        ("0 , * * *", "`,` as hour, a list with an empty value: write a list without spaces, such as `0,23`"),
        (", * * * *", "`,` as minute, a list with an empty value: write"),
        ("0,,5 * * * *", "`0,,5` as minute, a list with an empty value: write"),
        ("0 9, 17 * *", "`9,` as hour, a list with an empty value: write"),
        ("0 0 * ,1 *", "`,1` as month, a list with an empty value: write"),
        ("0 0 * * +,", "`,` as day of week, a list with an empty value: write"),
        ("0 *,5 * * *", "`*,5` as hour: write `*` alone, since it is every value"),
        // A step.
        (
            "*/90 * * * *",
            "`*/90` as minute, whose step is a number from 1 to 59: for a longer period, use `every`",
        ),
        ("*/60 * * * *", "`*/60` as minute, whose step is a number from 1 to 59"),
        ("0 */36 * * *", "`*/36` as hour, whose step is a number from 1 to 23"),
        (
            "0 0 */100,1-7 * MON",
            "`*/100` as day of month, whose step is a number from 1 to 30: for a longer period, use `every`; for the first Monday, write `MON#1` as day of week",
        ),
        ("0 0 1 */12 *", "`*/12` as month, whose step is a number from 1 to 11"),
        ("0 0 * * */7", "`*/7` as day of week, whose step is a number from 1 to 6"),
        ("*/99999 * * * *", "`*/99999` as minute, whose step is a number from 1 to 59"),
        ("0 8-18/11 * * *", "`8-18/11` as hour, whose step leaves one value: write `8`"),
        ("59/10 * * * *", "`59/10` as minute, whose step leaves one value: write `59`"),
        ("0 5/2 * * *", "`5/2` as hour, a step without a range: write `5-23/2`"),
        ("0 0 * * 7/2", "`7/2` as day of week, whose step leaves one value: write `7`"),
        ("0 0 * * MON/2", "`MON/2` as day of week, a step without a range: write `MON-SAT/2`"),
        ("*/0 * * * *", "`*/0` as minute: write a number from 0 to 59, or `*`, a range such as `0-59`"),
        ("/5 * * * *", "`/5` as minute: write a number from 0 to 59"),
        ("*/ * * * *", "`*/` as minute: write a number from 0 to 59"),
        ("*/5/2 * * * *", "`*/5/2` as minute: write a number from 0 to 59"),
        ("0-30/+5 * * * *", "`0-30/+5` as minute: write a number from 0 to 59"),
        // A range through the end of the field.
        ("0 22-4 * * *", "`22-4` as hour, a range that ends before it starts: write `22-23,0-4`"),
        ("0 22-4/2 * * *", "`22-4/2` as hour, a range that ends before it starts: write `22-23,0-4`"),
        ("0 23-0 * * *", "`23-0` as hour, a range that ends before it starts: write `23,0`"),
        (
            "0 0 * * FRI-MON",
            "`FRI-MON` as day of week, a range that ends before it starts: write `FRI-SAT,SUN-MON`",
        ),
        ("0 0 * * 7-3", "`7-3` as day of week, a range that ends before it starts: write `0-3`"),
        ("0 0 * NOV-JAN *", "`NOV-JAN` as month, a range that ends before it starts: write `NOV-DEC,JAN`"),
        // The forms of days.
        ("0 0 * * L", "`L` as day of week: write a number from 0 to 7, or a name from SUN to SAT"),
        ("0 0 * * MON,L", "`L` as day of week: write a number from 0 to 7, or a name from SUN to SAT"),
        ("0 L * * *", "`L` as hour, which is a number from 0 to 23"),
        ("0 0 * * MON#6", "`MON#6` as day of week: write a number from 0 to 7"),
        ("0 0 * * 5#9L", "`5#9L` as day of week: write a number from 0 to 7"),
        ("0 0 * * FRI#3L", "`FRI#3L` as day of week: write a number from 0 to 7"),
        ("0 0 * * MON-FRI#2", "`MON-FRI#2` as day of week: write a number from 0 to 7"),
        ("0 0 * * +", "`+` as day of week: write a number from 0 to 7"),
        ("0 0 * * ++FRI", "`+FRI` as day of week: write a number from 0 to 7"),
        ("0 0 15W3 * *", "`15W3` as day of month: write a number from 1 to 31"),
        ("0 0 32W * *", "`32` as day of month, which is a number from 1 to 31"),
        ("0 0 L-3 * *", "`L-3` as day of month: write a number from 1 to 31"),
        ("0 0 NOW * *", "`NOW` as day of month, which is a number from 1 to 31"),
        ("0 0 W * *", "`W` as day of month: write a number from 1 to 31"),
        ("0 0 L,LW * *", "`L,LW` as day of month: write one of `L` and `LW`"),
        ("0 0 +5 * *", "`+5` as day of month: write a number from 1 to 31"),
        ("0 0 1 1JAN *", "`1JAN` as month: write a number from 1 to 12"),
        ("0 0 ?/2 * *", "`?/2` as day of month: write a number from 1 to 31"),
        ("? 0 * * *", "`?` as minute: write a number from 0 to 59"),
        ("-5 0 * * *", "`-5` as minute: write a number from 0 to 59"),
    ] {
        let problem = Calendar::cron(expression).expect_err(expression).problem;
        assert!(problem.starts_with(&format!("`{expression}` has {wrong}")), "{problem}");
        if let Some((wrong, suggested)) = suggestion(&problem) {
            let corrected = expression.replacen(wrong, suggested, 1);
            assert!(Calendar::cron(&corrected).is_ok(), "{problem}: {:?}", Calendar::cron(&corrected));
        }
    }
    for (expression, forms) in [
        ("0 0 x1 * *", "a step such as `*/2`, `L` for the last day, `15W` for"),
        ("0 0 * * x1", "a step such as `*/2`, `MON#2` for the second Monday, or `FRIL` for the last Friday"),
        ("x1 0 * * *", "a list such as `0,59`, or a step such as `*/2`"),
    ] {
        let problem = Calendar::cron(expression).expect_err(expression).problem;
        assert!(problem.contains(forms), "{problem}");
    }
}

/// The parser accepts each text of the grammar, so its own errors, which do not name the field, are
/// never seen. The grammar accepts each text that it suggests.
#[test]
fn every_short_text_has_an_error_of_the_grammar() {
    let mut texts = vec![String::new()];
    for start in 0.. {
        let Some(text) = texts.get(start).filter(|text| text.len() < 4) else { break };
        let longer = "*?+,-/#LWM07".chars().map(|c| format!("{text}{c}")).collect::<Vec<_>>();
        texts.extend(longer);
    }
    let (mut accepted, mut corrected) = (0, 0);
    for text in &texts[1..] {
        for (before, after) in [("", " 0 * * *"), ("0 0 ", " * *"), ("0 0 * * ", "")] {
            let Err(error) = Calendar::cron(&format!("{before}{text}{after}")) else {
                accepted += 1;
                continue;
            };
            assert!(error.problem.contains("` has `"), "{error}");
            if let Some((_, suggested)) = suggestion(&error.problem) {
                assert!(Calendar::cron(&format!("{before}{suggested}{after}")).is_ok(), "{error}");
                corrected += 1;
            }
        }
    }
    assert!(accepted > 100 && corrected > 20, "{accepted} accepted, {corrected} corrected");
}

#[test]
fn every_form_of_a_value_is_read() {
    for expression in [
        "*/15 * * * *",
        "0,30 2-4 * * *",
        "0 8-18/2 * * mon-fri",
        "0 0 L * *",
        "0 0 15W * *",
        "0 0 LW * *",
        "0 0 * JAN,Jul-DEC *",
        "0 0 * * 7",
        "0 0 * * SAT-SUN",
        "0 0 * * MON#2",
        "0 0 * * FRI#L",
        "0 0 * * FRIL",
        "0 0 * * 5L",
        "0 0 ? * MON",
        "05 00 01 * *",
        "0 0 13 * +FRI",
        "0 9-17/8 * * *",
    ] {
        assert!(Calendar::cron(expression).is_ok(), "{:?}", Calendar::cron(expression));
    }
}
