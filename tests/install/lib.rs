//! Installs helper programs in other languages, once for all processes, below cargo's target
//! folder.
//!
//! They need the tools of their language and its configured package registry. If one is
//! unavailable, the caller gets the reason, and must print it and continue without the program.
//!
//! See also `dlock-tests` and `dlock-bench-rivals` for the programs and their use.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

/// A program and its installation steps.
#[derive(Clone, Copy, Debug)]
pub struct Project<'a> {
    /// The folder of the sources. They are copied, because tools write next to them.
    pub source: &'a Path,
    /// The folder of the installation.
    pub folder: &'a Path,
    /// The steps that need tools and a registry. Words are separated by a space.
    pub fetches: &'a [&'a str],
    /// The steps that fail only if the sources are wrong.
    pub builds: &'a [&'a str],
}

impl Project<'_> {
    /// Installs the program, unless it is installed and its sources are unchanged. Blocks
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// Returns what is missing if the program cannot be installed.
    ///
    /// # Panics
    ///
    /// Panics if the sources cannot be built, or if the folder cannot be written to.
    pub fn install(&self) -> Result<(), String> {
        let Self { source, folder, fetches, builds } = *self;
        fs::create_dir_all(folder).expect("cargo's folder can be written to");
        // Other tests and processes may install the same program. The lock is released when the
        // file is closed.
        let guard = File::create(folder.join(".lock")).expect("the folder can be written to");
        flock(&guard, FlockOperation::LockExclusive).expect("the file can be locked");

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
            run(step).unwrap_or_else(|error| panic!("{error}"));
        }
        fs::write(stamp, wanted).expect("the folder can be written to");
        Ok(())
    }
}

/// Returns cargo's target folder of the running program.
#[must_use]
pub fn target_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    // Cargo marks its target folder with this file for backup programs.
    let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    target.map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// Runs one step of an installation in `folder`.
///
/// The program is in `PATH` or, if its name contains a slash, in `folder`.
///
/// # Errors
///
/// Returns the first error message of the program.
pub fn run(words: &[&str], folder: &Path) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let path = if program.contains('/') { folder.join(program) } else { program.into() };
    // The step must not download another toolchain, or use cargo's settings of the calling process.
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
    // Maven writes its errors to standard output.
    let output = [output.stderr, output.stdout].concat();
    let output = String::from_utf8_lossy(&output);
    let mut lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    let error =
        |line: &&str| ["error", "ERROR", "npm error", "[ERROR]"].iter().any(|word| line.starts_with(word));
    let last = lines.clone().next_back().unwrap_or_default();
    Err(format!("`{}` failed: {}", words.join(" "), lines.find(error).unwrap_or(last)))
}

/// Copies the files of a folder that differ, and returns the content of all files.
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
