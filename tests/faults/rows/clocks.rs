//! Rows that step the server's wall clock.
//!
//! Each step is a lease and a half. Its effects on the TTLs of keys end soon, and it is not undone.

use std::time::Duration;

use super::{Broken, Kind, Row};
use crate::ground::{Ground, LEASE};
use crate::stage::Stage;

const CLOCK: &[Ground] = &[Ground::Clock];

pub(crate) const ROWS: &[Row] = &[
    Row { name: "C1c", kind: Kind::Server, grounds: CLOCK, begin: forward },
    Row { name: "C2", kind: Kind::Server, grounds: CLOCK, begin: back },
    Row { name: "C3", kind: Kind::Server, grounds: CLOCK, begin: drift },
];

fn forward(stage: &mut Stage) -> Broken {
    stage.fault("C1c", "its clock steps forward", "server");
    step(stage, nanos(LEASE * 3 / 2));
    Broken::over_after(LEASE)
}

/// Locks stay held for longer: for their lease and the step.
fn back(stage: &mut Stage) -> Broken {
    stage.fault("C2", "its clock steps back", "server");
    step(stage, -nanos(LEASE * 3 / 2));
    Broken::over_after(LEASE * 3)
}

/// Half a percent fast for two leases, which the margin of the deadline covers.
fn drift(stage: &mut Stage) -> Broken {
    stage.fault("C3", "its clock is fast by half a percent", "server");
    let clock = stage.clock.clone().expect("this ground has a clock");
    let mut offset = stage.offset;
    for _ in 0..(LEASE * 2).as_millis() / 5 {
        std::thread::sleep(Duration::from_millis(5));
        offset += 25_000;
        clock.step_to_nanos(offset);
    }
    stage.offset = offset;
    Broken::over_after(Duration::ZERO)
}

fn step(stage: &mut Stage, by: i64) {
    stage.offset += by;
    stage.clock.as_ref().expect("this ground has a clock").step_to_nanos(stage.offset);
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
