//! Locks on a master that sentinels monitor. Three sentinels, a master, and two replicas, all real,
//! run on local ports.
//!
//! `fail_over` breaks the master while locks are in use, and checks the history: by default, one
//! failover of each kind (kill, freeze and resume, `SENTINEL FAILOVER`). `acks` does the same with
//! `replica_acks` for all replicas, where no lock may ever have two holders. `DLOCK_FAIL_OVERS`
//! sets the count. A failover takes about 5 s.
//!
//! ```text
//! DLOCK_FAIL_OVERS=50 cargo test -p dlock-tests --test sentinel fail_over -- --nocapture
//! ```

mod acks;
mod connect;
mod demotions;
mod fail_over;
mod lost;
mod tls;
mod tracking;
