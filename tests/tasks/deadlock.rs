//! T6: two processes lock two keys in opposite order. Within one process, this is reported at once
//! as a deadlock (`tests/contract/running`). Between processes, no process can detect the cycle, so
//! the wait limits end it.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::{RedisServer, overrun};
use tokio::sync::Barrier;

use super::{LONG, PROMPT, assert_nothing_is_left, manager_of};

#[tokio::test]
async fn deadlock_between_processes_ends_within_the_waits() {
    let wait = Duration::from_millis(600);
    let server = RedisServer::start();
    let both_hold = Barrier::new(2);
    let chain = async |outer: &str, inner: &str| {
        let manager = manager_of(&server).await;
        let (outer, inner) = (manager.lock(outer).lease(LONG), manager.lock(inner).lease(LONG).wait(wait));
        let outcome = outer
            .run(async |guard| {
                both_hold.wait().await;
                let ended = overrun(wait, inner.run(async |_guard| ())).await;
                guard.check().expect("the outer lock is held throughout");
                ended
            })
            .await;
        outcome.expect("the outer lock is free")
    };

    let chains = tokio::join!(chain("left", "right"), chain("right", "left"));

    // The first chain to give up releases its outer lock, which the other may still acquire.
    let outcomes = [&chains.0, &chains.1];
    let refused =
        outcomes.iter().filter(|(outcome, _)| matches!(outcome, Err(Error::Contended { .. }))).count();
    let had = outcomes.iter().filter(|(outcome, _)| outcome.is_ok()).count();
    assert!(refused >= 1 && refused + had == 2, "{outcomes:?}");
    assert!(outcomes.iter().all(|(_, late)| *late < Duration::from_millis(100)), "{outcomes:?}");
    assert_nothing_is_left(&server, PROMPT).await;
}
