//! The lock clients of other libraries and languages: programs of `tests/interop`, driven by text
//! lines.
//!
//! ```text
//!  in:   lock NAME LEASE_MS                                    waits without limit: locked
//!        try NAME LEASE_MS                                     locked | taken
//!        extend                                                by a lease from now: extended
//!        unlock                                                unlocked
//!        soak NAME COUNTER_KEY SECONDS HOLD_MS LEASE_MS        acquires it, adds 1 to the counter, releases it, repeatedly: done COUNT
//!        quit
//!  out:  ready                                                 it is connected
//!        failed TEXT                                           the error of the library
//! ```
//!
//! The dependencies are installed once, below cargo's folder for temporary files of tests. If a
//! tool or a registry is unavailable, the test must print that and pass.
//!
//! See also `dlock-install` for the installation and `tests/setnx` for the required behavior.

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
    /// All clients that use `SET NX`.
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

/// A running client. It is killed on drop.
#[derive(Debug)]
pub struct Fleet {
    client: Client,
    talk: Talk,
}

impl Fleet {
    /// Installs a client below `target` if it is missing, and connects it to the server at `url`.
    ///
    /// Blocks during the installation.
    ///
    /// # Errors
    ///
    /// Returns what is missing if the client cannot be installed.
    ///
    /// # Panics
    ///
    /// Panics if the program cannot be built or does not start.
    pub async fn start(client: Client, target: &Path, url: &str) -> Result<Self, String> {
        // The result is cached, because a registry that does not reply takes long to fail.
        static INSTALLED: [OnceLock<Result<PathBuf, String>>; 4] = [const { OnceLock::new() }; 4];
        let language = client.language();
        let folder = INSTALLED[language as usize].get_or_init(|| installed(language, target)).clone()?;
        let mut fleet = Self { client, talk: Talk::with(client.command(&folder).arg(url)) };
        assert_eq!(fleet.answer(ANSWER_LIMIT).await, "ready", "{client:?}");
        Ok(fleet)
    }

    /// Returns which client this is.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client
    }

    /// Sends one command without waiting for its reply.
    pub fn send(&mut self, command: &str) {
        self.talk.send(command);
    }

    /// Waits for the next reply.
    ///
    /// # Panics
    ///
    /// Panics if there is no reply within `limit`, or if the program ends.
    pub async fn answer(&mut self, limit: Duration) -> String {
        let line = within(limit, &format!("a reply of {:?}", self.client), self.talk.line()).await;
        line.unwrap_or_else(|| panic!("{:?} has ended", self.client))
    }

    /// Sends one command and returns its answer.
    ///
    /// # Panics
    ///
    /// Panics if there is no reply within [`ANSWER_LIMIT`].
    pub async fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer(ANSWER_LIMIT).await
    }
}

/// The limit for a command that does not wait for a lock.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The language of a client.
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

    /// Returns the installation steps and the build steps.
    ///
    /// The former need tools and a registry; the latter must not fail.
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

/// Installs the dependencies for a language, and returns their folder.
fn installed(language: Language, target: &Path) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop").join(language.folder());
    let folder = target.join("interop").join(language.folder());
    let (fetches, builds) = language.steps();
    Project { source: &source, folder: &folder, fetches, builds }.install()?;
    Ok(folder)
}
