//! How a value enters a key.

/// A value that can be part of a lock key.
pub trait KeyPart {
    /// Gives the value's bytes to `write`, or returns `false` where there is no value.
    fn write_part(&self, out: &mut Vec<u8>) -> bool;
}
