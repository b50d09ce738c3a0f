//! What must be true of the project's files: every test is run, the guide on proof names tests that there are, no code of ours is
//! unsafe, and every dependency may be used.

mod campaigns;
mod packages;
mod proof;
mod targets;

use std::path::{Path, PathBuf};

/// The folder of the workspace.
fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("this package is in the workspace's folder").to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
