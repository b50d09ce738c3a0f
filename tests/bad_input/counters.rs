//! Values of other clients under the name of a fencing counter: tokens rise, or an error names the
//! remedy.

use dlock_runtime::{Error, FencingToken, LockManager};
use dlock_tests::RedisServer;

use super::{LONG, connect};

/// Returns the next fencing token of the lock `order:7`.
async fn next_token(manager: &LockManager) -> Result<u64, Error> {
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let fence = guard.fencing_token().await.map(FencingToken::get);
    guard.release().await.expect("an invalid counter is no reason to lose the lock");
    fence
}

#[tokio::test]
async fn exhausted_or_invalid_counter_error_names_the_key() {
    let server = RedisServer::start();
    server.allow(dlock_tests::acl::documented_for_redisson());
    for (suffix, counter, spent) in [
        ("", "{dlock:order:7}##token", "9007199254740991"),
        ("?layout=redisson", "redisson_lock_token:{dlock:order:7}", "9223372036854775807"),
    ] {
        let manager = connect(&server.url_with(suffix)).await.expect("the server accepts connections");
        for value in
            [spent, "18446744073709551616", "inf", "1e308", "-1", "", "text", " 7", &"9".repeat(100_000)]
        {
            server.call(&["SET", counter, value]);

            let refused = next_token(&manager).await;

            let Err(error @ Error::FencingCounter { .. }) = refused else {
                panic!("{value:.20}: {refused:?}")
            };
            assert!(error.to_string().contains(counter) && error.to_string().contains("delete"), "{error}");
            assert_eq!(error.http_status(), 500);
            assert_eq!(error.retry_after(), None);
            assert_eq!(server.call(&["GET", counter]).text(), Some(value), "{value:.20} is left as it is");
        }
        server.call(&["DEL", counter]);
        let first = next_token(&manager).await.expect("the counter starts again");
        let second = next_token(&manager).await.expect("the counter works");
        assert!(first < second, "{first} before {second}");
        server.call(&["DEL", counter]);
    }
}

#[tokio::test]
async fn tokens_rise_by_one_up_to_the_last_and_none_is_given_twice() {
    let server = RedisServer::start();
    server.allow(dlock_tests::acl::documented_for_redisson());
    for (suffix, counter, last) in [
        ("", "{dlock:order:7}##token", 9_007_199_254_740_991_u64),
        ("?layout=redisson", "redisson_lock_token:{dlock:order:7}", 9_223_372_036_854_775_807),
    ] {
        let manager = connect(&server.url_with(suffix)).await.expect("the server accepts connections");
        server.call(&["SET", counter, &(last - 3).to_string()]);

        for token in last - 2..=last {
            assert_eq!(next_token(&manager).await.ok(), Some(token));
        }
        for _ in 0..3 {
            let spent = next_token(&manager).await;
            assert!(matches!(spent, Err(Error::FencingCounter { .. })), "{spent:?}");
        }
    }
}
