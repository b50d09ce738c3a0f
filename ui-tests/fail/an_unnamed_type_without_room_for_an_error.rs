//! 5: `impl Trait`, whose traits are unknown, and `!`.

use dlock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn error() -> impl Sized {
    7
}

#[distributed_lock(key = "a", on_contended = skip)]
async fn skip() -> impl Sized {
    7
}

#[distributed_lock(key = "a", on_contended = fallback(other))]
async fn fallback() -> impl Sized {
    7
}

async fn other() -> i32 {
    7
}

#[distributed_lock(key = "a")]
async fn never() -> ! {
    loop {}
}

fn main() {}
