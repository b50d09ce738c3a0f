//! Workspace packages forbid unsafe code, and the licenses of dependencies are as permissive as
//! ours.
//!
//! See also: `tests/deny.sh` for advisories, sources, and duplicate versions of dependencies.

use std::process::Command;

use serde_json::Value;

use super::{read, root};

/// Licenses that only require their own text. An expression with `OR` needs one of them.
const ALLOWED: [&str; 9] =
    ["0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "ISC", "MIT", "Unicode-3.0", "Zlib"];

/// Returns cargo's metadata of the workspace with all features, or the reason why there is none.
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

/// Returns `true` if an SPDX license expression can be satisfied by allowed licenses only.
/// Parentheses bind first, then `AND`, then `OR`. Old manifests write `/` for `OR`.
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
        // An exception grants additional permissions only.
        [license, "WITH", _, rest @ ..] | [license, rest @ ..] => (ALLOWED.contains(license), rest),
        [] => (false, words),
    }
}

#[test]
fn every_dependency_has_an_allowed_license() {
    let metadata = match metadata() {
        Ok(metadata) => metadata,
        Err(reason) => return println!("SKIPPED: licenses of dependencies: {}", reason.replace('\n', " ")),
    };
    let packages = metadata["packages"].as_array().expect("cargo lists packages");
    assert!(packages.len() > 100, "{} packages: not the whole workspace", packages.len());

    let license = |package: &Value| package["license"].as_str().unwrap_or("none").to_owned();
    let refused = packages.iter().filter(|package| !is_allowed(&license(package)));
    let refused: Vec<_> =
        refused.map(|package| format!("{} is {}", package["name"], license(package))).collect();

    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn license_expressions_are_parsed_as_spdx() {
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

/// No file can re-allow a lint at the level `forbid`. Only the tests of forked processes need
/// `fork`, which is unsafe.
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
        // The shapes compile in every edition with the lints of a user's crate, so their source
        // forbids unsafe code itself.
        let says_so = || read("ui-tests/editions/shapes/lib.rs").contains("#![forbid(unsafe_code)]");
        // Only the tests of `fork` may contain unsafe code, in one module.
        let is_of_forks = member == "tests/fork" && manifest.contains("publish = false");
        let is_forbidden = manifest.contains("[lints]\nworkspace = true")
            || is_of_forks
            || (member.starts_with("ui-tests/editions/") && says_so());
        assert!(is_forbidden, "{member} does not forbid unsafe code");
    }
}
