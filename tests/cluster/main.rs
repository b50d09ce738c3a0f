//! Locks over a Redis Cluster: three masters and a replica of each, all real, on ports of this machine.
//!
//! `fail_over` breaks masters while locks are in use and judges the history: one fail-over of each kind (killed, frozen and later
//! resumed, ordered). `moves` moves slots with locks in them. The long forms take as many as they are told, about five seconds for a
//! fail-over:
//!
//! ```text
//! DLOCK_FAIL_OVERS=50 DLOCK_MIGRATIONS=50 cargo test -p dlock-tests --test cluster -- --nocapture
//! ```

mod connect;
mod fail_over;
mod locks;
mod moves;
mod order;
mod tls;
