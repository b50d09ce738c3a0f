//! `doctor` against real servers: each fault is shown by the finding that names it, and a server without one shows none.
//!
//! How findings are judged is tested with `dlock_runtime::doctor`, and the program `dlock` with its package.

mod access;
mod cluster;
mod fleet;
mod keeping;
mod quorum;
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

/// Checks that nothing is worse than `severity` but how soon answers come, which is this machine's affair.
#[track_caller]
fn assert_at_worst(report: &Report, severity: Severity) {
    let worse = report.findings().iter().find(|at| at.severity() > severity && at.check() != "latency");
    assert!(worse.is_none() && report.was_examined(), "{report}");
}

#[tokio::test]
async fn a_server_that_is_well_configured_has_not_so_much_as_a_note() {
    let server = well_configured().start();

    let report = examine(&server.url()).await;

    assert_at_worst(&report, Severity::Ok);
}
