//! The certificates for TLS, as text or as files.
//!
//! See also: how files are read (`certificate_reader`), and how TLS uses them
//! (`backend::redis::transport::tls`).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "tls")]
use crate::config::certificate_reader::CertificateReader;

/// The trusted authorities and the client certificate. The defaults are the system's authorities
/// and none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates {
    /// The authorities that are trusted instead of the system's.
    pub(crate) ca: Option<Pem>,
    /// The client certificate, with intermediate certificates.
    pub(crate) client: Option<Pem>,
    /// The private key of the client certificate.
    pub(crate) key: Option<Pem>,
    /// A name that a server's certificate may have instead of the server's host.
    pub(crate) name: Option<String>,
    /// Reads the files.
    #[cfg(feature = "tls")]
    pub(crate) reader: CertificateReader,
}

impl Certificates {
    /// Returns `true` if any certificate or key is set.
    pub(crate) fn are_given(&self) -> bool {
        self.ca.is_some() || self.client.is_some() || self.key.is_some()
    }
}

/// Where the PEM text is.
#[derive(Clone)]
pub(crate) enum Pem {
    /// In a file, which is read for each connection, so that a certificate renewed in place is
    /// used.
    File(PathBuf),
    /// In memory.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "the methods that give it need the feature"))]
    Text(Arc<[u8]>),
}

impl fmt::Debug for Pem {
    /// Does not print the text, which may be a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(..)"),
        }
    }
}
