//! Commands that some servers lack or refuse, and what replaces them while a connection is opened.
//!
//! | missing | replacement |
//! |---|---|
//! | `CLIENT SETINFO` | nothing: the server is not given the name of the client library |
//! | `CLIENT SETNAME` | nothing: the server is not given the owner of the manager |
//! | `SCRIPT LOAD`, `EVALSHA` | each script is sent as text, with `EVAL` |
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

use redis::{Pipeline, RedisError, Value};

use crate::backend::redis::runtimes::Runtimes;
use crate::backend::redis::transport::connect_target::{ConnectTarget, NewConnection};
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::error_kind;
use crate::backend::redis::transport::inbound::Inbound;
use crate::clock::boot_time;
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
        let sets_info = self.fallbacks.can_set_info();
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
        self.on_first_reply(sets_info);
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
        let sets_info = self.fallbacks.can_set_info();
        let open = || self.open_for_commands(runtimes, attempt);
        let named = |(untimed, _): &(_, _)| self.timed(untimed);
        let ((untimed, driver), replies) =
            self.begin(open, named, self.eval(), attempt, Evidence::Counts).await?;
        let mut timed = self.timed(&untimed);
        self.check_eval(&mut timed, replies).await?;
        self.on_first_reply(sets_info);
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
                "redis at {} is a sentinel: write `redis+sentinel://host,host,host/master-name`",
                self.shown
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

    /// Notes the first reply to another command than `CLIENT SETINFO`, over a connection that sent
    /// that command if `sets_info`.
    ///
    /// If the server closed the connection that sent `CLIENT SETINFO` before, and never replied,
    /// that command was the reason.
    fn on_first_reply(&self, sets_info: bool) {
        let had_replied = self.has_replied.swap(true, Ordering::Relaxed);
        if sets_info && !had_replied {
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
