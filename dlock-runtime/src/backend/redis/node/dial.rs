//! Over which network a connection is made: the machine's, and in simulations a simulated one.
//!
//! Not here: what a connection is made with (`link`).

use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Client, RedisResult};

/// Connects for commands. `within` is the limit that `config` has for that.
#[cfg_attr(not(test), expect(unused_variables, reason = "the client keeps the limit itself"))]
pub(super) async fn multiplexed(
    client: &Client,
    config: &AsyncConnectionConfig,
    within: Duration,
) -> RedisResult<MultiplexedConnection> {
    #[cfg(test)]
    if turmoil::in_simulation() {
        return simulated::multiplexed(client, config.clone(), within).await;
    }
    client.get_multiplexed_async_connection_with_config(config).await
}

/// Connects for messages.
pub(super) async fn pubsub(client: &Client) -> RedisResult<PubSub> {
    #[cfg(test)]
    if turmoil::in_simulation() {
        return simulated::pubsub(client).await;
    }
    client.get_async_pubsub().await
}

#[cfg(test)]
mod simulated {
    use std::io;

    use redis::ConnectionAddr;
    use turmoil::net::TcpStream;

    use super::*;

    pub(super) async fn multiplexed(
        client: &Client,
        config: AsyncConnectionConfig,
        within: Duration,
    ) -> RedisResult<MultiplexedConnection> {
        let opened = async {
            let access = client.get_connection_info().redis_settings();
            MultiplexedConnection::new_with_config(access, stream(client).await?, config).await
        };
        let opened = tokio::time::timeout(within, opened).await;
        let (connection, driver) = opened.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        tokio::spawn(driver); // it ends with the connection
        Ok(connection)
    }

    pub(super) async fn pubsub(client: &Client) -> RedisResult<PubSub> {
        PubSub::new(client.get_connection_info().redis_settings(), stream(client).await?).await
    }

    async fn stream(client: &Client) -> io::Result<TcpStream> {
        match client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).await,
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
