//! The certificates that TLS is spoken with, as they were given: text, or files.
//!
//! See also: how files are read (`certificate_reader`), and what TLS does with them (`backend::redis::node::tls`).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "tls")]
use crate::config::certificate_reader::CertificateReader;

/// Whose certificate a server must have, and which one we show; what is not given is the system's, and none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates {
    /// The authorities that are trusted in place of the system's.
    pub(crate) ca: Option<Pem>,
    /// Our own certificate, with those between it and its authority.
    pub(crate) client: Option<Pem>,
    /// The private key of our own.
    pub(crate) key: Option<Pem>,
    /// A name that a server's certificate may be for instead of the host that it is reached by.
    pub(crate) name: Option<String>,
    /// Reads those that are files.
    #[cfg(feature = "tls")]
    pub(crate) reader: CertificateReader,
}

impl Certificates {
    /// Returns whether any was given.
    pub(crate) fn are_given(&self) -> bool {
        self.ca.is_some() || self.client.is_some() || self.key.is_some()
    }
}

/// Where PEM text is to be had.
#[derive(Clone)]
pub(crate) enum Pem {
    /// It is read anew for each connection, so that a certificate that is renewed in place is used.
    File(PathBuf),
    /// Here.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "the methods that give it need the feature"))]
    Text(Arc<[u8]>),
}

impl fmt::Debug for Pem {
    /// The text may be a private key: it is never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(..)"),
        }
    }
}
