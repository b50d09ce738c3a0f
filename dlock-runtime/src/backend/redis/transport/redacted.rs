//! [`Redacted`], a server as it may appear in texts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use redis::ServerError;

use crate::backend::redis::transport::error_kind::{forbids, has_code, hint};
use crate::backend::redis::transport::url_advice::UrlAdvice;
use crate::config::node_spec::NodeSpec;
use crate::printable::is_unprintable;
use crate::protocol::failure::{Failure, FailureKind};
use crate::sync::lock;
use crate::token::{PREFIX, REDISSON_PREFIX};

/// A server as it may appear in texts: its address, and the secrets to remove from its error texts.
pub(crate) struct Redacted {
    address: Arc<str>,
    advice: UrlAdvice,
    /// The passwords that were sent last.
    secrets: Mutex<VecDeque<Arc<str>>>,
}

impl std::fmt::Debug for Redacted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redacted({self})")
    }
}

impl std::fmt::Display for Redacted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.address)
    }
}

impl Redacted {
    pub(crate) fn new(address: &str) -> Self {
        let advice = UrlAdvice::new(&NodeSpec::default(), false);
        Self { address: address.into(), advice, secrets: Mutex::default() }
    }

    /// Sets what texts advise. The default is the advice for the URL of one server.
    pub(super) fn with_advice(self, advice: UrlAdvice) -> Self {
        Self { advice, ..self }
    }

    /// Returns what texts advise.
    pub(crate) fn advice(&self) -> UrlAdvice {
        self.advice
    }

    /// Records a password before it is sent. If passwords change, connections may use different
    /// ones.
    pub(crate) fn hide(&self, password: &str) {
        let password = printable(password); // as it would be shown
        let mut secrets = lock(&self.secrets);
        if password.len() >= SHORTEST_SECRET && !secrets.iter().any(|secret| **secret == *password) {
            secrets.push_back(password.into());
            if secrets.len() > KEPT_SECRETS {
                secrets.pop_front();
            }
        }
    }

    /// Converts an error reply to a failure.
    pub(crate) fn failure(&self, error: &ServerError) -> Failure {
        let kind = if has_code(error, "WRONGTYPE") {
            FailureKind::WrongKind
        } else if LASTING.iter().any(|code| has_code(error, code)) || forbids(error) {
            FailureKind::Lasting
        } else {
            FailureKind::Passing
        };
        Failure::new(kind, format!("redis at {self} replied: {}", self.advised_text(error)))
    }

    /// Returns the text of an error reply, and what to do about it.
    pub(crate) fn advised_text(&self, error: &ServerError) -> String {
        let text = self.error_text(error);
        let hint = hint(error, &text, self.advice);
        text + &hint
    }

    /// Returns the text of an error reply.
    pub(crate) fn error_text(&self, error: &ServerError) -> String {
        let details = error.details().unwrap_or_default();
        // The line number in a script is of no use to the reader.
        let details = details.split(" script: ").next().unwrap_or_default();
        self.clean(&format!("{} {details}", error.code()))
    }

    /// Returns `text` without secrets, tokens, and control characters, cut to 200 characters.
    ///
    /// Removing text must not join its surroundings to a secret. So control characters are removed
    /// first, and everything else is replaced by `***`. A server may have cut a secret off at its
    /// end.
    pub(crate) fn clean(&self, text: &str) -> String {
        let mut text = printable(text);
        for secret in &*lock(&self.secrets) {
            text = without_secret(&text, secret);
        }
        for begins in [PREFIX, REDISSON_PREFIX] {
            let mut parts = text.split(begins);
            let mut clean = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                clean.push_str(MARK);
                clean.push_str(part.trim_start_matches(is_token_char));
            }
            text = clean;
        }
        text.chars().take(LONGEST_REASON).collect::<String>().trim().to_owned()
    }
}

/// Replaces `secret`, and each part of it from its start that is at least [`SHORTEST_PART`] long.
fn without_secret(text: &str, secret: &str) -> String {
    let start = secret.char_indices().nth(SHORTEST_PART).map_or(secret, |(end, _)| &secret[..end]);
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(start) {
        clean.push_str(&rest[..at]);
        clean.push_str(MARK);
        let same = rest[at..].chars().zip(secret.chars()).take_while(|(shown, hidden)| shown == hidden);
        rest = &rest[at + same.map(|(shown, _)| shown.len_utf8()).sum::<usize>()..];
    }
    clean + rest
}

pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| !is_unprintable(*c)).collect()
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, '-' | ':')
}

/// Errors that a retry does not change.
const LASTING: [&str; 5] = ["NOPERM", "WRONGPASS", "MOVED", "ASK", "CROSSSLOT"];

/// Shorter secrets appear in many words by chance, and the marks would reveal them.
const SHORTEST_SECRET: usize = 4;

/// Shorter parts of a secret are in many texts by chance, and reveal little.
const SHORTEST_PART: usize = 8;

/// As many as two reconnects use.
const KEPT_SECRETS: usize = 4;

const LONGEST_REASON: usize = 200;

/// Replaces removed text.
const MARK: &str = "***";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::tests::resp;

    #[test]
    fn an_error_contains_a_hint() {
        let server = Redacted::new("h:1");
        for (code, text, hint) in [
            ("MOVED", "15123 h:2", "`redis+cluster://host:port`"),
            ("READONLY", "You can't write against a read only replica.", "name the primary"),
            ("NOPERM", "this user has no permissions to run the 'set' command", "`dlock doctor`"),
            ("ERR", "The user executing the script can't run this command", "`dlock doctor`"),
            ("ERR", "unknown command 'WAIT', with args beginning with: '0' '1' ", "leave out `replica_acks`"),
            ("ERR", "unknown command `WAIT`, with args beginning with: `0`", "leave out `replica_acks`"),
            ("ERR", "unsupported command 'wait'", "leave out `replica_acks`"),
            ("NOPERM", "this user has no permissions to run the 'wait' command", "leave out `replica_acks`"),
            ("ERR", "unknown command 'EVAL', with args beginning with: ", "no `EVAL`, which locks need"),
            ("ERR", "unknown command 'role', with args beginning with: ", "without sentinels and cluster"),
            ("ERR", "Unknown Redis command called from script", "lacks a command"),
        ] {
            let error = resp::server_error(&format!("{code} {text}"));

            let failure = server.failure(&error);

            assert!(
                failure.reason.contains(text.trim_end()) && failure.reason.contains(hint),
                "{}",
                failure.reason
            );
        }
    }

    /// A server that mistakes the password for a command.
    #[test]
    fn a_hint_contains_no_secret() {
        let server = Redacted::new("h:1");
        server.hide("sesamesecret");

        let error = resp::server_error("ERR unknown command 'sesamesecret'");
        let text = server.failure(&error).reason.to_ascii_lowercase();

        assert!(text.contains("lacks a command") && !text.contains("sesame"), "{text}");
    }

    /// A server shows at most 128 characters of the arguments of an unknown command.
    #[test]
    fn a_secret_that_the_server_cut_off_is_removed() {
        let secret = (0..32).fold(String::new(), |secret, number| secret + &format!("{number:04x}"));
        let server = Redacted::new("h:1");
        server.hide(&secret);
        for shown in [8, 9, 107, 127, 128] {
            let part = &secret[..shown];

            let text = server.clean(&format!("with args beginning with: '3' 'AUTH' '{part}' 'é"));

            assert_eq!(text, "with args beginning with: '3' 'AUTH' '***' 'é", "{shown}");
        }
        assert_eq!(server.clean(&format!("{}x{secret}{secret}", &secret[..20])), "***x******");
        assert_eq!(server.clean("'0000000'"), "'0000000'", "the part is too short");
    }

    #[test]
    fn an_unknown_command_does_not_hint_at_sentinels() {
        let server = Redacted::new("h:1");
        for text in
            ["unknown command 'WAIT'", "unknown command 'SCRIPT'", "unknown command 'GET'", "unknown command"]
        {
            let error = resp::server_error(&format!("ERR {text}"));

            assert!(!server.failure(&error).reason.contains("sentinel"), "{text}");
        }
    }

    #[test]
    fn error_texts_contain_no_secrets_tokens_or_control_chars() {
        let server = Redacted::new("h:1");
        server.hide("hunter2");

        let clean = server.clean(
            "ERR \r\n\u{1b}[31mhunter2 'dl2-0123456789abcdef000000000001' '646c6f63-6b31-8012-8345-006789abcdef:12' end",
        );

        assert_eq!(clean, "ERR [31m*** '***' '***' end");
    }

    #[test]
    fn removed_text_does_not_join_its_surroundings_to_a_secret() {
        let server = Redacted::new("h:1");
        server.hide("hunter2");

        for text in ["hun\0\0ter2", "hun\r\nter2", "hundl2-ter2", "hun646c6f63-6b31-ter2"] {
            let clean = server.clean(text);
            assert!(!clean.contains("hunter2"), "{text:?} is shown as {clean}");
        }
    }

    #[test]
    fn a_secret_with_a_control_character_is_hidden() {
        let server = Redacted::new("h:1");
        server.hide("hun\nter2");

        assert_eq!(server.clean("it is hun\nter2, or hunter2"), "it is ***, or ***");
    }

    #[test]
    fn the_code_of_an_error_determines_its_kind() {
        let server = Redacted::new("h:1");
        for (line, kind) in [
            ("WRONGTYPE Operation against a key", FailureKind::WrongKind),
            ("NOPERM this user has no permissions", FailureKind::Lasting),
            ("WRONGPASS invalid username-password pair", FailureKind::Lasting),
            ("MOVED 15123 h:2", FailureKind::Lasting),
            ("ASK 15123 h:2", FailureKind::Lasting),
            ("CROSSSLOT Keys in request don't hash to the same slot", FailureKind::Lasting),
            ("ERR unknown command 'EVAL'", FailureKind::Lasting),
            ("LOADING Redis is loading the dataset in memory", FailureKind::Passing),
            ("ERR something else", FailureKind::Passing),
        ] {
            let error = resp::server_error(line);

            assert_eq!(server.failure(&error).kind, kind, "{line}");
        }
    }

    #[test]
    fn the_position_in_a_script_is_left_out() {
        let error = resp::server_error("ERR syntax error script: f_abc, on @user_script:1.");

        assert_eq!(Redacted::new("h:1").error_text(&error), "ERR syntax error");
    }

    #[test]
    fn a_secret_is_hidden_from_four_characters() {
        let server = Redacted::new("h:1");
        server.hide("red");
        server.hide("blue");

        assert_eq!(server.clean("red and blue"), "red and ***");
    }

    #[test]
    fn the_last_four_different_secrets_are_hidden() {
        let server = Redacted::new("h:1");
        for secret in ["first1", "second", "third3", "fourth"] {
            server.hide(secret);
            server.hide(secret);
        }
        server.hide("first1");
        assert_eq!(server.clean("first1 second third3 fourth"), "*** *** *** ***");

        server.hide("fifth5");

        assert_eq!(server.clean("first1 second third3 fourth fifth5"), "first1 *** *** *** ***");
    }

    #[test]
    fn a_text_is_cut_to_200_characters() {
        let server = Redacted::new("h:1");

        assert_eq!(server.clean(&"\u{e4}".repeat(201)), "\u{e4}".repeat(200));
        assert_eq!(server.to_string(), "h:1");
    }
}
