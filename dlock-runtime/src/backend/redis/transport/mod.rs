//! The transport: connections to Redis servers, the bytes on them, and their replies.
//!
//! It sends no lock command: it imports neither the encoding of locks nor the topology, and of the
//! protocol only failures. It knows what a token looks like, to keep it out of error messages.
//!
//! | module | contents |
//! |---|---|
//! | `connect_target`, `address` | a server, and how a connection is opened |
//! | `command_fallbacks`, `connect_failure` | commands that the server lacks, errors of connecting |
//! | `stream`, `movable_stream`, `resolve`, `tls` | sockets, sockets that change their runtime, name lookups, certificates |
//! | `connection`, `inbound`, `framing` | a connection of the client library, the bytes that it receives, limits of replies |
//! | `inline_io` | the driver of a connection, which senders and a task poll |
//! | `in_flight`, `completion_queue` | batches in flight and their timeouts, the order of their completion |
//! | `keepalive`, `backoff` | when a connection is pinged, and when it is opened again |
//! | `subscriber`, `sharded_subscriber` | connections for pub/sub messages |
//! | `error_kind`, `redacted` | what an error reply means, and its text without secrets |
//! | `url_advice` | what to change in the URL of a server |

pub(super) mod address;
pub(super) mod backoff;
pub(super) mod command_fallbacks;
pub(super) mod completion_queue;
mod connect_failure;
pub(super) mod connect_target;
pub(super) mod connection;
pub(super) mod error_kind;
mod framing;
pub(super) mod in_flight;
pub(super) mod inbound;
pub(super) mod inline_io;
pub(super) mod keepalive;
pub(super) mod movable_stream;
pub(super) mod redacted;
mod resolve;
pub(super) mod sharded_subscriber;
mod stream;
pub(super) mod subscriber;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
pub(super) mod tls;
pub(super) mod url_advice;
