//! Replacements of the boot clock and of the managers' random IDs, for one thread that runs a
//! simulation.
//!
//! It also reads the variables that select what the simulations run.

use std::cell::RefCell;

use crate::protocol::deadline::BootInstant;

struct World {
    now: Box<dyn Fn() -> BootInstant>,
    processes: u64,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Restores the machine's clock when dropped.
#[derive(Debug)]
#[must_use = "the simulation ends when this is dropped"]
pub(crate) struct Simulated(());

/// Sets the boot clock of this thread to `now`, and makes the IDs of managers the same in every
/// run.
///
/// `now` must not call this module.
pub(crate) fn begin(now: impl Fn() -> BootInstant + 'static) -> Simulated {
    WORLD.set(Some(World { now: Box::new(now), processes: 0 }));
    Simulated(())
}

/// Returns the time on the simulated boot clock, or `None` outside a simulation.
pub(crate) fn now() -> Option<BootInstant> {
    WORLD.with_borrow(|world| world.as_ref().map(|world| (world.now)()))
}

/// Returns the ID of the next manager, or `None` outside a simulation. It is spread, as random IDs
/// are.
pub(crate) fn next_process() -> Option<u64> {
    WORLD.with_borrow_mut(|world| {
        let world = world.as_mut()?;
        world.processes += 1;
        Some(world.processes.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    })
}

/// Returns `true` if this thread runs a simulation.
#[cfg(test)]
pub(crate) fn is_on() -> bool {
    WORLD.with_borrow(Option::is_some)
}

/// Returns the number in an environment variable, or `None` if it is not set.
///
/// # Panics
///
/// Panics if it is not a number: something else would run than requested.
#[cfg(test)]
pub(crate) fn number(variable: &str) -> Option<u64> {
    let said = std::env::var(variable).ok()?;
    Some(said.parse().unwrap_or_else(|_| panic!("{variable} is no number: {said}")))
}

impl Drop for Simulated {
    fn drop(&mut self) {
        WORLD.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::boot_time;
    use crate::token::TokenSource;

    #[test]
    fn simulations_are_per_thread_and_end_when_dropped() {
        let at = BootInstant::from_nanos(7);
        let simulated = begin(move || at);
        let first = TokenSource::new().process();

        assert_eq!(boot_time(), at);
        assert!(std::thread::spawn(|| !is_on() && boot_time().nanos() > 7).join().is_ok_and(|alone| alone));
        drop(simulated);
        assert!(boot_time() > at && TokenSource::new().process() != first);
        let _again = begin(move || at);
        assert_eq!(TokenSource::new().process(), first);
    }
}
