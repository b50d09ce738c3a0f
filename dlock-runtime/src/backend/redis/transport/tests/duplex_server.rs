//! A server in memory, for connections whose runtime has a clock that is paused.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinHandle;

use crate::backend::redis::tests::resp::words;
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::framing::{Framing, ReplyLimits};
use crate::backend::redis::transport::inbound::{Content, Inbound, InboundStream};
use crate::backend::redis::transport::redacted::Redacted;

/// Opens a connection with RESP3 in memory to a server that replies as `reply` does. Also returns
/// the task of the server, which ends with the connection.
pub(crate) async fn connection<R: Into<Option<String>> + 'static>(
    config: AsyncConnectionConfig,
    reply: impl Fn(&str) -> R + Send + 'static,
) -> (Connection, JoinHandle<()>) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(serve(far, reply));
    let inbound = Inbound::new(&Redacted::new("h:1"), Content::Pushes);
    let access = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
    let stream = InboundStream::new(near, &inbound);
    let opened = MultiplexedConnection::new_with_config(&access, stream, config).await;
    let (client, driver) = opened.expect("the server replies");
    let driver = tokio::spawn(driver).abort_handle();
    (Connection::new(client, inbound, Some(driver)), server)
}

/// Replies to the commands on a stream, until `reply` returns `None`.
pub(crate) async fn serve<R: Into<Option<String>>>(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    reply: impl Fn(&str) -> R,
) {
    let (mut framing, mut received, mut piece) = (Framing::new(), Vec::new(), [0; 4_096]);
    while let Ok(length @ 1..) = stream.read(&mut piece).await {
        received.extend_from_slice(&piece[..length]);
        let mut lengths = Vec::new();
        let framed = framing.scan(
            &piece[..length],
            || Some(ReplyLimits::DESCRIPTION),
            |command| {
                lengths.push(command.size.bytes);
                Ok(())
            },
        );
        framed.expect("a client sends RESP");
        for length in lengths {
            let command: Vec<_> = received.drain(..length).collect();
            let command = redis::parse_redis_value(&command).expect("a client sends RESP");
            let Some(reply) = reply(&words(&command)).into() else { return };
            if stream.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}
