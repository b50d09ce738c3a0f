//! What becomes of connections that nobody uses.

use std::rc::Rc;
use std::time::Duration;

use crate::backend::redis::simulation::machine::Machine;
use crate::backend::redis::simulation::world::idle;

const TEN_MINUTES: Duration = Duration::from_secs(600);

/// Returns how many connections a process makes within ten minutes, and how often it says `PING`, where what is idle for `limit` is ended.
/// It asks whether the server is ready `every` while, if it does, and wants nothing else.
fn of(limit: Option<u64>, every: Option<Duration>) -> (u64, usize) {
    let machine = Rc::new(Machine::new(true));
    machine.ends_idle.set(limit.map(Duration::from_secs));
    idle(&machine, TEN_MINUTES, every);
    let trace = machine.trace.as_ref().map(std::cell::RefCell::take).unwrap_or_default();
    (machine.redis.borrow().connections(), trace.iter().filter(|line| line.contains("PING")).count())
}

#[test]
fn a_process_that_wants_nothing_says_next_to_nothing() {
    let (connections, pings) = of(None, None);

    assert_eq!(connections, 2, "one for commands, one for messages");
    assert!((2 * 10..=2 * 11).contains(&pings), "each of them is asked each 55 s: {pings}");
}

#[test]
fn a_process_finds_out_that_idle_connections_are_ended_and_keeps_them_from_being_idle() {
    for limit in [10, 30] {
        let (connections, pings) = of(Some(limit), None);

        assert!(connections <= 2 * 3, "{connections}: at first, and after the first and the second end");
        assert!(pings > 100, "{pings}");
    }
}

#[test]
fn it_finds_that_out_of_messages_alone_where_commands_are_never_idle() {
    let (connections, pings) = of(Some(30), Some(Duration::from_secs(5)));

    assert_eq!(connections, 1 + 3, "those for messages that were ended, and one that was not");
    assert!(pings > 60 + 120, "{pings}: it asks often, and then whether the server is ready");
}
