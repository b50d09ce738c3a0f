//! The cost of a call and of a hand-off to another process in round trips, if the server is far.
//!
//! Figures are elapsed times divided by the round trip of a `PING` through the same proxy.
//! Differences of up to 0.03 round trips do not count: the floor itself varies by that much between
//! runs, and by 0.06 at 1 ms.

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
        let contenders = bench.contenders(&["raw", "ours"])?;
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
            while waits.len() < HAND_OFFS && begun.elapsed() < LONGEST {
                waits.push(hand_off(holder, waiter, millis).await? / trip);
            }
            Ok(median(waits))
        };
        let runs = field.turns(pace, bench.report, slice).await;
        let mut what = trips(format!("{millis} ms away: a hand-off to another process"), millis);
        if millis == FAR {
            what = what.goal("ours", AtMost(1.2));
        }
        bench.each(&what, &runs, |slices: &[f64]| median(slices.iter().copied()));
    }
    Ok(())
}

fn trips(text: String, millis: u64) -> What {
    What::less(text, "round trips").at(millis).grain(0.03)
}

/// Returns the nanoseconds from the release in one process to the body in the other.
async fn hand_off(holder: &mut Process, waiter: &mut Process, millis: u64) -> Result<f64, Failure> {
    let [_] = holder.ask("take distance", "taken").await?;
    waiter.tell("take distance").await?;
    // The waiter needs three round trips to subscribe, check, and enqueue.
    tokio::time::sleep(Duration::from_millis(4 + 4 * millis)).await;
    let [freed] = holder.ask("free", "freed").await?;
    let [taken] = waiter.hear("taken").await?;
    let [_] = waiter.ask("free", "freed").await?;
    Ok(float(taken.saturating_sub(freed)))
}

/// Milliseconds in which one task calls 25 times at the greatest distance.
///
/// It is long enough that a short load peak does not change the figures of a near server.
const SPAN: u64 = 1_000;
const SHORT_SPAN: u64 = 400;
const HAND_OFFS: usize = 10;
/// The limit of a slice: libraries that poll wake up late, and complete fewer hand-offs.
const LONGEST: Duration = Duration::from_millis(1_500);
/// The distance in milliseconds at which the granularity of timers does not matter.
const FAR: u64 = 20;
