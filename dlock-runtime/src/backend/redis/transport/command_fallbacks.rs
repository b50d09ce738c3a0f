//! Commands that some servers lack or refuse, and what replaces them while a connection is opened.
//!
//! | missing | replacement |
//! |---|---|
//! | `CLIENT SETINFO` | nothing: the server is not given the name of the client library |
//! | `CLIENT SETNAME` | nothing: the server is not given the owner of the manager |
//! | `SCRIPT LOAD`, `EVALSHA` | each script is sent as text, with `EVAL` |
//! | `UNSUBSCRIBE` | nothing: the subscriptions last until the connection ends |
//! | `EVAL` | none: the connection is refused, as locks need it |
//!
//! A command is missing if the server replies with an error that [`error_kind::is_forbidden`]
//! recognizes, or if it closes the connection on the command. A network that fails at that time
//! looks the same, so a closed connection is evidence only if the server replies to another command
//! afterwards, or closes the connection twice in a row.
//!
//! An attempt to connect opens another connection without the command only until `connect_timeout`
//! has passed since the [`ConnectAttempt`] began. So its last connection begins in that time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Pipeline, RedisError, RedisResult, ServerError, Value};

use crate::backend::redis::runtimes::Runtimes;
use crate::backend::redis::transport::connect_target::{ConnectTarget, NewConnection};
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::error_kind;
use crate::backend::redis::transport::inbound::Inbound;
use crate::clock::boot_time;
use crate::config::deployment::Deployment;
use crate::protocol::deadline::BootInstant;
use crate::protocol::failure::{Failure, FailureKind};
use crate::telemetry;

/// The commands that a server is known to lack.
#[derive(Debug, Default)]
pub(super) struct CommandFallbacks {
    /// Whether the server has no `CLIENT SETINFO`.
    lacks_client_setinfo: AtomicBool,
    /// Whether the server has no `CLIENT SETNAME`.
    lacks_client_setname: AtomicBool,
    /// Whether the server closed the previous connection on `CLIENT SETNAME`.
    closed_on_client_setname: AtomicBool,
    /// Whether the server has no `SCRIPT LOAD`.
    lacks_script_load: AtomicBool,
    /// Whether the server closed the previous connection on `SCRIPT LOAD`.
    closed_on_script_load: AtomicBool,
    /// Whether the server has no `EVALSHA`.
    lacks_evalsha: AtomicBool,
    /// Whether the server has no `UNSUBSCRIBE`, or no `SUNSUBSCRIBE`.
    lacks_unsubscribe: AtomicBool,
}

impl CommandFallbacks {
    /// Returns `true` unless the server is known to have no `CLIENT SETINFO`.
    pub(super) fn can_set_info(&self) -> bool {
        !self.lacks_client_setinfo.load(Ordering::Relaxed)
    }
}

/// One attempt to connect, which may open several connections one after the other.
#[derive(Clone, Copy)]
pub(crate) struct ConnectAttempt {
    repeats_until: BootInstant,
}

impl ConnectAttempt {
    /// Returns `true` if the attempt has time for another connection.
    pub(super) fn may_repeat(self) -> bool {
        boot_time() < self.repeats_until
    }
}

/// Whether a connection that the server closes at once is evidence that it lacks a command.
///
/// Connections that are opened side by side fail together, so only those for commands count.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Evidence {
    Counts,
    None,
}

impl ConnectTarget {
    /// Begins an attempt to connect.
    pub(crate) fn attempt(&self) -> ConnectAttempt {
        ConnectAttempt { repeats_until: boot_time().plus(self.connect_timeout) }
    }

    /// Opens a connection for commands, and loads `scripts`.
    pub(crate) async fn connect(
        &self,
        scripts: &[&str],
        runtimes: &Arc<Runtimes>,
        attempt: ConnectAttempt,
    ) -> Result<NewConnection, Failure> {
        if self.fallbacks.lacks_script_load.load(Ordering::Relaxed) {
            return self.connect_without_loading(runtimes, attempt).await;
        }
        let open = || self.open_for_commands(runtimes, attempt);
        let named = |(untimed, _): &(_, _)| self.timed(untimed);
        let ((untimed, driver), replies) =
            self.begin(open, named, load(scripts), attempt, Evidence::Counts).await?;
        let mut timed = self.timed(&untimed);
        let replies = match replies {
            Ok(replies) => replies,
            Err(error) if is_closed_by_command(&error, timed.inbound()) => {
                if !attempt.may_repeat() {
                    let failure = self.connect_failure(error, timed.inbound());
                    return Err(self.no_time_without("SCRIPT LOAD", &failure));
                }
                drop((timed, untimed, driver));
                let opened = self.connect_without_loading(runtimes, attempt).await?;
                if self.fallbacks.closed_on_script_load.swap(true, Ordering::Relaxed) {
                    self.mark_lacking(&self.fallbacks.lacks_script_load, "SCRIPT LOAD", CLOSED);
                }
                return Ok(opened);
            }
            Err(error) => return Err(self.connect_failure(error, timed.inbound())),
        };
        self.on_first_reply();
        self.fallbacks.closed_on_script_load.store(false, Ordering::Relaxed);
        if let Some(refusal) = replies.iter().find(|reply| error_kind::is_forbidden(reply)) {
            let replies = timed.send_packed_commands(&self.eval(), 0, 1).await;
            self.check_eval(&mut timed, replies).await?;
            self.mark_lacking(&self.fallbacks.lacks_script_load, "SCRIPT LOAD", &self.error_text(refusal));
            return Ok(NewConnection { timed, untimed, scripts: None, driver });
        }
        let mut hashes = Vec::new();
        for reply in replies {
            match reply {
                Value::BulkString(hash) => hashes.push(String::from_utf8_lossy(&hash).into_owned()),
                Value::SimpleString(hash) => hashes.push(hash),
                Value::ServerError(error) => return Err(self.failure(error.into())), // such as `NOAUTH`
                _ => {}
            }
        }
        if hashes.len() != scripts.len() {
            let reason = format!("redis at {} did not load the scripts of locks", self.shown);
            return Err(Failure::new(FailureKind::Passing, reason));
        }
        Ok(NewConnection { timed, untimed, scripts: Some(hashes), driver })
    }

    /// Opens a connection with `open`, and sends its first commands over the handle that `timed`
    /// returns. The name of the connection is sent with them, in the same round trip.
    ///
    /// If the server closes the connection, opens another one that has no name. If that happens
    /// twice in succession on connections whose `evidence` counts, the server has no `CLIENT
    /// SETNAME`. Returns the replies to the commands.
    pub(super) async fn begin<T, F>(
        &self,
        open: impl Fn() -> F,
        timed: impl Fn(&T) -> Connection,
        commands: Pipeline,
        attempt: ConnectAttempt,
        evidence: Evidence,
    ) -> Result<(T, Result<Vec<Value>, RedisError>), Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let opened = open().await?;
        let count = commands.len();
        if self.fallbacks.lacks_client_setname.load(Ordering::Relaxed) {
            let replies = timed(&opened).send_packed_commands(&commands, 0, count).await;
            return Ok((opened, replies));
        }
        let mut named = commands.clone();
        named.cmd("CLIENT").arg("SETNAME").arg(&*self.owner);
        let mut connection = timed(&opened);
        match connection.send_packed_commands(&named, 0, count + 1).await {
            Ok(mut replies) => {
                if evidence == Evidence::Counts {
                    self.fallbacks.closed_on_client_setname.store(false, Ordering::Relaxed);
                }
                if let Some(refusal @ Value::ServerError(_)) = replies.pop()
                    && !error_kind::is_out_of_service(&refusal)
                {
                    let reason = self.error_text(&refusal);
                    self.mark_lacking(&self.fallbacks.lacks_client_setname, "CLIENT SETNAME", &reason);
                }
                return Ok((opened, Ok(replies)));
            }
            Err(error) if !is_closed_by_command(&error, connection.inbound()) => {
                return Ok((opened, Err(error)));
            }
            Err(error) if !attempt.may_repeat() => {
                let failure = self.connect_failure(error, connection.inbound());
                return Err(self.no_time_without("CLIENT SETNAME", &failure));
            }
            Err(_) => drop((connection, opened)),
        }
        let opened = open().await?;
        let replies = timed(&opened).send_packed_commands(&commands, 0, count).await;
        if replies.is_ok()
            && evidence == Evidence::Counts
            && self.fallbacks.closed_on_client_setname.swap(true, Ordering::Relaxed)
        {
            self.mark_lacking(&self.fallbacks.lacks_client_setname, "CLIENT SETNAME", CLOSED);
        }
        Ok((opened, replies))
    }

    /// Opens a connection for commands to a server that has no `SCRIPT LOAD`.
    async fn connect_without_loading(
        &self,
        runtimes: &Arc<Runtimes>,
        attempt: ConnectAttempt,
    ) -> Result<NewConnection, Failure> {
        let open = || self.open_for_commands(runtimes, attempt);
        let named = |(untimed, _): &(_, _)| self.timed(untimed);
        let ((untimed, driver), replies) =
            self.begin(open, named, self.eval(), attempt, Evidence::Counts).await?;
        let mut timed = self.timed(&untimed);
        self.check_eval(&mut timed, replies).await?;
        self.on_first_reply();
        Ok(NewConnection { timed, untimed, scripts: None, driver })
    }

    /// Returns a script that is sent as text.
    fn eval(&self) -> Pipeline {
        let mut eval = Pipeline::with_capacity(2);
        eval.cmd("EVAL").arg("return 1").arg(1).arg(&self.probe_key);
        eval
    }

    /// Checks by the reply to [`eval`](Self::eval) that the server runs scripts that are sent as
    /// text.
    async fn check_eval(
        &self,
        connection: &mut Connection,
        replies: Result<Vec<Value>, RedisError>,
    ) -> Result<(), Failure> {
        match replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil)) {
            Ok(refusal) if error_kind::is_forbidden(&refusal) => {
                Err(self.eval_failure(&refusal, connection).await)
            }
            Ok(refusal) if error_kind::is_out_of_service(&refusal) => {
                refusal.extract_error().map(drop).map_err(|error| self.failure(error))
            }
            Ok(_) => Ok(()),
            // Without any reply, the port rather than the command is wrong: the failure suggests
            // TLS.
            Err(error) if self.has_replied() && is_closed_by_command(&error, connection.inbound()) => {
                Err(self.closed_on("EVAL", error))
            }
            Err(error) => Err(self.connect_failure(error, connection.inbound())),
        }
    }

    /// Returns why the server runs no scripts: it refuses `EVAL`, or it is a Sentinel.
    async fn eval_failure(&self, refusal: &Value, connection: &mut Connection) -> Failure {
        let role = connection.send_packed_command(&redis::cmd("ROLE")).await;
        if let Ok(Value::Array(fields)) = role
            && fields.first().and_then(error_kind::text) == Some("sentinel")
        {
            let reason = format!(
                "redis at {} is a sentinel: write `{}host,host,host/master-name`",
                self.shown,
                self.shown.advice().scheme_of(Deployment::Sentinels)
            );
            return Failure::new(FailureKind::Lasting, reason);
        }
        match refusal {
            Value::ServerError(error) => self.shown.failure(error),
            _ => self.timeout_failure(),
        }
    }

    /// Opens a connection that replicas acknowledge writes on; `None` if `replica_acks` is 0.
    pub(crate) async fn connect_for_acks(
        &self,
        attempt: ConnectAttempt,
    ) -> Result<Option<Connection>, Failure> {
        if self.replica_acks == 0 {
            return Ok(None);
        }
        // Waits for no replica: it only shows whether the server has `WAIT`, before the first lock
        // needs it.
        let mut wait = Pipeline::with_capacity(2);
        wait.cmd("WAIT").arg(0).arg(1);
        let (connection, replies) =
            self.begin(|| self.open(attempt), Connection::clone, wait, attempt, Evidence::None).await?;
        let failed = |error| {
            if !is_closed_by_command(&error, connection.inbound()) {
                return self.connect_failure(error, connection.inbound());
            }
            let failure = self.closed_on("WAIT", error);
            Failure { reason: format!("{}: leave out `replica_acks`", failure.reason).into(), ..failure }
        };
        match replies.map_err(failed)?.pop() {
            Some(Value::ServerError(error)) => Err(self.shown.failure(&error)),
            _ => Ok(Some(connection)),
        }
    }

    /// Notes that a connection is open, and that the client library has waited for the reply to
    /// `CLIENT SETINFO`, whose errors it ignores.
    pub(super) fn on_client_info_sent(&self, inbound: &Inbound) {
        self.has_replied.store(true, Ordering::Relaxed);
        if let Some(refusal) = inbound.errors().iter().find(|text| is_about_client(text)) {
            self.mark_lacking(&self.fallbacks.lacks_client_setinfo, "CLIENT SETINFO", refusal);
        }
    }

    /// Returns the outcome of a request on an open connection. Its reply may be the first of the
    /// server.
    pub(crate) fn reply_or_failure<T>(
        &self,
        reply: RedisResult<T>,
        connection: &Connection,
    ) -> Result<T, Failure> {
        match reply {
            Ok(reply) => {
                self.on_first_reply();
                Ok(reply)
            }
            Err(error) => Err(self.connection_failure(error, connection.inbound())),
        }
    }

    /// Returns the failure of a server that closed an open connection on `command`. `None` if it
    /// did not, or if it has never replied: then the port rather than the command is wrong.
    pub(crate) fn closed_on_command(
        &self,
        error: &RedisError,
        inbound: &Inbound,
        command: &str,
    ) -> Option<Failure> {
        let is_closed = error.is_connection_dropped() && inbound.violation().is_none();
        let failure = || self.closed_on(command, error.clone()).with_connection_lost();
        (is_closed && self.has_replied()).then(failure)
    }

    /// Notes the first reply on a connection to another command than `CLIENT SETINFO`.
    ///
    /// The reply to that command would have been the first of the server. If there was none, the
    /// server closed each connection on which it was sent, and this connection was opened without.
    fn on_first_reply(&self) {
        if !self.has_replied.swap(true, Ordering::Relaxed) {
            self.mark_lacking(&self.fallbacks.lacks_client_setinfo, "CLIENT SETINFO", CLOSED);
        }
    }

    /// Sets the flag of a command that the server lacks, and reports the first time.
    fn mark_lacking(&self, is_lacking: &AtomicBool, command: &str, reason: &str) {
        if !is_lacking.swap(true, Ordering::Relaxed) {
            telemetry::command_unsupported(&self.shown, command, &reason);
        }
    }

    /// Returns `true` if the server is known to have no `EVALSHA`.
    pub(crate) fn lacks_evalsha(&self) -> bool {
        self.fallbacks.lacks_evalsha.load(Ordering::Relaxed)
    }

    /// Notes that the server has no `EVALSHA`, as an error reply shows.
    pub(crate) fn note_lacking_evalsha(&self, refusal: &Value) {
        self.mark_lacking(&self.fallbacks.lacks_evalsha, "EVALSHA", &self.error_text(refusal));
    }

    /// Notes that the server refuses to end subscriptions, if that is the reason for `error`. A
    /// slot that has moved has another reason.
    pub(crate) fn note_lacking_unsubscribe(&self, error: RedisError) {
        if let Ok(error) = ServerError::try_from(error)
            && error_kind::forbids(&error)
        {
            let reason = self.shown.error_text(&error);
            self.mark_lacking(&self.fallbacks.lacks_unsubscribe, "UNSUBSCRIBE", &reason);
        }
    }

    fn error_text(&self, refusal: &Value) -> String {
        match refusal {
            Value::ServerError(error) => self.shown.error_text(error),
            _ => String::new(),
        }
    }
}

/// Returns the commands that load scripts.
pub(crate) fn load(scripts: &[&str]) -> Pipeline {
    let mut pipeline = redis::pipe();
    for source in scripts {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(*source);
    }
    pipeline
}

/// Returns `true` if the server closed a connection that it had accepted, and did not say why: the
/// last command may be the reason.
pub(super) fn is_closed_by_command(error: &RedisError, inbound: &Arc<Inbound>) -> bool {
    let is_closed = error.is_connection_dropped() && !error.is_connection_refusal();
    // An error in reply to `CLIENT SETINFO` is no reason to close the connection later.
    let reason = inbound.last_error().filter(|text| !is_about_client(text));
    is_closed && inbound.violation().is_none() && reason.is_none()
}

/// Returns `true` if an error is one about a `CLIENT` command.
fn is_about_client(text: &str) -> bool {
    text.to_ascii_lowercase().contains("client")
}

const CLOSED: &str = "it closed the connection";

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicUsize;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::backend::redis::tests::resp::{self, array, bulk, primary};
    use crate::backend::redis::tests::scripted_server::{ScriptedServer, patient};
    use crate::backend::redis::transport::inbound::{Content, InboundStream};
    use crate::backend::redis::transport::redacted::Redacted;

    const SCRIPTS: [&str; 2] = ["return 1", "return 2"];

    /// An attempt that has no time for another connection.
    const EXPIRED: ConnectAttempt = ConnectAttempt { repeats_until: BootInstant::from_nanos(0) };

    /// Starts a server that replies to commands that begin with `words` by `reply`, and to others
    /// as a primary without keys does.
    fn server_with(words: &'static str, reply: Option<&'static str>) -> ScriptedServer {
        ScriptedServer::start(move |command| {
            if command.starts_with(words) { reply.map(str::to_owned) } else { Some(primary(command)) }
        })
    }

    async fn connect(target: &ConnectTarget) -> Result<NewConnection, Failure> {
        target.connect(&SCRIPTS, &Arc::default(), target.attempt()).await
    }

    /// Returns the reason of a failure to connect.
    async fn refused(target: &ConnectTarget) -> Failure {
        connect(target).await.err().expect("the server refuses a command")
    }

    #[tokio::test]
    async fn only_a_close_without_a_reason_may_be_due_to_the_last_command() {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, TimedOut};
        for (kind, received, may_be) in [
            (ConnectionReset, "", true),
            (BrokenPipe, "+OK\r\n", true),
            (BrokenPipe, "-ERR unknown command 'CLIENT'\r\n", true),
            (BrokenPipe, "-DENIED go away\r\n", false),
            (BrokenPipe, "HTTP/1.1 400\r\n", false),
            (ConnectionRefused, "", false),
            (TimedOut, "", false),
        ] {
            let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
            let _ = InboundStream::new(received.as_bytes(), &inbound).read_to_end(&mut Vec::new()).await;

            let error = io::Error::from(kind).into();

            assert_eq!(is_closed_by_command(&error, &inbound), may_be, "{kind:?} after {received:?}");
        }
    }

    #[tokio::test]
    async fn scripts_are_loaded_and_all_optional_commands_are_sent_again() {
        let server = server_with("SCRIPT LOAD return 2", Some("+second\r\n"));
        let target = server.target(&patient());

        for connections in 1..=2 {
            let connected = connect(&target).await.map(|new| new.scripts);

            let hashes = ["hash", "second"].map(str::to_owned).to_vec();
            assert_eq!(connected.ok(), Some(Some(hashes)));
            for command in ["CLIENT SETINFO LIB-NAME", "CLIENT SETNAME", "SCRIPT LOAD return 1"] {
                assert_eq!(server.count(command), connections, "{command}");
            }
        }
    }

    #[tokio::test]
    async fn a_reason_sent_before_a_close_is_reported_at_once() {
        let server = ScriptedServer::start(|command| match command {
            "SCRIPT LOAD return 1" => Some("-DENIED go away\r\n".to_owned()),
            "SCRIPT LOAD return 2" => None,
            _ => Some(primary(command)),
        });

        let failure = refused(&server.target(&patient())).await;

        let words = "DENIED go away, and closed the connection";
        assert!(failure.reason.contains(words), "{}", failure.reason);
        assert_eq!(server.count("CLIENT SETINFO LIB-NAME"), 1);
    }

    #[tokio::test]
    async fn setinfo_is_missing_if_a_connection_without_it_has_a_reply() {
        let server = server_with("CLIENT SETINFO LIB-NAME", None);
        let target = server.target(&patient());

        assert!(connect(&target).await.is_ok() && connect(&target).await.is_ok());

        assert_eq!(server.count("CLIENT SETINFO LIB-NAME"), 1);
    }

    #[tokio::test]
    async fn a_server_that_is_loading_does_not_lack_setname() {
        for (reply, tries) in [("-LOADING Redis is loading\r\n", 2), ("-ERR unknown command\r\n", 1)] {
            let server = server_with("CLIENT SETNAME", Some(reply));
            let target = server.target(&patient());

            assert!(connect(&target).await.is_ok() && connect(&target).await.is_ok(), "{reply}");

            assert_eq!(server.count("CLIENT SETNAME"), tries, "{reply}");
        }
    }

    #[tokio::test]
    async fn setname_is_missing_if_it_closes_two_connections_in_a_row() {
        for (closes, tries_later) in [([true, true, false], 0), ([true, false, true], 1)] {
            let place = AtomicUsize::new(0);
            let server = ScriptedServer::start(move |command| {
                let is_setname = command.starts_with("CLIENT SETNAME");
                let place = place.fetch_add(usize::from(is_setname), Ordering::SeqCst);
                if is_setname && closes.get(place) == Some(&true) { None } else { Some(primary(command)) }
            });
            let target = server.target(&patient());
            for connection in 0..3 {
                assert!(connect(&target).await.is_ok(), "{closes:?}: connection {connection}");
            }
            let before = server.count("CLIENT SETNAME");

            assert!(connect(&target).await.is_ok());

            assert_eq!(server.count("CLIENT SETNAME") - before, tries_later, "{closes:?}");
        }
    }

    #[tokio::test]
    async fn connections_for_acks_are_no_evidence_about_setname() {
        let server = server_with("CLIENT SETNAME", None);
        let mut settings = patient();
        settings.rules.replica_acks = 1;
        let target = server.target(&settings);

        for tries in 1..=3 {
            let opened = target.connect_for_acks(target.attempt()).await;

            assert!(opened.is_ok_and(|connection| connection.is_some()));
            assert_eq!(server.count("CLIENT SETNAME"), tries);
        }
    }

    #[tokio::test]
    async fn replica_acks_need_a_connection_and_wait() {
        let mut settings = patient();
        let server = ScriptedServer::start(primary);
        let none = server.target(&settings).connect_for_acks(EXPIRED).await;
        assert!(none.is_ok_and(|connection| connection.is_none()) && server.count("") == 0);

        settings.rules.replica_acks = 1;
        for (reply, words) in [
            (Some("-ERR unknown command 'WAIT'\r\n"), "no `WAIT`: leave out `replica_acks`"),
            (Some("HTTP/1.1 400 Bad Request\r\n"), "sent bytes that are not the Redis protocol"),
            (None, "closed the connection on `WAIT`: leave out `replica_acks`"),
        ] {
            let server = server_with("WAIT", reply);
            let target = server.target(&settings);
            target.fallbacks.lacks_client_setname.store(true, Ordering::Relaxed);

            let failure = target.connect_for_acks(EXPIRED).await.err().expect("`WAIT` is missing");

            assert!(failure.reason.ends_with(words), "{}", failure.reason);
        }
    }

    #[tokio::test]
    async fn an_attempt_without_time_names_the_command() {
        for (words, command) in [
            ("CLIENT SETINFO", "CLIENT SETINFO"),
            ("CLIENT SETNAME", "CLIENT SETNAME"),
            ("SCRIPT", "SCRIPT LOAD"),
        ] {
            let server = server_with(words, None);
            let target = server.target(&patient());
            target.fallbacks.lacks_client_setname.store(words == "SCRIPT", Ordering::Relaxed);

            let failure = target.connect(&SCRIPTS, &Arc::default(), EXPIRED).await.err();

            let reason = failure.expect("it closes the connection").reason;
            assert!(reason.contains(&format!("perhaps because of `{command}`: raise")), "{reason}");
            assert_eq!(server.count(words), 1, "{command}");
            assert!(connect(&target).await.is_ok(), "{command} is optional");
        }
    }

    #[tokio::test]
    async fn the_reply_to_eval_shows_whether_scripts_run() {
        for (reply, kind, words) in [
            ("-ERR unknown command 'EVAL'\r\n", FailureKind::Lasting, "no `EVAL`, which locks need"),
            ("-NOPERM no permissions to run 'eval'\r\n", FailureKind::Lasting, "`dlock doctor`"),
            ("-LOADING Redis is loading\r\n", FailureKind::Passing, "LOADING Redis is loading"),
            ("-NOAUTH Authentication required.\r\n", FailureKind::Lasting, "NOAUTH"),
        ] {
            let server = server_with("EVAL", Some(reply));
            let target = server.target(&patient());
            target.fallbacks.lacks_script_load.store(true, Ordering::Relaxed);

            let failure = refused(&target).await;

            assert!(failure.kind == kind && failure.reason.contains(words), "{reply}: {failure:?}");
            assert_eq!(server.count("SCRIPT"), 0);
        }
        for reply in [":1\r\n", "-BUSY a script runs\r\n"] {
            let server = server_with("EVAL", Some(reply));
            let target = server.target(&patient());
            target.fallbacks.lacks_script_load.store(true, Ordering::Relaxed);

            assert!(connect(&target).await.is_ok_and(|new| new.scripts.is_none()), "{reply}");
        }
    }

    #[tokio::test]
    async fn a_sentinel_that_runs_no_scripts_is_recognized() {
        let server = ScriptedServer::start(|command| match command.split(' ').next() {
            Some("SCRIPT" | "EVAL") => "-ERR unknown command\r\n".to_owned(),
            Some("ROLE") => array([bulk("sentinel"), array([])]),
            _ => primary(command),
        });

        let failure = refused(&server.target(&patient())).await;

        assert_eq!(failure.kind, FailureKind::Lasting);
        assert!(failure.reason.contains("is a sentinel: write `redis+sentinel://"), "{}", failure.reason);
    }

    #[tokio::test]
    async fn a_close_on_eval_names_it_only_if_the_server_has_replied() {
        for (has_replied, words) in
            [(true, "closed the connection on `EVAL`"), (false, "if it speaks TLS on this port")]
        {
            let server = ScriptedServer::start(|_| None::<String>);
            let target = server.target(&patient());
            let fallbacks = &target.fallbacks;
            for lacks in [
                &fallbacks.lacks_client_setinfo,
                &fallbacks.lacks_client_setname,
                &fallbacks.lacks_script_load,
            ] {
                lacks.store(true, Ordering::Relaxed);
            }
            target.has_replied.store(has_replied, Ordering::Relaxed);

            let failure = refused(&target).await;

            assert!(failure.reason.contains(words), "{}", failure.reason);
        }
    }

    #[tokio::test]
    async fn a_late_reply_to_eval_is_no_close() {
        let server = server_with("EVAL", Some(""));
        let mut settings = patient();
        settings.rules.response_timeout = std::time::Duration::from_millis(20);
        let target = server.target(&settings);
        target.fallbacks.lacks_script_load.store(true, Ordering::Relaxed);

        let failure = refused(&target).await;

        assert!(failure.reason.contains("did not reply in time"), "{}", failure.reason);
    }

    #[tokio::test]
    async fn a_server_that_loads_too_few_scripts_is_refused() {
        for (reply, words) in [
            ("-NOAUTH Authentication required.\r\n", "NOAUTH Authentication required"),
            (":7\r\n", "did not load the scripts of locks"),
        ] {
            let server = server_with("SCRIPT LOAD return 2", Some(reply));

            let failure = refused(&server.target(&patient())).await;

            assert!(failure.reason.contains(words), "{}", failure.reason);
        }
    }

    #[tokio::test]
    async fn evalsha_is_lacking_once_that_is_noted() {
        let target = ScriptedServer::start(primary).target(&patient());
        assert!(!target.lacks_evalsha());

        target.note_lacking_evalsha(&Value::Nil);

        assert!(target.lacks_evalsha());
    }

    /// A slot that has moved is the reason for the first error, and not for the next one.
    #[tokio::test]
    async fn unsubscribe_is_lacking_once_the_server_forbids_it() {
        let target = ScriptedServer::start(primary).target(&patient());

        for (line, is_lacking) in [("MOVED 7 h:1", false), ("ERR no", false), ("NOPERM no", true)] {
            target.note_lacking_unsubscribe(resp::error(line).extract_error().expect_err("an error"));

            assert_eq!(target.fallbacks.lacks_unsubscribe.load(Ordering::Relaxed), is_lacking, "{line}");
        }
    }

    #[tokio::test]
    async fn a_refusal_is_reported_with_its_text() {
        let target = ScriptedServer::start(primary).target(&patient());

        let refusal = resp::error("ERR unknown command 'EVALSHA'");

        assert_eq!(target.error_text(&refusal), "ERR unknown command 'EVALSHA'");
    }
}
