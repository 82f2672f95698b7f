//! Probes whether workers can connect over gRPC. It calls the port as a worker would, and changes
//! nothing.

use super::admission::SERVICE_NAME;
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

/// An empty message: a flag and the length 0.
const EMPTY_MESSAGE: &[u8] = &[0; 5];

/// The health service's response "serving": field 1 is 1.
const SERVING_RESPONSE: &[u8] = &[0x08, 0x01];

/// The port to probe.
pub struct ProbeTarget {
    /// The address on which it listens.
    pub address: SocketAddr,
    /// The client configuration for TLS; `None`: without TLS.
    pub tls: Option<ClientConfig>,
    /// The host name, as in the certificate.
    pub host: String,
    /// The token; empty if there is none.
    pub token: String,
}

/// The result of a probe.
#[derive(Debug)]
pub struct ProbeResult {
    /// Whether the health service reports that the manager works.
    pub is_serving: bool,
    /// Whether the token was accepted; if not, why.
    pub admission: Result<(), String>,
}

/// Calls the health service of a port, and makes a worker's call that names no message.
///
/// # Errors
///
/// The other end does not speak gRPC, or its certificate is not trusted.
pub async fn probe_port(port: ProbeTarget) -> Result<ProbeResult, String> {
    let ProbeTarget { address, tls, host, token } = port;
    let socket = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    match tls {
        None => send_calls(socket, "http", &address.to_string(), &token).await,
        Some(mut config) => {
            config.alpn_protocols = vec![b"h2".to_vec()];
            let authority = format!("{host}:{}", address.port());
            let host = host.trim_matches(['[', ']']).to_owned();
            let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
            let connector = TlsConnector::from(Arc::new(config));
            let socket = connector.connect(name, socket).await;
            send_calls(socket.map_err(|error| error.to_string())?, "https", &authority, &token)
                .await
        }
    }
}

async fn send_calls(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    scheme: &str,
    authority: &str,
    token: &str,
) -> Result<ProbeResult, String> {
    let no_grpc = |error: h2::Error| format!("it does not speak gRPC: {error}");
    let (mut sends, connection) = handshake(socket).await.map_err(no_grpc)?;
    // An error of the connection also ends the calls, which return it.
    let driver = actix_rt::spawn(async move { drop(connection.await) });
    let url = |method: &str| format!("{scheme}://{authority}/{method}");
    let responses = async {
        let health =
            call_with_empty_message(&mut sends, &url("grpc.health.v1.Health/Check"), "").await?;
        let worker =
            call_with_empty_message(&mut sends, &url(&format!("{SERVICE_NAME}/Extend")), token)
                .await?;
        Ok::<_, h2::Error>((health, worker))
    };
    let responses = responses.await.map_err(no_grpc);
    driver.abort();
    let ((status, message), (refused, _)) = responses?;
    let is_serving = status.code() == Code::Ok && message.ends_with(SERVING_RESPONSE);
    // The message does not exist, as an admitted caller is answered.
    let is_refused = matches!(refused.code(), Code::Unauthenticated | Code::PermissionDenied);
    let admitted = if is_refused { Err(refused.message().to_owned()) } else { Ok(()) };
    Ok(ProbeResult { is_serving, admission: admitted })
}

/// Makes a call with an empty message, and returns its status and response.
async fn call_with_empty_message(
    sends: &mut SendRequest<Bytes>,
    url: &str,
    token: &str,
) -> Result<(Status, Vec<u8>), h2::Error> {
    let mut request = Request::post(url)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers");
    if !token.is_empty() {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(()).map_err(|_| h2::Error::from(h2::Reason::INTERNAL_ERROR))?;
    std::future::poll_fn(|context| sends.poll_ready(context)).await?;
    let (answer, mut body) = sends.send_request(request, false)?;
    body.send_data(Bytes::from_static(EMPTY_MESSAGE), true)?;
    let answer = answer.await?;
    let status = |headers: &HeaderMap| Status::from_header_map(headers);
    let at_once = status(answer.headers());
    let (mut body, mut message) = (answer.into_body(), Vec::new());
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.remaining())?;
        message.extend_from_slice(&part);
    }
    let trailing = body.trailers().await?;
    let ended = at_once.or_else(|| trailing.as_ref().and_then(status));
    Ok((ended.unwrap_or_else(|| Status::unknown("it told no status of gRPC")), message))
}
