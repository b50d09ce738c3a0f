//! What locks are for: a resource that keeps the highest fencing token and refuses a write with a lower one.
//!
//! A script in a Redis of its own, which no fault befalls. It counts the writes of each key, so that they have an order that no stamp of
//! a slow process can change.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError, cmd};

/// A connection to the resource; each process has its own.
#[derive(Clone, Debug)]
pub struct Guarded {
    connection: MultiplexedConnection,
    scene: String,
}

/// What the resource says to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Whether it took it.
    pub accepted: bool,
    /// Which write of its key it was.
    pub turn: u64,
    /// The highest token that it had taken before.
    pub highest: u64,
}

impl Guarded {
    /// Connects to the Redis at `port`, where each `scene` has a resource of its own.
    ///
    /// # Errors
    ///
    /// Fails if nobody listens there.
    pub async fn connect(port: u16, scene: &str) -> Result<Self, RedisError> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        // Whoever uses it is slow where all of the machine is, and is not what is tested.
        let config =
            redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { connection, scene: scene.to_owned() })
    }

    /// Writes with a fencing token.
    ///
    /// # Errors
    ///
    /// Fails if the resource does not answer.
    pub async fn write(&self, key: &str, token: u64) -> Result<Written, RedisError> {
        let write = cmd("EVAL").arg(WRITE).arg(1).arg(self.name(key)).arg(token).to_owned();
        let (accepted, turn, highest): (u64, u64, u64) = self.ask(write).await?;
        Ok(Written { accepted: accepted == 1, turn, highest })
    }

    /// Returns how often the resource was written to with `key`.
    ///
    /// # Errors
    ///
    /// Fails if the resource does not answer.
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

/// Tokens are below 2^53: Lua compares them exactly.
const WRITE: &str = r"
local turn = redis.call('HINCRBY', KEYS[1], 'turn', 1)
local highest = redis.call('HGET', KEYS[1], 'highest') or '0'
if tonumber(ARGV[1]) < tonumber(highest) then return {'0', tostring(turn), highest} end
redis.call('HSET', KEYS[1], 'highest', ARGV[1])
return {'1', tostring(turn), highest}
";
