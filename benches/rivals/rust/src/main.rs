//! Rust's libraries as contenders of the benchmarks.
//!
//! ```text
//! rivals rslock|async-redis-lock|distributed-lock-redis|redis-lock|axum-idempotent HOST:PORT..
//! ```
//!
//! The file of each library describes its use and its settings. `dlock_bench_peer` defines the
//! protocol.

mod async_redis_lock;
mod axum_idempotent;
mod connection;
mod distributed_lock_redis;
mod redis_lock;
mod rslock;

use std::process::ExitCode;

use dlock_bench_peer::{Threads, serve};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let servers: Vec<String> = arguments.collect();
    match &*name {
        "rslock" => serve(Threads::Two, rslock::Rslock::connect(&servers)),
        "async-redis-lock" => serve(Threads::Two, async_redis_lock::AsyncRedisLock::connect(&servers)),
        "distributed-lock-redis" => serve(Threads::Two, distributed_lock_redis::Provider::connect(servers)),
        "redis-lock" => serve(Threads::Two, redis_lock::RedisLock::connect(&servers)),
        "axum-idempotent" => serve(Threads::Two, axum_idempotent::AxumIdempotent::connect(&servers)),
        _ => {
            eprintln!("no rival is called `{name}`");
            ExitCode::FAILURE
        }
    }
}
