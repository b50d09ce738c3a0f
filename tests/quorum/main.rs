//! Locks over servers that know nothing of each other, of which a majority decides; all real, on ports of this machine.
//!
//! The long form breaks every minority of five, not only some:
//!
//! ```text
//! DLOCK_ALL_MINORITIES=1 cargo test -p dlock-tests --test quorum exclusion
//! ```

mod connect;
mod exclusion;
mod fencing;
mod majority;
mod waking;
