//! The size that the attribute adds to a function's future.
//!
//! Futures of a service are nested: every caller contains the size of its callees. A value that is
//! larger than the body's own state needs space while the lock is released. An argument that a
//! plain function drops before its first await needs its space twice here, as every argument does
//! in a plain function that keeps it.

use std::future::Future;

use dlock_runtime::{Error, distributed_lock};

struct Path<T>(T);

struct State<T>(T);

/// The maximum that the attribute may add, in bytes.
const MOST: usize = 256;

/// Compares an annotated function with the same function without the attribute.
macro_rules! compare {
    ($($name:ident($($arguments:expr),*);)*) => {
        [$((stringify!($name), size(&annotated::$name($($arguments),*)), floor(&plain::$name($($arguments),*)))),*]
    };
}

macro_rules! functions {
    ($($(#[$attribute:meta])* async fn $name:ident($($argument:tt $(($($inside:tt)*))? : $type:ty),*) -> $output:ty $body:block)*) => {
        mod annotated {
            use super::*;
            $($(#[$attribute])* pub(super) async fn $name($($argument $(($($inside)*))? : $type),*) -> $output $body)*
        }
        mod plain {
            use super::*;
            $(pub(super) async fn $name($($argument $(($($inside)*))? : $type),*) -> $output $body)*
        }
    };
}

functions! {
    #[distributed_lock(key = "a")]
    async fn nothing() -> Result<(), Error> {
        pause().await;
        Ok(())
    }

    #[distributed_lock(key = "a:<id>", lease = "30s", retry = 3)]
    async fn a_number(id: u64) -> Result<u64, Error> {
        pause().await;
        Ok(id)
    }

    #[distributed_lock(key = "a:<id>:<name>", wait = "5s", max_hold = "1m")]
    async fn two_values(id: u64, name: String) -> Result<String, Error> {
        pause().await;
        Ok(format!("{id}{name}"))
    }

    #[distributed_lock(key = "a:<id>", on_contended = skip, on_unavailable = run)]
    async fn a_skip(id: u64) -> Option<u64> {
        pause().await;
        Some(id)
    }

    #[distributed_lock(key = "a:<id>", on_contended = return(0))]
    async fn a_return(id: u64) -> u64 {
        pause().await;
        id
    }

    #[distributed_lock(key = "a", min_hold = "5s")]
    async fn a_large_body() -> Result<u8, Error> {
        let large = [7_u8; 4096];
        pause().await;
        Ok(large[0])
    }

    #[distributed_lock(key = "a")]
    async fn a_large_value() -> Result<[u8; 512], Error> {
        pause().await;
        Ok([7; 512])
    }

    #[distributed_lock(key = "a:<id>")]
    async fn a_handler(Path(id): Path<u64>, State(_): State<u64>, Path((name, mut lines)): Path<(String, [u64; 32])>, last: String) -> Result<String, Error> {
        pause().await;
        lines[0] = id;
        Ok(format!("{name}{last}{lines:?}"))
    }

    #[distributed_lock(key = "a:<id>")]
    async fn a_large_argument(id: u64, large: [u8; 1024]) -> Result<u8, Error> {
        pause().await;
        Ok(large[usize::try_from(id).unwrap_or_default()])
    }
}

#[test]
fn an_annotated_future_is_hardly_larger_than_the_plain_one() {
    let sizes = compare! {
        nothing();
        a_number(7);
        two_values(7, String::new());
        a_skip(7);
        a_return(7);
        a_large_body();
        a_large_value();
        a_handler(Path(7), State(0), Path((String::new(), [0; 32])), String::new());
        a_large_argument(7, [0; 1024]);
    };

    for (name, annotated, plain) in sizes {
        println!("{name}: {plain} plain, {annotated} annotated, {} more", annotated.saturating_sub(plain));
    }
    for (name, annotated, plain) in sizes {
        assert!(annotated <= plain + MOST, "{name}: {annotated} bytes, {plain} without the attribute");
    }
}

async fn pause() {
    std::future::ready(()).await;
}

fn size<F: Future>(future: &F) -> usize {
    size_of_val(future)
}

/// Returns the size of the plain future, or of its value if that is larger.
fn floor<F: Future>(future: &F) -> usize {
    size(future).max(size_of::<F::Output>())
}
