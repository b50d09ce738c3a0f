//! [`LeaderWatch`], which process leads.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::guard::FencingToken;
use crate::key::LockKey;
use crate::leader::elections::Election;
use crate::manager::LockManager;
use crate::token::ProcessId;

/// Reports which process leads. Returned by [`Leadership::watch`](crate::Leadership::watch).
///
/// It checks the lock once per second, which costs one round trip, and immediately when a term of
/// this process starts or ends. A report about another process costs another one, for its owner.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// # let manager = dlock_runtime::LockManager::connect("memory://").await?;
/// let mut watch = manager.leader("indexer").watch();
/// assert_eq!(watch.next().await?, None); // no process leads
///
/// # let candidate = manager.leader("indexer");
/// tokio::spawn(async move { candidate.lead(async |_term| std::future::pending::<()>().await).await });
/// let leader = watch.next().await?.expect("a process leads");
/// println!("{} leads, in term {:?}", leader.manager, leader.term);
/// # assert_eq!(leader.manager, &*manager.id());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct LeaderWatch {
    manager: LockManager,
    key: Result<LockKey>,
    /// The last report.
    reported: Reported,
    /// The last term that was seen: the ID of its leader, and its number.
    last_term: Option<(String, FencingToken)>,
}

/// The last report of a watch.
#[derive(Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    /// The leader, if one leads.
    Leader(Option<CurrentLeader>),
}

/// The leader that a [`LeaderWatch`] reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CurrentLeader {
    /// The [ID](LockManager::id) of the manager that leads.
    pub manager: String,
    /// The [owner](crate::Builder::owner) of that manager, such as `web-1:4242`, if it can be found:
    /// see [`LockInfo::owner`](crate::LockInfo::owner).
    pub owner: Option<String>,
    /// The [number](crate::Term::number) of its term. `None` if it is not known: the leader has not
    /// begun its term after 300 ms, or the servers of a quorum disagree, since one is down.
    pub term: Option<FencingToken>,
}

impl LeaderWatch {
    pub(super) fn new(manager: LockManager, key: Result<LockKey>) -> Self {
        Self { manager, key, reported: Reported::Nothing, last_term: None }
    }

    /// Waits until another process leads or another term begins, and returns the leader and the
    /// term, or `None` if no process leads. The first call returns after one round trip, or if a
    /// leader has not begun its term yet, within 300 ms and seven round trips.
    ///
    /// It may miss a term that is shorter than 1 s. If the leader was elected in the last
    /// milliseconds before the first call, that call may return the number of the term before. The
    /// next call returns the right one.
    ///
    /// # Errors
    ///
    /// [`Error::Shutdown`] after the manager was shut down; [`Error::InvalidKey`]; as
    /// [`LockManager::inspect`], while the server is unavailable, or, permanently, in a forked
    /// process. While the server is unavailable, call it again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped, no change is missed by the next call.
    pub async fn next(&mut self) -> Result<Option<CurrentLeader>> {
        let key = self.key.clone()?;
        self.manager.engine().in_own_process(Some(&key))?;
        let election: Arc<Election> = self.manager.elections().of(&key);
        let mut changes = election.changes();
        let mut checks_of_start = 0;
        loop {
            if self.manager.engine().is_closed() {
                return Err(Error::Shutdown { key: Some(key) });
            }
            changes.borrow_and_update();
            let (process, leader) = self.leader(&key).await?.unzip();
            let is_starting = leader.as_ref().is_some_and(|leader| leader.term.is_none());
            let reported = Reported::Leader(leader.clone());
            let interval = if self.reported == reported {
                CHECK_INTERVAL
            } else if is_starting && checks_of_start < CHECKS_OF_START {
                checks_of_start += 1;
                START_INTERVAL
            } else {
                let Some((process, leader)) = process.zip(leader) else {
                    self.reported = reported;
                    return Ok(None);
                };
                // Before the report is noted: if this future is dropped, the next call reports it.
                let engine = self.manager.engine();
                let latest = engine.now().plus(engine.rules.response_timeout);
                let owner = self.manager.owner_of(process, &key, latest).await;
                if let Some(term) = leader.term {
                    self.last_term = Some((leader.manager.clone(), term));
                }
                self.reported = reported;
                return Ok(Some(CurrentLeader { owner, ..leader }));
            };
            let engine = self.manager.engine();
            tokio::select! {
                _ = changes.changed() => {}
                () = engine.backend.sleep(interval) => {}
                () = engine.calls.closed.wait() => {}
            }
        }
    }

    /// Asks which manager holds the lock. Until it has its fencing token, the server knows that of
    /// its predecessor, which is not its term.
    async fn leader(&self, key: &LockKey) -> Result<Option<(ProcessId, CurrentLeader)>> {
        let Some(record) = self.manager.record_of(key).await? else { return Ok(None) };
        let Some(process) = record.holder else { return Ok(None) };
        let manager = process.shown();
        let term = record.fence.map(FencingToken::new).filter(|term| {
            self.last_term.as_ref().is_none_or(|(leader, last)| leader == &manager || last != term)
        });
        Ok(Some((process, CurrentLeader { manager, owner: None, term })))
    }
}

/// How often the lock is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often, and how many times, it is checked whether a new leader has begun its term.
const START_INTERVAL: Duration = Duration::from_millis(50);
const CHECKS_OF_START: u32 = 6;
