//! What becomes of connections that nobody uses.

use std::rc::Rc;
use std::time::Duration;

use crate::backend::redis::simulation::machine::Machine;
use crate::backend::redis::simulation::world::{Idler, idle};

const TEN_MINUTES: Duration = Duration::from_secs(600);

/// Returns how many connections a process makes within ten minutes, and how often it says `PING`, where what is idle for `limit` is ended.
fn of(limit: Option<u64>, idler: Idler) -> (u64, usize) {
    let machine = Rc::new(Machine::new(true));
    machine.ends_idle.set(limit.map(Duration::from_secs));
    idle(&machine, TEN_MINUTES, idler);
    let trace = machine.trace.as_ref().map(std::cell::RefCell::take).unwrap_or_default();
    (machine.redis.borrow().connections(), trace.iter().filter(|line| line.contains("PING")).count())
}

#[test]
fn a_process_that_wants_nothing_says_next_to_nothing() {
    let (connections, pings) = of(None, Idler::WantsNothing);

    assert_eq!(connections, 2, "one for commands, one for messages");
    assert!((2 * 10..=2 * 11).contains(&pings), "each of them is asked each 55 s: {pings}");
}

#[test]
fn a_process_finds_out_that_idle_connections_are_ended_and_keeps_them_from_being_idle() {
    for limit in [10, 30] {
        let (connections, pings) = of(Some(limit), Idler::WantsNothing);

        assert!(
            connections <= 2 * 4,
            "{connections}: at first, after the first and the second end, and one that was on its way"
        );
        assert!(pings > 100, "{pings}");
    }
}

#[test]
fn it_finds_that_out_of_messages_alone_where_commands_are_never_idle() {
    let (connections, pings) = of(Some(30), Idler::Asks(Duration::from_secs(5)));

    assert_eq!(connections, 1 + 3, "those for messages that were ended, and one that was not");
    assert!(pings > 60 + 120, "{pings}: it asks often, and then whether the server is ready");
}

#[test]
fn all_connections_of_a_process_that_holds_a_lock_are_asked_within_a_minute() {
    let (connections, _) = of(Some(60), Idler::HoldsALock);

    assert_eq!(connections, 3, "for commands, messages and tracking: renewals go over the last alone");
}
