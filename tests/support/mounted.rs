//! A mounted Secret with a certificate, updated as the kubelet does, and the certificate that a server presents.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use usher_server::app::CertificateSource;

/// The folder of a mounted Secret. The files are links through `..data`, which is itself a link to a folder.
pub struct Mounted {
    root: PathBuf,
    updates: usize,
}

impl Mounted {
    pub fn new(root: PathBuf, certificate: &str, key: &str) -> Mounted {
        std::fs::create_dir(&root).unwrap();
        let mut mounted = Mounted { root, updates: 0 };
        mounted.update(certificate, key);
        for file in ["tls.crt", "tls.key"] {
            std::os::unix::fs::symlink(format!("..data/{file}"), mounted.root.join(file)).unwrap();
        }
        mounted
    }

    /// Updates the files as the kubelet does: a new folder, a new `..data` link, one rename.
    pub fn update(&mut self, certificate: &str, key: &str) {
        let folder = self.root.join(format!("..{}", self.updates));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("tls.crt"), certificate).unwrap();
        std::fs::write(folder.join("tls.key"), key).unwrap();
        std::os::unix::fs::symlink(format!("..{}", self.updates), self.root.join("..data_tmp")).unwrap();
        std::fs::rename(self.root.join("..data_tmp"), self.root.join("..data")).unwrap();
        if let Some(old) = self.updates.checked_sub(1) {
            std::fs::remove_dir_all(self.root.join(format!("..{old}"))).unwrap();
        }
        self.updates += 1;
    }

    /// The certificate source with these files, as the chart passes them to `serve`.
    pub fn source(&self) -> CertificateSource {
        CertificateSource::Files { certificate: self.root.join("tls.crt"), key: self.root.join("tls.key") }
    }
}

/// The certificate of a new handshake (DER), if a client that trusts this bundle accepts it.
pub async fn served(address: SocketAddr, bundle: &str, name: &str) -> std::io::Result<Vec<u8>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap));
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(address).await?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name.to_owned().try_into().unwrap(), stream).await?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec())
}
