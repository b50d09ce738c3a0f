//! Other lock libraries as contenders of the benchmarks, and their installation.
//!
//! Each is a small program in the folder of its language. It implements the protocol of
//! `dlock_bench_peer`, and uses the library as its documentation recommends, with its fastest
//! settings, which the head of its source lists. The programs are installed once, below cargo's
//! target folder. Installation needs the tools of the language, and their package registry.
//!
//! See also: `obedience`, which tests the programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dlock_install::{Project, run};

/// Another library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// The name, also on the command line.
    pub name: &'static str,
    /// The language of the library and of its program.
    pub language: Language,
    /// Whether a release waits for the server.
    pub release: Release,
    /// Whether the library supports several servers (Redlock).
    ///
    /// Otherwise it answers `cannot` instead of `ready`.
    pub votes: bool,
    /// Whether the library renews held locks by itself.
    pub renews: bool,
    /// Whether and when the library reports a loss.
    ///
    /// If it never does, it answers `cannot` to `lose`.
    pub tells_of_loss: Tells,
}

/// When a library reports a loss to the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// Never.
    Never,
    /// At the next renewal.
    Late,
    /// As soon as the key changes, because the server sends a message.
    AtOnce,
}

/// Whether a release waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Waits for the reply of the server, or of a majority.
    Awaited,
    /// Does not wait; compared with `ours, background`.
    Background,
}

/// The language of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Built by cargo, as a separate project.
    Rust,
    /// Built by go.
    Go,
    /// Fetched by Maven, built by javac.
    Java,
    /// Installed by pip, in a separate environment.
    Python,
    /// Installed by npm.
    Node,
}

use Language::{Go, Java, Node, Python, Rust};

/// All lock libraries.
pub const RIVALS: [Rival; 13] = [
    // rslock and node-redlock renew only if they run a routine.
    Rival::new("rslock", Rust).votes().renews().tells_of_loss(),
    Rival::new("async-redis-lock", Rust).renews().tells_of_loss(),
    Rival::new("distributed-lock-redis", Rust).votes().renews().tells_of_loss(),
    Rival::new("redis-lock", Rust).votes(),
    // The floor of its language: only a Redis client.
    Rival::new("go-redis", Go),
    Rival::new("redsync", Go).votes(),
    Rival::new("rueidislock", Go).renews().tracks(),
    Rival::new("redisson", Java).votes().renews(),
    Rival::new("redisson-fair", Java).votes().renews(),
    Rival::new("redis-py", Python),
    Rival::new("python-redis-lock", Python).renews(),
    Rival::new("redlock", Node).votes().renews().tells_of_loss(),
    Rival::new("redlock-universal", Node).votes().renews().tells_of_loss(),
];

/// The libraries of idempotent calls. They have no locks.
pub const IDEMPOTENT_RIVALS: [Rival; 2] =
    [Rival::new("axum-idempotent", Rust), Rival::new("aws-lambda-powertools", Python)];

impl Rival {
    const fn new(name: &'static str, language: Language) -> Self {
        Self {
            name,
            language,
            release: Release::Awaited,
            votes: false,
            renews: false,
            tells_of_loss: Tells::Never,
        }
    }

    const fn votes(self) -> Self {
        Self { votes: true, ..self }
    }

    const fn renews(self) -> Self {
        Self { renews: true, ..self }
    }

    const fn tells_of_loss(self) -> Self {
        Self { tells_of_loss: Tells::Late, ..self }
    }

    const fn tracks(self) -> Self {
        Self { tells_of_loss: Tells::AtOnce, ..self }
    }

    /// Installs the library below `target`, and returns the command that starts it.
    ///
    /// `target` is cargo's target folder.
    ///
    /// The caller adds the `host:port` of the servers to the command. The first installation blocks
    /// for minutes.
    ///
    /// # Errors
    ///
    /// Returns what is missing if the library cannot be installed on this machine.
    ///
    /// # Panics
    ///
    /// Panics if the program that uses the library cannot be built.
    pub fn command(&self, target: &Path) -> Result<Command, String> {
        // A failed installation is not repeated in this process: an unreachable registry takes long
        // to time out.
        static INSTALLED: [OnceLock<Result<PathBuf, String>>; 5] = [const { OnceLock::new() }; 5];
        let installed = &INSTALLED[self.language as usize];
        let folder = installed.get_or_init(|| self.language.install(target)).clone()?;
        let (program, arguments): (PathBuf, &[&str]) = match self.language {
            Rust => (folder.join("release/rivals"), &[]),
            Go => (folder.join("rivals"), &[]),
            Java => ("java".into(), &["-cp", "classes:jars/*", "Rivals"]),
            Python => (folder.join("venv/bin/python"), &["rivals.py"]),
            Node => ("node".into(), &["rivals.js"]),
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(self.name).current_dir(folder);
        Ok(command)
    }
}

impl Language {
    /// Returns the folder of the language.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Rust => "rust",
            Go => "go",
            Java => "java",
            Python => "python",
            Node => "node",
        }
    }

    fn install(self, target: &Path) -> Result<PathBuf, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(self.folder());
        let folder = target.join("bench-rivals").join(self.folder());
        let (fetches, builds): (&[_], &[_]) = match self {
            Rust => return rust(&source, folder),
            Go => (&["go mod download"], &["go build -o rivals ."]),
            Java => (
                &["javac -version", "mvn -q -B dependency:copy-dependencies -DoutputDirectory=jars"],
                &["javac -cp jars/* -d classes src/Rivals.java"],
            ),
            Python => (
                &[
                    "python3 -m venv venv",
                    "venv/bin/python -m pip install -q --retries 1 -r requirements.txt",
                ],
                &[],
            ),
            Node => (&["node --version", "npm install --no-audit --no-fund --fetch-retries 1"], &[]),
        };
        Project { source: &source, folder: &folder, fetches, builds }.install()?;
        Ok(folder)
    }
}

/// Builds in the source folder, because the project depends on a crate of the workspace.
///
/// Cargo detects changes and locks concurrent builds.
fn rust(source: &Path, target: PathBuf) -> Result<PathBuf, String> {
    let into = target.to_str().ok_or("the path of cargo's target folder is not UTF-8")?;
    run(&["cargo", "fetch", "--quiet", "--locked"], source)?;
    let build = ["cargo", "build", "--quiet", "--release", "--locked", "--offline", "--target-dir", into];
    run(&build, source).unwrap_or_else(|said| panic!("{said}"));
    Ok(target)
}
