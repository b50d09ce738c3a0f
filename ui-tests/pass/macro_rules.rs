//! Functions inside `macro_rules!`, where names have separate contexts.

use dlock_runtime::{Error, LockManager, distributed_lock};

macro_rules! jobs {
    ($($name:ident ($argument:ident : $type:ty) -> $output:ty { key: $key:literal, lease: $lease:expr, body: $body:expr })*) => {$(
        #[distributed_lock(key = $key, lease = $lease)]
        async fn $name($argument: $type) -> $output {
            $body
        }
    )*};
}

jobs! {
    first(id: u64) -> Result<u64, Error> { key: "first:<id>", lease: "30s", body: Ok(id) }
    second(name: &str) -> Result<usize, Error> { key: "second:<name>", lease: "1h", body: Ok(name.len()) }
}

macro_rules! hygienic {
    ($name:ident, $body:expr) => {
        #[distributed_lock(key = "hygienic:<id>:<self.0>", guard = lock)]
        async fn $name(&self, id: u64) -> Result<String, Error> {
            let _ = $body;
            Ok(format!("{id} {} {lock:?}", self.0))
        }
    };
}

mod reexports {
    pub use dlock_runtime as dlock;
}

macro_rules! from_elsewhere {
    ($name:ident) => {
        #[distributed_lock(key = "elsewhere", crate = $crate::reexports::dlock)]
        async fn $name() -> Result<(), Error> {
            Ok(())
        }
    };
}

from_elsewhere!(fourth);

macro_rules! fragments {
    ($visibility:vis fn $name:ident($argument:pat, $type:ty), $key:expr, $locks:ident, $value:expr, $body:block) => {
        #[distributed_lock(key = $key, manager = $locks, on_contended = return($value))]
        $visibility async fn $name($argument: $type, $locks: &LockManager) -> Result<u64, Error> $body
    };
    ($key:expr; $item:item) => {
        #[distributed_lock(key = $key)]
        $item
    };
}

fragments!(pub(crate) fn fifth((id, _), (u64, u8)), "fifth:<id>", locks, Ok(0), { std::future::ready(Ok(0)).await });
fragments!("sixth:<id>"; async fn sixth(id: u64) -> Result<u64, Error> { Ok(id) });

struct Holder(u8);

impl Holder {
    hygienic!(third, 7);
}

fn main() {}
