//! The manager of all locks of a process.

/// Holds the connection and the engine for all locks of a process; cheap to clone.
#[derive(Clone, Debug)]
pub struct LockManager {
    _todo: (),
}
