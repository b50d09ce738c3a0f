//! A resource that is protected by locks and rejects a write whose fencing token is below the
//! highest one.
//!
//! It is a script on a separate Redis to which no fault is applied. The resource counts the writes
//! of each key, so that their order does not depend on timestamps of slow processes.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError, cmd};

/// A connection to the resource. Each process has its own.
#[derive(Clone, Debug)]
pub struct Guarded {
    connection: MultiplexedConnection,
    scene: String,
}

/// The reply of the resource to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Whether the resource accepted the write.
    pub accepted: bool,
    /// The number of the write among those of its key.
    pub turn: u64,
    /// The highest token that the resource had accepted before.
    pub highest: u64,
}

impl Guarded {
    /// Connects to the Redis on `port`. Each `scene` has its own resource.
    ///
    /// # Errors
    ///
    /// Fails if no server listens on `port`.
    pub async fn connect(port: u16, scene: &str) -> Result<Self, RedisError> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        // A timeout would fail tests on a busy machine, and this connection is not under test.
        let config =
            redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { connection, scene: scene.to_owned() })
    }

    /// Writes with a fencing token.
    ///
    /// # Errors
    ///
    /// Fails if the resource does not reply.
    pub async fn write(&self, key: &str, token: u64) -> Result<Written, RedisError> {
        let write = cmd("EVAL").arg(WRITE).arg(1).arg(self.name(key)).arg(token).to_owned();
        let (accepted, turn, highest): (u64, u64, u64) = self.ask(write).await?;
        Ok(Written { accepted: accepted == 1, turn, highest })
    }

    /// Returns the number of writes with `key`.
    ///
    /// # Errors
    ///
    /// Fails if the resource does not reply.
    pub async fn turns(&self, key: &str) -> Result<u64, RedisError> {
        let turns: Option<u64> = self.ask(cmd("HGET").arg(self.name(key)).arg("turn").to_owned()).await?;
        Ok(turns.unwrap_or_default())
    }

    async fn ask<T: FromRedisValue>(&self, command: Cmd) -> Result<T, RedisError> {
        command.query_async(&mut self.connection.clone()).await
    }

    fn name(&self, key: &str) -> String {
        format!("{}:{key}", self.scene)
    }
}

/// Tokens are below 2^53, so Lua compares them exactly.
const WRITE: &str = r"
local turn = redis.call('HINCRBY', KEYS[1], 'turn', 1)
local highest = redis.call('HGET', KEYS[1], 'highest') or '0'
if tonumber(ARGV[1]) < tonumber(highest) then return {'0', tostring(turn), highest} end
redis.call('HSET', KEYS[1], 'highest', ARGV[1])
return {'1', tostring(turn), highest}
";
