//! Other lock libraries as contenders of the benchmarks: which there are, how they are installed and started, and what is known of them.
//!
//! Each is a small program of ours, in the folder of its language, that speaks the lines of `dlock_bench_peer` and uses the library as
//! its documentation has it, at its fastest settings; the head of its source says which. They are installed once, below the folder
//! that cargo builds into: that needs the language's own tools, and the registry that these are set up for.
//!
//! Not here: what they are asked to do (`dlock-benches`), and whether they do it (`obedience`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dlock_install::{Project, run};

/// Another lock library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// What it is called, here and on the command line.
    pub name: &'static str,
    /// What it is written in, and so are its users.
    pub language: Language,
    /// Whether it waits when it releases.
    pub release: Release,
    /// Whether it votes over several servers (Redlock); one that does not says `cannot` in place of `ready`.
    pub votes: bool,
    /// Whether it renews what is held, without being told to each time.
    pub renews: bool,
    /// Whether it tells a holder of a loss, in whatever way; one that does not says `cannot` to `lose`.
    pub tells_of_loss: Tells,
}

/// How a holder is told of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// Not at all.
    Never,
    /// When it is renewed the next time.
    Late,
    /// When somebody changes its key: the server says so.
    AtOnce,
}

/// Whether a release is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Until the server has answered, or a majority of the servers.
    Awaited,
    /// Not at all. Such a rival stands beside our background release.
    Background,
}

/// What a rival is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Built by cargo, as a project of its own.
    Rust,
    /// Built by go.
    Go,
    /// Fetched by Maven, built by javac.
    Java,
    /// Installed by pip, in an environment of its own.
    Python,
    /// Installed by npm.
    Node,
}

use Language::{Go, Java, Node, Python, Rust};

/// All of them.
pub const RIVALS: [Rival; 13] = [
    // rslock and node-redlock renew where a routine is handed to them.
    Rival::new("rslock", Rust).votes().renews().tells_of_loss(),
    Rival::new("async-redis-lock", Rust).renews().tells_of_loss(),
    Rival::new("distributed-lock-redis", Rust).votes().renews().tells_of_loss(),
    Rival::new("redis-lock", Rust).votes(),
    // The floor of its language: no library at all.
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

    /// Installs it below `target`, the folder that cargo builds into, unless it is there, and returns the command that starts it, to
    /// which the `host:port` of its servers are to be added. Blocks while it installs, which takes minutes the first time.
    ///
    /// # Errors
    ///
    /// Says what is missing where it cannot be installed here.
    ///
    /// # Panics
    ///
    /// Panics if our own program cannot be built.
    pub fn command(&self, target: &Path) -> Result<Command, String> {
        // What cannot be had is asked for once in a process: a registry that does not answer takes its time.
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
    /// Returns the name of its folder.
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

/// Builds where the sources are, since they name a crate of the workspace; cargo itself knows what has changed, and who else builds.
fn rust(source: &Path, target: PathBuf) -> Result<PathBuf, String> {
    let into = target.to_str().ok_or("cargo's folder has no UTF-8 name")?;
    run(&["cargo", "fetch", "--quiet", "--locked"], source)?;
    let build = ["cargo", "build", "--quiet", "--release", "--locked", "--offline", "--target-dir", into];
    run(&build, source).unwrap_or_else(|said| panic!("{said}"));
    Ok(target)
}
