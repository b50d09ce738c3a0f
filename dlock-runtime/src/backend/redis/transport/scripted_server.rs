//! A server for tests: a function of the test chooses its replies.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::error_kind;
use crate::backend::redis::transport::framing::{Framing, ReplyLimits};
use crate::backend::redis::transport::inbound::{Content, Inbound, InboundStream};
use crate::backend::redis::transport::redacted::Redacted;
use crate::config::Settings;
use crate::config::node_spec::NodeSpec;
use crate::sync::lock;

/// A server on a port of this machine. It ends when it is dropped.
pub(super) struct ScriptedServer {
    port: u16,
    commands: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl ScriptedServer {
    /// Starts a server on the runtime of the test. `reply` is called with the words of each
    /// command, and returns the bytes to send. If it returns `None`, the connection is closed.
    pub(super) async fn start(reply: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let (commands, reply) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(reply));
        let (received, mut tasks) = (Arc::clone(&commands), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (received, reply) = (Arc::clone(&received), Arc::clone(&reply));
                connections.spawn(serve(stream, move |command| {
                    lock(&received).push(command.to_owned());
                    reply(command)
                }));
            }
        });
        Self { port, commands, _tasks: tasks }
    }

    /// Returns the server as a target of connections.
    pub(super) fn target(&self, settings: &Settings) -> ConnectTarget {
        let server = NodeSpec { host: "127.0.0.1".to_owned(), port: self.port, ..NodeSpec::default() };
        ConnectTarget::new(server, settings)
    }

    /// Returns how many of the received commands begin with `words`.
    pub(super) fn count(&self, words: &str) -> usize {
        lock(&self.commands).iter().filter(|command| command.starts_with(words)).count()
    }
}

/// Opens a connection with RESP3 in memory to a server that replies as `reply` does. Also returns
/// the task of the server, which ends with the connection.
pub(super) async fn connection(
    config: AsyncConnectionConfig,
    reply: impl Fn(&str) -> Option<String> + Send + 'static,
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
pub(super) async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    reply: impl Fn(&str) -> Option<String>,
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
            let Some(reply) = reply(&words(&command)) else { return };
            if stream.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

fn words(command: &[u8]) -> String {
    let Ok(Value::Array(words)) = redis::parse_redis_value(command) else { return String::new() };
    words.iter().filter_map(error_kind::text).collect::<Vec<_>>().join(" ")
}

/// Returns the reply of an empty Redis.
#[expect(clippy::unnecessary_wraps, reason = "a script of a server")]
pub(super) fn usual(command: &str) -> Option<String> {
    let reply = match command.split(' ').next() {
        Some("SCRIPT") => "$4\r\nhash\r\n",
        Some("HELLO") => "%1\r\n+proto\r\n:3\r\n",
        Some("EVAL") => ":1\r\n",
        Some("ROLE") => "*1\r\n$6\r\nmaster\r\n",
        Some("PING") => "+PONG\r\n",
        _ => "+OK\r\n",
    };
    Some(reply.to_owned())
}

/// Returns settings whose timeouts do not end on a busy machine.
pub(super) fn patient() -> Settings {
    let mut settings = Settings { connect_timeout: Duration::from_secs(20), ..Settings::default() };
    settings.rules.response_timeout = Duration::from_secs(20);
    settings
}
