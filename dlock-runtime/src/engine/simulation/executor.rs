//! The tasks of a world, on one thread, polled when and as often as the world says.
//!
//! Stricter than a runtime: each poll comes with a waker of its own, and only the latest one wakes.
//!
//! Not here: which task is next (`world`), what they do (`calls`).

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::lock;

pub(super) type Job = Pin<Box<dyn Future<Output = ()>>>;

/// One task.
pub(super) struct Task {
    job: Job,
    pub(super) process: usize,
    bell: Arc<Bell>,
    polls: u64,
    /// After how many polls it is dropped.
    pub(super) cut_after: Option<u64>,
}

/// All tasks of a world.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<Option<Task>>,
    ready: Arc<Mutex<Vec<usize>>>,
}

#[derive(Debug)]
struct Bell {
    task: usize,
    /// Which poll was the latest.
    latest: AtomicU64,
    rung: AtomicBool,
    ready: Arc<Mutex<Vec<usize>>>,
}

impl Bell {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::Relaxed) {
            lock(&self.ready).push(self.task);
        }
    }
}

/// The waker of one poll.
struct Knock {
    bell: Arc<Bell>,
    poll: u64,
}

impl Wake for Knock {
    fn wake(self: Arc<Self>) {
        if self.bell.latest.load(Ordering::Relaxed) == self.poll {
            self.bell.ring();
        }
    }
}

thread_local! {
    /// What tasks have spawned.
    static SPAWNED: RefCell<Vec<(usize, Job)>> = const { RefCell::new(Vec::new()) };
}

/// Spawns a task of a process beside the one that runs.
pub(super) fn spawn(process: usize, job: impl Future<Output = ()> + 'static) {
    SPAWNED.with_borrow_mut(|spawned| spawned.push((process, Box::pin(job))));
}

impl Tasks {
    /// Adds a task that is ready to run. Returns its number.
    pub(super) fn add(&mut self, process: usize, job: Job) -> usize {
        let task = self.slots.len();
        let ready = Arc::clone(&self.ready);
        let bell = Arc::new(Bell { task, latest: AtomicU64::new(0), rung: AtomicBool::new(false), ready });
        bell.ring();
        self.slots.push(Some(Task { job, process, bell, polls: 0, cut_after: None }));
        task
    }

    pub(super) fn add_spawned(&mut self) {
        for (process, job) in SPAWNED.take() {
            self.add(process, job);
        }
    }

    pub(super) fn get_mut(&mut self, task: usize) -> Option<&mut Task> {
        self.slots.get_mut(task)?.as_mut()
    }

    /// Returns how many have not ended.
    pub(super) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Returns those that are ready, of those that `may` run.
    pub(super) fn ready(&self, may: impl Fn(&Task) -> bool) -> Vec<usize> {
        let of = |task: &usize| self.slots.get(*task).and_then(Option::as_ref).is_some_and(&may);
        let mut ready = lock(&self.ready);
        ready.retain(|task| self.slots.get(*task).is_some_and(Option::is_some));
        ready.iter().copied().filter(of).collect()
    }

    /// Returns those that wait, of those that `may` run.
    pub(super) fn waiting(&self, may: impl Fn(&Task) -> bool) -> Vec<usize> {
        let tasks = self.slots.iter().enumerate().filter_map(|(at, task)| Some((at, task.as_ref()?)));
        tasks.filter(|(_, task)| may(task)).map(|(at, _)| at).collect()
    }

    /// Polls a task. Where it has been polled often enough, or has ended, it is returned, to be dropped.
    pub(super) fn poll(&mut self, task: usize) -> Option<Job> {
        let slot = self.slots.get_mut(task)?;
        let Task { job, bell, polls, cut_after, .. } = slot.as_mut()?;
        if cut_after.is_some_and(|most| *polls >= most) {
            return slot.take().map(|task| task.job);
        }
        *polls += 1;
        lock(&self.ready).retain(|ready| *ready != task);
        bell.rung.store(false, Ordering::Relaxed);
        bell.latest.store(*polls, Ordering::Relaxed);
        let waker = Waker::from(Arc::new(Knock { bell: Arc::clone(bell), poll: *polls }));
        match job.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => slot.take().map(|task| task.job),
            Poll::Pending => None,
        }
    }

    /// Takes a task out before its end.
    pub(super) fn take(&mut self, task: usize) -> Option<Job> {
        self.slots.get_mut(task)?.take().map(|task| task.job)
    }
}
