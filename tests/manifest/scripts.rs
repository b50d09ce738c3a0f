//! The scripts of the project: what they download is pinned by a hash, they need no permissions of
//! other users, and a check that did not run is reported as skipped.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::{files, read, root};

fn scripts() -> Vec<String> {
    let mut scripts = files(&root().join("tests"), "sh");
    scripts.push(".ci/run".to_owned());
    scripts
}

#[test]
fn no_script_asks_for_the_permissions_of_another_user() {
    assert!(scripts().len() > 5);
    for script in scripts() {
        assert!(!read(&script).contains("sudo"), "{script}");
    }
}

#[test]
fn every_wheel_of_a_server_is_pinned_by_its_hash() {
    let servers = read("tests/servers.sh");
    let mut wheels = 0;
    for line in servers.lines().filter_map(|line| line.trim_start().strip_prefix("wheel ")) {
        let (name, rest) = line.split_once(' ').expect("a hash follows the name");
        let hash = rest.split(' ').next().unwrap_or_default();
        let is_hash = hash.len() == 64 && hash.chars().all(|c| c.is_ascii_hexdigit());
        assert!(name.contains("==") && is_hash, "{line}");
        wheels += 1;
    }
    assert!(wheels > 4, "{wheels}");
    let downloads: Vec<_> = servers.lines().filter(|line| line.contains("pip download")).collect();
    assert!(downloads.len() == 1 && downloads[0].contains("--require-hashes"), "{downloads:?}");
    for list in ["tests/interop/python/requirements.txt", "benches/rivals/python/requirements.txt"] {
        let text = read(list);
        let unpinned = text.lines().find(|line| !line.starts_with('#') && !line.contains("--hash=sha256:"));
        assert_eq!(unpinned, None, "{list}");
    }
}

/// Runs `tests/deny.sh` with a `cargo deny` that succeeds, and fetches nothing.
fn deny(home: &Path, can_fetch: bool) -> String {
    let program = home.join("cargo-deny");
    let code = i32::from(!can_fetch);
    let text = format!("#!/bin/sh\ncase \" $* \" in *' fetch '*) exit {code} ;; esac\necho \"ran $*\"\n");
    fs::write(&program, text).expect("a temporary file can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = std::env::var("PATH").expect("there is a path");
    let output = Command::new("bash")
        .arg(root().join("tests/deny.sh"))
        .env("PATH", format!("{}:{path}", home.display()))
        .env("CARGO_HOME", home)
        .output()
        .expect("bash can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn an_advisory_check_without_its_database_is_skipped() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let skipped = "SKIPPED: cargo deny: known vulnerabilities";

    for can_fetch in [false, true] {
        let said = deny(home.path(), can_fetch);
        assert!(said.contains(skipped), "{can_fetch}: {said}");
    }
    let database = home.path().join("advisory-dbs/one/crates/a");
    fs::create_dir_all(&database).expect("a temporary directory can be made");
    fs::write(database.join("RUSTSEC-2020-0001.md"), "").expect("a temporary file can be written");

    let said = deny(home.path(), true);

    assert!(!said.contains("SKIPPED"), "{said}");
}
