//! A Maven project, built once for all tests that run from one target folder.
//!
//! Maven caches its downloads. Therefore the build is tried without a network first, and then with
//! one. The result is in the target folder, next to a copy of its sources, and is rebuilt when the
//! sources change.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the project in `folder` of this package, and returns the class path.
///
/// The only source of the project is `source`.
///
/// # Errors
///
/// Returns the reason if the project cannot be built: no Java, no Maven, or no download.
///
/// # Panics
///
/// Panics if the source does not compile, because that is an error in the repository.
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
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(!stdout.contains("COMPILATION ERROR"), "{stdout}");
    let first_error = stdout.lines().find(|line| line.contains("ERROR")).unwrap_or("no error in the output");
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| format!("maven cannot build {}: {first_error}", project.display()))
}

/// Returns the class path: the classes of the project and the jars of its dependencies.
fn joined(built: &Path) -> String {
    format!("{}:{}", built.join("classes").display(), built.join("dependency/*").display())
}

/// Returns cargo's target folder, which is three levels above the test binary.
fn target_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.ancestors().nth(3).map_or_else(std::env::temp_dir, Path::to_path_buf)
}
