//! Installs programs of ours in other languages, once for all processes that want them, below a folder that cargo has for such things.
//!
//! They need their language's own tools, and the registry that these are set up for. Where one is missing, the caller is told in words,
//! and is to say so and go on without.
//!
//! Not here: what the programs do, and how they are started (`dlock-tests`, `dlock-bench-rivals`).

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

/// A program, and how it is made.
#[derive(Clone, Copy, Debug)]
pub struct Project<'a> {
    /// Where its sources are. They are copied, since tools write beside them.
    pub source: &'a Path,
    /// Where it goes.
    pub folder: &'a Path,
    /// The steps that need tools and a registry: words with a blank between them.
    pub fetches: &'a [&'a str],
    /// The steps that need our own sources to be right.
    pub builds: &'a [&'a str],
}

impl Project<'_> {
    /// Installs it, unless it has been since its sources changed. Blocks meanwhile.
    ///
    /// # Errors
    ///
    /// Says what is missing where it cannot be fetched here.
    ///
    /// # Panics
    ///
    /// Panics if our own sources cannot be built, or the folder cannot be written to.
    pub fn install(&self) -> Result<(), String> {
        let Self { source, folder, fetches, builds } = *self;
        fs::create_dir_all(folder).expect("cargo's folder can be written to");
        // Other tests and other processes want the same; the lock ends with the file.
        let guard = File::create(folder.join(".lock")).expect("the folder can be written to");
        flock(&guard, FlockOperation::LockExclusive).expect("a file of ours can be locked");

        let wanted = copied(source, folder).expect("the sources can be copied");
        let stamp = folder.join(".installed");
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        let run = |step: &str| run(&step.split(' ').collect::<Vec<_>>(), folder);
        for step in fetches {
            run(step)?;
        }
        for step in builds {
            run(step).unwrap_or_else(|said| panic!("{said}"));
        }
        fs::write(stamp, wanted).expect("the folder can be written to");
        Ok(())
    }
}

/// Returns the folder that cargo builds into, as seen from a program that it has built.
#[must_use]
pub fn target_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    // Cargo marks it so, for programs that make backups.
    let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    target.map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// Runs one step of an installation in `folder`: a program of the path or, with a slash in its name, of the folder; and its arguments.
///
/// # Errors
///
/// Returns the first error that it says.
pub fn run(words: &[&str], folder: &Path) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let path = if program.contains('/') { folder.join(program) } else { program.into() };
    // No toolchain is fetched that was not asked for, and none of cargo's own settings for who calls concern another project.
    let output = Command::new(path)
        .args(arguments)
        .current_dir(folder)
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-mod=readonly")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .map_err(|error| format!("{program} cannot be run here: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    // Maven complains on its standard output.
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let error =
        |line: &&str| ["error", "ERROR", "npm error", "[ERROR]"].iter().any(|word| line.starts_with(word));
    let last = lines.clone().next_back().unwrap_or_default();
    Err(format!("`{}` failed: {}", words.join(" "), lines.find(error).unwrap_or(last)))
}

/// Copies a folder where it differs, and returns all that stands in it.
fn copied(source: &Path, folder: &Path) -> io::Result<String> {
    let mut all = String::new();
    let mut entries = fs::read_dir(source)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (from, to) = (entry.path(), folder.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&to)?;
            all += &copied(&from, &to)?;
            continue;
        }
        let text = fs::read_to_string(&from)?;
        if fs::read_to_string(&to).ok().as_ref() != Some(&text) {
            fs::write(&to, &text)?;
        }
        let _ = writeln!(all, "{}\n{text}", from.display());
    }
    Ok(all)
}
