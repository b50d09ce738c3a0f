//! An annotated function drops the same values as its plain twin, in the same order, and the lock
//! last.
//!
//! Each function is written once and compiled twice. Values record when they are dropped, and
//! whether the lock was held then.

use std::cell::RefCell;
use std::future::Future;
use std::task::{Context, Poll, Waker};

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockKey, distributed_lock};

thread_local! {
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static LOCKS: RefCell<Option<TestLocks>> = const { RefCell::new(None) };
}

/// Records when it is dropped.
#[derive(Clone)]
struct Noisy(&'static str);

impl Drop for Noisy {
    fn drop(&mut self) {
        let held = LOCKS.with(|locks| locks.borrow().as_ref().is_none_or(|locks| locks.is_held("key")));
        let note = if held { self.0.to_owned() } else { format!("{} without the lock", self.0) };
        NOTES.with(|notes| notes.borrow_mut().push(note));
    }
}

impl Noisy {
    /// Returns a value that borrows this one and is dropped too.
    const fn part(&self) -> Part<'_> {
        Part(self, Self("temporary"))
    }
}

struct Part<'a>(&'a Noisy, Noisy);

impl Part<'_> {
    const fn len(&self) -> usize {
        self.0.0.len() + self.1.0.len()
    }
}

struct Pair {
    left: Noisy,
    right: Noisy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    End,
    Early,
    Question,
    Panic,
    Pause,
}

/// Ends in the given way.
async fn take(way: Way) -> Result<(), Error> {
    let _inside = Noisy("inside");
    match way {
        Way::End | Way::Early => tokio::task::yield_now().await,
        Way::Question => drop(LockKey::new("")?),
        Way::Panic => panic!("on the way"),
        Way::Pause => std::future::pending().await,
    }
    Ok(())
}

macro_rules! twins {
    ($(async fn $name:ident($($parameter:tt)*) -> $output:ty $body:block)*) => {
        mod annotated {
            use super::*;
            $(
                #[distributed_lock(key = "key")]
                pub(super) async fn $name($($parameter)*) -> $output $body
            )*
        }
        mod plain {
            use super::*;
            $(pub(super) async fn $name($($parameter)*) -> $output $body)*
        }
    };
}

twins! {
    async fn names(way: Way, first: Noisy, _unused: Noisy, _: Noisy, mut last: Noisy) -> Result<usize, Error> {
        let local = Noisy("local");
        let _other = Noisy("other local");
        take(way).await?;
        if way == Way::Early {
            return Ok(local.0.len());
        }
        last.0 = "changed";
        drop(first);
        Ok(last.0.len())
    }

    async fn patterns(
        way: Way,
        Pair { left, .. }: Pair,
        (a, (_, ref b)): (Noisy, (Noisy, Noisy)),
        [_, c @ ..]: [Noisy; 3],
        whole @ Pair { .. }: Pair,
        last: Noisy
    ) -> Result<usize, Error> {
        let _local = Noisy("local");
        take(way).await?;
        if way == Way::Early {
            return Ok(left.0.len());
        }
        let moved = a;
        Ok(b.0.len() + c.len() + moved.0.len() + whole.left.0.len() + last.0.len())
    }

    async fn temporaries(way: Way, first: Noisy, (second, _): (Noisy, Noisy)) -> Result<usize, Error> {
        let local = Noisy("local");
        take(way).await?;
        if way == Way::Early {
            return Ok(first.part().len() + second.part().len());
        }
        let _later = Noisy("later");
        Ok(first.part().len() + second.part().len() + Part(&Noisy("name"), local.clone()).len())
    }

    async fn a_temporary_across_an_await((way, first): (Way, Noisy)) -> Result<usize, Error> {
        let _local = Noisy("local");
        given(first.part(), take(way).await).await
    }

    async fn nothing_is_used(_: Way, _a: Noisy, _: Noisy, (_, _): (Noisy, Noisy), _b: Noisy) -> Result<usize, Error> {
        Ok(0)
    }

    async fn moved_into_a_block(way: Way, first: Noisy, second: Noisy) -> Result<usize, Error> {
        let later = async move {
            take(way).await?;
            Ok(first.0.len())
        };
        let _after = second;
        later.await
    }
}

async fn given(part: Part<'_>, way: Result<(), Error>) -> Result<usize, Error> {
    tokio::task::yield_now().await;
    way.map(|()| part.len())
}

impl Pair {
    #[distributed_lock(key = "key")]
    async fn annotated(self, way: Way, other: Noisy) -> Result<usize, Error> {
        let left = &self.left;
        take(way).await?;
        Ok(left.0.len() + self.right.0.len() + other.0.len())
    }

    async fn plain(self, way: Way, other: Noisy) -> Result<usize, Error> {
        let left = &self.left;
        take(way).await?;
        Ok(left.0.len() + self.right.0.len() + other.0.len())
    }

    const fn new(left: &'static str, right: &'static str) -> Self {
        Self { left: Noisy(left), right: Noisy(right) }
    }
}

/// Polls a call until it ends, at most 100 times; returns its records.
fn notes<F: Future<Output = Result<usize, Error>>>(call: F) -> Vec<String> {
    let mut context = Context::from_waker(Waker::noop());
    let mut call = Box::pin(call);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        (0..100).any(|_| matches!(call.as_mut().poll(&mut context), Poll::Ready(_)))
    }));
    NOTES.with(|notes| notes.borrow_mut().push(format!("ended: {:?}", ended.ok())));
    drop(call);
    NOTES.with(RefCell::take)
}

/// Compares the twins for one way to end.
fn compare<A, P>(name: &str, way: Way, annotated: A, plain: P)
where
    A: Future<Output = Result<usize, Error>>,
    P: Future<Output = Result<usize, Error>>,
{
    let locks = TestLocks::new();
    let expected = notes(plain);

    LOCKS.with(|world| *world.borrow_mut() = Some(locks.clone()));
    let seen = notes(locks.run(annotated));
    drop(LOCKS.with(RefCell::take));

    assert_eq!(seen, expected, "{name} on the way {way:?}");
    assert_eq!(locks.acquisitions("key"), 1);
}

macro_rules! compare {
    ($way:expr; $($name:ident($($argument:expr),*);)*) => {
        $(compare(stringify!($name), $way, annotated::$name($($argument),*), plain::$name($($argument),*));)*
    };
}

fn compare_all(way: Way) {
    compare! { way;
        names(way, Noisy("1"), Noisy("2"), Noisy("3"), Noisy("4"));
        patterns(
            way,
            Pair::new("1", "2"),
            (Noisy("3"), (Noisy("4"), Noisy("5"))),
            [Noisy("6"), Noisy("7"), Noisy("8")],
            Pair::new("9", "10"),
            Noisy("11")
        );
        temporaries(way, Noisy("1"), (Noisy("2"), Noisy("3")));
        a_temporary_across_an_await((way, Noisy("1")));
        nothing_is_used(way, Noisy("1"), Noisy("2"), (Noisy("3"), Noisy("4")), Noisy("5"));
        moved_into_a_block(way, Noisy("1"), Noisy("2"));
    }
    let pair = || Pair::new("1", "2");
    compare("a method", way, pair().annotated(way, Noisy("3")), pair().plain(way, Noisy("3")));
}

#[tokio::test]
async fn at_the_end_all_is_dropped_as_in_a_plain_function() {
    compare_all(Way::End);
}

#[tokio::test]
async fn an_early_return_drops_all_as_in_a_plain_function() {
    compare_all(Way::Early);
    compare_all(Way::Question);
}

#[tokio::test]
async fn a_panic_drops_all_as_in_a_plain_function() {
    compare_all(Way::Panic);
}

#[tokio::test]
async fn a_cancelled_body_drops_all_as_in_a_plain_function() {
    compare_all(Way::Pause);
}

#[distributed_lock(key = "key", wait = "5s")]
async fn waiting(_: Noisy, (_, _a): (Noisy, Noisy), _b: Noisy, d: Noisy) -> Result<usize, Error> {
    Ok(d.0.len())
}

#[tokio::test]
async fn a_waiting_call_that_is_cancelled_drops_its_arguments_once() {
    let locks = TestLocks::new();
    let elsewhere = locks.hold("key").await;

    let mut call = Box::pin(locks.run(waiting(Noisy("1"), (Noisy("2"), Noisy("3")), Noisy("4"), Noisy("5"))));
    let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    drop(call);

    assert!(polled.is_pending());
    assert!(locks.is_held("key"));
    assert_eq!(NOTES.with(RefCell::take), ["5", "4", "2", "3", "1"]);
    drop(elsewhere);
}
