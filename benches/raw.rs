//! The floor: the two commands that any lock of this kind sends, and nothing else.
//!
//! It neither waits nor renews, and notices no loss. One connection for all tasks, as our engine has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;

use crate::Failure;
use crate::server::Server;

/// `SET NX PX`, then a compare-and-delete by the script's name.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    script: Arc<str>,
    tokens: Arc<AtomicU64>,
}

impl Raw {
    pub(crate) async fn connect(server: &Server) -> Result<Self, Failure> {
        let mut connection = server.connect().await?;
        let script: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(&mut connection).await?;
        Ok(Self { connection, script: script.into(), tokens: Arc::default() })
    }

    /// Takes the lock of `id` and releases it.
    pub(crate) async fn pair(&mut self, id: u64) -> Result<(), Failure> {
        let key = format!("raw:bench:{id}");
        // As wide as the tokens of ours.
        let token = format!("raw-{:028x}", self.tokens.fetch_add(1, Ordering::Relaxed));
        let answer: Option<String> = redis::cmd("SET")
            .arg(&key)
            .arg(&token)
            .arg("NX")
            .arg("PX")
            .arg(30_000)
            .query_async(&mut self.connection)
            .await?;
        if answer.is_none() {
            return Err(format!("`{key}` was taken, and nobody else uses it").into());
        }
        let released: i64 = redis::cmd("EVALSHA")
            .arg(&*self.script)
            .arg(1)
            .arg(&key)
            .arg(&token)
            .query_async(&mut self.connection)
            .await?;
        if released != 1 {
            return Err(format!("`{key}` was not ours any more").into());
        }
        Ok(())
    }
}

/// The script of the Redis manual's page on distributed locks.
pub(crate) const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
