//! Over which network a connection is made: the machine's, and in simulations a simulated one.
//!
//! Not here: what a connection is made with (`link`), what drives it (`pump`).

use std::io;
#[cfg(unix)]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::time::error::Elapsed;

use crate::backend::redis::node::connection::Connection;
#[cfg(feature = "tls")]
use crate::backend::redis::node::inbound::FirstBytes;
use crate::backend::redis::node::inbound::{Inbound, InboundStream};
use crate::backend::redis::node::inline_io::{InlineDriver, SharedDriver};
use crate::backend::redis::node::resolve::resolve;
#[cfg(feature = "tls")]
use crate::backend::redis::node::tls::TlsConnector;
use crate::fork::{InOneProcess, in_one_process};

/// What one connection is made with.
pub(super) struct Dialer {
    /// Where the server is, and as whom to log in.
    pub(super) client: Client,
    /// What TLS is spoken with, if the URL asks for it.
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsConnector>,
    /// Notes what comes over it.
    pub(super) inbound: Arc<Inbound>,
}

/// Connects for commands, with what has them sent at once where there is such a thing. `within` is the limit that `config` has for that;
/// `tender` drives the connection where nobody sends, or a task of its own.
pub(super) async fn pumped(
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
    within: Duration,
    tender: Option<&SharedDriver>,
) -> RedisResult<(Connection, Option<InlineDriver>)> {
    #[cfg(feature = "tls")]
    if dialer.tls.is_some() {
        return Ok((multiplexed(dialer, config, within).await?, None));
    }
    let client = &dialer.client;
    let opened = async {
        #[cfg(test)]
        if turmoil::in_simulation() {
            return driven(simulated(client).await?, dialer, config, tender).await;
        }
        match client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => {
                driven(tcp(client, host, *port).await?, dialer, config, tender).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => driven(unix(path).await?, dialer, config, tender).await,
            _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        }
    };
    let (connection, pump) = tokio::time::timeout(within, opened).await.map_err(late)??;
    Ok((connection, Some(pump)))
}

/// Connects for commands.
pub(super) async fn multiplexed(
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
    within: Duration,
) -> RedisResult<Connection> {
    let opened = async { over(stream(dialer).await?, dialer, config).await };
    let (connection, driver) = tokio::time::timeout(within, opened).await.map_err(late)??;
    let driver = tokio::spawn(in_one_process(driver)).abort_handle();
    Ok(Connection::new(connection, Arc::clone(&dialer.inbound), Some(driver)))
}

/// Connects for messages.
pub(super) async fn pubsub(dialer: &Dialer) -> RedisResult<PubSub> {
    let access = dialer.client.get_connection_info().redis_settings();
    PubSub::new(access, InboundStream::new(stream(dialer).await?, &dialer.inbound)).await
}

fn late(_: Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Makes a connection out of a stream, which is driven from here on.
async fn driven(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
    tender: Option<&SharedDriver>,
) -> RedisResult<(Connection, InlineDriver)> {
    let (connection, driver) = over(stream, dialer, config).await?;
    let connection = Connection::new(connection, Arc::clone(&dialer.inbound), None);
    Ok((connection, InlineDriver::start(driver, tender)))
}

/// Makes a connection out of a stream, and what drives it.
async fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
) -> RedisResult<(MultiplexedConnection, impl Future<Output = ()> + Send + 'static)> {
    let access = dialer.client.get_connection_info().redis_settings();
    let stream = InboundStream::new(stream, &dialer.inbound);
    MultiplexedConnection::new_with_config(access, stream, config.clone()).await
}

/// A stream of any kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects, and speaks TLS if the URL asks for it.
async fn stream(dialer: &Dialer) -> io::Result<Box<dyn Stream>> {
    let client = &dialer.client;
    #[cfg(test)]
    if turmoil::in_simulation() {
        return Ok(Box::new(simulated(client).await?));
    }
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) => {
            let stream = tcp(client, host, *port).await?;
            #[cfg(feature = "tls")]
            if let Some(tls) = &dialer.tls {
                let stream = FirstBytes::new(stream, &dialer.inbound);
                return Ok(Box::new(tls.connect(stream).await?));
            }
            Ok(Box::new(stream))
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Ok(Box::new(unix(path).await?)),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Connects to whichever address of a host takes us first.
async fn tcp(client: &Client, host: &str, port: u16) -> io::Result<InOneProcess<TcpStream>> {
    let ways = resolve(host, port).await?.into_iter().map(|at| Box::pin(TcpStream::connect(at)));
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
    Ok(InOneProcess::new(stream))
}

#[cfg(unix)]
async fn unix(path: &Path) -> io::Result<InOneProcess<UnixStream>> {
    Ok(InOneProcess::new(UnixStream::connect(path).await?))
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
