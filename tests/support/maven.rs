//! A Maven project of ours, built once for all tests that run from one target folder.
//!
//! Maven keeps what it has fetched; so it is asked to build without a network first, and with one where that fails. What it builds
//! stands in the target folder, beside the text that it was built from, and is built again when that text is another.
//!
//! Not here: what the project does (`redisson`).

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the project in `folder` of this package, whose only source is `source`, and returns the class path.
///
/// # Errors
///
/// Says in words why it cannot be built here: there is no Java or no Maven, or nothing can be fetched.
///
/// # Panics
///
/// Panics if the source does not compile: that is no lack of anything.
pub fn class_path(folder: &str, source: &str) -> Result<String, String> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let text =
        |file: &str| std::fs::read_to_string(project.join(file)).map_err(|error| format!("{file}: {error}"));
    let text = text("pom.xml")? + &text(source)?;
    let built = target_folder().join(folder);
    let stamp = built.join("built-from");
    if std::fs::read_to_string(&stamp).is_ok_and(|last| last == text) {
        return Ok(joined(&built));
    }
    for program in ["java", "mvn"] {
        let found = Command::new(program).arg("-version").output();
        found.map_err(|_| format!("there is no `{program}` in PATH"))?;
    }
    let _ = std::fs::remove_dir_all(&built);
    build(&project, &built, &["-o"]).or_else(|_| build(&project, &built, &[]))?;
    std::fs::write(&stamp, text).map_err(|error| error.to_string())?;
    Ok(joined(&built))
}

fn build(project: &Path, built: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "compile", "dependency:copy-dependencies"]).args(arguments);
    maven.arg(format!("-Dbuilt={}", built.display())).current_dir(project);
    let output = maven.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!said.contains("COMPILATION ERROR"), "{said}");
    let first_error = said.lines().find(|line| line.contains("ERROR")).unwrap_or("it says nothing");
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| format!("maven cannot build {}: {first_error}", project.display()))
}

/// The classes of the project, and the jars that it stands on.
fn joined(built: &Path) -> String {
    format!("{}:{}", built.join("classes").display(), built.join("dependency/*").display())
}

/// Returns the folder that cargo builds into: the test binary stands two folders below a profile's.
fn target_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.ancestors().nth(3).map_or_else(std::env::temp_dir, Path::to_path_buf)
}
