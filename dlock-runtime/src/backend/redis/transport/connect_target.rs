//! One server, and how to open connections to it: address, credentials, TLS, and timeouts.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::{AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, RedisConnectionInfo, ServerError, Value};
use tokio::sync::mpsc::unbounded_channel;

use crate::backend::redis::runtimes::Runtimes;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::command_fallbacks::{
    CommandFallbacks, ConnectAttempt, Evidence, is_closed_by_command,
};
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::inbound::{Content, Inbound, Pushes};
use crate::backend::redis::transport::inline_io::InlineDriver;
use crate::backend::redis::transport::movable_stream::Relocation;
use crate::backend::redis::transport::redacted::Redacted;
use crate::backend::redis::transport::sharded_subscriber::ShardSubscriber;
use crate::backend::redis::transport::stream::{self, Dialer};
#[cfg(feature = "tls")]
use crate::backend::redis::transport::tls::TlsConnector;
use crate::backend::redis::transport::url_advice::UrlAdvice;
use crate::config::Settings;
use crate::config::node_spec::NodeSpec;
use crate::credentials::CredentialsProvider;
use crate::protocol::failure::Failure;
#[cfg(feature = "tls")]
use crate::protocol::failure::FailureKind;

/// A server, and how to connect to it.
#[derive(Debug)]
pub(crate) struct ConnectTarget {
    pub(super) server: NodeSpec,
    #[cfg(feature = "tls")]
    pub(super) certificates: crate::config::certificates::Certificates,
    credentials: Option<CredentialsProvider>,
    /// The server's address, as texts show it.
    pub(crate) shown: Redacted,
    /// The owner of the manager, which is also the name of its connections.
    pub(crate) owner: Arc<str>,
    pub(crate) response_timeout: Duration,
    pub(super) connect_timeout: Duration,
    /// How many replicas must acknowledge a write.
    pub(crate) replica_acks: u8,
    /// Whether key tracking is enabled.
    pub(crate) tracking: bool,
    /// Whether the server has ever replied as a Redis server does.
    pub(super) has_replied: AtomicBool,
    /// A key in the namespace of the manager, for a test of `EVAL`.
    pub(super) probe_key: String,
    pub(super) fallbacks: CommandFallbacks,
}

impl ConnectTarget {
    pub(crate) fn new(server: NodeSpec, settings: &Settings) -> Self {
        Self {
            #[cfg(feature = "tls")]
            certificates: settings.certificates.clone(),
            credentials: settings.credentials.clone(),
            shown: Redacted::new(&server.to_string())
                .with_advice(UrlAdvice::new(&server, settings.credentials.is_some())),
            owner: Arc::clone(&settings.owner),
            response_timeout: settings.rules.response_timeout,
            connect_timeout: settings.connect_timeout,
            replica_acks: settings.rules.replica_acks,
            tracking: settings.rules.tracking,
            has_replied: AtomicBool::new(false),
            probe_key: format!(
                "{}{}connect",
                settings.namespace,
                if settings.namespace.is_empty() { "" } else { ":" }
            ),
            fallbacks: CommandFallbacks::default(),
            server,
        }
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> Address {
        Address { host: self.server.host.clone(), port: self.server.port }
    }

    /// Opens a connection, sends `command`, and returns the reply, which may be an error of the
    /// server.
    pub(crate) async fn query(&self, command: &Cmd) -> Result<Value, Failure> {
        let mut connection = self.open(self.attempt()).await?;
        connection.inbound().allow_descriptions(1);
        let reply = connection.send_packed_command(command).await;
        self.reply_or_failure(reply, &connection)
    }

    /// Opens a connection, sends `commands`, and returns their replies.
    pub(crate) async fn query_all(&self, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        let mut connection = self.open(self.attempt()).await?;
        connection.inbound().allow_descriptions(1);
        let replies = connection.send_packed_commands(commands, 0, commands.len()).await;
        self.reply_or_failure(replies, &connection)
    }

    /// Opens a connection whose replies time out.
    pub(crate) async fn open(&self, attempt: ConnectAttempt) -> Result<Connection, Failure> {
        let (config, timeout) = (&self.timeouts(), self.connect_timeout);
        self.open_with(ProtocolVersion::RESP2, Content::Replies, attempt, |dialer| async move {
            stream::multiplexed(&dialer, config, timeout).await
        })
        .await
    }

    /// Opens a connection for requests. Replies on it do not time out.
    pub(super) async fn open_for_commands(
        &self,
        runtimes: &Arc<Runtimes>,
        attempt: ConnectAttempt,
    ) -> Result<(Connection, InlineDriver), Failure> {
        let config = self.timeouts().set_response_timeout(None);
        let (config, timeout) = (&config, self.connect_timeout);
        self.open_with(ProtocolVersion::RESP2, Content::Replies, attempt, |dialer| async move {
            stream::inline(&dialer, config, timeout, runtimes).await
        })
        .await
    }

    /// Opens a connection with key tracking, and returns its invalidations. Replies on it do not
    /// time out.
    pub(crate) async fn open_for_tracking(&self) -> Result<(Connection, Pushes), Failure> {
        match self.try_tracking().await? {
            (_, Some(error)) => Err(self.failure(error.into())),
            (opened, None) => Ok(opened),
        }
    }

    /// Like [`open_for_tracking`](Self::open_for_tracking), with the error by which the server
    /// refused key tracking, if it did.
    pub(crate) async fn try_tracking(&self) -> Result<((Connection, Pushes), Option<ServerError>), Failure> {
        let config = self.timeouts().set_response_timeout(None);
        let mut tracking = Pipeline::with_capacity(2);
        tracking.cmd("CLIENT").arg("TRACKING").arg("ON").arg("NOLOOP");
        let attempt = self.attempt();
        let open = || self.open_for_pushes(config.clone(), attempt);
        let named = |(connection, _): &(_, _)| self.timed(connection);
        let (opened, replies) = self.begin(open, named, tracking, attempt, Evidence::None).await?;
        let failed = |error| {
            let inbound = opened.0.inbound();
            let closed = self.closed_on_command(&error, inbound, "CLIENT TRACKING");
            closed.unwrap_or_else(|| self.connection_failure(error, inbound))
        };
        let mut replies = replies.map_err(failed)?;
        let refused = match replies.pop() {
            Some(Value::ServerError(error)) => Some(error),
            _ => None,
        };
        Ok((opened, refused))
    }

    /// Opens a connection for sharded pub/sub.
    pub(crate) async fn open_for_shards(&self) -> Result<ShardSubscriber, Failure> {
        let (connection, pushes) = self.open_for_pushes(self.timeouts(), self.attempt()).await?;
        Ok(ShardSubscriber::new(connection, pushes))
    }

    async fn open_for_pushes(
        &self,
        config: AsyncConnectionConfig,
        attempt: ConnectAttempt,
    ) -> Result<(Connection, Pushes), Failure> {
        let (sender, receiver) = unbounded_channel();
        let (config, timeout) = (&config.set_push_sender(sender), self.connect_timeout);
        let opened = self.open_with(ProtocolVersion::RESP3, Content::Pushes, attempt, |dialer| async move {
            stream::multiplexed(&dialer, config, timeout).await
        });
        let connection = opened.await?;
        let pushes = Pushes::new(receiver, connection.inbound());
        Ok((connection, pushes))
    }

    /// Returns a handle to the same connection on which each reply times out.
    ///
    /// The timers are those of the runtime that sends the request.
    pub(crate) fn timed(&self, connection: &Connection) -> Connection {
        let mut timed = connection.clone();
        timed.set_response_timeout(self.response_timeout);
        timed
    }

    /// Opens a connection with `open`, a second time without `CLIENT SETINFO` if the server closes
    /// the first one on that command.
    pub(super) async fn open_with<'a, T, F>(
        &'a self,
        protocol: ProtocolVersion,
        content: Content,
        attempt: ConnectAttempt,
        open: impl Fn(Dialer<'a>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = redis::RedisResult<T>>,
    {
        let sets_info = self.fallbacks.can_set_info();
        let dialer = self.dialer(protocol, content, sets_info).await?;
        let inbound = Arc::clone(&dialer.inbound);
        let error = match open(dialer).await {
            Ok(opened) => {
                if sets_info {
                    self.on_client_info_sent(&inbound);
                }
                return Ok(opened);
            }
            Err(error) => error,
        };
        let may_be_set_info = sets_info && !self.has_replied();
        if !may_be_set_info || !is_closed_by_command(&error, &inbound) || inbound.last_error().is_some() {
            // Only `HELLO 3` opens one kind of connection, and not the others.
            let hello = protocol == ProtocolVersion::RESP3 && is_closed_by_command(&error, &inbound);
            let closed = hello.then(|| self.closed_on_command(&error, &inbound, "HELLO 3")).flatten();
            return Err(closed.unwrap_or_else(|| self.connect_failure(error, &inbound)));
        }
        if !attempt.may_repeat() {
            return Err(self.no_time_without("CLIENT SETINFO", &self.connect_failure(error, &inbound)));
        }
        // Once the server replies to another command, `CLIENT SETINFO` is known to be the reason.
        let dialer = self.dialer(protocol, content, false).await?;
        open(dialer).await.map_err(|_| self.connect_failure(error, &inbound))
    }

    /// Gets the credentials and reads the certificates for one connection: they may have changed
    /// since the last one.
    ///
    /// If `sets_info`, the client library sends its name with `CLIENT SETINFO`.
    async fn dialer(
        &self,
        protocol: ProtocolVersion,
        content: Content,
        sets_info: bool,
    ) -> Result<Dialer<'_>, Failure> {
        let (username, password) = match &self.credentials {
            Some(source) => {
                let credentials = source.ask(self.connect_timeout).await;
                let (username, password) =
                    credentials.map_err(|failure| self.credentials_failure(&failure))?.into_parts();
                (username, Some(password))
            }
            None => (self.server.username.clone(), self.server.password.clone()),
        };
        let mut access = RedisConnectionInfo::default().set_db(self.server.database).set_protocol(protocol);
        if !sets_info {
            access = access.set_skip_set_lib_name();
        }
        if let Some(username) = username {
            access = access.set_username(username);
        }
        if let Some(password) = password {
            self.shown.hide(&password);
            access = access.set_password(password);
        }
        Ok(Dialer {
            server: &self.server,
            access,
            #[cfg(feature = "tls")]
            tls: self.tls_connector().await?,
            inbound: Inbound::new(&self.shown, content),
            relocation: Relocation::at_home(),
        })
    }

    /// Reads the certificates. Returns `None` if the connection does not use TLS.
    #[cfg(feature = "tls")]
    async fn tls_connector(&self) -> Result<Option<TlsConnector>, Failure> {
        if !self.server.tls {
            return Ok(None);
        }
        let connector = TlsConnector::new(&self.server, &self.certificates, self.connect_timeout).await;
        connector.map(Some).map_err(|error| {
            let reason = format!("no connection to redis at {}: {error}", self.shown);
            Failure::new(FailureKind::Untrusted, reason)
        })
    }

    fn timeouts(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.response_timeout))
            .set_pipeline_buffer_size(UNBOUNDED)
    }
}

/// A connection for commands.
pub(crate) struct NewConnection {
    pub(crate) timed: Connection,
    /// The same connection, without a timeout for replies.
    pub(crate) untimed: Connection,
    /// The hashes of the scripts; `None` if the server has no `SCRIPT LOAD`.
    pub(crate) scripts: Option<Vec<String>>,
    /// The driver, which callers poll.
    pub(crate) driver: InlineDriver,
}

/// The size of the client library's request queue: no request may wait for space in it.
///
/// A request that waits for space enters the queue when its task is polled again, so that later
/// requests overtake it. Also, its waker runs while the connection is dropped, when older versions
/// of tokio hold a lock that the waker takes. The bound would save no memory: a waiting request is
/// already encoded.
const UNBOUNDED: usize = tokio::sync::Semaphore::MAX_PERMITS;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::redis::tests::resp::{bulk, primary};
    use crate::backend::redis::tests::scripted_server::{ScriptedServer, patient};

    #[test]
    fn the_probe_key_is_in_the_namespace() {
        for (namespace, key) in [("shop", "shop:connect"), ("", "connect")] {
            let settings = Settings { namespace: namespace.to_owned(), ..Settings::default() };
            let server = NodeSpec { host: "h".to_owned(), port: 6379, ..NodeSpec::default() };

            let target = ConnectTarget::new(server, &settings);

            assert_eq!(target.probe_key, key);
            assert_eq!(target.address(), Address { host: "h".to_owned(), port: 6379 });
        }
    }

    #[tokio::test]
    async fn queries_return_the_replies_and_may_be_large() {
        let large = bulk(&"a".repeat(100_000));
        let server = ScriptedServer::start(move |command| match command {
            "INFO" => large.clone(),
            "ROLE" => "-ERR unknown command 'ROLE'\r\n".to_owned(),
            _ => primary(command),
        });
        let target = server.target(&patient());
        let mut commands = Pipeline::new();
        commands.cmd("INFO").cmd("PING");

        let info = target.query(&redis::cmd("INFO")).await.expect("the server replies");
        let role = target.query(&redis::cmd("ROLE")).await.expect("the server replies");
        let all = target.query_all(&commands).await.expect("the server replies");

        assert!(matches!(info, Value::BulkString(text) if text.len() == 100_000));
        assert!(matches!(role, Value::ServerError(_)), "{role:?}");
        assert!(matches!(&all[..], [Value::BulkString(_), Value::SimpleString(pong)] if pong == "PONG"));
    }

    /// The client library has a shorter timeout of its own.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_reply_may_take_as_long_as_the_response_timeout() {
        let server = ScriptedServer::start(|command| {
            if command == "INFO" {
                std::thread::sleep(Duration::from_millis(700));
            }
            primary(command)
        });

        let reply = server.target(&patient()).query(&redis::cmd("INFO")).await;

        assert!(reply.is_ok(), "{reply:?}");
    }

    #[tokio::test]
    async fn another_connection_without_setinfo_is_opened_if_it_may_help() {
        let closed = "no connection";
        for (reply, has_replied, expected, connections) in [
            (None, false, Ok(()), 2),
            (None, true, Err(closed), 1),
            (
                Some("-ERR unknown command 'CLIENT'\r\n"),
                false,
                Err("ERR unknown command 'CLIENT', and closed"),
                1,
            ),
            (Some("-DENIED go away\r\n"), false, Err("DENIED go away, and closed"), 1),
            (Some("HTTP/1.1 400 Bad Request\r\n"), false, Err("it replied `HTTP/1.1 400 Bad Request`"), 1),
        ] {
            let count = Arc::new(AtomicUsize::new(0));
            let opened = Arc::clone(&count);
            let server = ScriptedServer::start(move |command| match command.split(' ').nth(2) {
                Some("LIB-NAME") => {
                    opened.fetch_add(1, Ordering::SeqCst);
                    reply.map(str::to_owned)
                }
                Some("LIB-VER") => None,
                _ => {
                    opened.fetch_add(1, Ordering::SeqCst);
                    Some(primary(command))
                }
            });
            let target = server.target(&patient());
            target.has_replied.store(has_replied, Ordering::Relaxed);

            let found = target.query(&redis::cmd("PING")).await.map(drop).map_err(|failure| failure.reason);

            match expected {
                Ok(()) => assert!(found.is_ok(), "{found:?}"),
                Err(words) => assert!(found.is_err_and(|reason| reason.contains(words)), "{words}"),
            }
            assert_eq!(count.load(Ordering::SeqCst), connections, "{reply:?}, {has_replied}");
        }
    }

    #[tokio::test]
    async fn key_tracking_needs_the_command() {
        for (reply, works) in [("+OK\r\n", true), ("-NOPERM no permissions\r\n", false)] {
            let server = ScriptedServer::start(move |command| {
                let is_tracking = command.starts_with("CLIENT TRACKING ON NOLOOP");
                if is_tracking { reply.to_owned() } else { primary(command) }
            });

            let opened = server.target(&patient()).open_for_tracking().await;

            assert_eq!(opened.is_ok(), works, "{reply}");
            assert_eq!(server.count("HELLO 3"), 1);
        }
    }
}
