//! Methods of traits: `async fn` in traits, and below and above `#[async_trait]`.

use std::rc::Rc;

use async_trait::async_trait;
use dlock_runtime::{Error, distributed_lock};

use crate::under;

struct Path<T>(T);
struct Memory(Vec<u64>);

/// The same macro under the name that services use.
mod tonic {
    pub(super) use async_trait::async_trait;
}

trait Store {
    const KIND: &'static str = "store";

    fn name(&self) -> &'static str;

    #[distributed_lock(key = "<Self::KIND>:<self.name()>")]
    async fn flush(&self) -> Result<&'static str, Error> {
        tokio::task::yield_now().await;
        Ok(self.name())
    }

    async fn put(&mut self, id: u64) -> Result<usize, Error>;

    async fn generic<T: Into<u64>>(&self, path: Path<T>) -> Result<u64, Error>;
}

impl Store for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    #[distributed_lock(key = "put:<id>")]
    async fn put(&mut self, id: u64) -> Result<usize, Error> {
        tokio::task::yield_now().await;
        self.0.push(id);
        Ok(self.0.len())
    }

    #[distributed_lock(key = "generic")]
    async fn generic<T: Into<u64>>(&self, Path(id): Path<T>) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        Ok(id.into())
    }
}

#[async_trait]
trait Boxed: Send + Sync {
    fn name(&self) -> &'static str;

    #[distributed_lock(key = "boxed:<self.name()>")]
    async fn flush(&self) -> Result<&'static str, Error> {
        tokio::task::yield_now().await;
        Ok(self.name())
    }

    async fn put(&mut self, id: u64, name: &str) -> Result<usize, Error>;

    async fn wrapped(&self, id: Path<u64>, other: (String, u8)) -> Result<u64, Error>;

    async fn skipped(&self, id: u8);

    async fn by_value(self) -> Result<u64, Error>;
}

#[async_trait]
impl Boxed for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    #[distributed_lock(key = "put:<id>:<name>", guard = lock)]
    async fn put(&mut self, id: u64, name: &str) -> Result<usize, Error> {
        assert_eq!(lock.key().as_str(), "put:7:n");
        tokio::task::yield_now().await;
        if name.is_empty() {
            return Ok(0);
        }
        self.0.push(id);
        Ok(self.0.len())
    }

    #[tracing::instrument(skip_all)]
    #[distributed_lock(key = "wrapped:<id>:<text>")]
    async fn wrapped(&self, Path(id): Path<u64>, (text, _): (String, u8)) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        Ok(id + u64::from(text.is_empty()))
    }

    #[distributed_lock(key = "skipped:<id>", on_contended = skip)]
    #[tracing::instrument(skip_all)]
    async fn skipped(&self, id: u8) {
        tokio::task::yield_now().await;
        assert_eq!(id, 7);
    }

    #[distributed_lock(key = "value:<self.0.len()>")]
    async fn by_value(mut self) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        Ok(self.0.pop().unwrap_or_default())
    }
}

#[tonic::async_trait]
trait Greeter {
    async fn greet(&self, request: Path<String>) -> Result<Path<String>, Error>;
}

#[tonic::async_trait]
impl Greeter for Memory {
    #[distributed_lock(key = "greet:<request.0>")]
    async fn greet(&self, request: Path<String>) -> Result<Path<String>, Error> {
        tokio::task::yield_now().await;
        Ok(request)
    }
}

#[async_trait(?Send)]
trait Local {
    async fn local(&self, id: Rc<str>) -> Result<usize, Error>;
}

#[async_trait(?Send)]
impl Local for Memory {
    #[distributed_lock(key = "local:<id>")]
    async fn local(&self, id: Rc<str>) -> Result<usize, Error> {
        tokio::task::yield_now().await;
        Ok(id.len())
    }
}

#[tokio::test]
async fn async_methods_of_traits_hold_their_keys() {
    let mut memory = Memory(Vec::new());

    assert_eq!(under("store:memory", Store::flush(&memory)).await.ok(), Some("memory"));
    assert_eq!(under("put:7", Store::put(&mut memory, 7)).await.ok(), Some(1));
    assert_eq!(under("generic", memory.generic(Path(7_u8))).await.ok(), Some(7));
}

#[tokio::test]
async fn boxed_methods_of_traits_hold_their_keys() {
    let mut memory = Memory(vec![5]);

    assert_eq!(under("boxed:memory", Boxed::flush(&memory)).await.ok(), Some("memory"));
    assert_eq!(under("put:7:n", Boxed::put(&mut memory, 7, "n")).await.ok(), Some(2));
    let wrapped = memory.wrapped(Path(7), ("t".to_owned(), 0));
    assert_eq!(under("wrapped:7:t", wrapped).await.ok(), Some(7));
    under("skipped:7", memory.skipped(7)).await;
    let greeting = under("greet:you", memory.greet(Path("you".to_owned()))).await;
    assert_eq!(greeting.ok().map(|greeting| greeting.0).as_deref(), Some("you"));
    assert_eq!(under("local:a", memory.local("a".into())).await.ok(), Some(1));
    assert_eq!(under("value:2", Boxed::by_value(memory)).await.ok(), Some(7));
}
