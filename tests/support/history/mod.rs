//! What processes and their tasks saw, one JSON line per event, all on one axis: the boot clock.
//!
//! ```text
//!  worker process -- Writer --> its own file --+
//!  worker process -- Writer --> its own file --+-- History::read --> merged by their stamps --> View --> judges
//!  the test       -- Writer --> its own file --+
//! ```
//!
//! A process that is killed may leave a line half written: it is taken for nothing, at the end of a file only.
//!
//! Not here: what must be true of a history (`judges`).

mod event;
mod reader;
mod view;
mod writer;

pub use event::{Answered, Event, Phase, Scanned, What};
pub use reader::History;
pub use view::{Call, FaultSpan, Hold, View};
pub use writer::Writer;
