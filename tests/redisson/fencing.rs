//! Fencing tokens rise from holder to holder across both libraries.

use crate::Fleet;

#[tokio::test]
async fn tokens_rise_across_both() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let mut tokens = Vec::new();

    for _ in 0..3 {
        tokens.push(java.does("t1", "fence k", "token").await.detail.parse::<u64>().expect("a number"));
        java.does("t1", "unlock k", "released").await;
        let guard = ours.lock("k").acquire().await.expect("free");
        tokens.push(guard.fencing_token().await.expect("held").get());
        guard.release().await.expect("held");
    }

    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    let life = server.call(&["PTTL", "redisson_lock_token:{k}"]);
    assert_eq!(life, dlock_tests::resp::Reply::Integer(-1), "without the counter, Redisson would start at 1");
}

#[tokio::test]
async fn a_token_is_above_all_that_java_has_counted() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let far = u64::from(u32::MAX) << 20;
    server.call(&["SET", "redisson_lock_token:{k}", &far.to_string()]);

    let guard = ours.lock("k").acquire().await.expect("free");
    assert_eq!(guard.fencing_token().await.expect("held").get(), far + 1);
    guard.release().await.expect("held");

    let token = java.does("t1", "fence k", "token").await.detail;
    assert_eq!(token, (far + 2).to_string());
}
