//! The executor of a simulation: one thread, and polls in the order of the simulation.
//!
//! It is stricter than a runtime: each poll has its own waker, and only the latest waker of a task
//! wakes it.

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
    waker_state: Arc<TaskWaker>,
    polls: u64,
    /// The number of polls after which it is dropped.
    pub(super) drop_after_polls: Option<u64>,
}

/// All tasks of a simulation.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<Option<Task>>,
    ready: Arc<Mutex<Vec<usize>>>,
}

/// The state that the wakers of one task share.
#[derive(Debug)]
struct TaskWaker {
    task: usize,
    /// The number of the latest poll.
    latest: AtomicU64,
    is_ready: AtomicBool,
    ready: Arc<Mutex<Vec<usize>>>,
}

impl TaskWaker {
    fn mark_ready(&self) {
        if !self.is_ready.swap(true, Ordering::Relaxed) {
            lock(&self.ready).push(self.task);
        }
    }
}

/// The waker of one poll.
struct PollWaker {
    waker_state: Arc<TaskWaker>,
    poll: u64,
}

impl Wake for PollWaker {
    fn wake(self: Arc<Self>) {
        if self.waker_state.latest.load(Ordering::Relaxed) == self.poll {
            self.waker_state.mark_ready();
        }
    }
}

thread_local! {
    /// Tasks that other tasks have spawned.
    static SPAWNED: RefCell<Vec<(usize, Job)>> = const { RefCell::new(Vec::new()) };
}

/// Spawns a task of a process from a running task.
pub(super) fn spawn(process: usize, job: impl Future<Output = ()> + 'static) {
    SPAWNED.with_borrow_mut(|spawned| spawned.push((process, Box::pin(job))));
}

impl Tasks {
    /// Adds a task that is ready to run. Returns its number.
    pub(super) fn add(&mut self, process: usize, job: Job) -> usize {
        let task = self.slots.len();
        let ready = Arc::clone(&self.ready);
        let waker_state =
            Arc::new(TaskWaker { task, latest: AtomicU64::new(0), is_ready: AtomicBool::new(false), ready });
        waker_state.mark_ready();
        self.slots.push(Some(Task { job, process, waker_state, polls: 0, drop_after_polls: None }));
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

    /// Returns the number of tasks that have not ended.
    pub(super) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Returns the ready tasks among those that `may` run.
    pub(super) fn ready(&self, may: impl Fn(&Task) -> bool) -> Vec<usize> {
        let of = |task: &usize| self.slots.get(*task).and_then(Option::as_ref).is_some_and(&may);
        let mut ready = lock(&self.ready);
        ready.retain(|task| self.slots.get(*task).is_some_and(Option::is_some));
        ready.iter().copied().filter(of).collect()
    }

    /// Returns the tasks that wait among those that `may` run.
    pub(super) fn waiting(&self, may: impl Fn(&Task) -> bool) -> Vec<usize> {
        let tasks = self.slots.iter().enumerate().filter_map(|(at, task)| Some((at, task.as_ref()?)));
        tasks.filter(|(_, task)| may(task)).map(|(at, _)| at).collect()
    }

    /// Polls a task. Returns it, to be dropped, if it has ended or reached its number of polls.
    pub(super) fn poll(&mut self, task: usize) -> Option<Job> {
        let slot = self.slots.get_mut(task)?;
        let Task { job, waker_state, polls, drop_after_polls, .. } = slot.as_mut()?;
        if drop_after_polls.is_some_and(|most| *polls >= most) {
            return slot.take().map(|task| task.job);
        }
        *polls += 1;
        lock(&self.ready).retain(|ready| *ready != task);
        waker_state.is_ready.store(false, Ordering::Relaxed);
        waker_state.latest.store(*polls, Ordering::Relaxed);
        let waker = Waker::from(Arc::new(PollWaker { waker_state: Arc::clone(waker_state), poll: *polls }));
        match job.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => slot.take().map(|task| task.job),
            Poll::Pending => None,
        }
    }

    /// Removes a task before its end.
    pub(super) fn take(&mut self, task: usize) -> Option<Job> {
        self.slots.get_mut(task)?.take().map(|task| task.job)
    }
}
