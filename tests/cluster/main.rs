//! Locks on a real Redis Cluster: three masters with one replica each, on local ports.
//!
//! `fail_over` breaks masters while locks are in use, and checks the history: by default, one
//! failover of each kind (kill, freeze and resume, `CLUSTER FAILOVER`). `moves` migrates slots with
//! locks in them. Environment variables set the counts of long runs. A failover takes about 5 s.
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
