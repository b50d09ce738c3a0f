//! The Lua scripts, and how they are called.
//!
//! None has a `#!lua` header: without `allow-oom` it would make renewals fail when memory is full. All work on Redis 6.2 and later.

use redis::{Cmd, Pipeline};

use crate::backend::redis::encoding::LockEncoding;

/// One script, by its place among those of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Enqueue,
    Renew,
    Keep,
    Release,
    Free,
    ForceRelease,
    Leave,
    Yield,
    Fence,
    Inspect,
}

macro_rules! source {
    ($($file:literal),+) => {
        concat!(include_str!("scripts/lib.lua"), $(include_str!(concat!("scripts/", $file))),+)
    };
}

/// The scripts of the native layout.
pub(crate) const NATIVE: [&str; Script::COUNT] = [
    source!("prolong.lua", "enqueue.lua"),
    source!("prolong.lua", "renew.lua"),
    source!("keep.lua"),
    // Nearly every release finds nobody waiting: it must not pay for making the functions that it does not call.
    concat!(include_str!("scripts/release_alone.lua"), source!("hand_over.lua", "release.lua")),
    concat!(include_str!("scripts/release_alone.lua"), source!("hand_over.lua", "free.lua")),
    source!("hand_over.lua", "force_release.lua"),
    source!("hand_over.lua", "leave.lua"),
    source!("hand_over.lua", "yield.lua"),
    source!("counter.lua", "fence.lua"),
    source!("inspect.lua"),
];

macro_rules! plain {
    ($file:literal) => {
        concat!(include_str!("scripts/plain/lib.lua"), include_str!(concat!("scripts/plain/", $file)))
    };
}

/// The scripts of the plain layout; those that only ask for the holder are the native ones.
pub(crate) const PLAIN: [&str; Script::COUNT] = [
    include_str!("scripts/plain/look.lua"),
    source!("prolong.lua", "renew.lua"),
    source!("keep.lua"),
    include_str!("scripts/plain/release.lua"),
    include_str!("scripts/plain/leave.lua"), // nobody of ours is told
    plain!("force_release.lua"),
    include_str!("scripts/plain/leave.lua"),
    plain!("yield.lua"),
    source!("counter.lua", "fence.lua"),
    source!("inspect.lua"),
];

macro_rules! redisson {
    ($file:literal) => {
        concat!(include_str!("scripts/redisson/lib.lua"), include_str!(concat!("scripts/redisson/", $file)))
    };
}

/// The scripts of Redisson's layout.
pub(crate) const REDISSON: [&str; Script::COUNT] = [
    redisson!("acquire.lua"),
    concat!(
        include_str!("scripts/redisson/lib.lua"),
        include_str!("scripts/prolong.lua"),
        include_str!("scripts/renew.lua")
    ),
    redisson!("keep.lua"),
    redisson!("release.lua"),
    redisson!("release.lua"), // it is shared with nobody who polls
    redisson!("force_release.lua"),
    redisson!("release.lua"), // nobody queues: to leave is to release
    redisson!("yield.lua"),
    concat!(
        include_str!("scripts/redisson/lib.lua"),
        include_str!("scripts/counter.lua"),
        include_str!("scripts/redisson/fence.lua")
    ),
    redisson!("inspect.lua"),
];

impl Script {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::Inspect as usize + 1;

    /// Begins a call of it: by its name with `loaded`, else by its text. The number of keys follows.
    pub(crate) fn call(self, layout: LockEncoding, loaded: Option<&Loaded>) -> Cmd {
        let mut call = Cmd::with_capacity(8, LONG_CALL);
        match loaded {
            Some(loaded) => call.arg("EVALSHA").arg(loaded.name(self)),
            None => call.arg("EVAL").arg(self.source(layout)),
        };
        call
    }

    /// Returns its text in `layout`.
    pub(crate) const fn source(self, layout: LockEncoding) -> &'static str {
        layout.sources()[self as usize]
    }
}

/// The names under which one server knows the scripts of a layout.
#[derive(Clone, Debug)]
pub(crate) struct Loaded([String; Script::COUNT]);

impl Loaded {
    /// Returns the commands that load all scripts of `layout`.
    pub(crate) fn load(layout: LockEncoding) -> Pipeline {
        let mut pipeline = redis::pipe();
        for source in layout.sources() {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(*source);
        }
        pipeline
    }

    pub(crate) const fn new(names: [String; Script::COUNT]) -> Self {
        Self(names)
    }

    pub(crate) fn name(&self, script: Script) -> &str {
        self.0.get(script as usize).map_or("", String::as_str)
    }
}

/// Room for the words of most calls: the name of a script, a key, two tokens.
const LONG_CALL: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{LAST_FENCE, LAST_FENCE_OF_REDISSON, LONGEST_VALUE};
    use crate::layout::Publish;
    use crate::token::{PREFIX, ProcessId, Token};

    #[test]
    fn the_scripts_and_the_tokens_agree_on_their_form() {
        assert!(
            Script::Release
                .source(LockEncoding::Native)
                .contains(&format!("redis.sha1hex(string.sub(token, 1, {}))", ProcessId::TOKEN_PREFIX))
        );
        let (token, full) = (Token::WIDTH, LONGEST_VALUE);
        for words in [format!("#value <= {full}"), format!("#value < {full}"), format!("'0', '{full}'")] {
            assert!(Script::Enqueue.source(LockEncoding::Native).contains(&words), "{words}");
        }
        let plain = Script::Release.source(LockEncoding::Plain);
        assert!(plain.contains(&format!("'0', '{token}'")), "{plain}");
        assert!(
            Script::Enqueue
                .source(LockEncoding::Native)
                .contains(&format!("string.sub(value, 1, {})", PREFIX.len()))
        );
    }

    #[test]
    fn no_script_reads_a_whole_string() {
        for source in NATIVE.iter().chain(&PLAIN).chain(&REDISSON) {
            let mut reads = source.split("'GET").skip(1);
            assert!(reads.all(|read| read.starts_with("RANGE', KEYS[")), "{source}");
        }
    }

    #[test]
    fn the_scripts_and_the_rule_agree_on_the_last_fencing_token() {
        let last = |layout| Script::Fence.source(layout);
        assert!(last(LockEncoding::Native).contains(&format!("fence > {LAST_FENCE}")));
        assert!(
            last(LockEncoding::Redisson(Publish::Auto))
                .contains(&format!("text > '{LAST_FENCE_OF_REDISSON}'"))
        );
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
