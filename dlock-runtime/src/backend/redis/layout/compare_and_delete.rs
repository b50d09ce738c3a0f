//! A lock that nobody waits for is freed by one command: the key is deleted if its value is just the token. Servers that have such a command
//! take less time for it than for a script.
//!
//! | server | command |
//! |---|---|
//! | Valkey 9.0 and later | [`DELIFEQ`](https://valkey.io/commands/delifeq/) |
//! | Redis 8.4 and later | [`DELEX .. IFEQ`](https://redis.io/docs/latest/commands/delex/) |
//!
//! Where the value is another, it is not said which: somebody may wait, or the lock is not ours. The script of a release knows, and is asked
//! next (`batch`). What a server has is read from `HELLO`, which every user may say. A user who may not say the command itself is
//! refused once on each connection, and served by the script.
//!
//! Not here: which releases are worth it (`protocol::share`).

use redis::{Cmd, Value};

use crate::backend::redis::layout::codec;

/// The command that a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompareAndDelete {
    Delifeq,
    Delex,
}

impl CompareAndDelete {
    /// Returns the one of the server that answered this to a `HELLO`, if it has one.
    pub(crate) fn of(hello: &Value) -> Option<Self> {
        let Value::Array(words) = hello else { return None };
        let of = |name: &str| {
            let pair = words.chunks_exact(2).find(|pair| codec::text(&pair[0]) == Some(name))?;
            codec::text(&pair[1])
        };
        let mut numbers = of("version")?.split('.').map_while(|number| number.parse::<u32>().ok());
        let version = (numbers.next()?, numbers.next()?);
        match of("server")? {
            "valkey" if version >= (9, 0) => Some(Self::Delifeq),
            "redis" if version >= (8, 4) => Some(Self::Delex),
            _ => None,
        }
    }

    /// Deletes the key if `token` is all that stands there.
    pub(crate) fn call(self, key: &str, token: &[u8]) -> Cmd {
        let mut call = Cmd::with_capacity(4, key.len() + token.len() + ROOM);
        match self {
            Self::Delifeq => call.arg("DELIFEQ").arg(key),
            Self::Delex => call.arg("DELEX").arg(key).arg("IFEQ"),
        };
        call.arg(token);
        call
    }

    /// Returns whether an answer leaves open what became of the lock: the value is another, or this user may not ask in this way.
    pub(crate) fn leaves_open(answer: &Value) -> bool {
        *answer == Value::Int(0) || codec::is_forbidden(answer)
    }
}

/// For the words of the command, beside the key and the token.
const ROOM: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(words: &[(&str, &str)]) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let words = words.iter().flat_map(|(name, value)| [text(name), text(value)]);
        Value::Array(words.chain([text("proto"), Value::Int(2)]).collect())
    }

    #[test]
    fn what_a_server_has_follows_from_its_version() {
        use CompareAndDelete::{Delex, Delifeq};
        for (server, version, has) in [
            ("valkey", "9.0.0", Some(Delifeq)),
            ("valkey", "10.1.0", Some(Delifeq)),
            ("valkey", "8.1.3", None),
            ("redis", "8.4.0", Some(Delex)),
            ("redis", "8.10", Some(Delex)),
            ("redis", "9.0.0-rc1", Some(Delex)),
            ("redis", "8.2.1", None),
            ("redis", "7.4.0", None),
            ("redis", "255.255.255", Some(Delex)), // a build of its sources of today
            ("redis", "8", None),
            ("redis", "", None),
            ("another", "9.9.9", None),
        ] {
            let hello = hello(&[("server", server), ("version", version)]);
            assert_eq!(CompareAndDelete::of(&hello), has, "{server} {version}");
        }
    }

    #[test]
    fn a_server_that_does_not_say_what_it_is_has_none() {
        for said in [Value::Okay, Value::Nil, Value::Array(Vec::new()), hello(&[("version", "9.0.0")])] {
            assert_eq!(CompareAndDelete::of(&said), None, "{said:?}");
        }
    }
}
