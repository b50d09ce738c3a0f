//! What the attribute accepts (`pass`), and what it says where it does not (`fail`).
//!
//! Each case in `fail` has its messages beside it, made by the compiler of `rust-toolchain.toml`. After a message has changed,
//! `TRYBUILD=overwrite cargo test -p dlock-ui-tests --test ui` writes it anew: read each as the person who made the mistake.
