//! The scripts do what the rules do: random events of records, in memory and over Redis.

use dlock_runtime::__private::RecordEvents;
use dlock_runtime::LockManager;

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
            let choice = mix(record << 32 | number);
            history.push(in_memory.apply(choice).await);
            let replied = over_redis.apply(choice).await;
            assert_eq!(Some(&replied), history.last(), "record {record}: {history:#?}");
        }
    }
    assert_eq!(server.call(&["EVAL", NO_TIME_TO_LIVE, "0"]).integer(), Some(0));
}

/// Counts keys that have no time to live.
const NO_TIME_TO_LIVE: &str = "
    local count = 0
    for _, key in ipairs(redis.call('KEYS', '*')) do
      if redis.call('PTTL', key) < 0 then count = count + 1 end
    end
    return count";

/// Returns a pseudorandom number (splitmix64; Steele, Lea, and Flood, OOPSLA 2014).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
