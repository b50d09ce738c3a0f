//! Compiles every case. See `order` for what expansions do at run time.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn accepted_cases_compile_and_others_have_messages() {
    let cases = trybuild::TestCases::new();

    cases.pass("pass/*.rs");
    cases.compile_fail("fail/*.rs");
}

#[test]
fn every_test_is_listed_and_every_failure_has_messages() {
    let manifest = fs::read_to_string("Cargo.toml").expect("the manifest can be read");

    let unlisted: Vec<_> = stems("tests", "rs").into_iter().filter(|name| !manifest.contains(name)).collect();

    assert!(unlisted.is_empty(), "not in Cargo.toml: {unlisted:?}");
    assert_eq!(stems("fail", "rs"), stems("fail", "stderr"));
}

/// Returns the names in `folder` that end in `.extension`, without it.
fn stems(folder: &str, extension: &str) -> BTreeSet<String> {
    let paths = fs::read_dir(folder).expect("the folder can be read").flatten().map(|entry| entry.path());
    let wanted = paths.filter(|path| path.extension().is_some_and(|found| found == extension));
    wanted
        .filter_map(|path| path.file_stem().and_then(|stem| Path::new(stem).to_str().map(str::to_owned)))
        .collect()
}
