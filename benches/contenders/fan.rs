//! The floor of Redlock: sends the two commands to all servers, and waits for a majority.
//!
//! It does not wait for a held key, and does not renew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_bench_peer::{Library, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use crate::contenders::raw::{Held, first_token, load};
use crate::server::connect;

/// Connections to all servers.
#[derive(Clone, Debug)]
pub(crate) struct Fan {
    connections: Vec<MultiplexedConnection>,
    script: Arc<str>,
    tokens: Arc<AtomicU64>,
}

impl Fan {
    pub(crate) async fn connect(addresses: &[String]) -> Result<Self> {
        let (mut connections, mut script): (_, Arc<str>) = (Vec::new(), "".into());
        for address in addresses {
            let mut connection = connect(address).await?;
            script = load(&mut connection).await?;
            connections.push(connection);
        }
        Ok(Self { connections, script, tokens: Arc::new(AtomicU64::new(first_token())) })
    }

    /// Sends a command to all servers in parallel, and waits for a majority of `wanted`.
    async fn ask_all(&self, command: &Cmd, wanted: &Value) -> Result<()> {
        let asked = self
            .connections
            .iter()
            .cloned()
            .map(|mut connection| async move { connection.send_packed_command(command).await });
        let mut answers: FuturesUnordered<_> = asked.collect();
        let mut so_many = 0;
        while let Some(answer) = answers.next().await {
            so_many += usize::from(matches!(&answer, Ok(value) if value == wanted));
            if so_many > self.connections.len() / 2 {
                return Ok(());
            }
        }
        Err("no majority gave the expected reply, although no other task uses the key".into())
    }
}

impl Library for Fan {
    type Guard = Held;

    async fn lock(&self, key: &str, _wait: Duration, lease: Duration) -> Result<Held> {
        // A new key each time: leftovers on a slow server or of another process do not block it.
        // The token is as long as that of dlock.
        let turn = self.tokens.fetch_add(1, Ordering::Relaxed);
        let held = Held { key: format!("raw:{key}:{turn}"), token: format!("{turn:032x}") };
        let mut set = Cmd::new();
        set.arg("SET").arg(&held.key).arg(&held.token).arg("NX").arg("PX");
        self.ask_all(set.arg(u64::try_from(lease.as_millis())?), &Value::Okay).await?;
        Ok(held)
    }

    async fn unlock(&self, held: Held) -> Result<()> {
        let mut delete = Cmd::new();
        delete.arg("EVALSHA").arg(&*self.script).arg(1).arg(&held.key).arg(&held.token);
        self.ask_all(&delete, &Value::Int(1)).await
    }
}
