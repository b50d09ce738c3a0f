//! The scripts do what the rules do: random events of records, in memory and over Redis.

use dlock_runtime::__private::RecordEvents;
use dlock_runtime::LockManager;
use dlock_tests::dice::Dice;

use super::server;

/// Enough that every event meets every phase of a record.
const RECORDS: u64 = 300;
const EVENTS: u64 = 25;

#[tokio::test]
async fn the_scripts_follow_the_rules() {
    let server = server();
    let memory = LockManager::connect("memory://").await.expect("memory is always there");
    let redis = LockManager::connect(&server.url_with("")).await.expect("the server takes managers");

    for record in 0..RECORDS {
        let key = format!("dlock:r{record}##idem");
        let (in_memory, over_redis) = (RecordEvents::new(&memory, &key), RecordEvents::new(&redis, &key));
        let mut history = Vec::new();
        for number in 0..EVENTS {
            let choice = Dice::new(record << 32 | number).roll();
            history.push(in_memory.apply(choice).await);
            let replied = over_redis.apply(choice).await;
            assert_eq!(Some(&replied), history.last(), "record {record}: {history:#?}");
        }
    }
    assert_eq!(server.keys_without_expiry(), 0);
}
