//! Runs many scenes side by side, and sums up their results.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlock_tests::{RedisServer, WallClock};

use crate::rows;
use crate::scene::{Report, Shared, play};

/// The parameters of a campaign.
pub(crate) struct Order {
    faults: usize,
    from: u64,
    seed: Option<u64>,
    row: Option<String>,
    side_by_side: usize,
    late: Duration,
}

impl Order {
    /// Reads the parameters from the environment.
    pub(crate) fn from_environment() -> Self {
        let number =
            |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
        let size = |name: &str, default| {
            number(name).map_or(default, |number| usize::try_from(number).expect("a number of things"))
        };
        Self {
            faults: size("DLOCK_FAULTS", 100),
            from: number("DLOCK_FAULTS_FROM").unwrap_or(1),
            seed: number("DLOCK_FAULTS_SEED"),
            row: std::env::var("DLOCK_FAULTS_ROW").ok(),
            side_by_side: size("DLOCK_FAULTS_SCENES", 12),
            late: number("DLOCK_FAULTS_LATE").map_or(LATE, Duration::from_millis),
        }
    }
}

/// Plays scenes until there were enough faults.
///
/// # Panics
///
/// Panics if a judge found a violation, if a row that may lose locks never did, or if a row was
/// never played in a campaign with enough scenes.
pub(crate) fn run(order: &Order) {
    assert!(order.faults > 0 && order.side_by_side > 0, "the campaign has no faults, which proves nothing");
    let resource = RedisServer::builder().start();
    let clocks = WallClock::new().map_err(|reason| println!("SKIPPED: faults of clocks: {reason}")).ok();
    let mut rows = rows::all();
    if clocks.is_none() {
        rows.retain(|row| !row.name.starts_with('C') && row.name != "P6");
    }
    if let Some(only) = &order.row {
        rows.retain(|row| row.name == only);
        assert!(!rows.is_empty(), "there is no row {only} here");
    }
    let names: Vec<_> = rows.iter().map(|row| row.name).collect();
    let shared = Shared { rows, resource: resource.port(), clocks, late: order.late };
    let began = Instant::now();
    let totals = Mutex::new(Totals::default());
    let (next, counted) = (AtomicU64::new(order.seed.unwrap_or(order.from)), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..if order.seed.is_some() { 1 } else { order.side_by_side } {
            scope.spawn(|| {
                while counted.load(Ordering::SeqCst) < order.faults {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    let report =
                        catch_unwind(AssertUnwindSafe(|| play(seed, &shared))).unwrap_or_else(|panic| {
                            let text = panic.downcast_ref::<String>().cloned();
                            let text =
                                text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                            let violations = vec![format!("the scene fails: {}", text.unwrap_or_default())];
                            Report { violations, ..Report::default() }
                        });
                    counted.fetch_add(report.faults.values().sum::<usize>().max(1), Ordering::SeqCst);
                    totals.lock().unwrap_or_else(PoisonError::into_inner).add(seed, report);
                    if order.seed.is_some() {
                        return;
                    }
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    totals.tell(
        &version(&resource),
        began.elapsed(),
        (order.seed.unwrap_or(order.from), next.load(Ordering::SeqCst)),
    );
    totals.check(&names, order.late);
}

#[derive(Default)]
struct Totals {
    scenes: usize,
    faults: BTreeMap<&'static str, usize>,
    failed: Vec<(u64, Report)>,
    holds: usize,
    overlaps: BTreeMap<String, usize>,
    attempted: u64,
    refused: u64,
    after_crashes: Vec<Duration>,
    after_releases: Vec<Duration>,
    excused: Vec<String>,
    long_stops: usize,
    observed: BTreeMap<&'static str, usize>,
}

impl Totals {
    fn add(&mut self, seed: u64, mut report: Report) {
        self.scenes += 1;
        for (row, count) in &report.faults {
            *self.faults.entry(row).or_default() += count;
        }
        for (row, count) in &report.overlaps {
            *self.overlaps.entry(row.clone()).or_default() += count;
        }
        for (what, count) in &report.observed {
            *self.observed.entry(what).or_default() += count;
        }
        self.holds += report.holds;
        self.attempted += report.stale.attempted;
        self.refused += report.stale.refused;
        self.after_crashes.append(&mut report.after_crashes);
        self.after_releases.append(&mut report.after_releases);
        self.excused.extend(report.excused.drain(..).map(|late| format!("scene {seed}: {late}")));
        self.long_stops += report.long_stops;
        if !report.violations.is_empty() {
            println!("scene {seed}: {}{}", told(&report), again(seed));
            self.failed.push((seed, report));
        }
    }

    fn count(&self) -> usize {
        self.faults.values().sum()
    }

    fn violations(&self) -> usize {
        self.failed.iter().map(|(_, report)| report.violations.len()).sum()
    }

    fn tell(&self, version: &str, took: Duration, (from, to): (u64, u64)) {
        let each: Vec<_> = self.faults.iter().map(|(row, count)| format!("{row} {count}")).collect();
        let overlaps: Vec<_> = self.overlaps.iter().map(|(row, count)| format!("{row} {count}")).collect();
        let observed: Vec<_> = self.observed.iter().map(|(what, count)| format!("{count} {what}")).collect();
        let ctl: usize =
            self.faults.iter().filter(|(row, _)| row.ends_with('c')).map(|(_, count)| count).sum();
        let Self { scenes, holds, attempted, refused, excused, long_stops, .. } = self;
        println!(
            "campaign: faults: {} faults on {version}, seeds {from}..{to}, {} violations, {:.0} s; {scenes} scenes, {holds} holds; {}; \
             overlaps in {ctl} faults that may lose locks: {}; crash to next entry {}; release to next entry {}; stale writes refused {refused} of {attempted}; \
             late polls after {long_stops} long stops {}; {}",
            self.count(),
            self.violations(),
            took.as_secs_f64(),
            each.join(", "),
            if overlaps.is_empty() { "none".to_owned() } else { overlaps.join(", ") },
            figures(&self.after_crashes),
            figures(&self.after_releases),
            excused.len(),
            if observed.is_empty() { "nothing observed".to_owned() } else { observed.join(", ") },
        );
    }

    fn check(&self, rows: &[&str], late: Duration) {
        for late in &self.excused {
            println!("excused by a stop: {late}");
        }
        assert!(
            self.failed.is_empty(),
            "{} scenes fail; each is printed above, with its seed",
            self.failed.len()
        );
        assert_eq!(self.refused, self.attempted, "stale writes were accepted");
        assert!(self.count() > 0 && self.holds > 0, "no fault was injected");
        // Consecutive seeds start with consecutive rows.
        let never: Vec<_> = rows.iter().filter(|row| !self.faults.contains_key(**row)).collect();
        assert!(self.scenes < rows.len() || never.is_empty(), "rows that were never played: {never:?}");
        for (row, what) in rows::OBSERVATIONS {
            let played = self.faults.get(row).copied().unwrap_or_default();
            let observed = self.observed.get(what).copied().unwrap_or_default();
            assert!(played < REACHED_IN || observed > 0, "{row} was played {played} times: 0 {what}");
        }
        // More late polls would mean that the body is polled without a check of the clock.
        let excused = self.excused.len();
        assert!(excused <= 1 + self.long_stops / 10, "late polls after stops: {:?}", self.excused);
        // Each release is judged by its lease, which would hide that every waiter is woken late.
        let woken = of_hundred(&self.after_releases, 99).unwrap_or_default();
        assert!(
            woken <= NEXT + late,
            "the 99th percentile of the time from a release to the next entry is {woken:?}"
        );
        let mut all = 0;
        for (row, count) in self.faults.iter().filter(|(row, _)| row.ends_with('c')) {
            let is_seen = *count < SEEN_IN || self.overlaps.contains_key(*row);
            assert!(is_seen, "{row} loses no lock in {count} faults: does it break anything?");
            all += count;
        }
        assert!(all < SEEN_IN_ANY || !self.overlaps.is_empty(), "no lock is lost in {all} faults that may");
    }
}

fn told(report: &Report) -> String {
    let first: Vec<_> = report.violations.iter().take(8).map(|text| format!("\n    {text}")).collect();
    let rows: Vec<_> = report.faults.keys().copied().collect();
    let file = report
        .history
        .as_ref()
        .map(|file| format!(", its history is {}", file.display()))
        .unwrap_or_default();
    format!("{} violations after {}{file}{}", report.violations.len(), rows.join(", "), first.concat())
}

/// Returns the command that repeats a scene. The set of rows affects what a seed selects.
fn again(seed: u64) -> String {
    let row = std::env::var("DLOCK_FAULTS_ROW").map(|row| format!(" DLOCK_FAULTS_ROW={row}"));
    let row = row.unwrap_or_default();
    format!("\n  again: DLOCK_FAULTS_SEED={seed}{row} cargo test -p dlock-tests --test faults -- --nocapture")
}

/// Returns the number of times, and their median, 99th percentile, and maximum.
fn figures(times: &[Duration]) -> String {
    match (of_hundred(times, 50), of_hundred(times, 99), times.iter().max()) {
        (Some(median), Some(ninety_ninth), Some(max)) => {
            let ms = |time: &Duration| time.as_millis();
            let (median, ninety_ninth, max) = (ms(&median), ms(&ninety_ninth), ms(max));
            format!("{} times, p50 {median} ms, p99 {ninety_ninth} ms, max {max} ms", times.len())
        }
        _ => "never".to_owned(),
    }
}

/// Returns the percentile `many` of the times.
fn of_hundred(times: &[Duration], many: usize) -> Option<Duration> {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted.get((sorted.len() * many / 100).min(sorted.len().saturating_sub(1))).copied()
}

fn version(server: &RedisServer) -> String {
    let info = server.call(&["INFO", "server"]);
    let lines = info.text().unwrap_or_default().lines();
    let of = |name: &str| lines.clone().find_map(|line| line.strip_prefix(name).map(str::to_owned));
    match (of("valkey_version:"), of("redis_version:")) {
        (Some(version), _) => format!("Valkey {version}"),
        (_, Some(version)) => format!("Redis {version}"),
        _ => "an unknown server".to_owned(),
    }
}

/// The longest acceptable 99th percentile of the time from a release to the next entry (J5).
///
/// The scheduling delay is added to it.
const NEXT: Duration = Duration::from_millis(50);

/// The scheduling delay of a thread if this many processes share two cores.
///
/// Violations are far longer, or are judged without slack.
const LATE: Duration = Duration::from_millis(200);
/// After this many faults of a row that may lose locks, one must have lost a lock. At least one in
/// ten does.
const SEEN_IN: usize = 80;
/// After this many faults of a row, one must have reached its target.
const REACHED_IN: usize = 3;
/// After this many faults of all such rows, one must have lost a lock. One in three does.
const SEEN_IN_ANY: usize = 20;
