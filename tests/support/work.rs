//! Tasks that work under locks while servers fail, and a record of what they observed.
//!
//! Each manager represents a process. Its tasks hold locks for longer than a lease, hand one lock
//! around among all processes, and acquire an uncontended lock repeatedly.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager};
use tokio::task::JoinSet;

use crate::clock::{Moment, within};

/// The lease of all locks.
pub const LEASE: Duration = Duration::from_secs(1);
/// How long a call waits for its lock.
pub const WAIT: Duration = Duration::from_millis(700);

/// The longest acceptable time without progress, and until the work ends.
const LIMIT: Duration = Duration::from_secs(15);

/// One call for a lock.
#[derive(Clone, Debug)]
pub struct Try {
    /// The start of the call.
    pub began: Moment,
    /// The end of the call.
    pub ended: Moment,
    /// The error, if the call did not acquire the lock.
    pub refused: Option<Error>,
}

/// One hold, as its task observed it.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The key of the lock.
    pub key: String,
    /// The start of the hold.
    pub enter: Moment,
    /// The last time at which the hold was considered valid.
    pub until: Moment,
    /// The fencing token, if the server issued one.
    pub token: Option<u64>,
}

/// The observations of all tasks.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls, in the order of their ends.
    pub tries: Vec<Try>,
    /// The holds, in the order of their starts.
    pub holds: Vec<Hold>,
    /// The keys of uncontended locks.
    pub own: Vec<String>,
}

impl History {
    /// Returns the part of the history that is about the keys that `is_meant` accepts.
    #[must_use]
    pub fn of(&self, is_meant: impl Fn(&str) -> bool) -> Self {
        let holds = self.holds.iter().filter(|hold| is_meant(&hold.key)).cloned();
        let own = self.own.iter().filter(|key| is_meant(key)).cloned();
        Self { tries: self.tries.clone(), holds: holds.collect(), own: own.collect() }
    }

    /// Describes the events since a point in time: the holds of each lock, and the errors.
    fn since(&self, since: Moment) -> String {
        let (mut holds, mut refusals) = (BTreeMap::<&str, usize>::new(), BTreeMap::<String, usize>::new());
        for hold in self.holds.iter().filter(|hold| hold.enter > since) {
            *holds.entry(&hold.key).or_default() += 1;
        }
        for refused in
            self.tries.iter().filter(|call| call.ended > since).filter_map(|call| call.refused.as_ref())
        {
            *refusals.entry(refused.to_string()).or_default() += 1;
        }
        format!("holds: {holds:?}, refusals: {refusals:?}")
    }
}

/// Running tasks.
#[derive(Debug)]
pub struct Work {
    history: Arc<Mutex<History>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Work {
    /// Starts the tasks of each manager, for each of the `keys` that are derived from one key.
    pub fn start(managers: &[LockManager], keys: impl Fn(&str) -> Vec<String>) -> Self {
        let mut work = Self { history: Arc::default(), stop: Arc::default(), tasks: JoinSet::new() };
        for (number, manager) in managers.iter().enumerate() {
            for long in keys(&format!("long:{number}")) {
                work.begin(manager, long, LEASE * 4);
            }
            for own in keys(&format!("own:{number}")) {
                with(&work.history, |history| history.own.push(own.clone()));
                work.begin(manager, own, Duration::from_millis(5));
            }
            for shared in keys("shared") {
                work.begin(manager, shared.clone(), Duration::from_millis(10));
                work.begin(manager, shared, Duration::from_millis(25));
            }
        }
        work
    }

    fn begin(&mut self, locks: &LockManager, key: String, hold_for: Duration) {
        let lock = locks.lock(&*key).lease(LEASE).wait(WAIT);
        let (history, stop) = (Arc::clone(&self.history), Arc::clone(&self.stop));
        self.tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let began = Moment::now();
                let got = lock.acquire().await;
                let enter = Moment::now();
                let (guard, refused) = match got {
                    Ok(guard) => (Some(guard), None),
                    Err(error) => (None, Some(error)),
                };
                with(&history, |history| history.tries.push(Try { began, ended: enter, refused }));
                let Some(guard) = guard else { continue };
                let at = with(&history, |history| {
                    let hold = Hold { key: key.clone(), enter, until: enter, token: None };
                    history.holds.push(hold);
                    history.holds.len() - 1
                });
                let (until, token) = hold(&guard, enter, hold_for, &stop).await;
                with(&history, |history| (history.holds[at].until, history.holds[at].token) = (until, token));
                drop(guard);
                tokio::task::yield_now().await;
            }
        });
    }

    /// Returns when every uncontended lock was acquired after `since`, and at least `more` locks in
    /// total.
    ///
    /// # Panics
    ///
    /// Panics if that takes more than 15 s.
    pub async fn until_entered(&self, since: Moment, more: usize) {
        let entered = async {
            loop {
                let enough = with(&self.history, |history| {
                    // In reverse, because a scan of a long history would delay the tasks.
                    let newest = history.holds.iter().rev();
                    let after: Vec<_> = newest.take_while(|hold| hold.enter > since).collect();
                    let all = history.own.iter().all(|key| after.iter().any(|hold| hold.key == *key));
                    all && after.len() >= more
                });
                if enough {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let is_late = tokio::time::timeout(LIMIT, entered).await.is_err();
        assert!(
            !is_late,
            "work goes on: not within {LIMIT:?}; {}",
            with(&self.history, |history| history.since(since))
        );
    }

    /// Ends the work, and returns what the tasks observed.
    ///
    /// # Panics
    ///
    /// Panics if a task panicked, or does not end within 15 s.
    pub async fn end(mut self) -> History {
        self.stop.store(true, Ordering::Relaxed);
        let all_end = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.expect("no task panics");
            }
        };
        within(LIMIT, "the end of all tasks", all_end).await;
        with(&self.history, |history| history.clone())
    }
}

/// Keeps a lock until it is lost or its time is over.
///
/// Returns the last time at which the hold was considered valid, and its fencing token.
async fn hold(
    guard: &LockGuard,
    enter: Moment,
    hold_for: Duration,
    stop: &AtomicBool,
) -> (Moment, Option<u64>) {
    let mut until = enter;
    let mut asked = std::pin::pin!(guard.fencing_token());
    let mut token = None;
    let mut has_asked = false;
    loop {
        let now = Moment::now();
        if guard.check().is_err() {
            break;
        }
        until = now;
        if has_asked && (now.since(enter) >= hold_for || stop.load(Ordering::Relaxed)) {
            break;
        }
        tokio::select! {
            given = &mut asked, if !has_asked => {
                has_asked = true;
                token = given.ok().map(dlock_runtime::FencingToken::get);
            }
            () = tokio::time::sleep(Duration::from_millis(2)) => {}
        }
    }
    (until, token)
}

fn with<R>(history: &Mutex<History>, change: impl FnOnce(&mut History) -> R) -> R {
    change(&mut history.lock().unwrap_or_else(PoisonError::into_inner))
}
