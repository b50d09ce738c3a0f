//! A batch for tests: it records how it was completed, and its replies come when the test sends
//! them.

use std::sync::{Arc, Mutex};

use redis::{RedisResult, Value};
use tokio::sync::{Notify, oneshot};

use crate::backend::redis::transport::completion_queue::{Batch, PendingReplies};
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

type OnCompletion = dyn Fn(&str) + Send + Sync;

/// Records which batches were completed, in their order, and whether they had replies.
#[derive(Default)]
pub(crate) struct Completions {
    completed: Mutex<Vec<(String, bool)>>,
    on_completion: Mutex<Option<Arc<OnCompletion>>>,
    more: Notify,
}

impl Completions {
    /// Returns the completed batches, and whether each had replies.
    pub(crate) fn all(&self) -> Vec<(String, bool)> {
        lock(&self.completed).clone()
    }

    /// Returns the names of the completed batches.
    pub(crate) fn names(&self) -> Vec<String> {
        self.all().into_iter().map(|(name, _)| name).collect()
    }

    /// Waits until `count` batches are completed.
    pub(crate) async fn until(&self, count: usize) {
        while self.all().len() < count {
            self.more.notified().await;
        }
    }

    /// Calls `on_completion` with the name of each batch, on the thread that completes it.
    pub(crate) fn on_completion(&self, on_completion: impl Fn(&str) + Send + Sync + 'static) {
        *lock(&self.on_completion) = Some(Arc::new(on_completion));
    }

    fn add(&self, name: &str, has_replies: bool) {
        lock(&self.completed).push((name.to_owned(), has_replies));
        let on_completion = lock(&self.on_completion).clone();
        if let Some(on_completion) = on_completion {
            on_completion(name);
        }
        self.more.notify_one();
    }
}

/// A batch that records its completion.
pub(crate) struct FakeBatch {
    /// `None` once it is completed.
    name: Option<String>,
    sent: BootInstant,
    completions: Arc<Completions>,
}

impl FakeBatch {
    pub(crate) fn new(name: &str, sent: BootInstant, completions: &Arc<Completions>) -> Self {
        Self { name: Some(name.to_owned()), sent, completions: Arc::clone(completions) }
    }

    fn end(&mut self, has_replies: bool) {
        if let Some(name) = self.name.take() {
            self.completions.add(&name, has_replies);
        }
    }
}

impl Batch for FakeBatch {
    fn sent(&self) -> BootInstant {
        self.sent
    }

    fn complete(mut self, answers: RedisResult<Vec<Value>>) {
        self.end(answers.is_ok());
    }

    fn time_out(mut self) {
        self.end(false);
    }
}

impl Drop for FakeBatch {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Returns replies that come when the test sends them. If the sender is dropped, they are an error.
pub(crate) fn replies() -> (oneshot::Sender<()>, PendingReplies) {
    let (reply, signal) = oneshot::channel();
    let replies = Box::pin(async move {
        signal.await.map_err(|_| std::io::Error::from(std::io::ErrorKind::BrokenPipe))?;
        Ok(vec![Value::Okay])
    });
    (reply, replies)
}
