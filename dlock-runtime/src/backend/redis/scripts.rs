//! The Lua scripts, and how they are called.
//!
//! None has a `#!lua` header: without `allow-oom` it would make renewals fail when memory is full. All work on Redis 6.2 and later.

use redis::Pipeline;

/// One script, by its place in [`SOURCES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
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
    ($file:literal) => {
        concat!(include_str!("scripts/lib.lua"), include_str!(concat!("scripts/", $file)))
    };
}

const SOURCES: [&str; 10] = [
    source!("enqueue.lua"),
    source!("renew.lua"),
    source!("keep.lua"),
    // Nearly every release finds nobody waiting: it must not pay for making the functions that it does not call.
    concat!(
        include_str!("scripts/release_alone.lua"),
        include_str!("scripts/lib.lua"),
        include_str!("scripts/release.lua")
    ),
    concat!(
        include_str!("scripts/release_alone.lua"),
        include_str!("scripts/lib.lua"),
        include_str!("scripts/free.lua")
    ),
    source!("force_release.lua"),
    source!("leave.lua"),
    source!("yield.lua"),
    source!("fence.lua"),
    source!("inspect.lua"),
];

impl Script {
    pub(super) const fn source(self) -> &'static str {
        SOURCES[self as usize]
    }
}

/// The names under which one server knows the scripts.
#[derive(Clone, Debug)]
pub(super) struct Loaded([String; SOURCES.len()]);

impl Loaded {
    /// Returns the commands that load all scripts.
    pub(super) fn load() -> Pipeline {
        let mut pipeline = redis::pipe();
        for source in SOURCES {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(source);
        }
        pipeline
    }

    pub(super) const fn new(names: [String; SOURCES.len()]) -> Self {
        Self(names)
    }

    pub(super) fn name(&self, script: Script) -> &str {
        self.0.get(script as usize).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::value::MAX_WAITERS;
    use crate::token::{CHANNEL_PREFIX, PREFIX, ProcessId};

    #[test]
    fn the_scripts_and_the_tokens_agree_on_their_form() {
        assert!(
            Script::Release.source().contains(&format!(
                "'{CHANNEL_PREFIX}' .. string.sub(token, 1, {})",
                ProcessId::TOKEN_PREFIX
            ))
        );
        assert!(Script::Enqueue.source().contains(&format!("{} * #token", MAX_WAITERS + 1)));
        assert!(Script::Enqueue.source().contains(&format!("string.sub(value, 1, {})", PREFIX.len())));
    }

    #[test]
    fn no_script_declares_flags() {
        assert!(SOURCES.iter().all(|source| !source.starts_with("#!")));
    }
}
