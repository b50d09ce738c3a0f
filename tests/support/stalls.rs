//! Whether this process got a processor when it wanted one: where many share few cores, what comes late by that is nobody's fault.
//!
//! Two see it. A thread that sleeps for a moment is late where nothing of the process runs. It does not see that another thread is ready
//! and does not get to run: the system lets who has slept go before who has worked. For that, Linux has a figure of each thread. A thread
//! that waits for anything else, a lock say, is not ready, and so is not excused.

use std::fs::{File, read_dir};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Moment;
use crate::history::{What, Writer};

/// Notes stalls of this process, until it ends.
#[derive(Debug)]
pub struct Stalls(Arc<Mutex<Vec<Queue>>>);

impl Stalls {
    /// Notes them from now on.
    #[must_use]
    pub fn noted_in(history: Arc<Writer>) -> Self {
        let queues = Arc::<Mutex<Vec<Queue>>>::default();
        let stalls = Self(Arc::clone(&queues));
        std::thread::spawn(move || beat(&history, &queues));
        stalls
    }

    /// Has the threads that there are by now watched, each; where the system tells of none, none is.
    pub fn watch_threads(&self) {
        *lock(&self.0) = Queue::of_each_thread();
    }
}

fn beat(history: &Writer, queues: &Mutex<Vec<Queue>>) {
    let mut last = Moment::now();
    loop {
        std::thread::sleep(BEAT);
        let now = Moment::now();
        if now.since(last + BEAT) > BEAT / 4 {
            history.note_at(now, 0, "", What::Stalled { since: last + BEAT });
        }
        // Shorter ones are everyday on a busy machine, and the slack that judges have is for them.
        for waited in lock(queues).iter_mut().map(Queue::waited).filter(|waited| *waited > BEAT * 2) {
            history.note_at(now, 0, "", What::Stalled { since: now - waited });
        }
        last = now;
    }
}

/// Tells for how long a thread was ready to run and did not get to.
///
/// Its file is opened once: where thirty processes look for those of their threads at each beat, Linux 6.18 searches its tables for seconds
/// when one of them ends.
#[derive(Debug)]
struct Queue {
    figures: File,
    waited: Duration,
}

impl Queue {
    /// Those of the threads that there are now.
    fn of_each_thread() -> Vec<Self> {
        let threads = read_dir("/proc/self/task").into_iter().flatten().map_while(Result::ok);
        let files = threads.filter_map(|thread| File::open(thread.path().join("schedstat")).ok());
        files
            .map(|figures| {
                let mut queue = Self { figures, waited: Duration::ZERO };
                queue.waited();
                queue
            })
            .collect()
    }

    /// For how long since this was asked before; a wait counts when it is over.
    fn waited(&mut self) -> Duration {
        let mut text = [0; 96];
        let read = self.figures.read_at(&mut text, 0).unwrap_or_default();
        let waited = waited_by(&String::from_utf8_lossy(&text[..read])).unwrap_or(self.waited);
        waited.saturating_sub(std::mem::replace(&mut self.waited, waited))
    }
}

/// Reads how long a thread has waited of its `schedstat`: nanoseconds on a processor, nanoseconds ready for one, number of turns. One that is
/// over has none.
fn waited_by(figures: &str) -> Option<Duration> {
    Some(Duration::from_nanos(figures.split(' ').nth(1)?.parse().ok()?))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const BEAT: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_figure_is_how_long_a_thread_has_waited() {
        assert_eq!(waited_by("7330764 144336902 35\n"), Some(Duration::from_nanos(144_336_902)));
        assert_eq!(waited_by(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_that_share_too_few_processors_have_waited() {
        let cores = std::thread::available_parallelism().expect("the system says").get();
        let began = Moment::now();
        let waited = std::thread::scope(|scope| {
            for _ in 0..=cores {
                scope.spawn(|| while began.elapsed() < Duration::from_millis(300) {});
            }
            let mut queues = Queue::of_each_thread();
            std::thread::sleep(Duration::from_millis(250));
            queues.iter_mut().map(Queue::waited).sum::<Duration>()
        });

        assert!(waited > Duration::from_millis(50), "one thread too many waits all the time: {waited:?}");
    }
}
