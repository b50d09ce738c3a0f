//! Outcomes other than an error, for every shape of return type that has one.

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, distributed_lock};

use crate::under;

#[distributed_lock(key = "skip:<id>", on_contended = skip)]
async fn skipped(id: u8) -> Result<Option<u8>, Error> {
    tokio::task::yield_now().await;
    Ok(Some(id))
}

#[distributed_lock(key = "early:<id>", on_contended = skip)]
async fn skipped_early(id: u8, out: &mut u8) {
    tokio::task::yield_now().await;
    if id == 0 {
        return;
    }
    *out = id;
}

#[distributed_lock(key = "return:<id>", on_contended = return(id), on_unavailable = run)]
async fn returned(id: u8) -> u8 {
    tokio::task::yield_now().await;
    id + 1
}

#[distributed_lock(key = "either:<id>", on_contended = skip, on_unavailable = skip)]
async fn skipped_either_way(id: u8) -> Option<u8> {
    tokio::task::yield_now().await;
    Some(id)
}

struct Service(u8);

impl Service {
    #[distributed_lock(key = "fallback:<id>:<text>", on_contended = fallback(Self::other))]
    async fn method(&mut self, id: u8, (text, mut rest): (String, Vec<u8>)) -> Result<usize, Error> {
        tokio::task::yield_now().await;
        self.0 += 1;
        rest.push(id);
        Ok(rest.len() + text.len())
    }

    #[expect(clippy::needless_pass_by_ref_mut, reason = "it has the arguments of `method`")]
    async fn other(&mut self, id: u8, given: (String, Vec<u8>)) -> Result<usize, Error> {
        tokio::task::yield_now().await;
        Ok(given.0.len() * usize::from(id))
    }
}

#[distributed_lock(key = "finish:<id>", on_contended = fallback(busy), on_lost = finish)]
async fn finished(id: u8, mut name: String) -> String {
    tokio::task::yield_now().await;
    name.push_str(&id.to_string());
    name
}

async fn busy(_: u8, name: String) -> String {
    tokio::task::yield_now().await;
    name
}

#[tokio::test]
async fn each_outcome_runs_its_body_under_the_lock() {
    let mut early = 0;

    assert_eq!(under("skip:7", skipped(7)).await.ok(), Some(Some(7)));
    under("early:7", skipped_early(7, &mut early)).await;
    assert_eq!(early, 7);
    assert_eq!(under("return:7", returned(7)).await, 8);
    assert_eq!(under("either:7", skipped_either_way(7)).await, Some(7));
    let mut service = Service(0);
    let method = service.method(7, ("a".to_owned(), vec![1]));
    assert_eq!(under("fallback:7:a", method).await.ok(), Some(3));
    assert_eq!(under("finish:7", finished(7, "a".to_owned())).await, "a7");
}

#[tokio::test]
async fn each_outcome_stands_for_contention() {
    let locks = TestLocks::new();
    for key in &["skip:7", "return:7", "either:7", "fallback:7:a", "finish:7"] {
        std::mem::forget(locks.hold(*key).await);
    }

    assert_eq!(locks.run(skipped(7)).await.ok(), Some(None));
    assert_eq!(locks.run(returned(7)).await, 7);
    assert_eq!(locks.run(skipped_either_way(7)).await, None);
    let mut service = Service(0);
    let method = service.method(7, ("a".to_owned(), vec![1]));
    assert_eq!(locks.run(method).await.ok(), Some(7));
    assert_eq!(locks.run(finished(7, "a".to_owned())).await, "a");
}
