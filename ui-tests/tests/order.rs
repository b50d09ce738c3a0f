//! The order of an expansion's actions at run time, recorded by a stand-in for the runtime. See
//! `ui` for what compiles.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dlock_runtime::{Error, distributed_lock};

/// A stand-in for the runtime: `crate = crate::recorder`.
mod recorder {
    pub(crate) mod __private {
        use std::pin::Pin;

        use dlock_runtime::{Error, IntoLockKey, KeyBuilder};

        pub(crate) use dlock_runtime::__private::{
            Body, Callsite, Carrier, Completed, OnLost, Options, finish, never,
        };

        use crate::{DENY, Noisy, note};

        pub(crate) struct Call {
            _released: Noisy,
        }

        #[expect(clippy::unused_self, reason = "the real one has a state")]
        impl Call {
            pub(crate) fn new(site: &'static Callsite) -> Self {
                note(site.name());
                Self { _released: Noisy("lock") }
            }

            pub(crate) fn template(&self) -> KeyBuilder {
                KeyBuilder::new("")
            }

            pub(crate) fn key(self, key: impl IntoLockKey) -> Self {
                note(key.into_lock_key("").map_or_else(|error| error.to_string(), |key| key.to_string()));
                self
            }

            pub(crate) async fn acquire(&self) -> Result<(), Error> {
                std::future::ready(()).await;
                DENY.with_borrow(|deny| deny.clone().map_or(Ok(()), Err))
            }

            pub(crate) async fn run<F: Future>(
                &self,
                mut body: Pin<&mut Body<F>>,
                _keeps: impl Fn(&F::Output) -> bool,
            ) -> Result<F::Output, Error> {
                self.acquire().await?;
                body.as_mut().await;
                note("release");
                let output = body.take();
                Ok(output)
            }

            pub(crate) async fn run_to_end<F: Future>(&self, body: Pin<&mut Body<F>>) -> F::Output {
                let Ok(output) = self.run(body, |_| true).await else { unreachable!("the lock is held") };
                output
            }

            pub(crate) fn swallow(&self, error: &Error) {
                note(format!("swallowed: {error}"));
            }

            pub(crate) fn guard(&self) -> &'static str {
                "guard"
            }
        }
    }
}

thread_local! {
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static DENY: RefCell<Option<Error>> = const { RefCell::new(None) };
}

fn note(what: impl Into<String>) {
    NOTES.with_borrow_mut(|notes| notes.push(what.into()));
}

fn notes() -> Vec<String> {
    NOTES.take()
}

/// Records when it is dropped.
struct Noisy(&'static str);

impl Drop for Noisy {
    fn drop(&mut self) {
        note(format!("drop {}", self.0));
    }
}

struct State<T>(T);

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[distributed_lock(key = "a:<id>", crate = crate::recorder)]
async fn locked(id: u8, _first: Noisy, State(_): State<Noisy>, _: Noisy, last: Noisy) -> Result<(), Error> {
    let _local = Noisy("local");
    if id == 0 {
        std::future::pending::<()>().await;
    }
    let _ = &last;
    Ok(())
}

fn arguments() -> (Noisy, State<Noisy>, Noisy, Noisy) {
    (Noisy("first"), State(Noisy("state")), Noisy("unnamed"), Noisy("last"))
}

#[test]
fn locals_and_then_the_arguments_are_dropped_before_the_release() {
    let (first, state, unnamed, last) = arguments();

    let outcome = poll(locked(7, first, state, unnamed, last));

    assert!(matches!(outcome, Poll::Ready(Ok(()))));
    assert_eq!(
        notes(),
        [
            "order::locked",
            "a:7",
            "drop local",
            "drop last",
            "drop unnamed",
            "drop state",
            "drop first",
            "release",
            "drop lock"
        ]
    );
}

#[test]
fn a_cancelled_call_drops_its_arguments_before_the_lock() {
    let (first, state, unnamed, last) = arguments();

    let outcome = poll(locked(0, first, state, unnamed, last));

    assert!(outcome.is_pending());
    assert_eq!(
        notes()[2..],
        ["drop local", "drop last", "drop unnamed", "drop state", "drop first", "drop lock"]
    );
}

#[test]
fn nothing_happens_before_the_first_poll() {
    let (first, state, unnamed, last) = arguments();

    drop(locked(7, first, state, unnamed, last));

    assert!(!notes().iter().any(|note| note.contains("a:7") || note.contains("lock")));
}

struct Account(u8);

#[async_trait::async_trait]
trait Ledger {
    async fn post(&self, entry: State<u8>) -> Result<u8, Error>;
}

#[async_trait::async_trait]
impl Ledger for Account {
    #[distributed_lock(key = "account:<self.0>:<entry>", crate = crate::recorder, guard = lock)]
    async fn post(&self, State(entry): State<u8>) -> Result<u8, Error> {
        note(lock);
        Ok(self.0 + entry)
    }
}

#[test]
fn a_boxed_method_takes_its_lock_when_it_is_polled() {
    let account = Account(1);
    let future = account.post(State(2));
    assert!(notes().is_empty());

    let outcome = poll(future);

    assert!(matches!(outcome, Poll::Ready(Ok(3))));
    assert_eq!(notes(), ["order::post", "account:1:2", "guard", "release", "drop lock"]);
}

#[distributed_lock(key = "a:<id>", crate = crate::recorder, on_contended = fallback(other), on_lost = finish)]
async fn with_fallback(id: u8, text: String) -> String {
    format!("{id} {text}")
}

async fn other(id: u8, text: String) -> String {
    std::future::ready(()).await;
    format!("instead of {id}: {text}")
}

#[distributed_lock(key = "a", crate = crate::recorder, on_contended = return(Ok(0)))]
async fn with_return() -> Result<u8, Error> {
    Ok(7)
}

fn unavailable() -> Error {
    dlock_runtime::LockKey::new("").expect_err("an empty key is an error").into()
}

#[test]
fn a_fallback_gets_the_whole_arguments() {
    assert_eq!(poll(with_fallback(7, "text".to_owned())), Poll::Ready("7 text".to_owned()));

    DENY.set(Some(unavailable()));
    let outcome = poll(with_fallback(7, "text".to_owned()));

    assert_eq!(outcome, Poll::Ready("instead of 7: text".to_owned()));
    assert!(notes().iter().any(|note| note.starts_with("swallowed: ")));
}

#[test]
fn an_error_that_a_type_can_carry_is_never_swallowed() {
    DENY.set(Some(unavailable()));

    let outcome = poll(with_return());

    assert!(matches!(outcome, Poll::Ready(Err(Error::InvalidKey { .. }))));
    assert_eq!(notes(), ["order::with_return", "a", "drop lock"]);
}

/// In a plain function, an argument that is used after an await is in the future twice: as the
/// argument, and where it is used. In an annotated function it is there twice as well, whether it
/// is used or not, but never three times.
#[expect(clippy::large_types_passed_by_value, reason = "the size is what is measured")]
async fn plain_large(input: [u64; 128], text: String) -> Result<u64, Error> {
    let buffer = [input[0]; 700];
    std::future::ready(()).await;
    Ok(buffer.iter().chain(&input).sum::<u64>() + text.len() as u64)
}

#[distributed_lock(key = "a:<text>", crate = crate::recorder)]
async fn locked_large(input: [u64; 128], text: String) -> Result<u64, Error> {
    let buffer = [input[0]; 700];
    std::future::ready(()).await;
    Ok(buffer.iter().chain(&input).sum::<u64>() + text.len() as u64)
}

#[test]
fn a_future_grows_by_little() {
    let plain = size_of_val(&plain_large([0; 128], String::new()));
    let locked = size_of_val(&locked_large([0; 128], String::new()));

    assert!(locked.abs_diff(plain) <= 256, "{plain} bytes became {locked}");
}
