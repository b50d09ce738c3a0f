//! The sockets of connections: TCP, Unix, TLS, and the simulated network of tests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
#[cfg(feature = "tls")]
use tokio_util::io::InspectReader;

use crate::backend::redis::runtimes::Runtimes;
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::inbound::{Inbound, InboundStream};
use crate::backend::redis::transport::inline_io::InlineDriver;
use crate::backend::redis::transport::movable_stream::{MovableStream, Relocation};
use crate::backend::redis::transport::resolve::resolve;
#[cfg(feature = "tls")]
use crate::backend::redis::transport::tls::TlsConnector;
use crate::config::node_spec::NodeSpec;
use crate::fork::{InOneProcess, in_one_process};

/// Opens one connection.
pub(super) struct Dialer<'a> {
    pub(super) server: &'a NodeSpec,
    /// The credentials, the database, and the protocol.
    pub(super) access: RedisConnectionInfo,
    /// The TLS configuration, if the URL asks for TLS.
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsConnector>,
    /// The state of the bytes that are received.
    pub(super) inbound: Arc<Inbound>,
    /// Moves the socket to another runtime.
    pub(super) relocation: Arc<Relocation>,
}

/// Opens a connection for commands, which senders poll. `within` is the connect timeout.
pub(super) async fn inline(
    dialer: &Dialer<'_>,
    config: &AsyncConnectionConfig,
    within: Duration,
    runtimes: &Arc<Runtimes>,
) -> RedisResult<(Connection, InlineDriver)> {
    let (connection, driver) = open(dialer, config, within).await?;
    let connection = Connection::new(connection, Arc::clone(&dialer.inbound), None);
    Ok((connection, InlineDriver::start(driver, Arc::clone(&dialer.relocation), runtimes)))
}

/// Opens a connection that a task drives.
pub(super) async fn multiplexed(
    dialer: &Dialer<'_>,
    config: &AsyncConnectionConfig,
    within: Duration,
) -> RedisResult<Connection> {
    let (connection, driver) = open(dialer, config, within).await?;
    let task = tokio::spawn(in_one_process(driver)).abort_handle();
    Ok(Connection::new(connection, Arc::clone(&dialer.inbound), Some(task)))
}

/// Opens a pub/sub connection.
pub(super) async fn pubsub(dialer: &Dialer<'_>) -> RedisResult<PubSub> {
    PubSub::new(&dialer.access, InboundStream::new(stream(dialer).await?, &dialer.inbound)).await
}

/// Opens a connection. The returned future drives it.
async fn open(
    dialer: &Dialer<'_>,
    config: &AsyncConnectionConfig,
    within: Duration,
) -> RedisResult<(MultiplexedConnection, impl Future<Output = ()> + Send + 'static)> {
    let opened = async {
        let stream = InboundStream::new(stream(dialer).await?, &dialer.inbound);
        MultiplexedConnection::new_with_config(&dialer.access, stream, config.clone()).await
    };
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    tokio::time::timeout(within, opened).await.map_err(late)?
}

/// A stream of any kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects, with TLS if the URL asks for it.
async fn stream(dialer: &Dialer<'_>) -> io::Result<Box<dyn Stream>> {
    let NodeSpec { host, port, socket, .. } = dialer.server;
    #[cfg(test)]
    if turmoil::in_simulation() {
        return Ok(Box::new(turmoil::net::TcpStream::connect((host.as_str(), *port)).await?));
    }
    match socket {
        None => {
            let stream = MovableStream::new(tcp(host, *port).await?, Arc::clone(&dialer.relocation));
            let stream = InOneProcess::new(stream);
            #[cfg(feature = "tls")]
            if let Some(tls) = &dialer.tls {
                // It passes vectored writes on. A flight of the handshake must be sent at once: a
                // server may reject its first part, and close the connection before the rest comes.
                let stream = InspectReader::new(stream, Arc::clone(&dialer.inbound).keep_before_tls());
                return Ok(Box::new(tls.connect(stream).await?));
            }
            Ok(Box::new(stream))
        }
        #[cfg(unix)]
        Some(path) => {
            let stream = MovableStream::new(UnixStream::connect(path).await?, Arc::clone(&dialer.relocation));
            Ok(Box::new(InOneProcess::new(stream)))
        }
        #[cfg(not(unix))]
        Some(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Connects to all addresses of a host at once, and uses the first that succeeds.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let ways = resolve(host, port).await?.into_iter().map(|at| Box::pin(TcpStream::connect(at)));
    let ways: Vec<_> = ways.collect();
    if ways.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, _) = select_ok(ways).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&keepalive())?;
    Ok(stream)
}

/// Returns the settings for TCP keepalive: probes after 5 s of silence, one second apart. The
/// connection ends after three probes without a reply.
///
/// A host that is gone sends nothing, and a firewall forgets silent connections. (RFC 9293, section
/// 3.8.4; `tcp(7)`.)
fn keepalive() -> TcpKeepalive {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5));
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows))]
    let keepalive = keepalive.with_interval(Duration::from_secs(1)).with_retries(3); // other systems keep their own values
    keepalive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_sends_at_once_and_probes_a_silent_peer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();

        let stream = tcp("127.0.0.1", port).await.expect("it listens");

        let socket = SockRef::from(&stream);
        assert!(stream.nodelay().expect("it is open") && socket.keepalive().expect("it is open"));
        #[cfg(target_os = "linux")]
        {
            assert_eq!(socket.tcp_keepalive_time().ok(), Some(Duration::from_secs(5)));
            assert_eq!(socket.tcp_keepalive_interval().ok(), Some(Duration::from_secs(1)));
            assert_eq!(socket.tcp_keepalive_retries().ok(), Some(3));
        }
    }
}
