//! Examines servers before they store locks, and reports settings by which locks can be lost or
//! refused.
//!
//! ```text
//!  url --> backend asks each server --> facts --> findings --> report
//!                                       (pure from here on)
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `report` | the findings, for users |
//! | `facts` | the replies of the servers |
//! | `findings` | the checks of each server |
//! | `durability`, `replication`, `connectivity` | checks of one server |
//! | `deployment`, `quorum` | checks of several servers |

mod connectivity;
mod deployment;
mod durability;
pub(crate) mod facts;
mod findings;
mod quorum;
mod replication;
mod report;

use crate::backend::redis;
use crate::config::endpoint::Endpoint;
use crate::config::url::ConnectSpec;
use crate::doctor::facts::Deployment;
use crate::error::Result;
use crate::manager::LockManager;

pub use report::{Finding, Report, Severity};

/// Examines the servers of `url`, and reports settings by which locks can be lost or refused.
///
/// Each finding says what it means and what to do. The examination uses the user of the URL, and
/// takes at most five seconds (ten if the server is far away, or with `replica_acks`). It changes
/// nothing except a few keys of its own in the namespace, which it deletes or which expire within
/// five seconds.
///
/// If this user lacks a permission to read a setting, that is a finding with what to check by hand.
/// A server that is unreachable or rejects the password is a [`Danger`](Severity::Danger) in the
/// report and not an error, so that the examination works if [`connect`](LockManager::connect)
/// fails. [`docs::operating`](crate::docs::operating#doctor) lists every check. For options that a
/// URL does not have, such as a callback for credentials, see
/// [`Builder::doctor`](crate::Builder::doctor).
///
/// # Errors
///
/// [`Error::Config`](crate::Error::Config) if the URL is invalid. It never prints a password.
///
/// # Cancel safety
///
/// Dropping the future stops the examination. Its test keys expire within seconds.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// use dlock_runtime::doctor::Severity;
///
/// let report = dlock_runtime::doctor("memory://").await?;
/// println!("{report}");
/// for finding in report.findings().iter().filter(|finding| finding.severity() >= Severity::Warning) {
///     eprintln!("{}: {}", finding.check(), finding.found());
/// }
/// assert_eq!(report.worst(), Severity::Note); // locks in memory are only for this process
/// # Ok(()) }
/// ```
pub async fn doctor(url: &str) -> Result<Report> {
    LockManager::builder(url).doctor().await
}

/// Examines the servers of a parsed URL.
pub(crate) async fn examine(target: ConnectSpec) -> Result<Report> {
    let ConnectSpec { place, settings } = target;
    let facts = match place {
        Endpoint::Memory { .. } => return Ok(findings::of_memory()),
        Endpoint::Redis(server) => redis::examine(vec![server], Deployment::One, settings).await?,
        Endpoint::Cluster(seeds) => redis::examine_cluster(seeds, settings).await?,
        Endpoint::Quorum(voters) => redis::examine(voters.0, Deployment::Quorum, settings).await?,
        Endpoint::Sentinel(watched) => redis::examine_by_sentinels(watched, settings).await?,
    };
    Ok(findings::judge(&facts))
}
