//! Rows that affect a process.

use std::time::Duration;

use dlock_tests::history::What;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::{Broken, Kind, Row};
use crate::ground::{Ground, LEASE};
use crate::stage::Stage;

const fn row(name: &'static str, begin: fn(&mut Stage) -> Broken) -> Row {
    Row { name, kind: Kind::Process, grounds: Ground::ALL, begin }
}

pub(crate) const ROWS: &[Row] = &[
    row("P1", killed),
    row("P2", killed_before_the_reply),
    row("P3", stopped_for_half_a_lease),
    row("P4", stopped_for_more_than_a_lease),
    row("P5", stopped_before_the_body),
    row("P6", suspended),
    row("P8", drained),
    row("P9", starved),
    row("P10", without_descriptors),
    row("P11", aborted),
    row("C4", wall_clock_jumps),
];

fn killed(stage: &mut Stage) -> Broken {
    let who = stage.holder();
    stage.fault("P1", "kill -9 of a holder", &stage.crew[who].pid().to_string());
    stage.kill(who);
    Broken::over_after(LEASE + Duration::from_millis(300))
}

/// A request of the process is granted, but the process is killed before the reply.
fn killed_before_the_reply(stage: &mut Stage) -> Broken {
    let who = stage.anybody();
    stage.fault("P2", "kill -9 between sending and reply", &stage.crew[who].pid().to_string());
    let way = stage.crew[who].ways[0].handle();
    way.hold_replies();
    let seen = way.on_request(b"dlock:");
    let _ = stage.common.runtime.block_on(async { tokio::time::timeout(LEASE, seen).await });
    stage.kill(who);
    Broken::until(LEASE + Duration::from_millis(300), move |_| way.pass())
}

fn stopped_for_half_a_lease(stage: &mut Stage) -> Broken {
    let who = stage.holder();
    stop(stage, who, "P3", "SIGSTOP for half a lease", LEASE / 2)
}

fn stopped_for_more_than_a_lease(stage: &mut Stage) -> Broken {
    let who = stage.holder();
    stop(stage, who, "P4", "SIGSTOP for 2.5 leases", LEASE * 5 / 2)
}

fn stop(stage: &mut Stage, who: usize, row: &str, what: &str, time: Duration) -> Broken {
    stage.fault(row, what, &stage.crew[who].pid().to_string());
    stage.crew[who].stop(&stage.common);
    Broken::until(time, move |stage| stage.crew[who].go_on(&stage.common))
}

/// The reply has arrived, and the body has not begun.
fn stopped_before_the_body(stage: &mut Stage) -> Broken {
    let who = stage.anybody();
    let way = stage.crew[who].ways[0].handle();
    let seen = way.on_reply(b"OK");
    let wait = async { tokio::time::timeout(Duration::from_millis(300), seen).await };
    let _ = stage.common.runtime.block_on(wait);
    stop(stage, who, "P5", "SIGSTOP between reply and body", LEASE * 5 / 4)
}

/// The boot clock advances, and the monotonic clock does not.
fn suspended(stage: &mut Stage) -> Broken {
    let who = stage.holder();
    let time = stage.dice.millis(100, 1_000);
    stage.fault("P6", &format!("suspended for {time:?}"), &stage.crew[who].pid().to_string());
    stage.crew[who].stop(&stage.common);
    Broken::until(time, move |stage| {
        stage.crew[who].has_slept(time);
        stage.crew[who].go_on(&stage.common);
    })
}

fn drained(stage: &mut Stage) -> Broken {
    let who = stage.holder();
    stage.fault("P8", "SIGTERM", &stage.crew[who].pid().to_string());
    let took = stage.crew[who].drain(&stage.common);
    if took > DRAINED {
        stage.complaints.push(format!("P8: a process takes {took:?} to drain"));
    }
    stage.is_gone(who);
    Broken::over_after(Duration::from_millis(50))
}

/// For 750 ms, the process gets a tenth of the time.
fn starved(stage: &mut Stage) -> Broken {
    let who = stage.holder();
    stage.fault("P9", "starved of the processor", &stage.crew[who].pid().to_string());
    for _ in 0..15 {
        stage.crew[who].stop(&stage.common);
        std::thread::sleep(Duration::from_millis(45));
        stage.crew[who].go_on(&stage.common);
        std::thread::sleep(Duration::from_millis(5));
    }
    Broken::over_after(Duration::from_millis(50))
}

/// The process loses its connections and cannot open files or sockets.
fn without_descriptors(stage: &mut Stage) -> Broken {
    let who = stage.anybody();
    let pid = i32::try_from(stage.crew[who].pid()).ok().and_then(Pid::from_raw);
    stage.fault("P10", "no descriptors", &stage.crew[who].pid().to_string());
    let most = getrlimit(Resource::Nofile).maximum;
    // The limit is below the number of open descriptors, so that no more can be opened.
    let limit = |current| Rlimit { current: Some(current), maximum: most };
    let limited = prlimit(pid, Resource::Nofile, limit(3)).expect("the process can be limited");
    for way in &stage.crew[who].ways {
        way.reset_all();
    }
    Broken::until(stage.dice.millis(200, 900), move |_| {
        prlimit(pid, Resource::Nofile, limited).expect("the process can be limited");
    })
}

fn aborted(stage: &mut Stage) -> Broken {
    let who = stage.holder();
    stage.fault("P11", "a panic that aborts", &stage.crew[who].pid().to_string());
    stage.crew[who].abort(&stage.common);
    stage.is_gone(who);
    Broken::over_after(LEASE + Duration::from_millis(300))
}

/// The wall clock of the client, which is not used for measurements.
fn wall_clock_jumps(stage: &mut Stage) -> Broken {
    let who = stage.anybody();
    let hours = i64::try_from(stage.dice.below(48)).unwrap_or_default() - 24;
    stage.fault("C4", &format!("its wall clock jumps by {hours} h"), &stage.crew[who].pid().to_string());
    match &stage.crew[who].clock {
        Some(clock) => clock.step_to(hours * 3_600),
        None => stage.common.history.note_of(0, What::Said { text: "there is no clock to step".to_owned() }),
    }
    Broken::over_after(Duration::from_millis(200))
}

/// The longest acceptable time from SIGTERM until the process has ended.
///
/// Bodies may run for another 300 ms. Lost bodies release within the response timeout of 200 ms,
/// and the last replies may take as long. Commands of a lost connection are cleaned up once more a
/// second later, as in a black hole. The rest is scheduling delay.
const DRAINED: Duration =
    Duration::from_millis(300 + 200 + 200 + 1_000).saturating_add(Duration::from_millis(300));
