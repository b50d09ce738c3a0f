//! The texts and kinds of failures to connect.
//!
//! If the server sent an error, that error is the reason. Secrets are removed from each text.

use std::sync::atomic::Ordering;

use redis::RedisError;

use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::framing::Violation;
use crate::backend::redis::transport::inbound::Inbound;
#[cfg(feature = "tls")]
use crate::backend::redis::transport::tls;
use crate::protocol::failure::{Failure, FailureKind};

impl ConnectTarget {
    /// Returns `true` if the server has ever replied as a Redis server does.
    pub(super) fn has_replied(&self) -> bool {
        self.has_replied.load(Ordering::Relaxed)
    }

    /// Converts a failure of the credentials provider.
    pub(super) fn credentials_failure(&self, failure: &Failure) -> Failure {
        let reason =
            format!("no connection to redis at {}: {}", self.shown, self.shown.clean(&failure.reason));
        Failure::new(failure.kind, reason)
    }

    /// Returns the failure of a server that closed the connection on `command`.
    pub(super) fn closed_on(&self, command: &str, error: RedisError) -> Failure {
        let failure = self.failure(error);
        let reason = format!("redis at {} closed the connection on `{command}`", self.shown);
        Failure { reason: reason.into(), ..failure }
    }

    /// Returns the failure of an attempt that has no time to try again without `command`, which may
    /// be the reason for `failure`.
    pub(super) fn no_time_without(&self, command: &str, failure: &Failure) -> Failure {
        let reason = format!(
            "{}, perhaps because of `{command}`: raise `connect_timeout`, since the attempt has taken more than \
             {} ms, and cannot open another connection without this command",
            failure.reason,
            self.connect_timeout.as_millis()
        );
        Failure::new(failure.kind, reason)
    }

    /// Returns the failure of a reply that is late.
    pub(crate) fn timeout_failure(&self) -> Failure {
        let reason = format!("redis at {} did not reply in time", self.shown);
        Failure::new(FailureKind::Passing, reason)
    }

    /// Converts an error that occurred while a connection was opened.
    pub(super) fn connect_failure(&self, error: RedisError, inbound: &Inbound) -> Failure {
        if let Some(failure) = self.violation(inbound).or_else(|| self.refusal(&error, inbound)) {
            return failure;
        }
        #[cfg(feature = "tls")]
        if let Some(failure) = self.plaintext_failure(&inbound.bytes_before_tls()) {
            return failure;
        }
        let is_closed = error.is_connection_dropped() && !error.is_connection_refusal();
        if (is_closed || error.kind() == redis::ErrorKind::Parse)
            && let Some(text) = inbound.last_error()
        {
            let failure = self.error_reply(&text);
            // A missing command does not mean that the next attempt fails.
            let is_unknown = text.to_ascii_lowercase().contains("unknown ");
            let kind = if is_unknown { FailureKind::Passing } else { failure.kind };
            return Failure::new(kind, format!("{}, and closed the connection", failure.reason));
        }
        let is_silent = !self.has_replied() && inbound.first_bytes().is_empty();
        let hint = if is_silent && self.server.tls && error.is_timeout() {
            // A Redis without TLS reads the ClientHello as an inline command, and waits for the end
            // of the line.
            format!("; if it does not speak TLS on this port, {}", self.write_scheme(false))
        } else if is_silent && !self.server.tls && self.server.socket.is_none() && is_closed {
            // A Redis with TLS closes a connection that does not begin with a ClientHello.
            format!("; if it speaks TLS on this port, {}", self.write_scheme(true))
        } else {
            String::new()
        };
        let failure = self.failure(error);
        Failure { reason: format!("{}{hint}", failure.reason).into(), ..failure }
    }

    /// Returns the error that the server sent, of which the client library keeps only a part.
    fn refusal(&self, error: &RedisError, inbound: &Inbound) -> Option<Failure> {
        let errors = inbound.errors();
        match error.kind() {
            // The client library sends `AUTH` or `HELLO` first, so the first error belongs to it.
            redis::ErrorKind::AuthenticationFailed => {
                let text = errors.first()?;
                let is_credentials =
                    text.starts_with("WRONGPASS") || text.to_ascii_lowercase().contains("password");
                Some(if is_credentials { self.unauthorized(text) } else { self.error_reply(text) })
            }
            redis::ErrorKind::RESP3NotSupported => errors.first().map(|text| self.error_reply(text)),
            _ => {
                let detail = error.code().and(error.detail()).filter(|detail| !detail.is_empty())?;
                errors.iter().find(|text| text.ends_with(detail)).map(|text| self.error_reply(text))
            }
        }
    }

    fn unauthorized(&self, text: &str) -> Failure {
        let hint = self.shown.advice().refused_credentials(text);
        let text = self.shown.clean(text);
        let reason = format!("redis at {} refused the user or the password: {text}{hint}", self.shown);
        Failure::new(FailureKind::Lasting, reason)
    }

    /// Returns the failure of a server that replied with an error.
    fn error_reply(&self, text: &str) -> Failure {
        let is_passing = PASSING_ERRORS.iter().any(|passing| text.contains(passing));
        let kind = if is_passing { FailureKind::Passing } else { FailureKind::Lasting };
        let hint = if text.starts_with("NOAUTH") {
            self.shown.advice().missing_credentials()
        } else if text.contains("DB index is out of range") {
            "; write a database below its setting `databases`, which is 16 by default, or leave it out"
        } else {
            ""
        };
        Failure::new(kind, format!("redis at {} replied: {}{hint}", self.shown, self.shown.clean(text)))
    }

    /// Returns the failure of a connection that exceeded a limit, or that does not carry the Redis
    /// protocol.
    pub(crate) fn violation(&self, inbound: &Inbound) -> Option<Failure> {
        let violation = inbound.violation()?;
        if violation != Violation::Foreign {
            return Some(Failure::new(FailureKind::Passing, format!("redis at {} {violation}", self.shown)));
        }
        Some(self.foreign_protocol(&inbound.first_bytes()))
    }

    /// Returns the failure of a server whose first bytes are not RESP.
    fn foreign_protocol(&self, first: &[u8]) -> Failure {
        if first.starts_with(&TLS_ALERT) && !self.server.tls {
            let write = self.write_scheme(true);
            let reason = format!("the server at {} speaks TLS on this port: {write}", self.shown);
            return Failure::new(FailureKind::Passing, reason);
        }
        // If it was a Redis server before, it may be one again, such as behind a proxy.
        let kind = if self.has_replied() { FailureKind::Passing } else { FailureKind::Lasting };
        let reply = self.shown.clean(&first_line(first));
        let reply =
            if reply.is_empty() { "bytes that are not text".to_owned() } else { format!("`{reply}`") };
        let reason = format!("the server at {} is not a Redis server: it replied {reply}", self.shown);
        Failure::new(kind, reason)
    }

    /// Returns the failure of a server that did not reply to a `ClientHello` with TLS.
    #[cfg(feature = "tls")]
    fn plaintext_failure(&self, first: &[u8]) -> Option<Failure> {
        match first.first()? {
            b'-' => {
                let line = first.split(|byte| *byte == b'\n').next().unwrap_or_default();
                let failure = self.error_reply(&String::from_utf8_lossy(line.get(1..).unwrap_or_default()));
                let is_passing = failure.kind == FailureKind::Passing;
                let kind = if is_passing { FailureKind::Passing } else { FailureKind::Untrusted };
                let write = self.write_scheme(false);
                let reason = format!("{}; it does not speak TLS on this port: {write}", failure.reason);
                Some(Failure::new(kind, reason))
            }
            // A TLS record, or a RESP type that a Redis server may send.
            0x14..=0x17 | b'+' | b':' | b'$' | b'*' => None,
            _ => Some(self.foreign_protocol(first)),
        }
    }

    /// Returns the advice to use the scheme of the URL with TLS, or without.
    fn write_scheme(&self, tls: bool) -> String {
        format!("write `{}`", self.shown.advice().own_scheme(tls))
    }

    /// Converts an error on an open connection.
    ///
    /// If the server has never replied, the connection is only as open as one to any port: the
    /// first request may be the first that the server reads. So the reason is that of connecting.
    /// The kind is not: a proxy may accept a connection, send an error, and close it while its
    /// backend is down.
    pub(crate) fn connection_failure(&self, error: RedisError, inbound: &Inbound) -> Failure {
        if let Some(failure) = self.violation(inbound) {
            return failure;
        }
        let failure = self.failure(error.clone());
        if self.has_replied() {
            return failure;
        }
        Failure { reason: self.connect_failure(error, inbound).reason, ..failure }
    }

    /// Converts an error of the client library into a failure that names the server.
    #[expect(clippy::needless_pass_by_value, reason = "the failure replaces the error")]
    pub(crate) fn failure(&self, error: RedisError) -> Failure {
        #[cfg(feature = "tls")]
        if let Some(failure) = tls::failure(&error, &self.server, &self.certificates, &self.shown) {
            return failure;
        }
        if let redis::ErrorKind::AuthenticationFailed = error.kind() {
            return self.unauthorized(&error.to_string());
        }
        if let Some(code) = error.code() {
            return self.error_reply(&format!("{code} {}", error.detail().unwrap_or_default()));
        }
        if error.is_timeout() {
            return self.timeout_failure();
        }
        let reason = if error.kind() == redis::ErrorKind::Parse {
            format!("redis at {} {}", self.shown, Violation::Malformed)
        } else {
            format!("no connection to redis at {}: {}", self.shown, self.shown.clean(&error.to_string()))
        };
        Failure::new(FailureKind::Passing, reason)
    }
}

/// Returns the first line that a user can recognize. Some protocols begin with a length that
/// contains a line feed.
fn first_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_recognizable = |line: &&str| line.chars().filter(|c| !c.is_control()).count() >= MIN_LINE_LEN;
    let line = text.lines().next().filter(is_recognizable);
    line.unwrap_or(&text).replace(char::REPLACEMENT_CHARACTER, "").trim().to_owned()
}

/// The first bytes of a TLS alert record: a TLS server sends one if the client does not begin TLS.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// A shorter line is not enough to recognize a protocol.
const MIN_LINE_LEN: usize = 4;

/// Errors during the handshake that may pass. Any other error would be the same at the next
/// attempt.
const PASSING_ERRORS: [&str; 7] =
    ["LOADING", "READONLY", "MASTERDOWN", "BUSY", "MISCONF", "CLUSTERDOWN", "max number of clients"];

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use redis::ErrorKind;
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::backend::redis::tests::resp;
    use crate::backend::redis::transport::inbound::{Content, InboundStream};
    use crate::config::Settings;
    use crate::config::deployment::Deployment;
    use crate::config::node_spec::NodeSpec;

    /// Returns a target that has never replied.
    fn target(tls: bool, socket: Option<&str>) -> ConnectTarget {
        let socket = socket.map(Into::into);
        let server = NodeSpec { host: "h".to_owned(), port: 1, tls, socket, ..NodeSpec::default() };
        ConnectTarget::new(server, &Settings::default())
    }

    /// Returns the state of a connection that received `bytes`.
    async fn received(bytes: &str, target: &ConnectTarget) -> Arc<Inbound> {
        let inbound = Inbound::new(&target.shown, Content::Replies);
        let _ = InboundStream::new(bytes.as_bytes(), &inbound).read_to_end(&mut Vec::new()).await;
        inbound
    }

    /// Returns the failure of a connection that received `bytes` before the error.
    async fn failure_after(bytes: &str, error: RedisError, target: &ConnectTarget) -> Failure {
        target.connect_failure(error, &*received(bytes, target).await)
    }

    fn io(kind: io::ErrorKind) -> RedisError {
        io::Error::from(kind).into()
    }

    /// Returns the error reply with this line.
    fn reply(line: &str) -> RedisError {
        resp::server_error(line).into()
    }

    #[tokio::test]
    async fn tls_is_suggested_only_if_it_may_be_the_reason() {
        use io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut};
        let (plain, over_tls, socket) = (target(false, None), target(true, None), target(false, Some("/s")));
        let known = target(false, None);
        known.has_replied.store(true, Ordering::Relaxed);
        let known_over_tls = target(true, None);
        known_over_tls.has_replied.store(true, Ordering::Relaxed);
        let of_a_cluster = |tls| {
            let server = NodeSpec { deployment: Deployment::Cluster, ..target(tls, None).server };
            ConnectTarget::new(server, &Settings::default())
        };
        let (cluster, cluster_over_tls) = (of_a_cluster(false), of_a_cluster(true));

        for (target, kind, bytes, hint) in [
            (&plain, ConnectionReset, "", Some("if it speaks TLS on this port, write `rediss://`")),
            (&plain, ConnectionReset, "+OK\r\n", None),
            (&plain, ConnectionRefused, "", None),
            (&plain, TimedOut, "", None),
            (&over_tls, TimedOut, "", Some("if it does not speak TLS on this port, write `redis://`")),
            (&over_tls, TimedOut, "+OK\r\n", None),
            (&over_tls, ConnectionReset, "", None),
            (&socket, ConnectionReset, "", None),
            (&known, ConnectionReset, "", None),
            (&known_over_tls, TimedOut, "", None),
            (&cluster, ConnectionReset, "", Some("if it speaks TLS on this port, write `rediss+cluster://`")),
            (
                &cluster_over_tls,
                TimedOut,
                "",
                Some("if it does not speak TLS on this port, write `redis+cluster://`"),
            ),
        ] {
            let reason = failure_after(bytes, io(kind), target).await.reason;

            match hint {
                Some(hint) => assert!(reason.ends_with(hint), "{kind:?} after {bytes:?}: {reason}"),
                None => assert!(!reason.contains("TLS"), "{kind:?} after {bytes:?}: {reason}"),
            }
        }
    }

    /// A connection is open before the server has replied, if it carries no `CLIENT SETINFO`.
    #[tokio::test]
    async fn the_first_request_fails_as_connecting_does() {
        let (fresh, known) = (target(false, None), target(false, None));
        known.has_replied.store(true, Ordering::Relaxed);
        for (target, names_tls) in [(&fresh, true), (&known, false)] {
            let inbound = Inbound::new(&target.shown, Content::Replies);

            let failure = target.connection_failure(io(io::ErrorKind::BrokenPipe), &inbound);

            assert_eq!(failure.reason.ends_with("write `rediss://`"), names_tls, "{failure:?}");
        }
    }

    /// A proxy whose backend is down may have one later; another protocol stays another protocol.
    #[tokio::test]
    async fn an_error_on_an_open_connection_may_pass() {
        let target = target(false, None);
        for (bytes, kind, words) in [
            ("-ERR backend down\r\n", FailureKind::Passing, "ERR backend down, and closed the connection"),
            ("HTTP/1.1 503 Unavailable\r\n", FailureKind::Lasting, "it replied `HTTP/1.1 503 Unavailable`"),
        ] {
            let inbound = received(bytes, &target).await;

            let failure = target.connection_failure(io(io::ErrorKind::ConnectionReset), &inbound);

            assert!(failure.kind == kind && failure.reason.ends_with(words), "{failure:?}");
        }
    }

    #[tokio::test]
    async fn an_error_before_a_close_is_the_reason() {
        let target = target(false, None);
        let parse = || RedisError::from((ErrorKind::Parse, "it ends"));
        for (error, line, kind, is_reason) in [
            (io(io::ErrorKind::ConnectionReset), "DENIED go away", FailureKind::Lasting, true),
            (parse(), "DENIED go away", FailureKind::Lasting, true),
            (parse(), "BUSY a script runs", FailureKind::Passing, true),
            (parse(), "ERR Unknown command 'HELLO'", FailureKind::Passing, true),
            (io(io::ErrorKind::TimedOut), "DENIED go away", FailureKind::Passing, false),
            (io(io::ErrorKind::ConnectionRefused), "DENIED go away", FailureKind::Passing, false),
        ] {
            let shown = format!("{error:?} after {line}");

            let failure = failure_after(&format!("-{line}\r\n"), error, &target).await;

            assert_eq!(failure.kind, kind, "{shown}");
            let reason = format!("redis at h:1 replied: {line}, and closed the connection");
            assert_eq!(*failure.reason == *reason, is_reason, "{shown}: {}", failure.reason);
        }
    }

    #[tokio::test]
    async fn the_text_of_the_server_replaces_that_of_the_client_library() {
        let target = target(false, None);
        let login = || RedisError::from((ErrorKind::AuthenticationFailed, "Password authentication failed"));
        for (error, received, words) in [
            (login(), "-WRONGPASS invalid credentials\r\n-ERR b\r\n", "the password: WRONGPASS invalid"),
            (login(), "-ERR invalid password\r\n", "refused the user or the password: ERR invalid password"),
            (login(), "-ERR max number of clients\r\n", "redis at h:1 replied: ERR max number of clients"),
            (login(), "", "refused the user or the password: Password authentication failed"),
            (
                (ErrorKind::RESP3NotSupported, "no HELLO").into(),
                "-ERR unknown command `HELLO`\r\n",
                "redis at h:1 replied: ERR unknown command `HELLO`",
            ),
            (reply("ERR is full"), "-ERR x\r\n-ERR the disk is full\r\n", "replied: ERR the disk is full"),
            (reply("ERR is full"), "-ERR x\r\n", "replied: ERR is full"),
        ] {
            let reason = failure_after(received, error, &target).await.reason;

            assert!(reason.contains(words), "{words}: {reason}");
        }
    }

    #[test]
    fn an_error_is_described_by_its_kind() {
        let target = target(false, None);
        let no_connection = "no connection to redis at h:1: ";
        for (error, kind, words) in [
            (io(io::ErrorKind::TimedOut), FailureKind::Passing, "redis at h:1 did not reply in time"),
            (io(io::ErrorKind::ConnectionRefused), FailureKind::Passing, no_connection),
            ((ErrorKind::Parse, "x").into(), FailureKind::Passing, "bytes that are not the Redis protocol"),
            ((ErrorKind::Client, "x").into(), FailureKind::Passing, no_connection),
            (reply("LOADING Redis is loading"), FailureKind::Passing, "replied: LOADING Redis is loading"),
            (reply("ERR DB index is out of range"), FailureKind::Lasting, "setting `databases`"),
            (reply("NOAUTH Authentication required."), FailureKind::Lasting, "write `:password@`"),
        ] {
            let shown = format!("{error:?}");

            let failure = target.failure(error);

            assert!(failure.kind == kind && failure.reason.contains(words), "{shown}: {failure:?}");
        }
    }

    #[test]
    fn a_foreign_protocol_is_described_by_its_first_bytes() {
        let (plain, over_tls) = (target(false, None), target(true, None));
        for (target, first, kind, words) in [
            (
                &plain,
                &[0x15, 3, 1, 0, 2][..],
                FailureKind::Passing,
                "speaks TLS on this port: write `rediss://`",
            ),
            (&over_tls, &[0x15, 3, 1, 0, 2], FailureKind::Lasting, "it replied bytes that are not text"),
            (&plain, b"220 mail ESMTP\r\nmore", FailureKind::Lasting, "it replied `220 mail ESMTP`"),
        ] {
            let failure = target.foreign_protocol(first);

            assert!(failure.kind == kind && failure.reason.ends_with(words), "{failure:?}");
        }
        plain.has_replied.store(true, Ordering::Relaxed);
        assert_eq!(plain.foreign_protocol(b"220 mail").kind, FailureKind::Passing);
    }

    #[test]
    fn the_first_line_needs_four_printable_characters() {
        for (bytes, line) in [
            (&b"SSH-\r\nmore"[..], "SSH-"),
            (b"J\0\0\0\n8.0.36\0native", "J\0\0\0\n8.0.36\0native"),
            (b"abc\ndef", "abc\ndef"),
            (b"\xff\xfeabcd \nmore", "abcd"),
            (b"", ""),
        ] {
            assert_eq!(first_line(bytes), line, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_plain_reply_to_a_tls_handshake_is_the_reason() {
        let target = target(true, None);
        for (first, kind, words) in [
            (
                &b"-DENIED go away\r\nmore"[..],
                FailureKind::Untrusted,
                "DENIED go away; it does not speak TLS",
            ),
            (b"-ERR max number of clients\r\n", FailureKind::Passing, "clients; it does not speak TLS"),
            (b"HTTP/1.1 400 Bad Request\r\n", FailureKind::Lasting, "`HTTP/1.1 400 Bad Request`"),
        ] {
            let failure = target.plaintext_failure(first).expect("it is not TLS");

            assert!(failure.kind == kind && failure.reason.contains(words), "{failure:?}");
            assert!(!failure.reason.contains("more"), "{failure:?}");
        }
        for first in [&b""[..], &[0x14, 3], &[0x15, 3], &[0x16, 3], &[0x17, 3], b"+OK", b":1", b"$1", b"*1"] {
            assert!(target.plaintext_failure(first).is_none(), "{first:?}");
        }
    }

    #[test]
    fn failures_of_other_origin_keep_their_kind() {
        let target = target(false, None);
        target.shown.hide("hunter2");
        let provider = Failure::new(FailureKind::Lasting, "the vault refused hunter2");

        let failure = target.credentials_failure(&provider);
        assert_eq!(failure.kind, FailureKind::Lasting);
        assert_eq!(*failure.reason, *"no connection to redis at h:1: the vault refused ***");

        let failure = target.closed_on("WAIT", io(io::ErrorKind::ConnectionReset));
        assert_eq!(failure.kind, FailureKind::Passing);
        assert_eq!(*failure.reason, *"redis at h:1 closed the connection on `WAIT`");
    }
}
