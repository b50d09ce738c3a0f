//! The counted paths: operations on locks in memory, on a current-thread runtime.
//!
//! Each path checks that it does what its name says; a hand-off that did not happen would be cheap.

use std::cell::Cell;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;

use dlock_runtime::{Error, KeyBuilder, KeyPart, LockGuard, LockManager, distributed_lock};

use crate::Failure;

/// An operation that is repeated.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    /// The number of iterations of a counted run.
    pub(crate) turns: u64,
    run: fn(u64) -> Running,
}

type Running = Pin<Box<dyn Future<Output = Result<(), Failure>>>>;

impl Path {
    const fn new(name: &'static str, turns: u64, run: fn(u64) -> Running) -> Self {
        Self { name, turns, run }
    }

    /// Runs the operation `turns` times.
    pub(crate) fn run(&self, turns: u64) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        tokio::task::LocalSet::new().block_on(&runtime, (self.run)(turns))
    }
}

pub(crate) const PATHS: [Path; 10] = [
    Path::new("key, two parts", 2_000, |turns| Box::pin(async move { two_parts(turns) })),
    Path::new("key, a hashed part", 2_000, |turns| Box::pin(async move { hashed(turns) })),
    Path::new("key, a derived part", 2_000, |turns| Box::pin(async move { derived(turns) })),
    Path::new("annotated call, free", 2_000, |turns| Box::pin(free(turns, 0))),
    Path::new("annotated call, free, 1,000 other locks held", 8_000, |turns| Box::pin(free(turns, 1_000))),
    Path::new("annotated call, joins a hold", 2_000, |turns| Box::pin(joins(turns))),
    Path::new("try_acquire and drop", 2_000, |turns| Box::pin(tried(turns))),
    Path::new("try_acquire, refused", 2_000, |turns| Box::pin(refused(turns))),
    Path::new("hand-off, two tasks", 2_000, |turns| Box::pin(two_tasks(turns))),
    Path::new("hand-off, two managers", 2_000, |turns| Box::pin(two_managers(turns))),
];

/// The name of the figure for the size that the attribute adds to a future.
pub(crate) const FUTURE: &str = "future of an annotated call, beyond the plain function's";

/// Returns the bytes that the attribute adds to the future of a function.
pub(crate) fn added_to_a_future() -> f64 {
    async fn plain(locks: &LockManager, id: u64) -> Result<u64, Error> {
        std::future::ready(locks).await;
        Ok(id)
    }
    fn size<'a, R: Future>(_: fn(&'a LockManager, u64) -> R) -> u32 {
        u32::try_from(size_of::<R>()).unwrap_or(u32::MAX)
    }
    f64::from(size(once)) - f64::from(size(plain))
}

#[distributed_lock(key = "order:<id>", lease = "30s", manager = locks)]
async fn once(locks: &LockManager, id: u64) -> Result<u64, Error> {
    std::future::ready(locks).await;
    Ok(id)
}

#[distributed_lock(key = "order:<id>", lease = "30s", manager = locks)]
async fn joining(locks: &LockManager, id: u64, turns: u64) -> Result<(), Error> {
    for _ in 0..turns {
        black_box(once(locks, id).await?);
    }
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = "30s", wait = "60s", manager = locks)]
async fn entering(locks: &LockManager, id: u64, task: u8, room: &Room) -> Result<(), Error> {
    room.enter(task);
    // The other task requests the lock while it is held.
    tokio::task::yield_now().await;
    Ok(())
}

fn two_parts(turns: u64) -> Result<(), Failure> {
    for id in 0..turns {
        // The expansion of `order:<id>:<shop>` by the attribute.
        let key = KeyBuilder::new("dlock").text("order:").part("id", &id).text(":").part("shop", "north");
        black_box(key.build()?);
    }
    Ok(())
}

fn hashed(turns: u64) -> Result<(), Failure> {
    for id in 0..turns {
        let key = KeyBuilder::new("dlock").text("request:").hashed("id", &id);
        black_box(key.build()?);
    }
    Ok(())
}

#[derive(KeyPart)]
struct Order {
    shop: &'static str,
    number: u64,
}

fn derived(turns: u64) -> Result<(), Failure> {
    for number in 0..turns {
        let key = KeyBuilder::new("dlock").text("order:").part("order", &Order { shop: "north", number });
        black_box(key.build()?);
    }
    Ok(())
}

async fn free(turns: u64, others: u64) -> Result<(), Failure> {
    let locks = manager("").await?;
    let held = hold(&locks, others).await?;
    for id in 0..turns {
        black_box(once(&locks, id % 64).await?);
    }
    Ok(held.iter().try_for_each(LockGuard::check)?)
}

async fn joins(turns: u64) -> Result<(), Failure> {
    Ok(joining(&manager("").await?, 7, turns).await?)
}

async fn tried(turns: u64) -> Result<(), Failure> {
    let locks = manager("").await?;
    let lock = locks.lock("order:7");
    for _ in 0..turns {
        drop(lock.try_acquire().await?.ok_or("the lock is not free")?);
    }
    Ok(())
}

async fn refused(turns: u64) -> Result<(), Failure> {
    let (here, there) = (manager("refused").await?, manager("refused").await?);
    let held = there.lock("order:7").acquire().await?;
    let lock = here.lock("order:7");
    for _ in 0..turns {
        if lock.try_acquire().await?.is_some() {
            return Err("two held one lock".into());
        }
    }
    Ok(held.check()?)
}

async fn two_tasks(turns: u64) -> Result<(), Failure> {
    let locks = manager("").await?;
    hand_off(turns, [locks.clone(), locks]).await
}

async fn two_managers(turns: u64) -> Result<(), Failure> {
    hand_off(turns, [manager("two").await?, manager("two").await?]).await
}

/// Lets two tasks acquire the lock alternately.
async fn hand_off(turns: u64, sides: [LockManager; 2]) -> Result<(), Failure> {
    let room = std::rc::Rc::new(Room::default());
    let tasks = [0, 1].map(|task| {
        let (room, locks) = (std::rc::Rc::clone(&room), sides.clone());
        tokio::task::spawn_local(async move {
            let [here, there] = &locks;
            for _ in 0..turns / 2 {
                entering(if task == 0 { here } else { there }, 7, task, &room).await?;
            }
            Ok::<_, Error>(())
        })
    });
    for task in tasks {
        task.await??;
    }
    if room.changes.get() < turns {
        return Err(format!("the lock changed hands {} times in {turns} turns", room.changes.get()).into());
    }
    Ok(())
}

/// The data that the lock protects.
#[derive(Default)]
struct Room {
    last: Cell<Option<u8>>,
    changes: Cell<u64>,
}

impl Room {
    fn enter(&self, task: u8) {
        if self.last.replace(Some(task)) != Some(task) {
            self.changes.set(self.changes.get() + 1);
        }
    }
}

/// Connects to a store in memory, which is private if the name is empty.
///
/// The hand-off budget is never used up, so the manager does not yield to others.
async fn manager(name: &str) -> Result<LockManager, Failure> {
    Ok(LockManager::connect(&format!("memory://{name}?handoff_budget=60s")).await?)
}

async fn hold(locks: &LockManager, count: u64) -> Result<Vec<LockGuard>, Failure> {
    let mut held = Vec::new();
    for id in 0..count {
        held.push(locks.lock(format!("held:{id}")).acquire().await?);
    }
    Ok(held)
}
