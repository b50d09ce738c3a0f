//! Packages: ours forbid unsafe code, and those of others may be used by everybody who may use ours.
//!
//! Not here: known weaknesses, sources and doubles of dependencies (`tests/deny.sh`).

use std::process::Command;

use serde_json::Value;

use super::{read, root};

/// Licences that ask for nothing but their own text; with a way out of it where there is an `OR`.
const ALLOWED: [&str; 9] =
    ["0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "ISC", "MIT", "Unicode-3.0", "Zlib"];

/// What cargo says of the workspace with all its features, or why it says nothing.
fn metadata() -> Result<Value, String> {
    let version = Command::new("rustc").arg("-vV").output().map_err(|error| format!("rustc: {error}"))?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc names no host")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let said = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--all-features", "--filter-platform", host])
        .current_dir(root())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !said.status.success() {
        return Err(String::from_utf8_lossy(&said.stderr).into_owned());
    }
    serde_json::from_slice(&said.stdout).map_err(|error| error.to_string())
}

/// Returns whether one way to read a licence's expression asks for allowed ones only. Brackets first, then `AND`, then `OR`, as SPDX
/// has it; old manifests write `/` for `OR`.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let (value, rest) = any_of(&words);
    value && rest.is_empty()
}

fn any_of<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut value, mut rest) = all_of(words);
    while let ["OR", behind @ ..] = rest {
        let (other, left) = all_of(behind);
        (value, rest) = (value | other, left);
    }
    (value, rest)
}

fn all_of<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut value, mut rest) = one(words);
    while let ["AND", behind @ ..] = rest {
        let (other, left) = one(behind);
        (value, rest) = (value & other, left);
    }
    (value, rest)
}

fn one<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inner @ ..] => match any_of(inner) {
            (value, [")", rest @ ..]) => (value, rest),
            (_, rest) => (false, rest),
        },
        // An exception allows more than the licence, never less.
        [licence, "WITH", _, rest @ ..] | [licence, rest @ ..] => (ALLOWED.contains(licence), rest),
        [] => (false, words),
    }
}

#[test]
fn every_dependency_has_a_licence_that_all_users_can_keep() {
    let metadata = match metadata() {
        Ok(metadata) => metadata,
        Err(reason) => return println!("SKIPPED: licences of dependencies: {}", reason.replace('\n', " ")),
    };
    let packages = metadata["packages"].as_array().expect("cargo lists packages");
    assert!(packages.len() > 100, "{} packages: not the whole workspace", packages.len());

    let licence = |package: &Value| package["license"].as_str().unwrap_or("none").to_owned();
    let refused = packages.iter().filter(|package| !is_allowed(&licence(package)));
    let refused: Vec<_> =
        refused.map(|package| format!("{} is {}", package["name"], licence(package))).collect();

    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn an_expression_of_licences_is_read_as_spdx_has_it() {
    for allowed in [
        "MIT",
        "MIT OR Apache-2.0",
        "MIT/Apache-2.0",
        "GPL-3.0-only OR MIT",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        "GPL-3.0-only AND MIT OR ISC",
    ] {
        assert!(is_allowed(allowed), "{allowed}");
    }
    for refused in [
        "",
        "none",
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "(MIT",
        "MIT)",
        "MIT Apache-2.0",
        "MIT AND (GPL-2.0 OR AGPL-3.0)",
    ] {
        assert!(!is_allowed(refused), "{refused}");
    }
}

/// A lint that is forbidden cannot be allowed again in any file. Only the tests of forked processes call `fork`, which is unsafe.
#[test]
fn every_package_of_ours_forbids_unsafe_code() {
    let workspace = read("Cargo.toml");
    let lints = workspace.split_once("[workspace.lints.rust]").expect("the workspace has lints").1;
    assert!(lints.lines().any(|line| line == "unsafe_code = \"forbid\""), "the workspace forbids it");
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = ")).expect("it has members");
    let members: Vec<_> = members.split('"').skip(1).step_by(2).collect();

    assert!(members.len() >= 10, "{members:?}");
    for member in members {
        let manifest = read(format!("{member}/Cargo.toml"));
        // The shapes are compiled in every edition with the lints that a user has: they say it in their own source.
        let says_so = || read("ui-tests/editions/shapes/lib.rs").contains("#![forbid(unsafe_code)]");
        // Tests alone need `fork`, and one module of theirs may.
        let is_of_forks = member == "tests/fork" && manifest.contains("publish = false");
        let is_forbidden = manifest.contains("[lints]\nworkspace = true")
            || is_of_forks
            || (member.starts_with("ui-tests/editions/") && says_so());
        assert!(is_forbidden, "{member} may be unsafe");
    }
}
