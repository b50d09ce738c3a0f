//! Locks over servers that know nothing of each other, of which a majority decides; all real, on ports of this machine.

mod connect;
mod exclusion;
mod fencing;
mod majority;
mod waking;
