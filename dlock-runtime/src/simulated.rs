//! What a simulation puts in place of the machine's, for all that runs on its thread: the boot clock, and the nonces of managers; and how
//! it is told what to run.
//!
//! Not here: the simulations.

use std::cell::RefCell;

use crate::protocol::deadline::BootInstant;

struct World {
    now: Box<dyn Fn() -> BootInstant>,
    processes: u64,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// The machine's are back when this is dropped.
#[derive(Debug)]
#[must_use = "the simulation ends when this is dropped"]
pub(crate) struct Simulated(());

/// From now on the boot clock of this thread is `now`, and managers get nonces that are the same in every run; `now` must ask nothing
/// that is here.
pub(crate) fn begin(now: impl Fn() -> BootInstant + 'static) -> Simulated {
    WORLD.set(Some(World { now: Box::new(now), processes: 0 }));
    Simulated(())
}

/// Returns the time on the simulated boot clock, if there is one.
pub(crate) fn now() -> Option<BootInstant> {
    WORLD.with_borrow(|world| world.as_ref().map(|world| (world.now)()))
}

/// Returns the nonce of the next manager, in a simulation; spread, as the random ones are.
pub(crate) fn next_process() -> Option<u64> {
    WORLD.with_borrow_mut(|world| {
        let world = world.as_mut()?;
        world.processes += 1;
        Some(world.processes.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    })
}

/// Returns whether this thread is in a simulation.
#[cfg(test)]
pub(crate) fn is_on() -> bool {
    WORLD.with_borrow(Option::is_some)
}

/// Returns the number that a variable says, if it is set.
///
/// # Panics
///
/// Panics if it says none: something else would be run than is asked for.
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
    fn a_simulation_is_of_its_thread_and_ends_with_it() {
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
