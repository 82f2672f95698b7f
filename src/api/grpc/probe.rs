//! Whether workers can come over gRPC: asks the port as a worker would, and changes nothing.

use super::gate::SERVICE;
use bytes::{Buf, Bytes};
use h2::client::{SendRequest, handshake};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::codegen::http::{HeaderMap, Request, header};
use tonic::{Code, Status};

/// A message without content: a flag and a length of none.
const NOTHING: &[u8] = &[0; 5];

/// What the health service says of one that serves: field 1 is 1.
const SERVES: &[u8] = &[0x08, 0x01];

/// The other end of a connection.
pub struct Port {
    /// Where it listens.
    pub address: SocketAddr,
    /// With TLS: whom we believe.
    pub tls: Option<ClientConfig>,
    /// The name of the host, as its certificate has it.
    pub host: String,
    /// The token; empty: none.
    pub token: String,
}

/// What a port has answered.
#[derive(Debug)]
pub struct Probed {
    /// The health service says that the manager works.
    pub is_serving: bool,
    /// The token was taken; or why not.
    pub admitted: Result<(), String>,
}

/// Asks the health service of a port, and makes a call of a worker that names no message.
///
/// # Errors
///
/// Nobody speaks gRPC there, or the certificate is not believed.
pub async fn probe(port: Port) -> Result<Probed, String> {
    let Port { address, tls, host, token } = port;
    let socket = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    match tls {
        None => ask(socket, "http", &address.to_string(), &token).await,
        Some(mut config) => {
            config.alpn_protocols = vec![b"h2".to_vec()];
            let authority = format!("{host}:{}", address.port());
            let host = host.trim_matches(['[', ']']).to_owned();
            let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
            let connector = TlsConnector::from(Arc::new(config));
            let socket = connector.connect(name, socket).await;
            ask(socket.map_err(|error| error.to_string())?, "https", &authority, &token).await
        }
    }
}

async fn ask(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    scheme: &str,
    authority: &str,
    token: &str,
) -> Result<Probed, String> {
    let no_grpc = |error: h2::Error| format!("it does not speak gRPC: {error}");
    let (mut sends, connection) = handshake(socket).await.map_err(no_grpc)?;
    // An error ends the calls too, and they tell it.
    let driven = actix_rt::spawn(async move { drop(connection.await) });
    let place = |method: &str| format!("{scheme}://{authority}/{method}");
    let told = async {
        let health = call(&mut sends, &place("grpc.health.v1.Health/Check"), "").await?;
        let worker = call(&mut sends, &place(&format!("{SERVICE}/Extend")), token).await?;
        Ok::<_, h2::Error>((health, worker))
    };
    let told = told.await.map_err(no_grpc);
    driven.abort();
    let ((status, message), (refused, _)) = told?;
    let is_serving = status.code() == Code::Ok && message.ends_with(SERVES);
    // There is no such message, as whoever is admitted hears.
    let is_refused = matches!(refused.code(), Code::Unauthenticated | Code::PermissionDenied);
    let admitted = if is_refused { Err(refused.message().to_owned()) } else { Ok(()) };
    Ok(Probed { is_serving, admitted })
}

/// One call with an empty message: how it ended, and what was answered.
async fn call(
    sends: &mut SendRequest<Bytes>,
    place: &str,
    token: &str,
) -> Result<(Status, Vec<u8>), h2::Error> {
    let mut request = Request::post(place)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers");
    if !token.is_empty() {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(()).map_err(|_| h2::Error::from(h2::Reason::INTERNAL_ERROR))?;
    std::future::poll_fn(|context| sends.poll_ready(context)).await?;
    let (answer, mut body) = sends.send_request(request, false)?;
    body.send_data(Bytes::from_static(NOTHING), true)?;
    let answer = answer.await?;
    let status = |headers: &HeaderMap| Status::from_header_map(headers);
    let at_once = status(answer.headers());
    let (mut body, mut message) = (answer.into_body(), Vec::new());
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.remaining())?;
        message.extend_from_slice(&part);
    }
    let behind = body.trailers().await?;
    let ended = at_once.or_else(|| behind.as_ref().and_then(status));
    Ok((ended.unwrap_or_else(|| Status::unknown("it told no status of gRPC")), message))
}
