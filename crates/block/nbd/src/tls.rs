//! TLS with certificates, by `rustls`.
//!
//! Pre-shared keys, which some NBD clients support as well, are not supported: rustls 0.23 has no
//! external PSK (rustls issue 174).

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of files in a directory of certificates, as GnuTLS programs (nbdkit, QEMU) use them.
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
const AUTHORITY: &str = "ca-cert.pem";

/// The paths of the certificates.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, with the chain to an authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority of clients' certificates; clients without such a certificate are refused.
    pub clients: Option<PathBuf>,
}

/// The reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing or invalid.
    #[error("{path}: {cause}; it must be a PEM file that this user may read")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: rustls::pki_types::pem::Error,
    },
    /// They do not fit together.
    #[error("the certificates do not serve: {0}")]
    Unusable(String),
}

impl TlsFiles {
    /// Returns the paths of `server-cert.pem` and `server-key.pem` in `dir`; with `verify`, also of
    /// `ca-cert.pem` for clients.
    pub fn in_dir(dir: &Path, verify: bool) -> Self {
        Self {
            certificate: dir.join(CERTIFICATE),
            key: dir.join(KEY),
            clients: verify.then(|| dir.join(AUTHORITY)),
        }
    }

    /// Reads the files.
    pub fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let unusable = |err: &dyn std::fmt::Display| TlsError::Unusable(err.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|cause| TlsError::File { path: self.key.clone(), cause })?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|err| unusable(&err))?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|err| unusable(&err))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|err| unusable(&err))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|err| unusable(&err))?;
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |cause| TlsError::File { path: path.to_owned(), cause };
    CertificateDer::pem_file_iter(path).map_err(bad)?.collect::<Result<Vec<_>, _>>().map_err(bad)
}
