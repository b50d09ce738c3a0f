//! The manifest names every example: one that is not listed would never be compiled.

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

    let files = fs::read_dir(".").expect("the folder can be read").flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let tests = fs::read_dir("tests").expect("the folder can be read").flatten();
    let tests = tests.filter_map(|file| Some(format!("tests/{}", file.file_name().to_str()?)));
    let there: BTreeSet<String> = names.chain(tests).filter(|name| name.ends_with(".rs")).collect();

    assert_eq!(listed, there);
}
