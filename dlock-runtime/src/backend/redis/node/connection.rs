//! A connection of the client, with what drives it and what is known of the bytes that come over it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;

use crate::backend::redis::node::inbound::Inbound;

/// A connection. It ends with its last clone, unless a `InlineDriver` drives it.
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
    /// Wraps a connection that `driver` drives, a task of its own.
    pub(super) fn new(
        client: MultiplexedConnection,
        inbound: Arc<Inbound>,
        driver: Option<AbortHandle>,
    ) -> Self {
        Self { client, shared: Arc::new(ConnectionInner { inbound, driver }) }
    }

    /// Returns what is known of the bytes that come over it.
    pub(crate) fn inbound(&self) -> &Arc<Inbound> {
        &self.shared.inbound
    }

    /// Returns what keeps it from ending; `None` if its clones do not.
    pub(crate) fn hold(&self) -> Option<impl Send + use<>> {
        self.shared.driver.as_ref().map(|_| Arc::clone(&self.shared))
    }

    /// Returns the connection of the client.
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

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}

impl Drop for ConnectionInner {
    fn drop(&mut self) {
        if let Some(driver) = &self.driver {
            driver.abort();
        }
    }
}
