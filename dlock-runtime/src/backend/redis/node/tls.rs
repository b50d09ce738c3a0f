//! TLS: which certificates it is spoken with, and what its errors mean in words.
//!
//! Without certificates of one's own the system's authorities count, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name. There is
//! no way to trust everybody.
//!
//! Not here: how certificates are given (`config::certificates`), when a connection is made (`node`).

use std::io;
use std::sync::Arc;

use redis::{ClientTlsConfig, ConnectionInfo, RedisError, TlsCertificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, Error as TlsError, RootCertStore};

use crate::backend::redis::layout::codec::Redacted;
use crate::config::certificates::{Certificates, Pem};
use crate::config::config;
use crate::error::Error;
use crate::protocol::command::{Failure, FailureKind};

/// Makes a client that trusts the authority and shows the certificate that were given. What cannot be used is told by its option.
pub(crate) fn client(info: ConnectionInfo, given: &Certificates) -> Result<redis::Client, Error> {
    use_our_crypto_provider();
    let root_cert = given.ca.as_ref().map(|ca| text("tls_ca", ca)).transpose()?;
    if let Some(pem) = &root_cert {
        authorities(pem)?;
    }
    let client_tls = match (&given.client, &given.key) {
        (Some(certificate), Some(key)) => {
            let client_cert = text("tls_cert", certificate)?;
            let client_key = text("tls_key", key)?;
            identity(&client_cert, &client_key)?;
            Some(ClientTlsConfig { client_cert, client_key })
        }
        (None, None) => None,
        (Some(_), None) => return Err(config("tls_cert", "it needs the private key, too: `tls_key`")),
        (None, Some(_)) => return Err(config("tls_key", "it needs the certificate, too: `tls_cert`")),
    };
    redis::Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
        .map_err(|error| config("tls", error.to_string()))
}

/// Returns what TLS has to do with an error, in words and with what to do about it; it will be the same next time.
pub(crate) fn failure(error: &RedisError, host: &str, server: &Redacted) -> Option<Failure> {
    let problem = match tls_error(error)? {
        TlsError::InvalidCertificate(problem) => format!("its certificate {}", distrust(problem, host)),
        TlsError::AlertReceived(alert) => refusal(*alert),
        TlsError::InvalidMessage(_) => "it does not speak TLS on this port: write `redis://`".to_owned(),
        TlsError::PeerIncompatible(problem) => format!("it speaks no TLS that we do: {problem:?}"),
        _ => return None,
    };
    Some(Failure::new(FailureKind::Untrusted, format!("redis at {server}: {}", server.clean(&problem))))
}

/// Finds the error of TLS inside that of the client.
fn tls_error(error: &RedisError) -> Option<&TlsError> {
    let inner =
        std::error::Error::source(error)?.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    match inner.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref()?.downcast_ref(),
        None => inner.downcast_ref(),
    }
}

/// Says why we do not trust the certificate of a server.
fn distrust(problem: &CertificateError, host: &str) -> String {
    match problem {
        // The latter is an authority that has only the name of one whom we trust.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is signed by nobody whom we trust: name its authority by \
            `tls_ca`, or add that to the system's (`SSL_CERT_FILE`)"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let names = match problem {
                CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
                    presented.join(", ")
                }
                _ => "other names".to_owned(),
            };
            format!("is for {names} and not for `{host}`: connect by a name that it has")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired, or the clock of this machine is wrong: renew it on the server".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet, or the clock of this machine is wrong".to_owned()
        }
        CertificateError::Other(_) => format!(
            "cannot be used: {problem}; one that signed itself must not be an authority (`basicConstraints=CA:FALSE`)"
        ),
        _ => format!("cannot be used: {problem}"),
    }
}

/// Says why a server does not take us.
fn refusal(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "it wants a client certificate: give one by `tls_cert` and `tls_key`".to_owned()
        }
        // TLS 1.2 has no word of its own for a certificate that is missing.
        AlertDescription::HandshakeFailure => {
            "it ended the handshake: it may want a client certificate (`tls_cert` and `tls_key`), or speak no TLS that we do".to_owned()
        }
        alert => format!("it does not accept our certificate (`tls_cert`), or not TLS as we speak it: {alert:?}"),
    }
}

/// Reads PEM text. It is short, and of a file that the system most likely has in memory.
fn text(option: &str, pem: &Pem) -> Result<Vec<u8>, Error> {
    match pem {
        Pem::Text(text) => Ok(text.to_vec()),
        Pem::File(path) => std::fs::read(path)
            .map_err(|error| config(option, format!("`{}` cannot be read: {error}", path.display()))),
    }
}

/// Checks that there is an authority in the text, and that all in it can be one.
fn authorities(pem: &[u8]) -> Result<(), Error> {
    let mut store = RootCertStore::empty();
    for certificate in certificates("tls_ca", pem)? {
        store.add(certificate).map_err(|error| config("tls_ca", error.to_string()))?;
    }
    Ok(())
}

/// Checks that there is a certificate and its own key. No text of an error holds a piece of either.
fn identity(certificate: &[u8], key: &[u8]) -> Result<(), Error> {
    let chain = certificates("tls_cert", certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        config("tls_key", "there is no private key in PEM in it (`-----BEGIN PRIVATE KEY-----`)")
    })?;
    let checked = rustls::ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_client_auth_cert(chain, key);
    checked
        .map(drop)
        .map_err(|error| config("tls_key", format!("it cannot be used with `tls_cert`: {error}")))
}

fn certificates(option: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or_else(|| config(option, "there is no certificate in PEM in it (`-----BEGIN CERTIFICATE-----`)"))
}

/// An application that has chosen a provider of cryptography keeps it.
fn use_our_crypto_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
