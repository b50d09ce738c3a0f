//! The attributes that users combine with it, in the orders that work.

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockManager, distributed_lock};

use crate::under;

#[tracing::instrument(skip(name), fields(id = %id))]
#[distributed_lock(key = "under:<id>", guard = lock)]
async fn under_instrument(id: u64, name: String) -> Result<String, Error> {
    tokio::task::yield_now().await;
    Ok(name + lock.key().as_str())
}

#[distributed_lock(key = "above:<id>")]
#[tracing::instrument(err, skip_all)]
async fn above_instrument(id: u64) -> Result<u64, Error> {
    tokio::task::yield_now().await;
    Ok(id)
}

#[distributed_lock(key = "outer:<a>")]
#[distributed_lock(key = "inner:<b>")]
async fn two_locks(a: u8, b: u8) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(a + b)
}

/// Documented.
#[must_use = "it is what was asked for"]
#[inline(never)]
#[cfg(not(windows))]
#[cfg_attr(unix, doc = "On Unix.")]
#[distributed_lock(key = "attributes:<id>", on_contended = return(0))]
pub(crate) async fn attributes(#[allow(unused_variables)] id: u64) -> u64 {
    #![allow(unused_mut)]
    let mut one = 1;
    tokio::task::yield_now().await;
    one
}

#[cfg_attr(all(), distributed_lock(key = "conditional:<id>"))]
async fn conditional(id: u64) -> Result<u64, Error> {
    tokio::task::yield_now().await;
    Ok(id)
}

#[distributed_lock(key = "job", manager = locks())]
#[tokio::test]
async fn above_a_test() -> Result<(), Error> {
    tokio::task::yield_now().await;
    Ok(())
}

fn locks() -> LockManager {
    TestLocks::new().manager()
}

#[tokio::test]
async fn other_attributes_may_stand_above_and_below() {
    assert_eq!(
        under("under:7", under_instrument(7, "n ".to_owned())).await.ok().as_deref(),
        Some("n under:7")
    );
    assert_eq!(under("above:7", above_instrument(7)).await.ok(), Some(7));
    assert_eq!(under("attributes:7", attributes(7)).await, 1);
    assert_eq!(under("conditional:7", conditional(7)).await.ok(), Some(7));
}

#[tokio::test]
async fn two_attributes_take_two_locks() {
    let locks = TestLocks::new();

    let sum = locks.run(two_locks(1, 2)).await;

    assert_eq!(sum.ok(), Some(3));
    assert_eq!((locks.acquisitions("outer:1"), locks.acquisitions("inner:2")), (1, 1));
}
