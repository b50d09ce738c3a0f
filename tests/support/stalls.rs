//! Detects when this process was not scheduled, because lateness on a busy machine is not a fault.
//!
//! Two methods complement each other. A thread that sleeps briefly is late if no thread of the
//! process runs. It does not detect that another thread is runnable but not scheduled, because the
//! scheduler prefers threads that have slept. For that, Linux provides a counter for each thread. A
//! thread that waits for something else, such as a mutex, is not runnable, and therefore is not
//! excused.

use std::fs::{File, read_dir};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Moment;
use crate::history::{What, Writer};

/// Records stalls of this process until it ends.
#[derive(Debug)]
pub struct Stalls(Arc<Mutex<Vec<Queue>>>);

impl Stalls {
    /// Starts recording in `history`.
    #[must_use]
    pub fn noted_in(history: Arc<Writer>) -> Self {
        let queues = Arc::<Mutex<Vec<Queue>>>::default();
        let stalls = Self(Arc::clone(&queues));
        std::thread::spawn(move || beat(&history, &queues));
        stalls
    }

    /// Watches each current thread, if the system provides the counters.
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
        // Shorter waits are normal on a busy machine, and are covered by the slack of the judges.
        for waited in lock(queues).iter_mut().map(Queue::waited).filter(|waited| *waited > BEAT * 2) {
            history.note_at(now, 0, "", What::Stalled { since: now - waited });
        }
        last = now;
    }
}

/// Measures how long a thread was runnable and not scheduled.
///
/// Its file is opened once. If 30 processes search for the files of their threads at each beat,
/// Linux 6.18 searches its tables for seconds when one of them ends.
#[derive(Debug)]
struct Queue {
    figures: File,
    waited: Duration,
}

impl Queue {
    /// Returns the queues of all current threads.
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

    /// Returns the waiting time since the previous call. A wait counts when it has ended.
    fn waited(&mut self) -> Duration {
        let mut text = [0; 96];
        let read = self.figures.read_at(&mut text, 0).unwrap_or_default();
        let waited = waited_by(&String::from_utf8_lossy(&text[..read])).unwrap_or(self.waited);
        waited.saturating_sub(std::mem::replace(&mut self.waited, waited))
    }
}

/// Parses the waiting time of a `schedstat` file, which is empty for a thread that has ended.
///
/// Its fields are the nanoseconds on a processor, the runnable nanoseconds, and the number of time
/// slices.
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
    fn the_second_field_is_the_waiting_time_of_a_thread() {
        assert_eq!(waited_by("7330764 144336902 35\n"), Some(Duration::from_nanos(144_336_902)));
        assert_eq!(waited_by(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_on_too_few_processors_have_waited() {
        let cores = std::thread::available_parallelism().expect("the number of processors is known").get();
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
