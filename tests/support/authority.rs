//! Certificate authorities and the certificates that they sign, created for each test.
//!
//! Thus no key is stored in the repository, and no certificate expires. The `openssl` command is
//! not used because it is not installed on every test machine, and its options differ.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use crate::server;

/// A certificate authority that no program trusts by default.
pub struct Authority {
    name: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Creates an authority with a unique name.
    ///
    /// # Panics
    ///
    /// Panics if no key can be generated.
    #[must_use]
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        Self::named(format!("authority {} of a test", MADE.fetch_add(1, Ordering::Relaxed)))
    }

    /// Creates an authority for servers, or returns `None` if this build of the server has no TLS.
    ///
    /// # Panics
    ///
    /// Panics if no key can be generated.
    #[must_use]
    pub fn of_servers() -> Option<Self> {
        if server::speaks_tls() {
            return Some(Self::new());
        }
        println!("SKIPPED: TLS: this build of the server does not have it");
        None
    }

    /// Creates an authority with the name of this one and another key, like an attacker's.
    ///
    /// # Panics
    ///
    /// Panics if no key can be generated.
    #[must_use]
    pub fn of_the_same_name(&self) -> Self {
        Self::named(self.name.clone())
    }

    fn named(name: String) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, &name);
        let issuer = CertifiedIssuer::self_signed(params, a_key()).expect("it is signed by itself");
        Self { name, issuer }
    }

    /// Returns the certificate of the authority as PEM text.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Signs a certificate for the name or address of a host, or for the name of a client.
    ///
    /// # Panics
    ///
    /// Panics if no key can be generated.
    #[must_use]
    pub fn sign(&self, name: &str) -> Identity {
        self.sign_with(name, |_| {})
    }

    /// Signs a certificate that has expired.
    ///
    /// # Panics
    ///
    /// Panics if no key can be generated.
    #[must_use]
    pub fn sign_expired(&self, name: &str) -> Identity {
        self.sign_with(name, |params| params.not_after = date_time_ymd(2020, 1, 1))
    }

    fn sign_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).expect("it is a name");
        change(&mut params);
        let key = a_key();
        let certificate = params.signed_by(&key, &self.issuer).expect("the authority signs it");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.name)
    }
}

/// A certificate and its private key as PEM text.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Identity {
    /// Writes both to files.
    ///
    /// # Panics
    ///
    /// Panics if a file cannot be written.
    pub fn save(&self, certificate: &Path, key: &Path) {
        std::fs::write(certificate, &self.certificate).expect("the certificate's file can be written");
        std::fs::write(key, &self.key).expect("the key's file can be written");
    }
}

fn a_key() -> KeyPair {
    KeyPair::generate().expect("a key can be made")
}
