//! One connection to a Redis: made, used for commands, listened on for messages.
//!
//! Not here: when one is made and given up (`node`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, IntoConnectionInfo, Msg, Pipeline, ProtocolVersion,
    RedisConnectionInfo, RedisError, Value,
};
use tokio::sync::mpsc::unbounded_channel;

use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::encoding::codec::{self, Redacted};
use crate::backend::redis::encoding::scripts::Loaded;
use crate::backend::redis::node::connection::Connection;
use crate::backend::redis::node::framing::Violation;
use crate::backend::redis::node::inbound::{Content, Inbound, Pushes};
use crate::backend::redis::node::inline_io::{InlineDriver, SharedDriver};
use crate::backend::redis::node::keepalive::{PONG_WITHIN, Pulse};
use crate::backend::redis::node::sharded_subscriber::ShardSubscriber;
use crate::backend::redis::node::stream::{self, Dialer};
#[cfg(feature = "tls")]
use crate::backend::redis::node::tls::{self, TlsConnector};
use crate::backend::redis::topology::address::Address;
use crate::config::url::Server;
use crate::config::{Settings, config};
use crate::credentials::CredentialsSource;
use crate::error::Error;
use crate::key::Name;
use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::sync::lock;
use crate::telemetry;
use crate::token::Token;

/// How to reach a server.
#[derive(Debug)]
pub(crate) struct ConnectTarget {
    server: Server,
    #[cfg(feature = "tls")]
    certificates: crate::config::certificates::Certificates,
    credentials: Option<CredentialsSource>,
    pub(crate) shown: Redacted,
    pub(crate) response_timeout: Duration,
    connect_timeout: Duration,
    /// How many replicas are waited for.
    pub(crate) replica_acks: u8,
    /// Whether changes of keys are to be told.
    pub(crate) tracking: bool,
    /// Who drives connections for commands, where they have no task of their own.
    tender: Option<Arc<SharedDriver>>,
    /// Whether the server has ever answered as a Redis does.
    has_answered: AtomicBool,
    /// A key of the namespace, to try `EVAL` on.
    tried_key: String,
    /// Whether the server closes a connection that tells the client's name.
    refuses_name: AtomicBool,
    /// Whether the server has no `SCRIPT LOAD`: scripts go by their text.
    lacks_script_load: AtomicBool,
    /// Whether the connection was closed on `SCRIPT LOAD` the last time.
    closed_on_load: AtomicBool,
}

impl ConnectTarget {
    /// Takes note of a server, and checks what can be checked without asking it.
    pub(crate) fn new(server: Server, settings: &Settings) -> Result<Self, Error> {
        let route = Self {
            #[cfg(feature = "tls")]
            certificates: settings.certificates.clone(),
            credentials: settings.credentials.clone(),
            shown: Redacted::new(&server.to_string()),
            response_timeout: settings.rules.response_timeout,
            connect_timeout: settings.connect_timeout,
            replica_acks: settings.rules.replica_acks,
            tracking: settings.rules.tracking,
            tender: None,
            has_answered: AtomicBool::new(false),
            tried_key: format!(
                "{}{}connect",
                settings.namespace,
                if settings.namespace.is_empty() { "" } else { ":" }
            ),
            refuses_name: AtomicBool::new(false),
            lacks_script_load: AtomicBool::new(false),
            closed_on_load: AtomicBool::new(false),
            server,
        };
        route.client(RedisConnectionInfo::default())?;
        Ok(route)
    }

    /// Leaves its connections for commands to `tender`.
    pub(crate) fn driven_by(self, tender: &Arc<SharedDriver>) -> Self {
        Self { tender: Some(Arc::clone(tender)), ..self }
    }

    /// Returns where the server is.
    pub(crate) fn address(&self) -> Address {
        Address { host: self.server.host.clone(), port: self.server.port }
    }

    /// Prepares one connection: the credentials are asked for and certificates are read now, so that what has changed since the last
    /// connection is used. `is_named` says whether the server is told which client it is.
    async fn dialer(
        &self,
        protocol: ProtocolVersion,
        content: Content,
        is_named: bool,
    ) -> Result<Dialer, Failure> {
        let (username, password) = match &self.credentials {
            Some(source) => {
                let given = source.ask(self.connect_timeout).await;
                let (username, password) =
                    given.map_err(|failure| self.of_the_callback(&failure))?.into_parts();
                (username, Some(password))
            }
            None => (self.server.username.clone(), self.server.password.clone()),
        };
        let mut access = RedisConnectionInfo::default().set_db(self.server.database).set_protocol(protocol);
        if !is_named {
            access = access.set_skip_set_lib_name();
        }
        if let Some(username) = username {
            access = access.set_username(username);
        }
        if let Some(password) = password {
            self.shown.hide(&password);
            access = access.set_password(password);
        }
        let unusable = |error: Error| {
            let reason = format!("no connection to redis at {}: {error}", self.shown);
            Failure::new(FailureKind::Untrusted, reason)
        };
        Ok(Dialer {
            client: self.client(access).map_err(unusable)?,
            #[cfg(feature = "tls")]
            tls: self.tls_connector().await.map_err(unusable)?,
            inbound: Inbound::new(&self.shown, content),
        })
    }

    /// Reads the certificates for a connection over TLS. Returns `None` for one without.
    #[cfg(feature = "tls")]
    async fn tls_connector(&self) -> Result<Option<TlsConnector>, Error> {
        if !self.server.tls {
            return Ok(None);
        }
        TlsConnector::new(&self.server, &self.certificates, self.connect_timeout).await.map(Some)
    }

    fn client(&self, access: RedisConnectionInfo) -> Result<redis::Client, Error> {
        let Server { host, port, .. } = &self.server;
        let address = match &self.server.socket {
            Some(path) => ConnectionAddr::Unix(path.clone()),
            None => ConnectionAddr::Tcp(host.clone(), *port),
        };
        let unusable = |error: RedisError| config("url", self.shown.clean(&error.to_string()));
        let info = address.into_connection_info().map_err(unusable)?;
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(stream::keepalive());
        let info = info.set_redis_settings(access).set_tcp_settings(tcp);
        redis::Client::open(info).map_err(unusable)
    }

    /// Connects for one question, and returns the answer; an error that the server answers is one.
    pub(crate) async fn ask(&self, question: &Cmd) -> Result<Value, Failure> {
        let mut connection = self.open().await?;
        connection.inbound().allow_descriptions(1);
        let answer = connection.send_packed_command(question).await;
        answer.map_err(|error| self.lost(error, connection.inbound()))
    }

    /// Connects for several questions.
    pub(crate) async fn ask_all(&self, questions: &Pipeline) -> Result<Vec<Value>, Failure> {
        let mut connection = self.open().await?;
        connection.inbound().allow_descriptions(1);
        let answers = connection.send_packed_commands(questions, 0, questions.len()).await;
        answers.map_err(|error| self.lost(error, connection.inbound()))
    }

    /// Connects for commands, and loads the scripts of `layout` before anybody can use the connection.
    pub(crate) async fn connect(&self, layout: LockEncoding) -> Result<NewConnection, Failure> {
        if self.lacks_script_load.load(Ordering::Relaxed) {
            return self.connect_without_loading().await;
        }
        let is_named = !self.refuses_name.load(Ordering::Relaxed);
        let (untimed, pump) = self.open_for_commands().await?;
        let mut connection = self.timed(&untimed);
        let load = Loaded::load(layout);
        let answers = connection.send_packed_commands(&load, 0, load.len()).await;
        let answers = match answers {
            Ok(answers) => {
                self.note_reply(is_named);
                self.closed_on_load.store(false, Ordering::Relaxed);
                answers
            }
            // It has just taken what the client says of itself: it closed for this command, or is gone, and then the next attempt fails.
            Err(error) if hung_up_on_a_command(&error, connection.inbound()) => {
                let inbound = Arc::clone(connection.inbound());
                drop((connection, untimed, pump));
                let closed = "it closed the connection";
                return match self.connect_without_loading().await {
                    Ok(opened) => {
                        // A network that was cut just then looks the same; twice in a row it is the command.
                        if self.closed_on_load.swap(true, Ordering::Relaxed) {
                            self.note_lacking_script_load(&closed);
                        }
                        Ok(opened)
                    }
                    Err(failure) if failure.kind != FailureKind::Passing => Err(failure),
                    Err(_) if !self.has_answered.load(Ordering::Relaxed) => {
                        Err(self.not_opened(error, &inbound))
                    }
                    Err(_) => Err(self.closed_on("SCRIPT LOAD", error)),
                };
            }
            Err(error) => return Err(self.not_opened(error, connection.inbound())),
        };
        if let Some(refusal) = answers.iter().find(|answer| codec::is_forbidden(answer)) {
            self.try_eval(&mut connection).await?;
            self.note_lacking_script_load(&self.words_of(refusal));
            return Ok(NewConnection { connection, untimed, scripts: None, pump });
        }
        let mut names = Vec::new();
        for answer in answers {
            match answer {
                Value::BulkString(name) => names.push(String::from_utf8_lossy(&name).into_owned()),
                Value::SimpleString(name) => names.push(name),
                // Whoever connects without the password that is wanted is told when he connects.
                Value::ServerError(error) => return Err(self.failure(error.into())),
                _ => {}
            }
        }
        let names = names.try_into().map_err(|_| {
            Failure::new(FailureKind::Passing, format!("redis at {} did not load our scripts", self.shown))
        })?;
        Ok(NewConnection { connection, untimed, scripts: Some(Loaded::new(names)), pump })
    }

    /// Connects for commands to a server that has no `SCRIPT LOAD`.
    async fn connect_without_loading(&self) -> Result<NewConnection, Failure> {
        let is_named = !self.refuses_name.load(Ordering::Relaxed);
        let (untimed, pump) = self.open_for_commands().await?;
        let mut connection = self.timed(&untimed);
        self.try_eval(&mut connection).await?;
        self.note_reply(is_named);
        Ok(NewConnection { connection, untimed, scripts: None, pump })
    }

    /// Checks that the server runs scripts by their text, without which there are no locks.
    async fn try_eval(&self, connection: &mut Connection) -> Result<(), Failure> {
        let mut tried = redis::cmd("EVAL");
        tried.arg("return 1").arg(1).arg(&self.tried_key);
        match connection.send_packed_command(&tried).await {
            Ok(refusal) if codec::is_forbidden(&refusal) => {
                Err(self.without_scripts(&refusal, connection).await)
            }
            Ok(Value::ServerError(error)) if codec::is_out_of_service(&Value::ServerError(error.clone())) => {
                Err(self.failure(error.into()))
            }
            Ok(_) => Ok(()),
            Err(error) if hung_up_on_a_command(&error, connection.inbound()) => {
                Err(self.closed_on("EVAL", error))
            }
            Err(error) => Err(self.not_opened(error, connection.inbound())),
        }
    }

    /// Says why a server runs no scripts: it refuses them, or it is a sentinel.
    async fn without_scripts(&self, refusal: &Value, connection: &mut Connection) -> Failure {
        let role = connection.send_packed_command(&redis::cmd("ROLE")).await;
        if let Ok(Value::Array(words)) = role
            && words.first().and_then(codec::text) == Some("sentinel")
        {
            let reason = format!(
                "redis at {} is a sentinel: write `redis+sentinel://host,host,host/master-name`",
                self.shown
            );
            return Failure::new(FailureKind::Lasting, reason);
        }
        match refusal {
            Value::ServerError(error) => self.shown.failure(error),
            _ => self.late(),
        }
    }

    async fn open_for_commands(&self) -> Result<(Connection, Option<InlineDriver>), Failure> {
        let config = self.timeouts().set_response_timeout(None);
        let (config, within, tender) = (&config, self.connect_timeout, self.tender.as_deref());
        self.dial(ProtocolVersion::RESP2, Content::Replies, |dialer| async move {
            stream::pumped(&dialer, config, within, tender).await
        })
        .await
    }

    /// Opens a connection. A server that closes it on what the client says of itself is told nothing of that from then on.
    async fn dial<T, F>(
        &self,
        protocol: ProtocolVersion,
        content: Content,
        dial: impl Fn(Dialer) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = redis::RedisResult<T>>,
    {
        let is_named = !self.refuses_name.load(Ordering::Relaxed);
        let dialer = self.dialer(protocol, content, is_named).await?;
        let inbound = Arc::clone(&dialer.inbound);
        let error = match dial(dialer).await {
            Ok(opened) => {
                // The client has waited for the reply to what it said of itself.
                self.has_answered.fetch_or(is_named, Ordering::Relaxed);
                return Ok(opened);
            }
            Err(error) => error,
        };
        let may_be_the_name = is_named && !self.has_answered.load(Ordering::Relaxed);
        if !may_be_the_name || !hung_up_on_a_command(&error, &inbound) || inbound.last_error().is_some() {
            return Err(self.not_opened(error, &inbound));
        }
        // It is known to be the reason once the server replies to something else.
        let unnamed = self.dialer(protocol, content, false).await?;
        dial(unnamed).await.map_err(|_| self.not_opened(error, &inbound))
    }

    /// The server has replied over a connection that was opened as `is_named` says. If it closed the one that told the client's name, that
    /// was the reason.
    fn note_reply(&self, is_named: bool) {
        let has_answered = self.has_answered.swap(true, Ordering::Relaxed);
        if is_named && !has_answered && !self.refuses_name.swap(true, Ordering::Relaxed) {
            self.report("CLIENT SETINFO", &"it closed the connection");
        }
    }

    fn note_lacking_script_load(&self, reason: &dyn std::fmt::Display) {
        if !self.lacks_script_load.swap(true, Ordering::Relaxed) {
            self.report("SCRIPT LOAD", reason);
        }
    }

    /// Reports a command that the server refused, and that locks can do without.
    pub(crate) fn report_unsupported(&self, command: &str, refusal: &Value) {
        self.report(command, &self.words_of(refusal));
    }

    fn report(&self, command: &str, reason: &dyn std::fmt::Display) {
        telemetry::command_unsupported(&self.shown, command, reason);
    }

    fn words_of(&self, refusal: &Value) -> String {
        match refusal {
            Value::ServerError(error) => self.shown.said(error),
            _ => String::new(),
        }
    }

    /// Names the command on which the server closed the connection.
    fn closed_on(&self, command: &str, error: RedisError) -> Failure {
        let failure = self.failure(error);
        let reason = format!("redis at {} closed the connection on `{command}`", self.shown);
        Failure { reason: reason.into(), ..failure }
    }

    /// Connects for what replicas must acknowledge, where they are waited for.
    pub(crate) async fn connect_for_acks(&self) -> Result<Option<Connection>, Failure> {
        if self.replica_acks == 0 {
            return Ok(None);
        }
        let mut connection = self.open().await?;
        // WaitGraph for nobody: whether we may is told now, not with the first lock.
        let answer = connection.send_packed_command(redis::cmd("WAIT").arg(0).arg(1)).await;
        let closed = |error| {
            if !hung_up_on_a_command(&error, connection.inbound()) {
                return self.not_opened(error, connection.inbound());
            }
            let failure = self.closed_on("WAIT", error);
            Failure { reason: format!("{}: leave out `replica_acks`", failure.reason).into(), ..failure }
        };
        match answer.map_err(closed)? {
            Value::ServerError(error) => Err(self.shown.failure(&error)),
            _ => Ok(Some(connection)),
        }
    }

    /// Connects for keys whose changes are told, and returns where they are. Over that connection nobody finds out that answers are late.
    pub(crate) async fn track(&self) -> Result<(Connection, Pushes), Failure> {
        let config = self.timeouts().set_response_timeout(None);
        let (connection, told) = self.open_for_pushes(config).await?;
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("NOLOOP");
        match self
            .timed(&connection)
            .send_packed_command(&tracking)
            .await
            .map_err(|error| self.lost(error, connection.inbound()))?
        {
            Value::ServerError(error) => Err(self.failure(error.into())),
            _ => Ok((connection, told)),
        }
    }

    async fn open_for_pushes(&self, config: AsyncConnectionConfig) -> Result<(Connection, Pushes), Failure> {
        let (tell, told) = unbounded_channel();
        let (config, within) = (&config.set_push_sender(tell), self.connect_timeout);
        let opened = self.dial(ProtocolVersion::RESP3, Content::Pushes, |dialer| async move {
            stream::multiplexed(&dialer, config, within).await
        });
        let connection = opened.await?;
        let pushes = Pushes::new(told, connection.inbound());
        Ok((connection, pushes))
    }

    /// Connects for commands.
    pub(crate) async fn open(&self) -> Result<Connection, Failure> {
        let (config, within) = (&self.timeouts(), self.connect_timeout);
        self.dial(ProtocolVersion::RESP2, Content::Replies, |dialer| async move {
            stream::multiplexed(&dialer, config, within).await
        })
        .await
    }

    /// Returns the same connection, with a limit for each answer, by the timers of the runtime that asks.
    pub(crate) fn timed(&self, connection: &Connection) -> Connection {
        let mut timed = connection.clone();
        timed.set_response_timeout(self.response_timeout);
        timed
    }

    /// Returns the failure of an answer that is late.
    pub(crate) fn late(&self) -> Failure {
        let reason = format!("redis at {} did not answer in time", self.shown);
        Failure::new(FailureKind::Passing, reason)
    }

    fn timeouts(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout))
            .set_pipeline_buffer_size(ROOM)
    }

    /// Connects for messages of shards.
    pub(crate) async fn listen_to_shards(&self) -> Result<ShardSubscriber, Failure> {
        let (connection, told) = self.open_for_pushes(self.timeouts()).await?;
        Ok(ShardSubscriber::new(connection, told))
    }

    /// Connects for messages, and subscribes to `channel`.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<Subscriber, Failure> {
        let ear = self.listen(channel).await?;
        ear.refused.clone().map_or(Ok(ear), Err)
    }

    /// Connects for messages, and subscribes to `channel`, which the server may refuse: another one may still be allowed.
    pub(crate) async fn listen(&self, channel: &str) -> Result<Subscriber, Failure> {
        let seen = Mutex::new(None);
        let opened = async {
            let opened = self.dial(ProtocolVersion::RESP2, Content::Messages, |dialer| {
                let inbound = Arc::clone(&dialer.inbound);
                *lock(&seen) = Some(Arc::clone(&inbound));
                async move { Ok((stream::pubsub(&dialer).await?, inbound)) }
            });
            let (mut pubsub, inbound) = opened.await?;
            let refused = match pubsub.subscribe(channel).await {
                Err(error) if error.code().is_none() => return Err(self.not_opened(error, &inbound)),
                subscribed => subscribed.err().map(|error| self.failure(error)),
            };
            let (sink, stream) = pubsub.split();
            Ok(Subscriber { sink, stream, inbound, refused })
        };
        let late = || {
            let violation = lock(&seen).as_ref().and_then(|inbound| self.violation(inbound));
            let text = format!(
                "redis at {} did not let us subscribe in {} ms",
                self.shown,
                self.connect_timeout.as_millis()
            );
            violation.unwrap_or_else(|| Failure::new(FailureKind::Passing, text))
        };
        tokio::time::timeout(self.connect_timeout, opened).await.unwrap_or_else(|_| Err(late()))
    }

    /// Turns the failure of the callback for credentials into that of a connection.
    fn of_the_callback(&self, failure: &Failure) -> Failure {
        let reason =
            format!("no connection to redis at {}: {}", self.shown, self.shown.clean(&failure.reason));
        Failure::new(failure.kind, reason)
    }

    /// Notes that the server has answered as a Redis does.
    pub(crate) fn mark_answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Turns what keeps us from connecting into a failure. What the server sent is the reason, if it sent anything.
    fn not_opened(&self, error: RedisError, inbound: &Inbound) -> Failure {
        if let Some(failure) = self.violation(inbound).or_else(|| self.refusal(&error, inbound)) {
            return failure;
        }
        #[cfg(feature = "tls")]
        if let Some(failure) = self.without_tls(&inbound.bytes_before_tls()) {
            return failure;
        }
        let hung_up = error.is_connection_dropped() && !error.is_connection_refusal();
        if (hung_up || error.kind() == redis::ErrorKind::Parse)
            && let Some(said) = inbound.last_error()
        {
            let answered = self.answered(&said);
            // Which of our commands it does not know says nothing of whether it takes us the next time.
            let is_unknown = said.to_ascii_lowercase().contains("unknown ");
            let kind = if is_unknown { FailureKind::Passing } else { answered.kind };
            return Failure::new(kind, format!("{}, and closed the connection", answered.reason));
        }
        let is_strange = !self.has_answered.load(Ordering::Relaxed) && inbound.first_bytes().is_empty();
        let hint = if is_strange && self.server.tls && error.is_timeout() {
            // A Redis without TLS takes the first word of TLS for a line, and waits for its end.
            "; if it does not speak TLS on this port, write `redis://`"
        } else if is_strange && !self.server.tls && self.server.socket.is_none() && hung_up {
            // A Redis with TLS hangs up on who does not speak it.
            "; if it speaks TLS on this port, write `rediss://`"
        } else {
            ""
        };
        let failure = self.failure(error);
        Failure { reason: format!("{}{hint}", failure.reason).into(), ..failure }
    }

    /// Returns why the server did not let us in, in its own words. The client keeps some of them only.
    fn refusal(&self, error: &RedisError, inbound: &Inbound) -> Option<Failure> {
        let errors = inbound.errors();
        match error.kind() {
            // It is the first that is asked.
            redis::ErrorKind::AuthenticationFailed => {
                let said = errors.first()?;
                let is_about_us =
                    said.starts_with("WRONGPASS") || said.to_ascii_lowercase().contains("password");
                Some(if is_about_us { self.unauthorized(said) } else { self.answered(said) })
            }
            redis::ErrorKind::RESP3NotSupported => errors.first().map(|said| self.answered(said)),
            _ => {
                let detail = error.code().and(error.detail()).filter(|detail| !detail.is_empty())?;
                errors.iter().find(|said| said.ends_with(detail)).map(|said| self.answered(said))
            }
        }
    }

    fn unauthorized(&self, said: &str) -> Failure {
        let said = self.shown.clean(said);
        let reason = format!("redis at {} refused the user or the password: {said}", self.shown);
        Failure::new(FailureKind::Lasting, reason)
    }

    /// Returns the failure of a server that has answered with an error.
    fn answered(&self, said: &str) -> Failure {
        let passes = MAY_PASS.iter().any(|may_pass| said.contains(may_pass));
        let kind = if passes { FailureKind::Passing } else { FailureKind::Lasting };
        let hint = if said.starts_with("NOAUTH") {
            "; write `:password@` or `user:password@` before the host"
        } else {
            ""
        };
        Failure::new(kind, format!("redis at {} answered: {}{hint}", self.shown, self.shown.clean(said)))
    }

    /// Returns the failure of a connection over which more came than may, or something else than the Redis protocol.
    pub(crate) fn violation(&self, inbound: &Inbound) -> Option<Failure> {
        let violation = inbound.violation()?;
        if violation != Violation::Foreign {
            return Some(Failure::new(FailureKind::Passing, format!("redis at {} {violation}", self.shown)));
        }
        Some(self.not_redis(&inbound.first_bytes()))
    }

    /// Returns the failure of a server that sent these bytes, which are not RESP, before anything else.
    fn not_redis(&self, first: &[u8]) -> Failure {
        if first.starts_with(&TLS_ALERT) && !self.server.tls {
            let reason = format!("the server at {} speaks TLS on this port: write `rediss://`", self.shown);
            return Failure::new(FailureKind::Passing, reason);
        }
        // One that was a Redis before may be one again, such as behind a proxy.
        let was_redis = self.has_answered.load(Ordering::Relaxed);
        let kind = if was_redis { FailureKind::Passing } else { FailureKind::Lasting };
        let replied = self.shown.clean(&first_line(first));
        let replied =
            if replied.is_empty() { "bytes that are no text".to_owned() } else { format!("`{replied}`") };
        let reason = format!("the server at {} is not a Redis server: it replied {replied}", self.shown);
        Failure::new(kind, reason)
    }

    /// Returns the failure of a server that answers to TLS by something else.
    #[cfg(feature = "tls")]
    fn without_tls(&self, first: &[u8]) -> Option<Failure> {
        match first.first()? {
            b'-' => {
                let said = first.split(|byte| *byte == b'\n').next().unwrap_or_default();
                let answered = self.answered(&String::from_utf8_lossy(said.get(1..).unwrap_or_default()));
                let passes = answered.kind == FailureKind::Passing;
                let kind = if passes { FailureKind::Passing } else { FailureKind::Untrusted };
                let reason =
                    format!("{}; it does not speak TLS on this port: write `redis://`", answered.reason);
                Some(Failure::new(kind, reason))
            }
            // A record of TLS, and what a Redis may say without it.
            0x14..=0x17 | b'+' | b':' | b'$' | b'*' => None,
            _ => Some(self.not_redis(first)),
        }
    }

    /// Turns the client's error about a connection into a failure.
    pub(crate) fn lost(&self, error: RedisError, inbound: &Inbound) -> Failure {
        self.violation(inbound).unwrap_or_else(|| self.failure(error))
    }

    /// Turns the client's error into a failure, with the server's address and without secrets.
    #[expect(clippy::needless_pass_by_value, reason = "it is what becomes of the error")]
    pub(crate) fn failure(&self, error: RedisError) -> Failure {
        #[cfg(feature = "tls")]
        if let Some(failure) = tls::failure(&error, &self.server, &self.certificates, &self.shown) {
            return failure;
        }
        if let redis::ErrorKind::AuthenticationFailed = error.kind() {
            return self.unauthorized(&error.to_string());
        }
        if let Some(code) = error.code() {
            return self.answered(&format!("{code} {}", error.detail().unwrap_or_default()));
        }
        let reason = if error.is_timeout() {
            format!("redis at {} did not answer in time", self.shown)
        } else if error.kind() == redis::ErrorKind::Parse {
            format!("redis at {} {}", self.shown, Violation::Malformed)
        } else {
            format!("no connection to redis at {}: {}", self.shown, self.shown.clean(&error.to_string()))
        };
        Failure::new(FailureKind::Passing, reason)
    }
}

/// Returns the first line that shows what a server is. Some begin with a length that looks like the end of a line.
fn first_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shows = |line: &&str| line.chars().filter(|c| !c.is_control()).count() >= SHORTEST_LINE;
    let line = text.lines().next().filter(shows);
    line.unwrap_or(&text).replace(char::REPLACEMENT_CHARACTER, "").trim().to_owned()
}

/// Returns `true` if the other end has closed the connection that it had accepted, and has not said why: the last command may be the reason.
fn hung_up_on_a_command(error: &RedisError, inbound: &Inbound) -> bool {
    let hung_up = error.is_connection_dropped() && !error.is_connection_refusal();
    // Whether it takes the name of the client is no reason to close later.
    let said = inbound.last_error().filter(|said| !said.to_ascii_lowercase().contains("client"));
    hung_up && inbound.violation().is_none() && said.is_none()
}

/// A connection for commands.
pub(crate) struct NewConnection {
    pub(crate) connection: Connection,
    /// The same, over which nobody finds out that answers are late.
    pub(crate) untimed: Connection,
    /// The names of the scripts; `None` where they go by their text.
    pub(crate) scripts: Option<Loaded>,
    /// What drives it, where the client leaves that to us.
    pub(crate) pump: Option<InlineDriver>,
}

/// What hears of grants, or of whatever was subscribed to.
pub(crate) struct Subscriber {
    sink: PubSubSink,
    stream: PubSubStream,
    inbound: Arc<Inbound>,
    /// Why the server did not let us subscribe.
    pub(crate) refused: Option<Failure>,
}

impl Subscriber {
    /// Returns what subscribes to more.
    pub(crate) fn sink(&self) -> PubSubSink {
        self.sink.clone()
    }

    /// Returns the next message, or nothing when the connection has ended or does not answer a ping.
    pub(crate) async fn next(&mut self, pulse: &mut Pulse) -> Option<Msg> {
        loop {
            if let Some(message) = pulse.before_a_ping(self.stream.next()).await {
                match message {
                    Some(_) => self.inbound.on_handled(),
                    None => self.inbound.on_end(),
                }
                return message;
            }
            let ping = tokio::time::timeout(PONG_WITHIN, self.sink.ping::<Value>()).await;
            if !matches!(ping, Ok(Ok(_))) {
                return None;
            }
        }
    }
}

/// A lock was given to one of ours.
#[derive(Debug)]
pub(crate) struct GrantMessage {
    pub(crate) token: Token,
    pub(crate) offer: Grant,
    pub(crate) key: Name,
}

impl GrantMessage {
    /// Reads a message: `<token><grant lease in ms>[+<streak in ms>]|<key>`.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?;
        let (token, rest) = text.split_at_checked(Token::WIDTH)?;
        let (offer, key) = rest.split_once('|')?;
        let (lease, fleet_hold) =
            offer.split_once('+').map_or((offer, None), |(lease, held)| (lease, Some(held)));
        let fleet_hold = match fleet_hold {
            Some(held) => FleetHold::of(Duration::from_millis(held.parse().ok()?)),
            None => FleetHold::UNKNOWN,
        };
        let offer = Grant { lease: Duration::from_millis(lease.parse().ok()?), fleet_hold };
        Some(Self { token: Token::parse(token)?, offer, key: key.into() })
    }
}

/// Nothing ever waits for room in a connection: what waits is let in when it is polled again, and what is sent meanwhile overtakes it.
/// And it would be woken while the connection is taken down, where older versions of tokio hold a lock that it takes, too. It takes no
/// more memory: whatever waits has its requests and bytes already.
const ROOM: usize = tokio::sync::Semaphore::MAX_PERMITS;

/// How the record begins by which a server ends TLS that was not begun.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// Shorter ones say too little.
const SHORTEST_LINE: usize = 4;

/// What a server that lets nobody in may say and take back; all else it says while we connect will be the same next time.
const MAY_PASS: [&str; 7] =
    ["LOADING", "READONLY", "MASTERDOWN", "BUSY", "MISCONF", "CLUSTERDOWN", "max number of clients"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenSource;

    #[test]
    fn a_grant_says_for_how_long_it_is_and_what_is_known_of_the_streak() {
        let token = TokenSource::new().next();
        let offer = |said: &str| {
            let grant = GrantMessage::parse(format!("{token}{said}|order+|7").as_bytes())?;
            assert_eq!((grant.token, &*grant.key), (token, "order+|7"));
            Some((grant.offer.lease.as_millis(), grant.offer.fleet_hold))
        };

        assert_eq!(offer("1000"), Some((1_000, FleetHold::UNKNOWN)));
        assert_eq!(offer("1000+20"), Some((1_000, FleetHold::of(Duration::from_millis(20)))));
        assert_eq!(offer("0"), Some((0, Grant::NONE.fleet_hold)));
        assert!(["", "+20", "1000+", "1000+x", "-1", "1+2+3"].iter().all(|said| offer(said).is_none()));
    }
}
