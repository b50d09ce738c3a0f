//! Records of idempotent calls: a start, a step, and an end count once the replicas have them.

use dlock_runtime::{Error, LockKey};
use dlock_tests::{acl, within};

use crate::replica_pair::{LONG, Pair};

async fn pair_with_records() -> Pair {
    let pair = Pair::start().await;
    pair.master.allow(acl::documented_besides(acl::WITH_RECORDS));
    pair
}

fn failure() -> Error {
    LockKey::new("").expect_err("a key is not empty").into()
}

/// The end of a call, and whether its body succeeds. An error is forgotten.
const ENDS: [(&str, bool); 2] = [("completed", true), ("forgotten", false)];

#[tokio::test]
async fn an_end_that_no_replica_has_is_pending_until_one_has_it() {
    for (key, succeeds) in ENDS {
        let pair = pair_with_records().await;
        let manager = pair.patient().await;
        let call = manager.idempotent(key);
        let ended = call.run_attached(async |_record| {
            pair.replica.pause();
            if succeeds { Ok(7) } else { Err(failure()) }
        });
        let ended = within(LONG, "the call", ended).await;
        assert_eq!(ended.is_ok(), succeeds, "the caller gets what the body returned: {ended:?}");
        assert_eq!(manager.pending_results(), 1, "{key}");

        pair.replica.resume();
        pair.until(|_| manager.pending_results() == 0).await;
        let record = format!("dlock:{key}##idem");
        let phase = pair.replica.call(&["HGET", &record, "s"]);
        assert_eq!(phase.text(), succeeds.then_some("C"), "{key} on the replica");
    }
}

#[tokio::test]
async fn a_forgotten_call_is_gone_from_the_replicas() {
    let pair = pair_with_records().await;
    let manager = pair.patient().await;
    let record = "dlock:k##idem";
    let call = manager.idempotent("k");
    let failed = call.run_attached(async |_record| {
        assert_eq!(pair.replica.call(&["EXISTS", record]).integer(), Some(1), "the start is there");
        Err::<u8, _>(failure())
    });

    assert!(failed.await.is_err());
    assert_eq!(manager.pending_results(), 0, "the replica has acknowledged the end");
    assert_eq!(pair.replica.call(&["EXISTS", record]).integer(), Some(0));
}
