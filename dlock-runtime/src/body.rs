//! [`Body`], a future that is replaced by its value, so that a call is as large as the larger of
//! the two.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

pin_project! {
    #[project = At]
    /// A body that is polled and dropped in place, and replaced by its value.
    ///
    /// It differs from `MaybeDone` of `futures_util` in [`take`](Self::take), which moves only the
    /// value. That of `MaybeDone` moves the whole enum, which may be large, once per call.
    #[allow(missing_docs, reason = "the macro takes no documentation of fields")]
    #[derive(Debug)]
    pub enum Body<F: Future> {
        /// It has not ended.
        Future {
            #[pin]
            future: F,
        },
        /// It has ended.
        Done {
            // Until it is taken.
            value: Option<F::Output>,
        },
        /// It was stopped.
        Gone,
    }
}

impl<F: Future> Body<F> {
    /// Drops the future in place.
    pub(crate) fn stop(mut self: Pin<&mut Self>) {
        self.set(Self::Gone);
    }

    /// Returns the value of a body that has ended, until it is taken.
    pub(crate) fn value(&self) -> Option<&F::Output> {
        if let Self::Done { value } = self { value.as_ref() } else { None }
    }

    /// Takes the value of a body that has ended.
    ///
    /// # Panics
    ///
    /// Panics if there is no value: the body has not ended, was stopped, or its value was taken.
    #[must_use]
    pub fn take(self: Pin<&mut Self>) -> F::Output {
        let value = if let At::Done { value } = self.project() { value.take() } else { None };
        value.expect("a body that has ended has left its value")
    }
}

/// Completes with the body, which its value replaces.
impl<F: Future> Future for Body<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let At::Future { future } = self.as_mut().project() {
            let value = ready!(future.poll(cx));
            self.set(Self::Done { value: Some(value) });
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    /// Records its drop, and panics there if the flag is set.
    struct Local<'a>(&'a RefCell<Vec<&'static str>>, bool);

    impl Drop for Local<'_> {
        fn drop(&mut self) {
            self.0.borrow_mut().push("dropped");
            assert!(!self.1, "this panic is part of the test");
        }
    }

    async fn seven(_local: Local<'_>) -> u8 {
        std::future::ready(7).await
    }

    #[test]
    fn body_is_dropped_before_its_value_is_taken_once() {
        let seen = RefCell::default();
        let mut body = pin!(Body::Future { future: seven(Local(&seen, false)) });
        assert_eq!((body.as_mut().now_or_never(), &**seen.borrow()), (Some(()), &["dropped"][..]));
        assert_eq!(body.as_mut().now_or_never(), Some(()), "it has ended");
        assert_eq!(body.as_mut().take(), 7);
        assert!(catch_unwind(AssertUnwindSafe(|| body.as_mut().take())).is_err(), "it was taken");
    }

    #[test]
    fn stopped_body_is_dropped_in_place() {
        let seen = RefCell::default();
        let mut body = pin!(Body::Future { future: seven(Local(&seen, false)) });

        body.as_mut().stop();

        assert_eq!(*seen.borrow(), ["dropped"]);
    }

    #[test]
    fn a_body_whose_drop_panics_is_dropped_once() {
        let seen = RefCell::default();
        {
            let mut body = pin!(Body::Future { future: seven(Local(&seen, true)) });
            assert!(catch_unwind(AssertUnwindSafe(|| body.as_mut().now_or_never())).is_err());
        }

        assert_eq!(*seen.borrow(), ["dropped"]);
    }
}
