//! tonic: errors as the status of a call.

use std::sync::Arc;

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use super::public_text;
use crate::error::Error;

/// A status with [`Error::grpc_code`] and a short text for the client, without key and server.
///
/// If [`Error::retry_after`] is `Some`, the metadata `grpc-retry-pushback-ms` contains it in
/// milliseconds, as in gRPC's [retry design
/// A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback): a client whose
/// retry policy lists `ABORTED` and `UNAVAILABLE` retries after that time instead of its own
/// backoff. A status before the first message is sent as trailers only, and only such a call may be
/// retried.
///
/// The error itself is the source of the status, which is not sent.
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let mut status = Self::new(Code::from_i32(error.grpc_code()), public_text(&error));
        if let Some(after) = error.retry_after() {
            let millis = i32::try_from(after.as_millis()).unwrap_or(i32::MAX);
            status.metadata_mut().insert(PUSHBACK, MetadataValue::from(millis));
        }
        status.set_source(Arc::new(error));
        status
    }
}

/// A6: an ASCII-encoded signed 32-bit integer.
const PUSHBACK: &str = "grpc-retry-pushback-ms";
