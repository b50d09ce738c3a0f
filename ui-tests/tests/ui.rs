//! Compiles every case. Not here: what an expansion does when it runs (`order`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn every_shape_compiles_and_every_mistake_gets_its_message() {
    let cases = trybuild::TestCases::new();

    cases.pass("pass/*.rs");
    cases.compile_fail("fail/*.rs");
}

#[test]
fn the_manifest_names_every_test_and_every_failure_has_its_message() {
    let manifest = fs::read_to_string("Cargo.toml").expect("the manifest can be read");

    let unlisted: Vec<_> = stems("tests", "rs").into_iter().filter(|name| !manifest.contains(name)).collect();

    assert!(unlisted.is_empty(), "not in Cargo.toml: {unlisted:?}");
    assert_eq!(stems("fail", "rs"), stems("fail", "stderr"));
}

/// The names in `folder` that end in `.extension`, without it.
fn stems(folder: &str, extension: &str) -> BTreeSet<String> {
    let paths = fs::read_dir(folder).expect("the folder can be read").flatten().map(|entry| entry.path());
    let wanted = paths.filter(|path| path.extension().is_some_and(|found| found == extension));
    wanted
        .filter_map(|path| path.file_stem().and_then(|stem| Path::new(stem).to_str().map(str::to_owned)))
        .collect()
}
