//! What becomes of connections that nobody uses.

use std::rc::Rc;
use std::time::Duration;

use crate::backend::redis::simulation::machine::Machine;
use crate::backend::redis::simulation::world::idle;

/// Returns how many connections a process that wants nothing makes in so long, and how often it says `PING`, where what is idle for
/// `limit` is ended.
fn of(limit: Option<Duration>, time: Duration) -> (u64, usize) {
    let machine = Rc::new(Machine::new(true));
    machine.ends_idle.set(limit);
    idle(&machine, time);
    let trace = machine.trace.as_ref().map(std::cell::RefCell::take).unwrap_or_default();
    (machine.redis.borrow().connections(), trace.iter().filter(|line| line.contains("PING")).count())
}

const TEN_MINUTES: Duration = Duration::from_secs(600);

#[test]
fn a_process_that_wants_nothing_says_next_to_nothing() {
    let (connections, pings) = of(None, TEN_MINUTES);

    assert_eq!(connections, 2, "one for commands, one for messages");
    assert_eq!(pings, 2 * 10, "each of them is asked each 55 s");
}

#[test]
fn a_process_finds_out_that_idle_connections_are_ended_and_keeps_them_from_being_idle() {
    let (connections, pings) = of(Some(Duration::from_secs(10)), TEN_MINUTES);

    assert!(connections <= 2 * 3, "{connections}: at first, and after the first and the second end");
    assert!(pings > 100, "{pings}");
}
