//! The sockets of connections: TCP, Unix, TLS, and the simulated network of tests.

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
use tokio::sync::Notify;
use tokio::time::error::Elapsed;

use crate::backend::redis::node::connection::{Connection, DriverTask};
#[cfg(feature = "tls")]
use crate::backend::redis::node::inbound::FirstBytes;
use crate::backend::redis::node::inbound::{Inbound, InboundStream};
use crate::backend::redis::node::inline_io::{InlineDriver, SharedDriver};
use crate::backend::redis::node::resolve::resolve;
#[cfg(feature = "tls")]
use crate::backend::redis::node::tls::TlsConnector;
use crate::fork::{InOneProcess, in_one_process};

/// Opens one connection.
pub(super) struct Dialer {
    /// The address and the credentials.
    pub(super) client: Client,
    /// The TLS configuration, if the URL asks for TLS.
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsConnector>,
    /// The state of the bytes that are received.
    pub(super) inbound: Arc<Inbound>,
}

/// Opens a connection for commands that senders poll; over TLS, one that a task drives.
///
/// `within` is the connect timeout. If `shared_driver` is `None`, the connection has a task of its
/// own.
pub(super) async fn inline(
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
    within: Duration,
    shared_driver: Option<&SharedDriver>,
) -> RedisResult<(Connection, Option<InlineDriver>)> {
    #[cfg(feature = "tls")]
    if dialer.tls.is_some() {
        return Ok((multiplexed(dialer, config, within).await?, None));
    }
    let client = &dialer.client;
    let opened = async {
        #[cfg(test)]
        if turmoil::in_simulation() {
            return driven(simulated(client).await?, dialer, config, shared_driver).await;
        }
        match client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => {
                driven(tcp(client, host, *port).await?, dialer, config, shared_driver).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => driven(unix(path).await?, dialer, config, shared_driver).await,
            _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        }
    };
    let (connection, driver) = tokio::time::timeout(within, opened).await.map_err(late)??;
    Ok((connection, Some(driver)))
}

/// Opens a connection that a task drives.
pub(super) async fn multiplexed(
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
    within: Duration,
) -> RedisResult<Connection> {
    let opened = async { over(stream(dialer).await?, dialer, config).await };
    let (connection, driver) = tokio::time::timeout(within, opened).await.map_err(late)??;
    let ended = Arc::new(Notify::new());
    let notifies = Arc::clone(&ended);
    let driver = async move {
        driver.await;
        notifies.notify_one();
    };
    let task = tokio::spawn(in_one_process(driver)).abort_handle();
    Ok(Connection::new(connection, Arc::clone(&dialer.inbound), Some(DriverTask { task, ended })))
}

/// Opens a pub/sub connection.
pub(super) async fn pubsub(dialer: &Dialer) -> RedisResult<PubSub> {
    let access = dialer.client.get_connection_info().redis_settings();
    PubSub::new(access, InboundStream::new(stream(dialer).await?, &dialer.inbound)).await
}

fn late(_: Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Makes a connection of a stream, with an [`InlineDriver`].
async fn driven(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    dialer: &Dialer,
    config: &AsyncConnectionConfig,
    shared_driver: Option<&SharedDriver>,
) -> RedisResult<(Connection, InlineDriver)> {
    let (connection, driver) = over(stream, dialer, config).await?;
    let connection = Connection::new(connection, Arc::clone(&dialer.inbound), None);
    Ok((connection, InlineDriver::start(driver, shared_driver)))
}

/// Makes a connection of a stream. The returned future drives it.
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

/// Connects, with TLS if the URL asks for it.
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

/// Connects to all addresses of a host at once, and uses the first that succeeds.
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

/// Returns the settings for TCP keepalive: probes after 5 s of silence, one second apart. The
/// connection ends after three probes without a reply.
///
/// A host that is gone sends nothing, and a firewall forgets silent connections. (RFC 9293, section
/// 3.8.4; `tcp(7)`.)
pub(super) fn keepalive() -> TcpKeepalive {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5));
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows))]
    let keepalive = keepalive.with_interval(Duration::from_secs(1)).with_retries(3); // other systems keep their own values
    keepalive
}

#[cfg(test)]
async fn simulated(client: &Client) -> io::Result<turmoil::net::TcpStream> {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) => turmoil::net::TcpStream::connect((host.as_str(), *port)).await,
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}
