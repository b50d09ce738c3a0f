//! [`OwnerLookup`]: finds the owner of a manager at a server.
//!
//! In each of its namespaces, a manager subscribes to a channel whose name ends in its owner. The
//! channel carries no messages: its name exists as long as the manager is connected.

use std::borrow::Cow;

use crate::backend::redis::namespaces::GRANTS;
use crate::backend::store_call::{StoreOperation, StoreScript, StoreSlot, waiter};
use crate::owner;
use crate::protocol::script_reply::ScriptReply;
use crate::token::ProcessId;

/// Finds the channel that announces the owner of a manager.
///
/// The server compares the names of all its channels, also those of other clients.
#[derive(Debug)]
pub(crate) struct OwnerLookup {
    /// The part of the channel's name before the owner.
    before: String,
    /// The pattern of the channel's name. It begins like the name, so that comparing another name
    /// ends at its first characters.
    pattern: String,
}

impl OwnerLookup {
    /// Finds the owner of the manager that holds a lock in `namespace`.
    pub(crate) fn new(manager: ProcessId, namespace: &str) -> Self {
        let before = format!("{namespace}{GRANTS}{}:", waiter(&manager.token_prefix()));
        let mut pattern = String::with_capacity(before.len() + 1);
        for c in before.chars() {
            if GLOB.contains(&c) {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('*');
        Self { before, pattern }
    }

    /// Returns the owner in the reply. Any client may create a channel, so the owner is checked.
    pub(crate) fn owner_in(&self, reply: &ScriptReply) -> Option<String> {
        let ScriptReply::Bytes(channel) = reply else { return None };
        let owner = std::str::from_utf8(channel).ok()?.strip_prefix(&self.before)?;
        owner::problem(owner).is_none().then(|| owner.to_owned())
    }
}

impl StoreOperation for OwnerLookup {
    fn script(&self) -> &'static StoreScript {
        &SCRIPT
    }

    fn arguments(&self) -> Vec<Cow<'_, [u8]>> {
        let longest = self.before.len() + owner::LONGEST;
        vec![Cow::Borrowed(self.pattern.as_bytes()), Cow::Owned(longest.to_string().into_bytes())]
    }

    fn needs_acks(&self) -> bool {
        false
    }

    fn is_repeatable(&self) -> bool {
        true
    }

    fn is_cleanup(&self) -> bool {
        false
    }

    fn has_large_reply(&self) -> bool {
        false
    }

    /// In memory there are no channels.
    fn apply(&self, _slot: &mut StoreSlot, _now: u64) -> ScriptReply {
        ScriptReply::Nil
    }
}

/// The characters that have a meaning in a pattern.
const GLOB: [char; 5] = ['*', '?', '[', ']', '\\'];

/// Returns one channel that is not longer than `ARGV[3]`, so that the reply is small regardless of
/// what other clients subscribe to. A longer one would close the connection.
pub(crate) static SCRIPT: StoreScript = StoreScript::new(
    "for _, channel in ipairs(redis.call('PUBSUB', 'CHANNELS', ARGV[2])) do
  if #channel <= tonumber(ARGV[3]) then return channel end
end
return false",
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::namespaces::{Namespaces, may_grant};
    use crate::token::TokenSource;

    #[test]
    fn an_owner_is_found_in_the_channel_of_its_manager_only() {
        let (process, other) = (TokenSource::of_process(1).process(), TokenSource::of_process(2).process());
        for namespace in ["dlock", "", "a*[b"] {
            let found =
                |of, channel: &str| OwnerLookup::new(of, namespace).owner_in(&ScriptReply::text(channel));
            let [grants, channel] = Namespaces::new(namespace).own().channels(process, "web-1:grant:7");

            assert_eq!(found(process, &channel).as_deref(), Some("web-1:grant:7"));
            assert_eq!(found(other, &channel), None);
            assert_eq!(found(process, &grants), None);
            assert_eq!(found(process, &format!("{grants}:web 1\u{1b}[2J")), None);
            assert!(!may_grant(&channel, "dlock:order:7"), "{channel}");
        }
        assert!(OwnerLookup::new(process, "a*[b").pattern.starts_with(r"a\*\[b:grant:"));
    }

    #[test]
    fn a_lookup_asks_for_a_pattern_and_a_length() {
        let process = TokenSource::of_process(1).process();
        let lookup = OwnerLookup::new(process, "dlock");
        let channel = Namespaces::new("dlock").own().grant_channel(process);

        let arguments = lookup.arguments();

        let longest = channel.len() + 1 + owner::LONGEST;
        assert_eq!(arguments, [format!("{channel}:*").as_bytes(), longest.to_string().as_bytes()]);
        assert!(lookup.script().source().contains("PUBSUB"));
        assert!(!lookup.needs_acks() && !lookup.is_cleanup() && !lookup.has_large_reply());
        assert_eq!(lookup.apply(&mut StoreSlot::default(), 0), ScriptReply::Nil);
    }
}
