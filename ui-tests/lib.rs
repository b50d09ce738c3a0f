//! Cases that the attribute accepts (`pass`), and its messages for those that it refuses (`fail`).
//!
//! Each case in `fail` has a file with its messages, written by the compiler of
//! `rust-toolchain.toml`. After a message has changed,
//! `TRYBUILD=overwrite cargo test -p dlock-ui-tests --test ui` writes it again: read each as a user
//! who made the mistake.
