//! Records that another client has written.

use dlock_runtime::{Error, LockManager};

use super::server;

/// A script that copied such a value would block the server.
#[tokio::test]
async fn a_huge_record_is_not_copied() {
    let server = server();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let many = "for n = 1, 200 do redis.call('HSET', KEYS[1], 'x:' .. n, '') end";
    for huge in ["redis.call('HSET', KEYS[1], 'x:1', string.rep('x', 2^25))", many] {
        let call = manager.idempotent("order:7");
        call.run(async |_| Ok::<_, Error>(1)).await.expect("it runs");
        let [record] = <[String; 1]>::try_from(server.call(&["KEYS", "*"]).texts()).expect("one record");
        server.call(&["EVAL", huge, "1", &record]);

        let refused = call.run(async |_| Ok::<_, Error>(2)).await;
        assert!(matches!(refused, Err(Error::WrongKind { .. })), "{refused:?}");
        assert!(matches!(call.status().await, Err(Error::WrongKind { .. })));
        assert!(matches!(call.forget().await, Err(Error::WrongKind { .. })));
        server.call(&["DEL", &record]);
    }
}

#[tokio::test]
async fn a_value_of_another_type_is_the_wrong_kind_and_stays() {
    let server = server();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (call, record) = (manager.idempotent("order:7"), "dlock:order:7##idem");
    for (write, of) in [(&["SET", record, "x"][..], "string"), (&["RPUSH", record, "x"], "list")] {
        server.call(write);

        let refused = call.run(async |_| Ok::<_, Error>(2)).await;
        assert!(matches!(refused, Err(Error::WrongKind { .. })), "{of}: {refused:?}");
        assert!(matches!(call.status().await, Err(Error::WrongKind { .. })), "{of}");
        assert!(matches!(call.forget().await, Err(Error::WrongKind { .. })), "{of}");
        assert!(matches!(call.resolve(&1).await, Err(Error::WrongKind { .. })), "{of}");
        assert_eq!(server.call(&["TYPE", record]).text(), Some(of), "it stays");
        server.call(&["DEL", record]);
    }
}
