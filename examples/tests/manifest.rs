//! The manifest lists every example: an unlisted one would never be compiled.

use std::collections::BTreeSet;
use std::fs;

#[test]
fn every_file_in_the_folder_is_a_target() {
    let manifest = fs::read_to_string("Cargo.toml").expect("the manifest can be read");
    let listed: BTreeSet<String> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix("\""))
        .map(str::to_owned)
        .collect();

    let there: BTreeSet<String> = ["", "tests/"].into_iter().flat_map(sources).collect();

    assert_eq!(listed, there);
}

/// Returns the Rust files in a folder of this package, by their paths.
fn sources(folder: &str) -> Vec<String> {
    let files = fs::read_dir(format!("./{folder}")).expect("the folder can be read").flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    names.filter_map(|name| name.strip_suffix(".rs").map(|stem| format!("{folder}{stem}.rs"))).collect()
}
