//! Over which network a connection is made: the machine's, and in simulations a simulated one.
//!
//! Not here: what a connection is made with (`link`), what drives it (`pump`).

use std::io;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::backend::redis::node::pump::{Pump, Tender};

/// Connects for commands, with what has them sent at once where there is such a thing. `within` is the limit that `config` has for that;
/// `tender` drives the connection where nobody sends, or a task of its own.
pub(super) async fn pumped(
    client: &Client,
    config: &AsyncConnectionConfig,
    within: Duration,
    tender: Option<&Tender>,
) -> RedisResult<(MultiplexedConnection, Option<Pump>)> {
    let opened = async {
        #[cfg(test)]
        if turmoil::in_simulation() {
            return over(simulated(client).await?, client, config, tender).await.map(Some);
        }
        match client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => {
                over(tcp(client, host, *port).await?, client, config, tender).await.map(Some)
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                over(tokio::net::UnixStream::connect(path).await?, client, config, tender).await.map(Some)
            }
            _ => Ok(None), // the client alone knows how
        }
    };
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    match tokio::time::timeout(within, opened).await.map_err(late)?? {
        Some((connection, pump)) => Ok((connection, Some(pump))),
        None => Ok((client.get_multiplexed_async_connection_with_config(config).await?, None)),
    }
}

/// Connects for commands.
pub(super) async fn multiplexed(
    client: &Client,
    config: &AsyncConnectionConfig,
    within: Duration,
) -> RedisResult<MultiplexedConnection> {
    #[cfg(test)]
    if turmoil::in_simulation() {
        let (connection, pump) = pumped(client, config, within, None).await?;
        pump.into_iter().for_each(Pump::leave);
        return Ok(connection);
    }
    let _ = within; // the client keeps the limit itself
    client.get_multiplexed_async_connection_with_config(config).await
}

/// Connects for messages.
pub(super) async fn pubsub(client: &Client) -> RedisResult<PubSub> {
    #[cfg(test)]
    if turmoil::in_simulation() {
        return PubSub::new(client.get_connection_info().redis_settings(), simulated(client).await?).await;
    }
    client.get_async_pubsub().await
}

/// Makes a connection out of a stream.
async fn over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: &Client,
    config: &AsyncConnectionConfig,
    tender: Option<&Tender>,
) -> RedisResult<(MultiplexedConnection, Pump)> {
    let access = client.get_connection_info().redis_settings();
    let (connection, driver) = MultiplexedConnection::new_with_config(access, stream, config.clone()).await?;
    Ok((connection, Pump::start(driver, tender)))
}

/// Connects to whichever address of a host takes us first.
async fn tcp(client: &Client, host: &str, port: u16) -> io::Result<TcpStream> {
    let ways = tokio::net::lookup_host((host, port)).await?.map(|at| Box::pin(TcpStream::connect(at)));
    let ways: Vec<_> = ways.collect();
    if ways.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, _) = select_ok(ways).await?;
    let settings = client.get_connection_info().tcp_settings();
    stream.set_nodelay(settings.nodelay())?;
    if let Some(keepalive) = settings.keepalive() {
        SockRef::from(&stream).set_tcp_keepalive(keepalive)?;
    }
    Ok(stream)
}

/// A connection over which nothing has been heard for five seconds has the kernel ask the other one; after three questions without an
/// answer, a second apart, it has ended. A machine that is gone says nothing of it, and a firewall forgets who is silent. (RFC 9293, 3.8.4;
/// `tcp(7)`.)
pub(super) fn keepalive() -> TcpKeepalive {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5));
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows))]
    let keepalive = keepalive.with_interval(Duration::from_secs(1)).with_retries(3); // elsewhere the system's own
    keepalive
}

#[cfg(test)]
async fn simulated(client: &Client) -> io::Result<turmoil::net::TcpStream> {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) => turmoil::net::TcpStream::connect((host.as_str(), *port)).await,
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}
