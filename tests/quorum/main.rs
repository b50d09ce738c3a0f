//! Locks over a quorum of real, independent servers on local ports.
//!
//! The long form breaks every minority of five servers, not only some:
//!
//! ```text
//! DLOCK_ALL_MINORITIES=1 cargo test -p dlock-tests --test quorum exclusion
//! ```

mod connect;
mod exclusion;
mod fencing;
mod majority;
mod waking;
