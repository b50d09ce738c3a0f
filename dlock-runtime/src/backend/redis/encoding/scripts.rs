//! The Lua scripts, and how they are called.
//!
//! No script has a `#!lua` header: without `allow-oom`, it would make renewals fail when memory is
//! full. All scripts run on Redis 6.2 and later.

use redis::Cmd;

use crate::protocol::command::Command;

/// A script, by its position among those of an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Enqueue,
    Renew,
    SetTtl,
    Release,
    ReleaseWithoutHandoff,
    ForceRelease,
    Withdraw,
    Yield,
    Fence,
    Inspect,
}

macro_rules! lua {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+)
    };
}

/// The scripts of an encoding, in the order of [`Script`].
pub(crate) type ScriptSources = [&'static str; Script::COUNT];

/// The scripts of the native encoding.
pub(crate) static NATIVE: ScriptSources = [
    lua!("lib", "extend_ttl", "enqueue"),
    lua!("lib", "extend_ttl", "renew"),
    lua!("lib", "set_ttl"),
    // Almost every release finds an empty queue: it must not pay for defining functions that it
    // does not call.
    lua!("release_uncontended", "lib", "grant_next", "release"),
    lua!("release_uncontended", "lib", "grant_next", "release_without_handoff"),
    lua!("lib", "grant_next", "force_release"),
    lua!("lib", "grant_next", "withdraw"),
    lua!("lib", "grant_next", "yield"),
    lua!("lib", "counter", "fence"),
    lua!("lib", "inspect"),
];

/// The scripts of the plain encoding. Those that only check the holder are the native ones.
pub(crate) static PLAIN: ScriptSources = [
    lua!("plain/peek"),
    lua!("lib", "extend_ttl", "renew"),
    lua!("lib", "set_ttl"),
    lua!("plain/release"),
    lua!("plain/withdraw"), // without an announcement
    lua!("plain/lib", "plain/force_release"),
    lua!("plain/withdraw"),
    lua!("plain/lib", "plain/yield"),
    lua!("lib", "counter", "fence"),
    lua!("lib", "inspect"),
];

/// The scripts of Redisson's encoding.
pub(crate) static REDISSON: ScriptSources = [
    lua!("redisson/lib", "redisson/acquire"),
    lua!("redisson/lib", "extend_ttl", "renew"),
    lua!("redisson/lib", "redisson/set_ttl"),
    lua!("redisson/lib", "redisson/release"),
    // Without a queue, every release is one without hand-off.
    lua!("redisson/lib", "redisson/release"),
    lua!("redisson/lib", "redisson/force_release"),
    lua!("redisson/lib", "redisson/release"), // without a queue, a withdrawal is a release
    lua!("redisson/lib", "redisson/yield"),
    lua!("redisson/lib", "counter", "redisson/fence"),
    lua!("redisson/lib", "redisson/inspect"),
];

impl Script {
    /// The number of scripts.
    pub(crate) const COUNT: usize = Self::Inspect as usize + 1;

    /// Returns the script that runs a command. `None`: no encoding needs a script, except that
    /// Redisson's acquires with [`Script::Enqueue`].
    pub(crate) fn of(command: Command) -> Option<Self> {
        Some(match command {
            Command::Acquire { .. } | Command::Verify | Command::Ping | Command::Call => return None,
            Command::Enqueue { .. } => Self::Enqueue,
            Command::Renew { .. } => Self::Renew,
            Command::SetTtl { .. } => Self::SetTtl,
            Command::Release { .. } => Self::Release,
            Command::ReleaseWithoutHandoff => Self::ReleaseWithoutHandoff,
            Command::ForceRelease => Self::ForceRelease,
            Command::Withdraw => Self::Withdraw,
            Command::Yield { .. } => Self::Yield,
            Command::Fence | Command::RaiseFence { .. } => Self::Fence,
            Command::Inspect => Self::Inspect,
        })
    }

    /// Returns `true` if the script also accesses the counter of fencing tokens, its second key.
    pub(crate) fn uses_counter(self) -> bool {
        matches!(self, Self::Fence | Self::Inspect)
    }

    /// Returns `true` if the script publishes, so that it needs the name of a channel, or the
    /// prefix of the names.
    pub(crate) fn publishes(self) -> bool {
        matches!(
            self,
            Self::Release | Self::ReleaseWithoutHandoff | Self::ForceRelease | Self::Withdraw | Self::Yield
        )
    }

    /// Starts a call: as `EVALSHA` if the scripts are `loaded`, otherwise as `EVAL`. The number of
    /// keys follows.
    pub(crate) fn call(self, sources: &ScriptSources, loaded: Option<&Loaded>) -> Cmd {
        let mut call = Cmd::with_capacity(8, LONG_CALL);
        match loaded {
            Some(loaded) => call.arg("EVALSHA").arg(loaded.name(self)),
            None => call.arg("EVAL").arg(self.source(sources)),
        };
        call
    }

    /// Returns the source of this script among those of an encoding.
    pub(crate) const fn source(self, sources: &ScriptSources) -> &'static str {
        sources[self as usize]
    }
}

/// The hashes of the scripts of an encoding, as returned by one server.
#[derive(Clone, Debug)]
pub(crate) struct Loaded(Vec<String>);

impl Loaded {
    /// Creates the hashes, in the order of [`Script`].
    pub(crate) const fn new(hashes: Vec<String>) -> Self {
        Self(hashes)
    }

    pub(crate) fn name(&self, script: Script) -> &str {
        self.0.get(script as usize).map_or("", String::as_str)
    }
}

/// Capacity for most calls: the hash of a script, a key, and two tokens.
const LONG_CALL: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{LAST_FENCE, LAST_FENCE_OF_REDISSON, LONGEST_VALUE};
    use crate::token::{PREFIX, ProcessId, Token};

    #[test]
    fn the_scripts_match_the_format_of_tokens() {
        assert!(
            Script::Release
                .source(&NATIVE)
                .contains(&format!("redis.sha1hex(string.sub(token, 1, {}))", ProcessId::TOKEN_PREFIX))
        );
        let (token, full) = (Token::WIDTH, LONGEST_VALUE);
        for words in [format!("#value <= {full}"), format!("#value < {full}"), format!("'0', '{full}'")] {
            assert!(Script::Enqueue.source(&NATIVE).contains(&words), "{words}");
        }
        let plain = Script::Release.source(&PLAIN);
        assert!(plain.contains(&format!("'0', '{token}'")), "{plain}");
        assert!(Script::Enqueue.source(&NATIVE).contains(&format!("string.sub(value, 1, {})", PREFIX.len())));
    }

    #[test]
    fn no_script_reads_a_whole_string() {
        for source in NATIVE.iter().chain(&PLAIN).chain(&REDISSON) {
            let mut reads = source.split("'GET").skip(1);
            assert!(reads.all(|read| read.starts_with("RANGE', KEYS[")), "{source}");
        }
    }

    #[test]
    fn the_scripts_match_the_last_fencing_token() {
        assert!(Script::Fence.source(&NATIVE).contains(&format!("fence > {LAST_FENCE}")));
        assert!(Script::Fence.source(&REDISSON).contains(&format!("text > '{LAST_FENCE_OF_REDISSON}'")));
    }

    #[test]
    fn no_script_declares_flags() {
        assert!(NATIVE.iter().chain(&PLAIN).chain(&REDISSON).all(|source| !source.starts_with("#!")));
    }

    #[test]
    fn no_script_names_a_channel() {
        assert!(
            NATIVE.iter().chain(&PLAIN).all(|source| !source.contains("grant:") && !source.contains("free:"))
        );
    }
}
