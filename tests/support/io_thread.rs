//! A thread with its own runtime, which a test cannot block.
//!
//! A test may pause its clock, block its only worker, or end its runtime. The simulated network
//! must work meanwhile.

use std::thread::JoinHandle;

use tokio::sync::oneshot;

/// A thread that drives one future until it ends or this handle is dropped.
#[derive(Debug)]
pub struct IoThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Starts a thread called `name` that drives the future of `work`.
    ///
    /// # Panics
    ///
    /// Panics if the system provides no thread or no event queue.
    pub fn spawn<F: Future<Output = ()>>(name: &str, work: impl FnOnce() -> F + Send + 'static) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime for the test's network starts");

        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = work() => {}
                        _ = stopped => {}
                    }
                });
            })
            .expect("a thread for the test's network starts");
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}
