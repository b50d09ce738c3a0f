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
#[cfg(feature = "tls")]
use tokio_rustls::client::TlsStream;

use crate::backend::redis::node::pump::{Pump, Tender};
#[cfg(feature = "tls")]
use crate::backend::redis::node::tls::TlsConnector;

/// What one connection is made with.
pub(super) struct Dialer {
    /// Where the server is, and as whom to log in.
    pub(super) client: Client,
    /// What TLS is spoken with, if the URL asks for it.
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsConnector>,
}

/// Connects for commands, with what has them sent at once where there is such a thing. `within` is the limit that `config` has for that;
/// `tender` drives the connection where nobody sends, or a task of its own.
pub(super) async fn pumped(
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
    within: Duration,
    tender: Option<&Tender>,
) -> RedisResult<(MultiplexedConnection, Option<Pump>)> {
    let client = &dialer.client;
    #[cfg(feature = "tls")]
    if let Some(connection) = multiplexed_over_tls(dialer, config, within).await? {
        return Ok((connection, None));
    }
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
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
    within: Duration,
) -> RedisResult<MultiplexedConnection> {
    let client = &dialer.client;
    #[cfg(feature = "tls")]
    if let Some(connection) = multiplexed_over_tls(dialer, config, within).await? {
        return Ok(connection);
    }
    #[cfg(test)]
    if turmoil::in_simulation() {
        let (connection, pump) = pumped(dialer, config, within, None).await?;
        pump.into_iter().for_each(Pump::leave);
        return Ok(connection);
    }
    let _ = within; // the client keeps the limit itself
    client.get_multiplexed_async_connection_with_config(config).await
}

/// Connects for commands over TLS. Returns `None` if the URL asks for no TLS.
#[cfg(feature = "tls")]
async fn multiplexed_over_tls(
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
    within: Duration,
) -> RedisResult<Option<MultiplexedConnection>> {
    let opened = async {
        let Some(stream) = over_tls(dialer).await? else { return Ok(None) };
        let access = dialer.client.get_connection_info().redis_settings();
        MultiplexedConnection::new_with_config(access, stream, config.clone()).await.map(Some)
    };
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let opened = tokio::time::timeout(within, opened).await.map_err(late)??;
    Ok(opened.map(|(connection, driver)| {
        tokio::spawn(driver); // ends when the last clone of the connection is dropped
        connection
    }))
}

/// Connects for messages.
pub(super) async fn pubsub(dialer: &Dialer) -> RedisResult<PubSub> {
    let client = &dialer.client;
    #[cfg(feature = "tls")]
    if let Some(stream) = over_tls(dialer).await? {
        return PubSub::new(client.get_connection_info().redis_settings(), stream).await;
    }
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

/// Connects and speaks TLS. Returns `None` if the URL asks for no TLS.
#[cfg(feature = "tls")]
async fn over_tls(dialer: &Dialer) -> io::Result<Option<Box<TlsStream<TcpStream>>>> {
    match (&dialer.tls, dialer.client.get_connection_info().addr()) {
        (Some(tls), ConnectionAddr::Tcp(host, port)) => {
            let stream = tcp(&dialer.client, host, *port).await?;
            Ok(Some(Box::new(tls.connect(stream).await?)))
        }
        _ => Ok(None),
    }
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
