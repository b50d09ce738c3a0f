//! A connection of the client library, with its driver and the state of the received bytes.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;

use crate::backend::redis::transport::inbound::Inbound;

/// A connection. It ends with its last clone, unless an `InlineDriver` drives it.
#[derive(Clone)]
pub(crate) struct Connection {
    client: MultiplexedConnection,
    shared: Arc<ConnectionInner>,
}

struct ConnectionInner {
    inbound: Arc<Inbound>,
    driver: Option<AbortHandle>,
}

impl Connection {
    /// Wraps a connection. `driver` is its task, unless an `InlineDriver` drives it.
    pub(super) fn new(
        client: MultiplexedConnection,
        inbound: Arc<Inbound>,
        driver: Option<AbortHandle>,
    ) -> Self {
        Self { client, shared: Arc::new(ConnectionInner { inbound, driver }) }
    }

    /// Returns the state of the received bytes.
    pub(crate) fn inbound(&self) -> &Arc<Inbound> {
        &self.shared.inbound
    }

    /// Returns a value that keeps the connection open, or `None` if its driver does.
    pub(crate) fn hold(&self) -> Option<impl Send + use<>> {
        self.shared.driver.as_ref().map(|_| Arc::clone(&self.shared))
    }

    /// Returns the connection of the client library.
    pub(crate) fn client(&self) -> &MultiplexedConnection {
        &self.client
    }
}

impl Deref for Connection {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.client
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.client
    }
}

impl Drop for ConnectionInner {
    fn drop(&mut self) {
        if let Some(driver) = &self.driver {
            driver.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use redis::AsyncConnectionConfig;

    use crate::backend::redis::tests::resp::primary;
    use crate::backend::redis::transport::tests::duplex_server::connection;
    use crate::sync::lock;

    #[tokio::test]
    async fn an_unanswered_connection_ends_with_its_last_holder() {
        for is_held in [true, false] {
            let (received, commands) = mpsc::channel();
            let (connection, server) = connection(AsyncConnectionConfig::new(), move |command| {
                received.send(command.to_owned()).expect("the test runs");
                if command == "PING" { String::new() } else { primary(command) }
            })
            .await;
            let commands = Mutex::new(commands);
            let mut client = connection.client().clone();
            let ping = tokio::spawn(async move { client.send_packed_command(&redis::cmd("PING")).await });
            while !lock(&commands).try_iter().any(|command| command == "PING") {
                tokio::task::yield_now().await;
            }

            let hold = connection.hold().filter(|_| is_held);
            drop(connection);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }

            assert_eq!((server.is_finished(), ping.is_finished()), (!is_held, !is_held));
            drop(hold);
            server.await.expect("no panic");
            assert!(ping.await.expect("no panic").is_err());
        }
    }
}
