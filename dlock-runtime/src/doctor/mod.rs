//! Examines the servers that locks are going to live on, before they do: what is set so that locks can be lost or refused.
//!
//! ```text
//!  url --> backend asks each server --> facts --> findings --> report
//!                                       (pure from here on)
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `report` | what users are given |
//! | `facts` | what was read |
//! | `findings` | what is looked at on whom |
//! | `keeping`, `standing`, `reaching` | the questions about one server |
//! | `fleet`, `voters` | the questions about several |
//!
//! Not here: how servers are asked (`backend::redis::probe`).

pub(crate) mod facts;
mod findings;
mod fleet;
mod keeping;
mod reaching;
mod report;
mod standing;
mod voters;

use crate::backend::redis;
use crate::config::url::{ConnectSpec, Endpoint};
use crate::doctor::facts::Topology;
use crate::error::Result;
use crate::manager::LockManager;

pub use report::{Finding, Report, Severity};

/// Examines the servers of `url`, and says what is set so that locks can be lost or refused, what that means, and what to do.
///
/// It asks what can be asked as the user of the URL, changes nothing but a key of its own in the namespace, which it deletes, and
/// takes five seconds at most. What this user may not read is a finding, too, with what to check by hand. A server that cannot be reached
/// or refuses the password is a [`Danger`](Severity::Danger) in the report and no error, so that it works where
/// [`connect`](LockManager::connect) fails. [`docs::operating`](crate::docs::operating#doctor) has every check.
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
/// assert_eq!(report.worst(), Severity::Note); // locks in memory are for this process alone
/// # Ok(()) }
/// ```
///
/// With options that a URL does not have, such as a callback for credentials: [`Builder::doctor`](crate::Builder::doctor).
///
/// # Errors
///
/// [`Error::Config`](crate::Error::Config) for a URL that cannot be used; it never prints a password.
///
/// # Cancel safety
///
/// Dropping it ends the examination; its key ends with its time to live, within seconds.
pub async fn doctor(url: &str) -> Result<Report> {
    LockManager::builder(url).doctor().await
}

/// Examines what a target names.
pub(crate) async fn examine(target: ConnectSpec) -> Result<Report> {
    let ConnectSpec { place, settings } = target;
    let facts = match place {
        Endpoint::Memory { .. } => return Ok(findings::of_memory()),
        Endpoint::Redis(server) => redis::examine(vec![server], Topology::One, settings).await?,
        Endpoint::Cluster(seeds) => redis::examine_cluster(seeds, settings).await?,
        Endpoint::Quorum(voters) => redis::examine(voters.0, Topology::Quorum, settings).await?,
        Endpoint::Sentinel(watched) => redis::examine_by_sentinels(watched, settings).await?,
    };
    Ok(findings::judge(&facts))
}
