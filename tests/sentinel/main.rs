//! Locks over a master that sentinels watch: three sentinels, a master and two replicas, all real, on ports of this machine.
//!
//! `fail_over` breaks the master while locks are in use and judges the history: one fail-over of each kind (killed, frozen and later
//! resumed, ordered). `acks` does so with `replica_acks` for all replicas, where no two may hold one lock at all. The long form of both takes as many as it is told, about five seconds each:
//!
//! ```text
//! DLOCK_FAIL_OVERS=50 cargo test -p dlock-tests --test sentinel fail_over -- --nocapture
//! ```

mod acks;
mod connect;
mod fail_over;
mod lost;
mod tls;
mod tracked;
mod watching;
