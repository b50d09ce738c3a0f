//! Bodies of handlers that a test leads by the hand: they tell that they run, end when told to, and tell when they are dropped.

use std::convert::Infallible;

use dlock_tests::within;
use tokio::sync::{mpsc, oneshot};

use crate::PROMPT;

/// The side of the handlers.
#[derive(Clone)]
pub(crate) struct Door(mpsc::UnboundedSender<Visit>);

/// The side of the test: the bodies that run, in the order in which they started.
pub(crate) struct Visits(mpsc::UnboundedReceiver<Visit>);

/// A body that has started.
pub(crate) struct Visit {
    leave: oneshot::Sender<()>,
    gone: oneshot::Receiver<Infallible>,
}

pub(crate) fn door() -> (Door, Visits) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Door(sender), Visits(receiver))
}

impl Door {
    /// Runs until the test ends the visit.
    pub(crate) async fn visit(&self) {
        let (leave, told) = oneshot::channel();
        let (_here, gone) = oneshot::channel();
        self.0.send(Visit { leave, gone }).expect("the test lives");
        told.await.expect("the test ends what it has begun");
    }
}

impl Visits {
    /// Waits for the next body to start.
    pub(crate) async fn next(&mut self) -> Visit {
        within(PROMPT * 5, "a body starts", self.0.recv()).await.expect("the service lives")
    }
}

impl Visit {
    /// Lets the body end.
    pub(crate) fn end(self) {
        self.leave.send(()).expect("the body is alive");
    }

    /// Waits for the body to be dropped before its end.
    pub(crate) async fn until_dropped(self) {
        let Err(_) = within(PROMPT * 5, "the body is dropped", self.gone).await;
    }
}
