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

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
