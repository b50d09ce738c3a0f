//! Real faults in bulk: rows of the fault list against real servers, and judges of the recorded
//! histories.
//!
//! A *fault* is one injection into the work of three processes, which hand two locks around, over a
//! separate server or quorum. A *scene* is a few faults, in sequence or two at once, selected by a
//! seed. Many scenes run side by side, because they wait far more than they compute. Rows that end
//! in `c` may lose locks: the campaign must observe that, and the guarded resource must reject
//! every stale write nevertheless.
//!
//! ```text
//! DLOCK_FAULTS=2000 cargo test -p dlock-tests --test faults -- --nocapture         the number of faults; default: 100
//! DLOCK_FAULTS_SEED=7 cargo test -p dlock-tests --test faults -- --nocapture       only the scene of this seed
//! DLOCK_FAULTS_FROM=1000 ..                                                        the first seed; default: 1
//! DLOCK_FAULTS_ROW=P1 ..                                                           only this row
//! DLOCK_FAULTS_SCENES=4 ..                                                         the number of scenes side by side; default: 12
//! ```
//!
//! A scene that fails leaves its history in a file, and prints its path.
//!
//! See also `tests/sentinel` and `tests/cluster` for failovers.

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
