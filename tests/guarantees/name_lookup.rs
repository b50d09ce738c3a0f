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

    for place in [
        "redis://a.invalid",
        "rediss://a.invalid",
        "redis+quorum://a.invalid,b.invalid,c.invalid",
        "redis+cluster://a.invalid",
        "redis+sentinel://a.invalid,b.invalid/mymaster",
    ] {
        let end = |options: &str| {
            let started = Moment::now();
            let url = format!("{place}?connect_timeout=300ms{options}");
            let ended = Command::new(WORKER).arg(&url).env("LD_PRELOAD", &library).output().expect("it runs");
            (String::from_utf8_lossy(&ended.stderr).into_owned(), started.elapsed())
        };

        let (stderr, took) = end("");
        assert!(stderr.contains("the server takes managers"), "{place}: {stderr}");
        assert!(took >= CONNECT_TIMEOUT && took < SOON, "{place}: {took:?}");
        // It ends at the end of its input, while its manager connects.
        let (stderr, took) = end("&connect=lazy");
        assert!(stderr.is_empty() && took < SOON, "{place}: {took:?}: {stderr}");
    }
}
