//! The events that processes and tasks record: one JSON line per event, with boot clock timestamps.
//!
//! ```text
//!  worker process -- Writer --> its own file --+
//!  worker process -- Writer --> its own file --+-- History::read --> merged by their stamps --> View --> judges
//!  the test       -- Writer --> its own file --+
//! ```
//!
//! A process that is killed may leave an incomplete line. At the end of a file, such a line is
//! ignored.
//!
//! See also [`judges`](crate::judges) for the checks of a history.

mod event;
mod reader;
mod view;
mod writer;

pub use event::{Answered, Event, Phase, Scanned, What};
pub use reader::History;
pub use view::{Call, FaultSpan, Hold, View};
pub use writer::Writer;
