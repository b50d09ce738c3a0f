//! [`LeaderWatch`], which process leads.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::guard::FencingToken;
use crate::key::LockKey;
use crate::manager::LockManager;
use crate::protocol::deadline::BootInstant;
use crate::token::ProcessId;

/// Reports which process leads. Returned by [`Leadership::watch`](crate::Leadership::watch).
///
/// It checks the lock once per second, which costs one round trip. It also checks it immediately
/// when a term of this process has started, and when the server has confirmed that this process
/// does not hold the lock of a term that has ended. When the leader or the number of its term has
/// changed in another process, it checks 20 times per second for 300 ms. A report about another
/// process costs another round trip, for its owner.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// # let manager = dlock_runtime::LockManager::connect("memory://").await?;
/// let mut watch = manager.leader("indexer").watch();
/// assert_eq!(watch.changed().await?, None); // no process leads
///
/// # let candidate = manager.leader("indexer");
/// tokio::spawn(async move { candidate.lead(async |_term| std::future::pending::<()>().await).await });
/// let leader = watch.changed().await?.expect("a process leads");
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
    /// The last term that was reported: the ID of its leader, and its number.
    last_term: Option<(String, FencingToken)>,
    /// The leader of the last check, if it is not reported yet, and when it was found first.
    found: Option<(CurrentLeader, BootInstant)>,
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
    ///
    /// A leader of another process that needs more than 300 ms to begin its term may be reported
    /// with the number of a term before that this watch has not reported. The next report corrects
    /// it.
    pub term: Option<FencingToken>,
}

impl LeaderWatch {
    pub(super) fn new(manager: LockManager, key: Result<LockKey>) -> Self {
        Self { manager, key, reported: Reported::Nothing, last_term: None, found: None }
    }

    /// Waits until another process leads or another term begins, and returns the leader and the
    /// term, or `None` if no process leads. The first call returns after one round trip, or if a
    /// leader has not begun its term yet, within 300 ms and seven round trips.
    ///
    /// It may miss a term that is shorter than 1.3 s. If the leader was elected in the last
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
    pub async fn changed(&mut self) -> Result<Option<CurrentLeader>> {
        let (key, engine) = (self.key.clone()?, Arc::clone(self.manager.engine()));
        engine.run_in_own_process(Some(&key), self.next_report(&key, &engine)).await
    }

    async fn next_report(&mut self, key: &LockKey, engine: &Engine) -> Result<Option<CurrentLeader>> {
        let election = self.manager.elections().of(key, engine.now());
        let mut changes = election.changes();
        loop {
            if engine.is_closed() {
                return Err(Error::Shutdown { key: Some(key.clone()) });
            }
            changes.borrow_and_update();
            let holder =
                self.manager.record_of(key).await?.and_then(|record| Some((record.holder?, record.fence)));
            let own_term = election.number(engine.now());
            let holder = holder.map(|(process, last_number)| {
                let own_term = own_term.filter(|_| process == engine.tokens.process());
                (process, self.leader(process, own_term, last_number), own_term.is_some())
            });
            let reported = Reported::Leader(holder.as_ref().map(|(_, leader, _)| leader.clone()));
            let interval = if self.reported == reported {
                self.found = None;
                CHECK_INTERVAL
            } else if let Some((process, leader, is_own)) = holder {
                if is_own || self.is_settled(&leader, engine.now()) {
                    // Before the report is noted: if this future is dropped, the next call reports
                    // it.
                    let latest = engine.now().plus(engine.rules.response_timeout);
                    let owner = self.manager.owner_of(process, key, latest).await;
                    if let Some(term) = leader.term {
                        self.last_term = Some((leader.manager.clone(), term));
                    }
                    (self.reported, self.found) = (reported, None);
                    return Ok(Some(CurrentLeader { owner, ..leader }));
                }
                START_INTERVAL
            } else {
                (self.reported, self.found) = (reported, None);
                return Ok(None);
            };
            tokio::select! {
                _ = changes.changed() => {}
                () = engine.backend.sleep(interval) => {}
                () = engine.calls.closed.wait() => {}
            }
        }
    }

    /// Returns the leader to report if `process` holds the lock. `own_term`: the term of this
    /// process, if it leads. `last_number`: the last number that was issued.
    fn leader(
        &self,
        process: ProcessId,
        own_term: Option<FencingToken>,
        last_number: Option<u64>,
    ) -> CurrentLeader {
        let manager = process.shown();
        // Until a leader has its fencing token, the server knows that of its predecessor.
        let is_of_another = |term: &FencingToken| {
            self.last_term.as_ref().is_some_and(|(leader, last)| leader != &manager && last == term)
        };
        let last_number = last_number.map(FencingToken::new).filter(|term| !is_of_another(term));
        CurrentLeader { manager, owner: None, term: own_term.or(last_number) }
    }

    /// Returns `true` if this leader is to be reported.
    ///
    /// The server does not know to which leader it issued its last number: a predecessor may have
    /// led between two checks. Within this time, a leader has its own.
    fn is_settled(&mut self, leader: &CurrentLeader, now: BootInstant) -> bool {
        if self.reported == Reported::Nothing && leader.term.is_some() {
            return true;
        }
        match &self.found {
            Some((found, since)) if found == leader => now.since(*since) >= START_TIME,
            _ => {
                self.found = Some((leader.clone(), now));
                false
            }
        }
    }
}

/// How often the lock is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often, and for how long, it is checked whether a new leader begins its term.
const START_INTERVAL: Duration = Duration::from_millis(50);
const START_TIME: Duration = Duration::from_millis(300);
