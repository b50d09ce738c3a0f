//! Checks of the project's files: every test runs, the guide on proof names existing tests, no
//! published code is unsafe, every dependency has an accepted license, and readers outside the
//! repository find what they need.

mod campaigns;
mod contributing;
mod guides;
mod packages;
mod permissions;
mod proof;
mod prose;
mod readme;
mod scripts;
mod structure;
mod targets;
mod vocabulary;

use std::path::{Path, PathBuf};

/// The root directory of the workspace.
fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("this package is in the workspace").to_owned()
}

/// Returns the paths of all files with an extension in a folder and its folders.
fn files(folder: &Path, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|of| of == extension) {
            found.push(path.to_str().expect("names are ASCII").to_owned());
        }
    }
    found
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
