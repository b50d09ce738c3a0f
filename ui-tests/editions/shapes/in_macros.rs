//! Functions inside `macro_rules!`, where names have separate contexts.

use dlock_runtime::{Error, distributed_lock};

use crate::under;

macro_rules! jobs {
    ($($(#[$attribute:meta])* $visibility:vis $name:ident($argument:ident : $type:ty) -> $output:ty {
        key: $key:literal, lease: $lease:expr, body: $body:expr
    })*) => {$(
        $(#[$attribute])*
        #[distributed_lock(key = $key, lease = $lease)]
        $visibility async fn $name($argument: $type) -> $output {
            tokio::task::yield_now().await;
            $body
        }
    )*};
}

jobs! {
    first(id: u64) -> Result<u64, Error> { key: "first:<id>", lease: "30s", body: Ok(id) }
    /// Documented.
    pub(crate) second(name: &str) -> Result<usize, Error> {
        key: "second:<name>", lease: "1h", body: Ok(name.len())
    }
}

macro_rules! hygienic {
    ($name:ident, $body:expr) => {
        #[distributed_lock(key = "hygienic:<id>:<self.0>", guard = lock)]
        async fn $name(&self, id: u64) -> Result<String, Error> {
            tokio::task::yield_now().await;
            Ok(format!("{} {} {} {}", id, self.0, lock.key(), $body))
        }
    };
}

struct Holder(u8);

impl Holder {
    hygienic!(third, 7);
}

macro_rules! fragments {
    ($visibility:vis fn $name:ident($pattern:pat, $type:ty), $key:expr, $value:expr, $body:block) => {
        #[distributed_lock(key = $key, on_contended = return($value))]
        $visibility async fn $name($pattern: $type) -> Result<u64, Error> $body
    };
    ($key:expr; $item:item) => {
        #[distributed_lock(key = $key)]
        $item
    };
}

macro_rules! parameters {
    ($id:ident @ $($parameters:tt)*) => {
        #[distributed_lock($($parameters)*)]
        async fn parameters($id: u64) -> Result<u64, Error> {
            tokio::task::yield_now().await;
            Ok($id)
        }
    };
}

macro_rules! rest {
    ($generic:ident: $bound:path, $life:lifetime, $attribute:meta) => {
        #[$attribute]
        async fn rest<$life, $generic: $bound + Sync>(value: &$life $generic) -> Result<&$life $generic, Error> {
            tokio::task::yield_now().await;
            Ok(value)
        }
    };
}

fragments!(pub(crate) fn fifth((id, _), (u64, u8)), "fifth:<id>", Ok(0), { Ok(std::future::ready(id).await) });
fragments!("sixth:<id>"; async fn sixth(id: u64) -> Result<u64, Error> {
    tokio::task::yield_now().await;
    Ok(id)
});
parameters!(id @ key = format!("seventh:{}", id), wait = "1s");
rest!(T: Copy, 'a, distributed_lock(key = "eighth"));

#[tokio::test]
async fn fragments_of_macros_are_what_they_stand_for() {
    assert_eq!(under("first:7", first(7)).await.ok(), Some(7));
    assert_eq!(under("second:a", second("a")).await.ok(), Some(1));
    let third = under("hygienic:7:1", Holder(1).third(7)).await.ok();
    assert_eq!(third.as_deref(), Some("7 1 hygienic:7:1 7"));
    assert_eq!(under("fifth:7", fifth((7, 0))).await.ok(), Some(7));
    assert_eq!(under("sixth:7", sixth(7)).await.ok(), Some(7));
    assert_eq!(under("seventh:7", parameters(7)).await.ok(), Some(7));
    assert_eq!(under("eighth", rest(&7)).await.ok(), Some(&7));
}
