//! A client that uses SET NX: rslock, driven by text lines. See tests/support/fleet.rs.

use std::io::BufRead;
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use rslock::{Lock, LockError, LockManager};

/// The pause after a hold. Pollers that do not pause starve each other.
const REST: Duration = Duration::from_millis(30);

/// The retry delay of the library.
const RETRY_DELAY: Duration = Duration::from_millis(200);

struct Fleet {
    locks: LockManager,
    server: MultiplexedConnection,
    held: Option<Lock>,
}

impl Fleet {
    async fn answer(&mut self, words: &[&str]) -> Result<String, LockError> {
        match *words {
            ["lock", name, lease] => {
                self.held = Some(self.locks.acquire_no_guard(name, millis(lease)).await?);
                Ok("locked".to_owned())
            }
            ["try", name, lease] => {
                self.locks.set_retry(0, RETRY_DELAY);
                let Ok(lock) = self.locks.lock(name, millis(lease)).await else {
                    return Ok("taken".to_owned());
                };
                self.held = Some(lock);
                Ok("locked".to_owned())
            }
            ["extend"] => {
                let held = self.held.as_ref().expect("something is held");
                self.locks.set_retry(0, RETRY_DELAY);
                self.locks.extend(held, Duration::from_secs(10)).await?;
                Ok("extended".to_owned())
            }
            ["unlock"] => {
                // The library does not report whether it owned the lock.
                self.locks.unlock(self.held.as_ref().expect("something is held")).await;
                Ok("unlocked".to_owned())
            }
            ["soak", name, counter, seconds, hold, lease] => {
                let seconds = Duration::from_secs_f64(seconds.parse().expect("a number"));
                self.soak(name, counter, seconds, millis(hold), millis(lease)).await
            }
            _ => panic!("no such command: {words:?}"),
        }
    }

    async fn soak(
        &mut self,
        name: &str,
        counter: &str,
        length: Duration,
        hold: Duration,
        lease: Duration,
    ) -> Result<String, LockError> {
        let (end, mut count) = (Instant::now() + length, 0);
        while Instant::now() < end {
            let tries = (end - Instant::now()).as_millis() / RETRY_DELAY.as_millis();
            self.locks.set_retry(u32::try_from(tries).expect("a short soak"), RETRY_DELAY);
            let Ok(lock) = self.locks.lock(name, lease).await else { continue };
            let seen: Option<u64> = self.server.get(counter).await?;
            tokio::time::sleep(hold).await;
            let () = self.server.set(counter, seen.unwrap_or_default() + 1).await?;
            self.locks.unlock(&lock).await;
            count += 1;
            tokio::time::sleep(REST).await;
        }
        Ok(format!("done {count}"))
    }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("a number of milliseconds"))
}

fn main() {
    let url = std::env::args().nth(1).expect("the first argument is the server's URL");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let client = redis::Client::open(&*url).expect("a URL");
        let server = client.get_multiplexed_async_connection().await.expect("the server replies");
        let locks = LockManager::from_clients(vec![client]);
        let mut fleet = Fleet { locks, server, held: None };
        println!("ready");
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if line == "quit" {
                break;
            }
            let words: Vec<_> = line.split_whitespace().collect();
            match fleet.answer(&words).await {
                Ok(reply) => println!("{reply}"),
                Err(error) => println!("failed {error}"),
            }
        }
    });
}
