//! TLS: the trusted certificate authorities, and connections to a broker over TLS.

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_rustls::TlsConnector;
use futures_rustls::client::TlsStream;
use futures_util::Stream;
use futures_util::io::{AsyncRead, AsyncWrite};
use lapin::tcp::AsyncTcpStream;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
#[cfg(unix)]
use std::os::fd::{AsFd as AsHandle, AsRawFd as AsRawHandle};
#[cfg(windows)]
use std::os::windows::io::{AsRawSocket as AsRawHandle, AsSocket as AsHandle};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Makes a configuration that trusts the certificate authorities of this machine, and those of a
/// file in PEM if one is given.
///
/// # Errors
///
/// Returns an error if the file has no usable certificates.
pub(crate) fn client_config(authorities: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    // Authorities of the machine that cannot be parsed are skipped.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = authorities {
        let to_error = |reason: String| {
            format!("the authorities in {}: {reason}; expected certificates in PEM", file.display())
        };
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(file)
            .and_then(Iterator::collect)
            .map_err(|error| to_error(error.to_string()))?;
        let (added_count, _) = roots.add_parsable_certificates(certificates);
        if added_count == 0 {
            return Err(to_error("there are none".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Opens a connection to a broker over TLS.
pub(crate) async fn connect(
    address: AMQPUri,
    properties: ConnectionProperties,
    config: Arc<ClientConfig>,
) -> lapin::Result<Connection> {
    let server_name =
        ServerName::try_from(address.authority.host.clone()).map_err(io::Error::other)?;
    let reactor = TlsReactor { tokio: Tokio::current(), config, server_name };
    let resolver = Runtime::tokio_current();
    let runtime = Runtime::new(RuntimeParts::new(Tokio::current(), reactor.clone()));
    let connect_tcp = async move |uri: AMQPUri, _| {
        let (host, port) = (uri.authority.host, uri.authority.port);
        let addresses = resolver.to_socket_addrs((host, port));
        Ok(AsyncTcpStream::connect(&reactor, addresses).await?)
    };
    Connection::connector(address, runtime, connect_tcp, properties).await
}

/// A reactor for lapin: the reactor of tokio, but with TLS on the connections that it opens.
#[derive(Clone, Debug)]
struct TlsReactor {
    /// The reactor to which everything else is delegated.
    tokio: Tokio,
    config: Arc<ClientConfig>,
    /// The name that the broker's certificate must be valid for.
    server_name: ServerName<'static>,
}

impl Reactor for TlsReactor {
    type TcpStream = TlsStream<<Tokio as Reactor>::TcpStream>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsHandle + AsRawHandle + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.tokio.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.tokio.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connector = TlsConnector::from(self.config.clone());
        let server_name = self.server_name.clone();
        let connecting = self.tokio.tcp_connect_addr(address);
        async move { connector.connect(server_name, connecting.await?).await }
    }
}
