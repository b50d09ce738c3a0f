//! Store calls: atomic operations on keys that are not locks.
//!
//! A feature describes each operation twice: as a script, which servers run, and as a pure rule,
//! which `memory://` runs. Both give the same [`ScriptReply`]. A call uses the connections, the
//! routing, and the timeouts of lock commands, and none of their rules.
#![allow(dead_code, reason = "used by features that are not locks")]

use std::any::Any;
use std::borrow::Cow;
use std::fmt::{Debug, Write as _};
use std::sync::OnceLock;

use sha1::{Digest, Sha1};

use crate::protocol::script_reply::ScriptReply;

/// An operation on one key.
pub(crate) trait StoreOperation: Debug + Send + Sync {
    /// Returns the script. `KEYS[1]` is the key, and `ARGV[1]` the prefix of the channels on which
    /// [`waiter`] ids are notified.
    fn script(&self) -> &'static StoreScript;

    /// Returns the arguments of the script, from `ARGV[2]` on.
    fn arguments(&self) -> Vec<Cow<'_, [u8]>>;

    /// Returns `true` if the configured number of replicas must have the reply before it counts.
    /// The script then writes the key whenever it succeeds, also if it is repeated.
    fn needs_acks(&self) -> bool;

    /// Returns `true` if the second run changes nothing, whatever other clients do in between. Then
    /// the operation is sent again if its reply is lost.
    fn is_repeatable(&self) -> bool;

    /// Returns `true` if the operation only undoes another one. In the background, such operations
    /// use at most half of the places, so that results can still be stored.
    fn is_cleanup(&self) -> bool;

    /// Returns `true` if the reply may be larger than one to a request of a lock. Redis then allows
    /// larger replies on the connection from now on, and sends fewer requests in one pipeline.
    fn has_large_reply(&self) -> bool;

    /// Runs the operation in memory at `now`, in milliseconds.
    fn apply(&self, slot: &mut StoreSlot, now: u64) -> ScriptReply;
}

/// Returns an argument of a script that is a text.
#[cfg(any(feature = "idempotent", feature = "scheduled"))]
pub(crate) fn text(text: &str) -> Cow<'_, [u8]> {
    Cow::Borrowed(text.as_bytes())
}

/// Returns an argument of a script as it is displayed.
#[cfg(any(feature = "idempotent", feature = "scheduled"))]
pub(crate) fn shown(value: &impl ToString) -> Cow<'static, [u8]> {
    Cow::Owned(value.to_string().into_bytes())
}

/// The value of one key in memory.
#[derive(Default)]
pub(crate) struct StoreSlot {
    /// The value, whose type the feature knows; `None` deletes the key.
    pub(crate) value: Option<Box<dyn Any + Send>>,
    /// When the value ends, in milliseconds.
    pub(crate) expires: u64,
    /// The [ids](waiter) of the managers to notify.
    pub(crate) wake: Vec<String>,
}

/// A Lua script, and its hash.
#[derive(Debug)]
pub(crate) struct StoreScript {
    source: &'static str,
    hash: OnceLock<String>,
}

impl StoreScript {
    pub(crate) const fn new(source: &'static str) -> Self {
        Self { source, hash: OnceLock::new() }
    }

    pub(crate) fn source(&self) -> &'static str {
        self.source
    }

    /// Returns the name of the script in a server that has it.
    pub(crate) fn hash(&'static self) -> &'static str {
        self.hash.get_or_init(|| hex(&Sha1::digest(self.source)))
    }
}

/// Returns the ID under which a key notifies a manager: the end of the name of its grant channel.
pub(crate) fn waiter(token_prefix: &str) -> String {
    hex(&Sha1::digest(token_prefix))
}

/// Returns bytes as hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenSource;

    #[test]
    fn a_script_is_named_by_its_sha1_as_redis_names_it() {
        static SCRIPT: StoreScript = StoreScript::new("return 1");

        assert_eq!(SCRIPT.source(), "return 1");
        // As `SCRIPT LOAD 'return 1'` returns it.
        assert_eq!(SCRIPT.hash(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }

    #[test]
    fn bytes_are_written_as_two_digits_each() {
        assert_eq!(hex(&[0x00, 0x0a, 0xff]), "000aff");
        assert_eq!(hex(&[]), "");
    }

    #[test]
    fn each_manager_is_notified_under_its_own_id() {
        let of = |process| waiter(&TokenSource::of_process(process).process().token_prefix());

        assert_eq!(of(1).len(), 40);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
