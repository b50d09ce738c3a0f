//! Below `#[async_trait]`, which expands first and leaves `Box::pin(async move { .. })`.

#![deny(unused_variables)]

use async_trait::async_trait;
use dlock_runtime::{Error, distributed_lock};

struct Path<T>(T);

#[async_trait]
trait Store: Send + Sync {
    fn name(&self) -> String;

    #[distributed_lock(key = "store:<self.name()>")]
    async fn flush(&self) -> Result<u8, Error> {
        Ok(1)
    }

    async fn put(&mut self, id: u64, name: &str) -> Result<usize, Error>;

    async fn wrapped(&self, id: Path<u64>, other: (String, u8)) -> Result<u64, Error>;

    async fn skipped(&self, id: u8);
}

#[async_trait]
trait Local {
    fn make(id: u8) -> Self;
}

struct Memory(Vec<u64>);

#[async_trait]
impl Store for Memory {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    #[distributed_lock(key = "put:<id>:<name>", guard = lock)]
    async fn put(&mut self, id: u64, name: &str) -> Result<usize, Error> {
        self.0.push(id);
        let _ = lock;
        if name.is_empty() {
            return Ok(0);
        }
        Ok(self.0.len())
    }

    #[tracing::instrument(skip_all)]
    #[distributed_lock(key = "wrapped:<id>:<text>")]
    async fn wrapped(&self, Path(id): Path<u64>, (text, _): (String, u8)) -> Result<u64, Error> {
        Ok(id + text.len() as u64)
    }

    #[distributed_lock(key = "skipped:<id>", on_contended = skip)]
    #[tracing::instrument(skip_all)]
    async fn skipped(&self, id: u8) {}
}

#[async_trait(?Send)]
trait NotSend {
    async fn local(&self, id: std::rc::Rc<str>) -> Result<(), Error>;
}

#[async_trait(?Send)]
impl NotSend for Memory {
    #[distributed_lock(key = "local:<id>")]
    async fn local(&self, id: std::rc::Rc<str>) -> Result<(), Error> {
        drop(id);
        Ok(())
    }
}

fn main() {}
