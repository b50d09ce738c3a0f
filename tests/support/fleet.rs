//! The real lock clients of other libraries and languages, as small programs of `tests/fleets` that are driven by lines.
//!
//! ```text
//!  in:   lock NAME LEASE_MS                                    waits for it without end: locked
//!        try NAME LEASE_MS                                     locked | taken
//!        extend                                                by a lease from now: extended
//!        unlock                                                unlocked
//!        soak NAME COUNTER_KEY SECONDS HOLD_MS LEASE_MS        takes it, adds 1 to the counter, lets go; again and again: done TURNS
//!        quit
//!  out:  ready                                                 it is connected
//!        failed TEXT                                           what the library said instead
//! ```
//!
//! What they need is installed once, below the folder that cargo has for tests. Where a tool or a registry is missing, the test is to
//! say so and pass.
//!
//! Not here: how they are installed (`dlock-install`), and what the clients must do (`tests/setnx`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use dlock_install::Project;

use crate::clock::within;
use crate::talk::Talk;

/// A lock client of another library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// redis-py's `Lock`.
    RedisPy,
    /// node-redlock.
    NodeRedlock,
    /// redlock-universal.
    RedlockUniversal,
    /// Go's redsync.
    Redsync,
    /// rslock.
    Rslock,
}

impl Client {
    /// All of them: the family of `SET NX`.
    pub const SET_NX: [Self; 5] =
        [Self::RedisPy, Self::NodeRedlock, Self::RedlockUniversal, Self::Redsync, Self::Rslock];

    fn language(self) -> Language {
        match self {
            Self::RedisPy => Language::Python,
            Self::NodeRedlock | Self::RedlockUniversal => Language::Node,
            Self::Redsync => Language::Go,
            Self::Rslock => Language::Rust,
        }
    }

    /// Returns the command that starts the program in `folder`.
    fn command(self, folder: &Path) -> Command {
        let (program, arguments): (PathBuf, &[&str]) = match self {
            Self::RedisPy => (folder.join("venv/bin/python"), &["fleet.py"]),
            Self::NodeRedlock => ("node".into(), &["fleet.js", "redlock"]),
            Self::RedlockUniversal => ("node".into(), &["fleet.js", "redlock-universal"]),
            Self::Redsync => (folder.join("fleet"), &[]),
            Self::Rslock => (folder.join("target/debug/fleet"), &[]),
        };
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder);
        command
    }
}

/// A running client; killed when dropped.
#[derive(Debug)]
pub struct Fleet {
    client: Client,
    talk: Talk,
}

impl Fleet {
    /// Installs a client below `target` unless it is there, and connects it to the server at `url`. Blocks while it installs.
    ///
    /// # Errors
    ///
    /// Says what is missing where it cannot be installed here.
    ///
    /// # Panics
    ///
    /// Panics if our own program cannot be built or does not start.
    pub async fn start(client: Client, target: &Path, url: &str) -> Result<Self, String> {
        // What cannot be had is asked for once in a process: a registry that does not answer takes its time.
        static INSTALLED: [OnceLock<Result<PathBuf, String>>; 4] = [const { OnceLock::new() }; 4];
        let language = client.language();
        let folder = INSTALLED[language as usize].get_or_init(|| installed(language, target)).clone()?;
        let mut fleet = Self { client, talk: Talk::with(client.command(&folder).arg(url)) };
        assert_eq!(fleet.answer(ANSWER_LIMIT).await, "ready", "{client:?}");
        Ok(fleet)
    }

    /// Returns which client it is.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client
    }

    /// Sends one command, without waiting for its answer.
    pub fn send(&mut self, command: &str) {
        self.talk.send(command);
    }

    /// Waits for the next answer.
    ///
    /// # Panics
    ///
    /// Panics if none comes within `limit`, or if the program ends.
    pub async fn answer(&mut self, limit: Duration) -> String {
        let line = within(limit, &format!("an answer of {:?}", self.client), self.talk.line()).await;
        line.unwrap_or_else(|| panic!("{:?} has ended", self.client))
    }

    /// Sends one command and returns its answer.
    ///
    /// # Panics
    ///
    /// Panics if none comes within [`ANSWER_LIMIT`].
    pub async fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer(ANSWER_LIMIT).await
    }
}

/// How long a command may take that does not wait for others.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// What a client is written in.
#[derive(Clone, Copy, Debug)]
enum Language {
    Python,
    Node,
    Go,
    Rust,
}

impl Language {
    fn folder(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Go => "go",
            Self::Rust => "rust",
        }
    }

    /// Returns the steps that need tools and a registry, and those that need our own program to be right.
    fn steps(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Python => (
                &[
                    "python3 -m venv venv",
                    "venv/bin/python -m pip install -q --retries 1 -r requirements.txt",
                ],
                &[],
            ),
            Self::Node => (&["node --version", "npm install --no-audit --no-fund --fetch-retries 1"], &[]),
            Self::Go => (&["go mod download"], &["go build -o fleet ."]),
            Self::Rust => {
                (&["cargo fetch --locked"], &["cargo build --quiet --locked --offline --target-dir target"])
            }
        }
    }
}

/// Installs what a language's programs need, and returns where.
fn installed(language: Language, target: &Path) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fleets").join(language.folder());
    let folder = target.join("fleets").join(language.folder());
    let (fetches, builds) = language.steps();
    Project { source: &source, folder: &folder, fetches, builds }.install()?;
    Ok(folder)
}
