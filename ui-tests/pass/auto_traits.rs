//! The auto traits of public types. To lose one would break the code of users.

use std::panic::{RefUnwindSafe, UnwindSafe};

use dlock_runtime::idempotent::{Idempotent, IdempotentRecord, Outcome};
use dlock_runtime::scheduled::{Job, JobRun, JobStatus, Jobs, RunLease, Schedule, Tick};
use dlock_runtime::{
    Builder, Error, FencingToken, LeaderWatch, Leadership, Lock, LockGuard, LockInfo, LockKey, LockManager,
    Options, Term,
};

fn moves_and_is_shared<T: Send + Sync + Unpin + 'static>() {}
fn survives_a_panic<T: UnwindSafe + RefUnwindSafe>() {}

fn main() {
    moves_and_is_shared::<Builder>();
    moves_and_is_shared::<Error>();
    moves_and_is_shared::<FencingToken>();
    moves_and_is_shared::<Lock>();
    moves_and_is_shared::<LockGuard>();
    moves_and_is_shared::<LockInfo>();
    moves_and_is_shared::<LockKey>();
    moves_and_is_shared::<LockManager>();
    moves_and_is_shared::<Options>();
    moves_and_is_shared::<Idempotent>();
    moves_and_is_shared::<IdempotentRecord>();
    moves_and_is_shared::<Outcome<u8>>();
    moves_and_is_shared::<Leadership>();
    moves_and_is_shared::<LeaderWatch>();
    moves_and_is_shared::<Term>();
    moves_and_is_shared::<Job>();
    moves_and_is_shared::<JobRun>();
    moves_and_is_shared::<JobStatus>();
    moves_and_is_shared::<Jobs>();
    moves_and_is_shared::<RunLease>();
    moves_and_is_shared::<Schedule>();
    moves_and_is_shared::<Tick>();
    survives_a_panic::<Error>();
    survives_a_panic::<LockKey>();
    survives_a_panic::<Options>();
}
