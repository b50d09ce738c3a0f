//! The floor: the two commands that every such lock sends, and nothing else.
//!
//! It polls while it waits, does not renew, and does not detect a loss. All tasks share one
//! connection, as in the engine of dlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_bench_peer::{Called, LEASE, Library, Result};
use redis::aio::MultiplexedConnection;

use crate::server::connect;

/// `SET NX PX`, then a compare-and-delete by the script's hash.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    script: Arc<str>,
    tokens: Arc<AtomicU64>,
}

/// A key and the token of its holder.
#[derive(Debug)]
pub(crate) struct Held {
    pub(super) key: String,
    pub(super) token: String,
}

impl Raw {
    pub(crate) async fn connect(address: &str) -> Result<Self> {
        let mut connection = connect(address).await?;
        let script = load(&mut connection).await?;
        Ok(Self { connection, script, tokens: Arc::new(AtomicU64::new(first_token())) })
    }

    /// Returns `true` if the key was free.
    async fn set(&self, held: &Held, lease: Duration) -> Result<bool> {
        let answer: Option<String> = redis::cmd("SET")
            .arg(&held.key)
            .arg(&held.token)
            .arg("NX")
            .arg("PX")
            .arg(u64::try_from(lease.as_millis())?)
            .query_async(&mut self.connection.clone())
            .await?;
        Ok(answer.is_some())
    }

    fn held(&self, key: String) -> Held {
        // As long as the tokens of dlock.
        Held { key, token: format!("{:032x}", self.tokens.fetch_add(1, Ordering::Relaxed)) }
    }
}

impl Library for Raw {
    type Guard = Held;

    async fn lock(&self, key: &str, wait: Duration, lease: Duration) -> Result<Held> {
        let (held, asked) = (self.held(format!("raw:{key}")), Instant::now());
        while !self.set(&held, lease).await? {
            if asked.elapsed() >= wait {
                return Err(format!("`{key}` was held by others for {wait:?}").into());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(held)
    }

    async fn unlock(&self, held: Held) -> Result<()> {
        let released: i64 = redis::cmd("EVALSHA")
            .arg(&*self.script)
            .arg(1)
            .arg(&held.key)
            .arg(&held.token)
            .query_async(&mut self.connection.clone())
            .await?;
        if released == 1 { Ok(()) } else { Err(format!("`{}` was lost before its release", held.key).into()) }
    }

    async fn pair(&self, id: u64) -> Result<()> {
        let held = self.held(format!("raw:bench:{id}"));
        if !self.set(&held, LEASE).await? {
            return Err(format!("`{}` was taken, although no other task uses it", held.key).into());
        }
        self.unlock(held).await
    }

    /// The least that a stored result costs: a mark before the body, and the result after it.
    async fn call(&self, key: &str, body: Duration) -> Result<Called> {
        let mut set = redis::cmd("SET");
        set.arg(format!("raw:{key}"));
        let mut mark = set.clone();
        mark.arg(RUNNING).arg("NX").arg("GET").arg("EX").arg(RETENTION_SECS);
        let found: Option<String> = mark.query_async(&mut self.connection.clone()).await?;
        match found.as_deref() {
            Some(RUNNING) => Ok(Called::Refused),
            Some(_) => Ok(Called::Replayed),
            None => {
                if body > Duration::ZERO {
                    tokio::time::sleep(body).await;
                }
                set.arg("\"paid\"").arg("EX").arg(RETENTION_SECS);
                set.exec_async(&mut self.connection.clone()).await?;
                Ok(Called::Ran)
            }
        }
    }
}

/// Loads the script that releases into a server, and returns its hash.
pub(super) async fn load(connection: &mut MultiplexedConnection) -> Result<Arc<str>> {
    let name: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(connection).await?;
    Ok(name.into())
}

/// Returns the first token of this process, far from those of other processes.
pub(super) fn first_token() -> u64 {
    u64::from(std::process::id()) << 40
}

/// The script of the Redis manual's page on distributed locks.
const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// The value of a call that runs.
const RUNNING: &str = "running";

/// The time for which a result is stored: the default of dlock.
const RETENTION_SECS: u64 = 24 * 3_600;

/// The interval at which a held lock is polled.
const POLL: Duration = Duration::from_millis(1);
