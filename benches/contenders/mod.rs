//! The contenders: the floor, dlock in several configurations, and other libraries.
//!
//! The floor and dlock are this program itself, selected by its first two arguments.

mod background;
mod ceiling;
mod fan;
mod layer;
mod ours;
mod raw;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use dlock_bench_peer::{Threads, serve};

use crate::Failure;
use crate::contenders::background::Background;
use crate::contenders::ceiling::Ceiling;
use crate::contenders::fan::Fan;
use crate::contenders::layer::Layered;
use crate::contenders::ours::Ours;
use crate::contenders::raw::Raw;

/// The first argument of this program when it runs as a contender.
pub(crate) const ARGUMENT: &str = "contender";

/// A program that acquires locks.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The contender whose figures are 1 in ratios.
    pub(crate) floor: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    /// The working directory; that of this process if `None`.
    folder: Option<PathBuf>,
}

/// The kind of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The least that every such lock sends.
    Floor,
    Ours,
    Rival,
    /// Another library that does not wait for the reply to a release.
    ///
    /// It is compared with `ours, background`.
    BackgroundRival,
    /// Another library to which the server reports a stolen lock, as to dlock by default.
    TrackingRival,
    /// Another library of idempotent calls, not of locks.
    IdempotentRival,
}

impl Kind {
    pub(crate) fn is_rival(self) -> bool {
        !matches!(self, Self::Floor | Self::Ours)
    }

    /// Returns the configurations of `ours` that do no more than a library of this kind.
    ///
    /// The default does more.
    pub(crate) fn ways_alike(self) -> &'static [&'static str] {
        match self {
            Self::Floor | Self::Ours | Self::IdempotentRival => &[],
            // Most libraries detect a stolen lock at their next renewal. None hands a lock off in
            // memory.
            Self::Rival => &["ours, tracking=off", "ours, no hand-off"],
            Self::BackgroundRival => &["ours, background", "ours, no hand-off"],
            Self::TrackingRival => &["ours, no hand-off"],
        }
    }
}

impl Contender {
    /// Creates a contender of another library.
    ///
    /// The addresses of the servers are appended to `command`.
    pub(crate) fn rival(name: &str, kind: Kind, command: &Command) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            floor: "raw",
            program: command.get_program().into(),
            arguments: command.get_args().map(OsString::from).collect(),
            folder: command.get_current_dir().map(PathBuf::from),
        }
    }

    /// Creates the contender `name` of this program: the floor, or a configuration of dlock.
    pub(crate) fn own(this_program: &Path, name: &str) -> Result<Self, Failure> {
        let own = Own::called(name)?;
        Ok(Self {
            name: own.name.to_owned(),
            kind: own.kind,
            floor: own.floor,
            program: this_program.to_owned(),
            arguments: vec![ARGUMENT.into(), own.name.into()],
            folder: None,
        })
    }

    /// Returns the command that starts the contender for the servers at `addresses`.
    pub(crate) fn command(&self, addresses: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(addresses)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }
}

/// Runs the contender `name` in this process.
pub(crate) fn play(name: &str, servers: &[String]) -> Result<ExitCode, Failure> {
    Ok((Own::called(name)?.play)(servers))
}

/// A contender that this program can run.
struct Own {
    name: &'static str,
    kind: Kind,
    floor: &'static str,
    play: fn(&[String]) -> ExitCode,
}

impl Own {
    fn called(name: &str) -> Result<&'static Self, Failure> {
        Ok(OWN
            .iter()
            .find(|own| own.name == name)
            .ok_or_else(|| format!("no contender is called `{name}`"))?)
    }
}

/// The floor, and every measured configuration of dlock.
const OWN: &[Own] = &[
    Own { name: "raw", kind: Kind::Floor, floor: "raw", play: |servers| raw(Threads::Two, servers) },
    Own { name: "ours", kind: Kind::Ours, floor: "raw", play: |servers| ours(Threads::Two, servers, "") },
    Own {
        name: "ceiling",
        kind: Kind::Floor,
        floor: "ceiling",
        play: |_| serve(Threads::Two, async { Ok(Ceiling::default()) }),
    },
    Own {
        name: "ours, layer",
        kind: Kind::Ours,
        floor: "raw",
        play: |servers| serve(Threads::Two, Layered::connect(url(servers, ""))),
    },
    Own {
        name: "ours, tracking=off",
        kind: Kind::Ours,
        floor: "raw",
        play: |servers| ours(Threads::Two, servers, "tracking=off"),
    },
    Own {
        name: "ours, no hand-off",
        kind: Kind::Ours,
        floor: "raw",
        play: |servers| ours(Threads::Two, servers, "handoff_budget=0ms"),
    },
    Own {
        name: "ours, no hand-off, one thread",
        kind: Kind::Ours,
        floor: "raw",
        play: |servers| ours(Threads::One, servers, "handoff_budget=0ms"),
    },
    Own {
        name: "raw, one thread",
        kind: Kind::Floor,
        floor: "raw, one thread",
        play: |servers| raw(Threads::One, servers),
    },
    Own {
        name: "ours, one thread",
        kind: Kind::Ours,
        floor: "raw, one thread",
        play: |servers| ours(Threads::One, servers, ""),
    },
    Own {
        name: "ours, background",
        kind: Kind::Ours,
        floor: "raw",
        play: |servers| serve(Threads::Two, Background::connect(url(servers, ""))),
    },
    Own {
        name: "ours, background, one thread",
        kind: Kind::Ours,
        floor: "raw, one thread",
        play: |servers| serve(Threads::One, Background::connect(url(servers, ""))),
    },
    Own { name: "raw, cluster", kind: Kind::Floor, floor: "raw", play: |servers| raw(Threads::Two, servers) },
    Own {
        name: "ours, cluster",
        kind: Kind::Ours,
        floor: "ours",
        play: |servers| serve(Threads::Two, Ours::connect(format!("redis+cluster://{}", servers.join(",")))),
    },
];

fn raw(threads: Threads, servers: &[String]) -> ExitCode {
    match servers {
        [server] => serve(threads, Raw::connect(server)),
        several => serve(threads, Fan::connect(several)),
    }
}

fn ours(threads: Threads, servers: &[String], options: &str) -> ExitCode {
    serve(threads, Ours::connect(url(servers, options)))
}

fn url(servers: &[String], options: &str) -> String {
    match servers {
        [server] => format!("redis://{server}?{options}"),
        // A server of a quorum counts once it has been up for longer than the longest lease.
        several => format!("redis+quorum://{}?lease=1s&{options}", several.join(",")),
    }
}
