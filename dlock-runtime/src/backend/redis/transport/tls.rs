//! TLS: the certificates of connections, and the texts of its errors.
//!
//! By default the system's certificate authorities are trusted, or those that `SSL_CERT_FILE` and
//! `SSL_CERT_DIR` name. Verification cannot be switched off. No crypto provider is installed for
//! the process: if the application has installed one, it is used, and otherwise `ring`.
//!
//! See also: `config::certificates` for the options, `config::certificate_reader` for reading
//! files.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError,
    RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;

use crate::backend::redis::transport::redacted::Redacted;
use crate::config::certificate_reader::CurrentFile;
use crate::config::certificates::{Certificates, Pem};
use crate::config::config;
use crate::config::node_spec::{Announcer, NodeSpec, is_address};
use crate::error::Error;
use crate::protocol::failure::{Failure, FailureKind};

/// The TLS configuration for one server.
#[derive(Debug)]
pub(crate) struct TlsConnector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsConnector {
    /// Reads the certificates, so that renewed files are used.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Config`] with the option that cannot be used.
    pub(crate) async fn new(server: &NodeSpec, given: &Certificates, limit: Duration) -> Result<Self, Error> {
        let names = ServerNames::new(server, given)?;
        let name = names.indicated.clone();
        let config = read(given, names.accepted, limit).await?;
        Ok(Self { config, name })
    }

    /// Performs the handshake over a stream.
    pub(crate) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&self.config));
        connector.connect(self.name.clone(), stream).await
    }
}

/// The names that a server's certificate may have.
struct ServerNames {
    accepted: Vec<ServerName<'static>>,
    /// The name that the client sends (SNI): a host name if there is one.
    indicated: ServerName<'static>,
}

impl ServerNames {
    /// Accepts the host of the connection, and `tls_name`.
    ///
    /// If there is no `tls_name`, and a cluster or Sentinel announced an address, the host names of
    /// the URL are accepted, too: managed services announce addresses that their certificates do
    /// not have.
    fn new(server: &NodeSpec, given: &Certificates) -> Result<Self, Error> {
        let others = alternatives(server, given);
        let names = std::iter::once(&server.host).chain(others);
        let accepted: Vec<_> = names.filter_map(|name| ServerName::try_from(name.clone()).ok()).collect();
        let is_name = |name: &&ServerName<'_>| matches!(name, ServerName::DnsName(_));
        let given_name = given.name.as_ref().map(|name| tls_name(name)).transpose()?;
        let indicated = given_name.or_else(|| accepted.iter().find(is_name).or(accepted.first()).cloned());
        let Some(indicated) = indicated else {
            return Err(config(
                "host",
                format!("`{}` is not a name that a certificate can be for", server.host),
            ));
        };
        Ok(Self { accepted, indicated })
    }
}

/// Returns the names that a certificate may have in addition to the host.
fn alternatives<'a>(server: &'a NodeSpec, given: &'a Certificates) -> &'a [String] {
    match (&given.name, &server.announced) {
        (Some(name), _) => std::slice::from_ref(name),
        (None, Some(announced)) if is_address(&server.host) => &announced.url_names,
        (None, _) => &[],
    }
}

fn tls_name(name: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(name.to_owned()).map_err(|_| {
        config("tls_name", "it is neither a host name nor an address: write it without scheme and port")
    })
}

/// Checks the certificates and `tls_name`.
///
/// # Errors
///
/// Returns [`Error::Config`] with the option that cannot be used.
pub(crate) async fn check(given: &Certificates, limit: Duration) -> Result<(), Error> {
    given.name.as_ref().map(|name| tls_name(name)).transpose()?;
    read(given, Vec::new(), limit).await.map(drop)
}

/// Reads and checks the certificates. The certificate of a server must have one of `names`.
async fn read(
    given: &Certificates,
    names: Vec<ServerName<'static>>,
    limit: Duration,
) -> Result<Arc<ClientConfig>, Error> {
    let certificates = given.clone();
    given.reader.run(limit, move |current| client_config(&certificates, names, current)).await
}

/// Accepts a certificate that has one of several names. All other checks are those of rustls.
#[derive(Debug)]
struct AnyNameVerifier {
    verifier: Arc<WebPkiServerVerifier>,
    names: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for AnyNameVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _indicated: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let mut refused = TlsError::InvalidCertificate(CertificateError::NotValidForName);
        for name in self.names.iter().rev() {
            match self.verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now) {
                Err(TlsError::InvalidCertificate(problem)) if is_of_the_name(&problem) => {
                    refused = TlsError::InvalidCertificate(problem);
                }
                verified => return verified,
            }
        }
        Err(refused)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Returns `true` if a certificate was rejected only because of its name.
fn is_of_the_name(problem: &CertificateError) -> bool {
    matches!(problem, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })
}

fn client_config(
    given: &Certificates,
    names: Vec<ServerName<'static>>,
    current: &CurrentFile,
) -> Result<Arc<ClientConfig>, Error> {
    let roots = match &given.ca {
        Some(ca) => authorities("tls_ca", &text(current, "tls_ca", ca)?)?,
        None => authorities_of_the_system(current)?,
    };
    let provider = crypto_provider();
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let verifier = verifier.map_err(|error| config("tls_ca", error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| config("tls", format!("the application's provider of cryptography: {error}")))?;
    let verifier = AnyNameVerifier { verifier, names };
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let made = match (&given.client, &given.key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates("tls_cert", &text(current, "tls_cert", certificate)?)?;
            let key = private_key(&text(current, "tls_key", key)?)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| config("tls_key", format!("it cannot be used with `tls_cert`: {error}")))?
        }
        (None, None) => builder.with_no_client_auth(),
        (Some(_), None) => return Err(config("tls_cert", "it needs the private key, too: `tls_key`")),
        (None, Some(_)) => return Err(config("tls_key", "it needs the certificate, too: `tls_cert`")),
    };
    Ok(Arc::new(made))
}

/// Returns the application's crypto provider, or `ring`.
///
/// It is not installed: the application may do so later, and a second `install_default` would fail.
fn crypto_provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default()
        .map_or_else(|| Arc::new(rustls::crypto::ring::default_provider()), Arc::clone)
}

/// Returns the failure for an error of TLS, or `None` if the error has another cause.
///
/// A new attempt would fail the same way.
pub(crate) fn failure(
    error: &RedisError,
    server: &NodeSpec,
    given: &Certificates,
    shown: &Redacted,
) -> Option<Failure> {
    let problem = match tls_error(error)? {
        TlsError::InvalidCertificate(problem) => {
            format!("its certificate {}", distrust(problem, server, given, shown))
        }
        TlsError::AlertReceived(alert) => refusal(*alert),
        TlsError::InvalidMessage(_) => {
            format!("it does not speak TLS on this port: write `{}`", shown.advice().own_scheme(false))
        }
        TlsError::PeerIncompatible(problem) => {
            format!("it supports no common TLS version or cipher suite: {problem:?}")
        }
        _ => return None,
    };
    Some(Failure::new(FailureKind::Untrusted, format!("redis at {shown}: {problem}")))
}

/// Returns the TLS error inside an error of the client library.
fn tls_error(error: &RedisError) -> Option<&TlsError> {
    let inner =
        std::error::Error::source(error)?.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    match inner.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref()?.downcast_ref(),
        None => inner.downcast_ref(),
    }
}

/// Returns why the certificate of a server is not trusted.
fn distrust(problem: &CertificateError, server: &NodeSpec, given: &Certificates, shown: &Redacted) -> String {
    let in_words = || shown.clean(&problem.to_string());
    match problem {
        // `BadSignature`: an authority has the name of a trusted one, but not its key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not signed by a trusted authority: name its authority by \
            `tls_ca`, or add it to the system's (`SSL_CERT_FILE`)"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let names = match problem {
                CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
                    shown.clean(&presented.join(", "))
                }
                _ => "other names".into(),
            };
            format!("is for {names} and not for {}", wrong_name(server, given, shown))
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired, or the clock of this machine is wrong: renew it on the server".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet, or the clock of this machine is wrong".to_owned()
        }
        CertificateError::Other(_) => format!(
            "cannot be used: {}; one that signed itself must not be an authority (`basicConstraints=CA:FALSE`)",
            in_words()
        ),
        _ => format!("cannot be used: {}", in_words()),
    }
}

/// Returns the names that a certificate had to have, and what to do.
fn wrong_name(server: &NodeSpec, given: &Certificates, shown: &Redacted) -> String {
    let others = alternatives(server, given).iter().filter(|name| **name != server.host);
    let names =
        others.fold(format!("`{}`", shown.clean(&server.host)), |names, name| format!("{names} or `{name}`"));
    let kind = if is_address(&server.host) { "address" } else { "name" };
    match server.announced.as_ref().map(|announced| announced.by) {
        Some(Announcer::Cluster) => format!(
            "{names}: the cluster announced this {kind}; set `cluster-announce-hostname` on its servers to a name that their \
             certificates have, or name one by `tls_name`"
        ),
        Some(Announcer::Sentinel) => format!(
            "{names}: the sentinels announced this {kind}; have them announce names (`sentinel announce-hostnames yes`), \
             or name one that the certificate has by `tls_name`"
        ),
        None => format!("{names}: connect by a name that it has, or give one by `tls_name`"),
    }
}

/// Returns why a server rejected the handshake.
fn refusal(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "it wants a client certificate: give one by `tls_cert` and `tls_key`".to_owned()
        }
        // TLS 1.2 has no alert of its own for a missing certificate.
        AlertDescription::HandshakeFailure => {
            "it ended the handshake: it may want a client certificate (`tls_cert` and `tls_key`), or support no common TLS version".to_owned()
        }
        alert => format!("it rejected the client certificate (`tls_cert`) or the TLS version: {alert:?}"),
    }
}

/// Returns PEM text, which is read from a file if it was given as one.
fn text(current: &CurrentFile, option: &str, pem: &Pem) -> Result<Vec<u8>, Error> {
    match pem {
        Pem::Text(text) => Ok(text.to_vec()),
        Pem::File(path) => current.read(option, path),
    }
}

/// Parses authorities. There must be at least one, and all must be usable.
fn authorities(option: &str, pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(option, pem)? {
        roots.add(certificate).map_err(|error| config(option, error.to_string()))?;
    }
    Ok(roots)
}

/// Reads the authorities of the system, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
fn authorities_of_the_system(current: &CurrentFile) -> Result<RootCertStore, Error> {
    let file = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let folders = env::var_os("SSL_CERT_DIR").unwrap_or_default();
    let folders: Vec<_> =
        env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty()).collect();
    let mut found = Vec::new();
    if let Some(file) = &file {
        found = certificates("SSL_CERT_FILE", &current.read("SSL_CERT_FILE", file)?)?;
    }
    for folder in &folders {
        add_folder(&mut found, folder, current)?;
    }
    if file.is_none() && folders.is_empty() {
        current.starts("tls", "the list of the system's authorities");
        let system = rustls_native_certs::load_native_certs();
        if let (true, Some(error)) = (system.certs.is_empty(), system.errors.first()) {
            let problem = format!("the system's authorities cannot be read: {error}; name one by `tls_ca`");
            return Err(config("tls", problem));
        }
        found = system.certs;
    }
    // A folder often has each certificate several times: alone, in a bundle, and by symbolic links.
    let found: BTreeSet<Vec<u8>> = found.iter().map(|certificate| certificate.to_vec()).collect();
    let mut roots = RootCertStore::empty();
    // Unusable certificates are skipped: the system's list may have some.
    roots.add_parsable_certificates(found.into_iter().map(CertificateDer::from));
    if roots.is_empty() {
        return Err(config(
            "tls",
            "the system has no authorities: name one by `tls_ca`, or by `SSL_CERT_FILE`",
        ));
    }
    Ok(roots)
}

/// Adds the certificates of all regular files in a folder.
fn add_folder(
    found: &mut Vec<CertificateDer<'static>>,
    folder: &Path,
    current: &CurrentFile,
) -> Result<(), Error> {
    const OPTION: &str = "SSL_CERT_DIR";
    current.starts(OPTION, &format!("`{}`", folder.display()));
    let unreadable =
        |error: io::Error| config(OPTION, format!("`{}` cannot be read: {error}", folder.display()));
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        // Such folders have several links to one file, dangling links, and other files.
        files.extend(fs::canonicalize(entry.map_err(unreadable)?.path()));
    }
    for file in files.iter().filter(|file| file.is_file()) {
        found.extend(CertificateDer::pem_slice_iter(&current.read(OPTION, file)?).flatten());
    }
    Ok(())
}

/// Parses a private key. No error text contains a part of it.
fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        config("tls_key", "there is no private key in PEM in it (`-----BEGIN PRIVATE KEY-----`)")
    })
}

fn certificates(option: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or_else(|| config(option, "there is no certificate in PEM in it (`-----BEGIN CERTIFICATE-----`)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::node_spec::Announced;

    fn server(host: &str, announced: Option<(Announcer, &[&str])>) -> NodeSpec {
        let announced = announced.map(|(by, names)| Announced {
            by,
            url_names: names.iter().map(|name| (*name).to_owned()).collect(),
        });
        NodeSpec { host: host.to_owned(), announced, ..NodeSpec::default() }
    }

    /// Returns the accepted names, and the one that is sent.
    fn names(server: &NodeSpec, tls_name: Option<&str>) -> (Vec<String>, String) {
        let given = Certificates { name: tls_name.map(str::to_owned), ..Certificates::default() };
        let names = ServerNames::new(server, &given).expect("there is a name");
        (
            names.accepted.iter().map(|name| name.to_str().into_owned()).collect(),
            names.indicated.to_str().into(),
        )
    }

    #[test]
    fn a_server_of_the_url_is_verified_by_its_host() {
        for host in ["cache.example", "10.0.0.1", "::1"] {
            assert_eq!(names(&server(host, None), None), (vec![host.to_owned()], host.to_owned()));
        }
    }

    #[test]
    fn an_announced_address_may_have_the_urls_names() {
        for by in [Announcer::Cluster, Announcer::Sentinel] {
            for host in ["10.0.0.1", "::1"] {
                let announced = server(host, Some((by, &["a.example", "b.example"])));
                let accepted = [host, "a.example", "b.example"].map(str::to_owned).to_vec();
                assert_eq!(names(&announced, None), (accepted, "a.example".to_owned()));
                let by_address = server(host, Some((by, &[])));
                assert_eq!(names(&by_address, None), (vec![host.to_owned()], host.to_owned()));
            }
        }
    }

    #[test]
    fn an_announced_name_is_verified_as_itself() {
        let announced = server("n1.example", Some((Announcer::Cluster, &["a.example"])));

        assert_eq!(names(&announced, None), (vec!["n1.example".to_owned()], "n1.example".to_owned()));
    }

    #[test]
    fn a_tls_name_replaces_the_names_of_the_url() {
        for (host, announced) in [
            ("10.0.0.1", None),
            ("10.0.0.1", Some((Announcer::Cluster, &["a.example"][..]))),
            ("n1.example", Some((Announcer::Sentinel, &["a.example"][..]))),
        ] {
            let accepted = vec![host.to_owned(), "given.example".to_owned()];
            let of_server = names(&server(host, announced), Some("given.example"));
            assert_eq!(of_server, (accepted, "given.example".to_owned()));
        }
    }

    #[test]
    fn an_invalid_tls_name_is_rejected() {
        for name in ["", "https://a.example", "a b", "a.example:6379", "-"] {
            let given = Certificates { name: Some(name.to_owned()), ..Certificates::default() };
            let refused = ServerNames::new(&server("h", None), &given).err().map(|error| error.to_string());
            let refused = refused.unwrap_or_else(|| panic!("`{name}` was taken"));
            assert!(refused.contains("tls_name"), "{refused}");
        }
    }

    #[test]
    fn errors_of_tls_say_what_to_change() {
        let name = |presented: &[&str]| CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("h.example").expect("a name"),
            presented: presented.iter().map(|name| (*name).to_owned()).collect(),
        };
        let now = UnixTime::since_unix_epoch(Duration::ZERO);
        let other =
            CertificateError::Other(rustls::OtherError(Arc::new(io::Error::other("CaUsedAsEndEntity"))));
        let certificate = TlsError::InvalidCertificate;
        for (error, words) in [
            (certificate(CertificateError::UnknownIssuer), "is not signed by a trusted authority"),
            (certificate(CertificateError::BadSignature), "is not signed by a trusted authority"),
            (certificate(CertificateError::NotValidForName), "is for other names and not for `h.example`"),
            (certificate(name(&[])), "is for other names and not for `h.example`"),
            (certificate(name(&["a", "b"])), "is for a, b and not for `h.example`: connect by a name"),
            (certificate(CertificateError::Expired), "has expired, or the clock of this machine is wrong"),
            (
                certificate(CertificateError::ExpiredContext { time: now, not_after: now }),
                "has expired, or the clock of this machine is wrong",
            ),
            (certificate(CertificateError::NotValidYet), "is not valid yet, or the clock"),
            (
                certificate(CertificateError::NotValidYetContext { time: now, not_before: now }),
                "is not valid yet, or the clock",
            ),
            (certificate(other), "one that signed itself must not be an authority"),
            (certificate(CertificateError::Revoked), "cannot be used: "),
            (TlsError::AlertReceived(AlertDescription::CertificateRequired), "it wants a client certificate"),
            (TlsError::AlertReceived(AlertDescription::HandshakeFailure), "it may want a client certificate"),
            (TlsError::AlertReceived(AlertDescription::UnknownCA), "it rejected the client certificate"),
            (
                TlsError::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                "it does not speak TLS on this port: write `redis://`",
            ),
            (
                TlsError::PeerIncompatible(rustls::PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig),
                "it supports no common TLS version or cipher suite",
            ),
        ] {
            let shown = Redacted::new("h.example:1");
            let error = RedisError::from(io::Error::new(io::ErrorKind::InvalidData, error));

            let failure = failure(&error, &server("h.example", None), &Certificates::default(), &shown);

            let failure = failure.unwrap_or_else(|| panic!("{error} is an error of TLS"));
            assert_eq!(failure.kind, FailureKind::Untrusted);
            assert!(failure.reason.starts_with("redis at h.example:1: "), "{}", failure.reason);
            assert!(failure.reason.contains(words), "{words}: {}", failure.reason);
        }
    }

    #[test]
    fn errors_of_other_causes_are_not_of_tls() {
        for error in [
            io::Error::from(io::ErrorKind::ConnectionReset),
            io::Error::other("another cause"),
            io::Error::new(io::ErrorKind::InvalidData, TlsError::EncryptError),
        ] {
            let error = RedisError::from(error);

            let failure =
                failure(&error, &server("h", None), &Certificates::default(), &Redacted::new("h:1"));

            assert!(failure.is_none(), "{error}");
        }
    }

    #[test]
    fn a_wrong_name_lists_each_accepted_name_once() {
        let shown = Redacted::new("h:1");
        let given =
            |name: Option<&str>| Certificates { name: name.map(str::to_owned), ..Certificates::default() };
        let cluster = Some((Announcer::Cluster, &["a.example"][..]));
        let sentinel = Some((Announcer::Sentinel, &["a.example"][..]));
        for (host, announced, tls_name, words) in [
            ("h", None, None, "`h`: connect by a name that it has"),
            ("h", None, Some("h"), "`h`: connect by a name that it has"),
            ("h", None, Some("shop"), "`h` or `shop`: connect by a name that it has"),
            ("10.0.0.1", cluster, None, "`10.0.0.1` or `a.example`: the cluster announced this address; set"),
            ("n1", cluster, None, "`n1`: the cluster announced this name; set `cluster-announce-hostname`"),
            ("n1", sentinel, None, "`n1`: the sentinels announced this name; have them announce names"),
        ] {
            let text = wrong_name(&server(host, announced), &given(tls_name), &shown);

            assert!(text.starts_with(words), "{text}");
        }
    }

    #[test]
    fn only_errors_about_the_name_allow_another_name() {
        assert!(is_of_the_name(&CertificateError::NotValidForName));
        for problem in
            [CertificateError::UnknownIssuer, CertificateError::Expired, CertificateError::BadEncoding]
        {
            assert!(!is_of_the_name(&problem), "{problem:?}");
        }
    }

    #[test]
    fn a_folder_of_certificates_is_read_without_its_other_files() {
        let folder = env::temp_dir().join(format!("dlock-authorities-{}", std::process::id()));
        fs::create_dir_all(folder.join("folder")).expect("the folder can be made");
        let pem = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        fs::write(folder.join("one.pem"), pem("AAAA")).expect("it can be written");
        fs::write(folder.join("two.pem"), pem("AAAB") + &pem("AAAC")).expect("it can be written");
        fs::write(folder.join("readme"), "no certificate").expect("it can be written");

        let mut found = Vec::new();
        let added = add_folder(&mut found, &folder, &CurrentFile::default());
        let missing = add_folder(&mut found, &folder.join("missing"), &CurrentFile::default());
        fs::remove_dir_all(&folder).expect("it exists");

        assert!(added.is_ok() && found.len() == 3, "{found:?}");
        assert!(missing.is_err_and(|error| error.to_string().contains("cannot be read")));
    }

    #[test]
    fn pem_texts_must_have_what_they_are_given_for() {
        let pem =
            |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n").into_bytes();

        let certificates_of = |pem: &[u8]| certificates("tls_cert", pem).map(|found| found.len());
        assert_eq!(certificates_of(&[pem("CERTIFICATE"), pem("CERTIFICATE")].concat()).ok(), Some(2));
        for unusable in [pem("PRIVATE KEY"), Vec::new(), b"-----BEGIN CERTIFICATE-----\nAAAA\n".to_vec()] {
            assert!(certificates_of(&unusable).is_err());
        }
        assert!(private_key(&pem("PRIVATE KEY")).is_ok() && private_key(&pem("CERTIFICATE")).is_err());
        assert!(authorities("tls_ca", &pem("CERTIFICATE")).is_err(), "it is no certificate");
        let given = Pem::Text(pem("CERTIFICATE").into());
        assert_eq!(text(&CurrentFile::default(), "tls_ca", &given).ok(), Some(pem("CERTIFICATE")));
    }
}
