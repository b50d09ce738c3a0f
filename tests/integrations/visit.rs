//! Handler bodies under the control of a test: they report their start and drop, and end on
//! request.

use std::convert::Infallible;

use dlock_tests::within;
use tokio::sync::{mpsc, oneshot};

use crate::PROMPT;

/// The handlers' side.
#[derive(Clone)]
pub(crate) struct Door(mpsc::UnboundedSender<Visit>);

/// The test's side: the running bodies, in the order in which they started.
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
        let (leave, ended) = oneshot::channel();
        let (_here, gone) = oneshot::channel();
        self.0.send(Visit { leave, gone }).expect("the test is running");
        ended.await.expect("the test ends each visit");
    }
}

impl Visits {
    /// Waits for the next body to start.
    pub(crate) async fn next(&mut self) -> Visit {
        within(PROMPT * 5, "a body starts", self.0.recv()).await.expect("the service is running")
    }
}

impl Visit {
    /// Ends the body.
    pub(crate) fn end(self) {
        self.leave.send(()).expect("the body is alive");
    }

    /// Waits until the body is dropped before its end.
    pub(crate) async fn until_dropped(self) {
        let Err(_) = within(PROMPT * 5, "the body is dropped", self.gone).await;
    }
}
