//! The server is far away: how many round trips a call takes, and a hand-over to another process.
//!
//! Figures are trips: the time by the round trip of a `PING` on the same way. Three hundredths are none: by so much, and twice that at 1 ms,
//! the floor itself differs from one run to the next.

use std::time::Duration;

use tokio::time::Instant;

use crate::Failure;
use crate::contenders::Contender;
use crate::distance::Distance;
use crate::figures::{float, median};
use crate::process::Process;
use crate::report::Goal::AtMost;
use crate::report::What;
use crate::scenarios::{Bench, tasks_of};

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for millis in [1, 5, 20] {
        let way = Distance::to(bench.server, Duration::from_millis(millis)).await?;
        let trip = way.nanos_of_a_trip().await?;
        let contenders = bench.contenders(&["raw", "ours", "ours, io=runtime"])?;
        let address = [way.address()];
        let start = async |contender: &Contender| {
            Ok([Process::start_at(contender, &address).await?, Process::start_at(contender, &address).await?])
        };
        let mut field = bench.field(contenders, start).await;
        let pace = bench.pace(1);
        for tasks in [1, 64] {
            let span = if bench.short { SHORT_SPAN } else { SPAN };
            let slice = async |_: &Contender, [process, _]: &mut [Process; 2]| {
                let [count, nanos, _] = process.ask(format!("pairs {tasks} {span}"), "pairs").await?;
                Ok(float(nanos) * float(tasks) / float(count.max(1)) / trip)
            };
            let runs = field.turns(pace, bench.report, slice).await;
            let mut what = trips(format!("{millis} ms away: a call, {}", tasks_of(tasks)), millis);
            if millis == FAR {
                what = what.goal("ours", AtMost(2.2));
            }
            bench.each(&what, &runs, |slices: &[f64]| median(slices.iter().copied()));
        }
        let slice = async |_: &Contender, [holder, waiter]: &mut [Process; 2]| {
            let (begun, mut waits) = (Instant::now(), Vec::new());
            while waits.len() < HAND_OVERS && begun.elapsed() < LONGEST {
                waits.push(hand_over(holder, waiter, millis).await? / trip);
            }
            Ok(median(waits))
        };
        let runs = field.turns(pace, bench.report, slice).await;
        let mut what = trips(format!("{millis} ms away: a hand-over to another process"), millis);
        if millis == FAR {
            what = what.goal("ours", AtMost(1.2));
        }
        bench.each(&what, &runs, |slices: &[f64]| median(slices.iter().copied()));
    }
    Ok(())
}

fn trips(text: String, millis: u64) -> What {
    What::less(text, "trips").at(millis).grain(0.03)
}

/// Returns the nanoseconds from the release in one process to the body in the other.
async fn hand_over(holder: &mut Process, waiter: &mut Process, millis: u64) -> Result<f64, Failure> {
    let [_] = holder.ask("take distance", "taken").await?;
    waiter.tell("take distance").await?;
    // Who listens, looks, and queues up takes three trips.
    tokio::time::sleep(Duration::from_millis(4 + 4 * millis)).await;
    let [freed] = holder.ask("free", "freed").await?;
    let [taken] = waiter.hear("taken").await?;
    let [_] = waiter.ask("free", "freed").await?;
    Ok(float(taken.saturating_sub(freed)))
}

/// Milliseconds in which one task calls 25 times where the server is farthest away. A machine that is busy for a moment must not make a
/// difference where it is near.
const SPAN: u64 = 1_000;
const SHORT_SPAN: u64 = 400;
const HAND_OVERS: usize = 10;
/// Who polls is woken late: he hands over less often.
const LONGEST: Duration = Duration::from_millis(1_500);
/// Where the timers' grain is small beside a round trip.
const FAR: u64 = 20;
