//! The server of the HTTP API: its port, its connections, and the service on each.

use super::app::app;
use super::connection::Connection;
use super::connection_limits::http_connections_max;
use super::connection_slots::ConnectionSlots;
use crate::api::state::ApiState;
use actix_http::HttpService;
use actix_http::error::DispatchError;
use actix_service::{IntoServiceFactory, ServiceFactoryExt, fn_service, map_config};
use actix_web::dev::{AppConfig, Server};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Threads that answer requests. The actual work is done in the actors and in SQLite's readers.
const HTTP_WORKERS: usize = 2;

/// How long the server reads and drops what a client still sends after it was answered, so that the
/// response reaches the client before the connection closes.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that the operating system queues until they are accepted, if it allows that many.
const BACKLOG: u32 = 4096;

/// Makes a server that is bound and ready to run. Returns it with its address: the system chooses
/// the port if it is 0.
///
/// Only HTTP/1.1 is spoken, over TLS too: the limits on connections, headers and bodies are those
/// of that protocol.
///
/// # Errors
///
/// The address cannot be listened on, or the certificate cannot be used.
pub fn serve(api: Arc<ApiState>) -> io::Result<(Server, SocketAddr)> {
    let socket = bind(api.settings.http.listen)?;
    serve_at(api, socket)
}

/// Makes the same server as [`serve`], at an address that was bound before.
///
/// # Errors
///
/// The address cannot be listened on, or the certificate cannot be used.
pub fn serve_at(api: Arc<ApiState>, socket: TcpSocket) -> io::Result<(Server, SocketAddr)> {
    let http = api.settings.http.clone();
    let certificate = api.access.certificate(&http.tls).map_err(io::Error::other)?;
    let listener = socket.listen(BACKLOG)?.into_std()?;
    let address = listener.local_addr()?;
    let max = http_connections_max(&api.settings);
    let slots =
        ConnectionSlots::new(&api, "http.connections_max", max, http.address_connections_max);
    let builder = Server::build();
    let stop = builder.graceful_shutdown_signal();
    let service = move || {
        let app = app(api.clone())
            .into_factory()
            .map_err(|error: actix_web::Error| error.as_response_error().error_response());
        let is_tls = certificate.is_some();
        // The only way to build a server without HTTP/2.
        let app_config = move |()| AppConfig::__priv_test_new(is_tls, address.to_string(), address);
        let (certificate, slots) = (certificate.clone(), slots.clone());
        let timeout = http.header_timeout.0;
        let stop = stop.clone();
        let mut http_service = HttpService::build()
            .graceful_shutdown_signal(move || {
                let stop = stop.clone();
                async move { stop.notified().await }
            })
            .keep_alive(http.keep_alive.0)
            .client_request_timeout(timeout)
            .client_disconnect_timeout(LINGER_TIMEOUT)
            // A client that closes its end has gone, as a worker that was killed: its pending
            // request is cancelled.
            .h1_allow_half_closed(false)
            .on_connect_ext(|connection: &Connection, data| {
                data.insert(connection.slot().clone());
            })
            .local_addr(address);
        if is_tls {
            http_service = http_service.secure();
        }
        let http_service = http_service.h1(map_config(app, app_config));
        fn_service(move |socket: TcpStream| {
            // Each connection gets the certificate of its time.
            let tls = certificate.as_ref().map(|certificate| certificate.current().http);
            let connection = open_connection(socket, tls.map(TlsAcceptor::from), &slots, timeout);
            async move { connection.map_err(DispatchError::Io) }
        })
        .and_then(http_service)
    };
    let server = builder
        .workers(HTTP_WORKERS)
        .max_concurrent_connections(max.div_ceil(HTTP_WORKERS))
        .disable_signals()
        .shutdown_timeout(1)
        .listen("api", listener, service)?;
    Ok((server.run(), address))
}

/// Makes the connection of a socket, once it has a slot.
fn open_connection(
    socket: TcpStream,
    tls: Option<TlsAcceptor>,
    slots: &Arc<ConnectionSlots>,
    head_timeout: Duration,
) -> io::Result<(Connection, Option<SocketAddr>)> {
    let address = socket.peer_addr()?;
    let slot_guard = slots.acquire_slot(address).ok_or(io::ErrorKind::ConnectionRefused)?;
    Ok((Connection::new(socket, tls.as_ref(), slot_guard, head_timeout), Some(address)))
}

/// Binds a socket to an address, without listening yet.
///
/// # Errors
///
/// Another process has bound the address, or it is not one of this machine's.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart need not wait for the connections of the previous process.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
