//! Real faults in bulk: rows of the fault list, befalling processes that work under locks, over real servers; and judges of what they saw.
//!
//! A *fault* is one injection into the running work of three processes, which hand two locks to and fro, over a server or a quorum of
//! its own. A *scene* is a handful of faults, one after the other or two at once, which a seed picks; many scenes run side by side, since
//! they wait far more than they compute. Rows that end in `c` may lose locks: over all their runs that must be seen, and the guarded
//! resource must refuse every stale write all the same.
//!
//! ```text
//! DLOCK_FAULTS=2000 cargo test -p dlock-tests --test faults -- --nocapture         so many faults; 250 unless given
//! DLOCK_FAULTS_SEED=7 cargo test -p dlock-tests --test faults -- --nocapture       the scene of one seed
//! DLOCK_FAULTS_FROM=1000 ..                                                        the first seed; else 1
//! DLOCK_FAULTS_ROW=P1 ..                                                           one row alone: a seed picks among it and nothing else
//! DLOCK_FAULTS_SCENES=4 ..                                                         so many side by side; else 12
//! ```
//!
//! A scene that fails leaves its history in a file, and prints its path.
//!
//! Not here: fail-overs of Sentinel and Cluster, which have suites of their own.

mod campaign;
mod crew;
mod ground;
mod rows;
mod scene;
mod stage;

#[test]
fn no_fault_breaks_a_promise() {
    campaign::run(&campaign::Order::from_environment());
}
