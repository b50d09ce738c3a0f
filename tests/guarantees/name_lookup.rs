//! A silent name server delays neither a call nor the end of the process.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dlock_tests::Moment;

use super::WORKER;

/// Less than half of the time of a lookup that is waited for, and more than the start of a process
/// on a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// The timeout in the URL. A lookup that fails earlier was answered.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);

#[test]
fn a_process_ends_while_a_name_lookup_has_no_reply() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("silent_names.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("support/silent_names.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    if !cfg!(target_os = "linux") || !built.is_ok_and(|status| status.success()) {
        return println!("SKIPPED: a silent name server: there is no cc, or no preloading of libraries");
    }

    for scheme in ["redis", "rediss", "redis+quorum", "redis+cluster"] {
        let hosts = if scheme == "redis+quorum" { "a.invalid,b.invalid,c.invalid" } else { "a.invalid" };
        let url = format!("{scheme}://{hosts}?connect_timeout=300ms");
        let started = Moment::now();
        let ended = Command::new(WORKER).arg(&url).env("LD_PRELOAD", &library).output();
        let stderr = String::from_utf8_lossy(&ended.expect("it runs").stderr).into_owned();

        assert!(stderr.contains("the server takes managers"), "{url}: {stderr}");
        let took = started.elapsed();
        assert!(took >= CONNECT_TIMEOUT && took < SOON, "{url}: {took:?}");
    }
}
