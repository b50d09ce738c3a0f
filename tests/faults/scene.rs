//! One scene: processes work, faults are injected, and the judges check the history.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlock_tests::WallClock;
use dlock_tests::dice::Dice;
use dlock_tests::guarded::Guarded;
use dlock_tests::history::{History, View, What, Writer};
use dlock_tests::judges::{Terms, deadline, exclusion, fencing, judge, liveness};

use tempfile::TempDir;

use crate::crew::{Common, Member};
use crate::ground::{Ground, LEASE, PASSWORD};
use crate::rows::{Broken, Kind, Row};
use crate::stage::Stage;

/// The data that all scenes share.
pub(crate) struct Shared {
    /// The rows to select from.
    pub(crate) rows: Vec<Row>,
    /// The port of the guarded resource.
    pub(crate) resource: u16,
    /// Clocks that can be stepped, if a C compiler is available.
    pub(crate) clocks: Option<Arc<WallClock>>,
    /// The longest acceptable scheduling delay of a thread.
    pub(crate) late: Duration,
}

/// The results of a scene.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) faults: BTreeMap<&'static str, usize>,
    pub(crate) violations: Vec<String>,
    pub(crate) history: Option<PathBuf>,
    pub(crate) holds: usize,
    pub(crate) overlaps: BTreeMap<String, usize>,
    pub(crate) stale: fencing::Stale,
    pub(crate) after_crashes: Vec<Duration>,
    pub(crate) after_releases: Vec<Duration>,
    /// Polls after their deadline that a stop excuses.
    pub(crate) excused: Vec<String>,
    pub(crate) long_stops: usize,
    /// How often faults reached their targets.
    pub(crate) observed: BTreeMap<&'static str, usize>,
}

/// Plays the scene of a seed.
pub(crate) fn play(seed: u64, shared: &Shared) -> Report {
    let mut dice = Dice::new(seed);
    let first = shared.rows[usize::try_from(seed % shared.rows.len() as u64).unwrap_or_default()];
    let grounds = first.grounds.iter().filter(|ground| **ground != Ground::Clock || shared.clocks.is_some());
    let ground = *dice.pick(&grounds.copied().collect::<Vec<_>>());
    let folder = folder().expect("a folder can be made");
    let mut report = Report::default();

    let mut stage = set(seed, ground, folder.path().to_owned(), shared, dice);
    let name = format!("scene:{seed}");
    let resource = Guarded::connect(shared.resource, &name);
    let resource = stage.common.runtime.block_on(resource).expect("the resource is there");
    let begun = goes_on(&mut stage, &resource, &[0; KEYS.len()]);
    if let Err(complaint) = begun {
        stage.complaints.push(format!("before any fault: {complaint}"));
    }
    // Each process has waited and renewed, so it has the connections for both.
    std::thread::sleep(WARM);
    let Stage { crew, common, .. } = &mut stage;
    for member in crew {
        member.base(common);
    }
    for strike in 0..STRIKES {
        let rows = if strike == 0 {
            pair(first, ground, shared, &mut stage.dice)
        } else {
            let next = fitting(ground, shared, |_| true);
            let next = *stage.dice.pick(&next);
            pair(next, ground, shared, &mut stage.dice)
        };
        let names: Vec<_> = rows.iter().map(|row| row.name).collect();
        for name in &names {
            *report.faults.entry(name).or_default() += 1;
        }
        befall(&mut stage, &rows);
        let before = turns(&stage, &resource);
        if let Err(complaint) = goes_on(&mut stage, &resource, &before) {
            stage.complaints.push(format!("after {}: {complaint}", names.join(" and ")));
        }
        std::thread::sleep(stage.dice.millis(20, 150));
        stage.scan(false);
    }
    end(&mut stage);
    look(stage, seed, shared, &mut report);
    report
}

/// Creates a folder in memory, if possible, so that recording does not wait for a shared disk.
fn folder() -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("dlock-faults-");
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir())
}

/// Starts the servers and the processes.
fn set(seed: u64, ground: Ground, folder: PathBuf, shared: &Shared, dice: Dice) -> Stage {
    let clock = shared.clocks.as_ref().filter(|_| ground == Ground::Clock).map(|clocks| clocks.another());
    let servers = ground.start(clock.as_ref());
    std::thread::sleep(ground.age());
    let history = Writer::open(&folder.join("scene.jsonl")).expect("the history can be written");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    let (resource, clocks) = (shared.resource, shared.clocks.clone());
    let common = Common { ground, folder, resource, seed, clocks, runtime, history };
    let crew = (0..CREW).map(|number| Member::start(&common, &servers, number)).collect();
    Stage::new(common, servers, clock, crew, dice)
}

/// Returns the rows that apply to this environment.
fn fitting(ground: Ground, shared: &Shared, is_meant: impl Fn(&Row) -> bool) -> Vec<Row> {
    shared.rows.iter().filter(|row| row.grounds.contains(&ground) && is_meant(row)).copied().collect()
}

/// Returns a row, and sometimes a second one with another target.
fn pair(first: Row, ground: Ground, shared: &Shared, dice: &mut Dice) -> Vec<Row> {
    let others = fitting(ground, shared, |row| row.kind != first.kind);
    if others.is_empty() || !dice.percent(PAIRS) {
        return vec![first];
    }
    vec![first, *dice.pick(&others)]
}

/// Begins all faults, and then ends each in time.
fn befall(stage: &mut Stage, rows: &[Row]) {
    let mut broken: Vec<(&'static str, Broken)> = Vec::new();
    // Faults of processes begin last and end first, because signals need a running process.
    let mut rows = rows.to_vec();
    rows.sort_by_key(|row| row.kind == Kind::Process);
    for row in rows {
        broken.push((row.name, (row.begin)(stage)));
        std::thread::sleep(stage.dice.millis(0, 60));
    }
    while let Some((name, Broken { after, heal })) = broken.pop() {
        std::thread::sleep(after);
        heal(stage);
        stage.healed(name);
    }
    stage.replace_the_dead();
}

/// Waits until each lock was acquired again and its resource was written to.
fn goes_on(stage: &mut Stage, resource: &Guarded, before: &[u64; KEYS.len()]) -> Result<(), String> {
    // A write that was in flight at the start proves nothing.
    let is_on =
        |stage: &mut Stage| turns(stage, resource).iter().zip(before).all(|(now, before)| *now >= before + 3);
    if stage.until(GOES_ON, is_on) {
        return Ok(());
    }
    Err(format!("the work does not go on within {GOES_ON:?}: {before:?}, now {:?}", turns(stage, resource)))
}

fn turns(stage: &Stage, resource: &Guarded) -> [u64; KEYS.len()] {
    KEYS.map(|key| stage.common.runtime.block_on(resource.turns(key)).unwrap_or_default())
}

/// Ends the work, and counts the remaining resources.
fn end(stage: &mut Stage) {
    for member in &mut stage.crew {
        member.ask_to_end();
    }
    let Stage { crew, common, .. } = stage;
    for member in crew {
        member.until_work_ended(common);
    }
    // A delayed command of a call that was given up may acquire a lock for a lease when it arrives.
    if !stage.until(ARRIVES, |stage| stage.on_their_way() == 0) {
        stage.complaints.push(format!("{} parcels do not arrive", stage.on_their_way()));
    }
    std::thread::sleep(LEASE * 11 / 10);
    stage.scan(true);
}

/// Runs all judges, and keeps the history if they find a violation.
fn look(stage: Stage, seed: u64, shared: &Shared, report: &mut Report) {
    let folder = stage.common.folder.clone();
    let complaints = stage.complaints.clone();
    report.observed.clone_from(&stage.observed);
    drop(stage);
    let history = History::read(&folder).expect("the history can be read");
    let secrets = vec![PASSWORD.to_owned()];
    let terms = Terms { lease: LEASE, grant_lease: LEASE, late: shared.late, secrets };

    let view = View::of(&history);
    report.holds = view.holds.len();
    report.stale = fencing::stale(&view);
    report.after_crashes = liveness::after_crashes(&view, &terms);
    report.after_releases = liveness::after_releases(&view, &terms);
    report.excused = deadline::excused(&view, &terms);
    report.long_stops = view.long_stops(LEASE);
    for row in exclusion::overlaps(&view).iter().filter_map(|overlap| overlap.row) {
        *report.overlaps.entry(row.to_owned()).or_default() += 1;
    }
    report.violations = judge(&history, &terms).iter().map(ToString::to_string).chain(complaints).collect();
    let panics = |what: &What| matches!(what, What::Said { text } if text.starts_with("panic: ") && !text.contains("a panic that aborts"));
    if history.count(panics) > 0 {
        report.violations.push("P5: a process panics".to_owned());
    }
    if !report.violations.is_empty() {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{seed}.jsonl"));
        history.write(&file).expect("the target folder can be written to");
        report.history = Some(file);
    }
}

/// The locks of the processes.
const KEYS: [&str; 2] = ["often", "long"];
/// The number of processes.
const CREW: usize = 3;
/// How long the processes work before the first fault.
const WARM: Duration = Duration::from_secs(1);
/// The number of injections in a scene.
const STRIKES: usize = 4;
/// The percentage of injections with two faults at once.
const PAIRS: u64 = 30;
/// The longest acceptable time from a fault until the work continues.
///
/// Clients reconnect, the vote of a quorum's server counts after a lease and two seconds, and on a
/// busy machine many replies are late.
const GOES_ON: Duration = Duration::from_secs(20);
/// The longest acceptable time until delayed requests arrive. No row delays them by more than 500
/// ms.
const ARRIVES: Duration = Duration::from_secs(2);
