//! `doctor` against real servers: each fault is shown by the finding that names it, and a server without one shows none.
//!
//! How findings are judged is tested with `dlock_runtime::doctor`, and the program `dlock` with its package.

mod access;
mod fleet;
mod keeping;
mod standing;

use dlock_runtime::doctor;
use dlock_runtime::doctor::{Finding, Report, Severity};
use dlock_tests::RedisServer;
use dlock_tests::server::RedisServerBuilder;

/// A server as the guide would have it.
fn well_configured() -> RedisServerBuilder {
    RedisServer::builder()
        .line("maxmemory 256mb")
        .line("maxmemory-policy noeviction")
        .line("appendonly yes")
        .line("appendfsync always")
}

async fn examine(url: &str) -> Report {
    doctor(url).await.expect("the URL can be used")
}

/// Returns the worst finding of a check.
#[track_caller]
fn worst<'a>(report: &'a Report, check: &str) -> &'a Finding {
    let of_check = report.findings().iter().filter(|finding| finding.check() == check);
    of_check.max_by_key(|finding| finding.severity()).unwrap_or_else(|| panic!("no {check} in {report}"))
}

/// Checks the worst finding of a check, and that it says what to do, where something is to be done.
#[track_caller]
fn assert_finds(report: &Report, check: &str, severity: Severity, said: &str) {
    let finding = worst(report, check);
    assert_eq!(finding.severity(), severity, "{report}");
    assert!(finding.found().contains(said), "{said}: {finding}");
    assert_eq!(finding.what_to_do().is_some(), severity > Severity::Ok, "{finding}");
}

#[tokio::test]
async fn a_server_that_is_well_configured_has_nothing_worse_than_a_note() {
    let server = well_configured().start();

    let report = examine(&server.url()).await;

    assert!(report.worst() == Severity::Ok && report.was_examined(), "{report}");
}
