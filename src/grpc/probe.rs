//! Probes whether workers can connect over gRPC. It connects to the port as a worker does, and
//! makes calls without side effects.

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

/// An encoded empty gRPC message: the compression flag 0 and the length 0, in four bytes.
const EMPTY_MESSAGE: &[u8] = &[0; 5];

/// The payload of the health service's response "serving": the varint field 1 has the value 1.
const SERVING_RESPONSE: &[u8] = &[0x08, 0x01];

/// The port to probe.
pub struct ProbeTarget {
    /// The address to connect to.
    pub address: SocketAddr,
    /// The client configuration for TLS; `None` to connect without TLS.
    pub tls: Option<ClientConfig>,
    /// The host name in the certificate, which is only used with TLS.
    pub host: String,
    /// The token of a worker; empty if it has none.
    pub token: String,
}

/// The result of a probe.
#[derive(Debug)]
pub struct ProbeResult {
    /// Whether the health service reports that the manager is ready.
    pub is_serving: bool,
    /// `Ok` if the token was accepted; otherwise the reason.
    pub admission: Result<(), String>,
}

/// Calls the health service of a port, and a method of the workers' service with an empty request.
///
/// # Errors
///
/// Returns an error if the port does not speak gRPC, or its certificate is not trusted.
pub async fn probe_port(target: ProbeTarget) -> Result<ProbeResult, String> {
    let ProbeTarget { address, tls, host, token } = target;
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

/// Sends both calls over a connection, and evaluates their responses.
async fn send_calls(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    scheme: &str,
    authority: &str,
    token: &str,
) -> Result<ProbeResult, String> {
    let to_reason = |error: h2::Error| format!("it does not speak gRPC: {error}");
    let (mut send_request, connection) = handshake(socket).await.map_err(to_reason)?;
    // The error of the connection is not needed here, because the calls return it too.
    let driver = actix_rt::spawn(async move { drop(connection.await) });
    let url = |method: &str| format!("{scheme}://{authority}/{method}");
    let responses = async {
        // The health service needs no token.
        let health =
            call_with_empty_message(&mut send_request, &url("grpc.health.v1.Health/Check"), "")
                .await?;
        let worker = call_with_empty_message(
            &mut send_request,
            &url(&format!("{SERVICE_NAME}/Extend")),
            token,
        )
        .await?;
        Ok::<_, h2::Error>((health, worker))
    };
    let responses = responses.await.map_err(to_reason);
    driver.abort();
    let ((health_status, message), (worker_status, _)) = responses?;
    let is_serving = health_status.code() == Code::Ok && message.ends_with(SERVING_RESPONSE);
    // The call also fails if it is admitted, because its request has no receipt. But then its code
    // is another one.
    let is_refused = matches!(worker_status.code(), Code::Unauthenticated | Code::PermissionDenied);
    let admission = if is_refused { Err(worker_status.message().to_owned()) } else { Ok(()) };
    Ok(ProbeResult { is_serving, admission })
}

/// Makes a call with an empty message. Returns its status and response.
async fn call_with_empty_message(
    send_request: &mut SendRequest<Bytes>,
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
    std::future::poll_fn(|context| send_request.poll_ready(context)).await?;
    let (response, mut request_body) = send_request.send_request(request, false)?;
    request_body.send_data(Bytes::from_static(EMPTY_MESSAGE), true)?;
    let response = response.await?;
    let find_status = |headers: &HeaderMap| Status::from_header_map(headers);
    let header_status = find_status(response.headers());
    let (mut body, mut response_message) = (response.into_body(), Vec::new());
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.remaining())?;
        response_message.extend_from_slice(&chunk);
    }
    let trailers = body.trailers().await?;
    let status = header_status.or_else(|| trailers.as_ref().and_then(find_status));
    Ok((status.unwrap_or_else(|| Status::unknown("it returned no gRPC status")), response_message))
}
