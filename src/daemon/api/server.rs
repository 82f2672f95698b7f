//! The server of the HTTP API: binds its port, accepts connections, and serves each of them.

use super::app::app;
use super::connection::Connection;
use super::connection_limits::http_connections_max;
use super::connection_slots::ConnectionSlots;
use crate::actors::role::Role;
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

/// The number of threads that serve requests. The actual work is done in the actors and by the
/// readers of the journal.
const HTTP_WORKERS: usize = 2;

/// How long a graceful shutdown waits for connections with active requests.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The same for the server of a standby that becomes active: the process goes on, so that its
/// responses can be sent to their end.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the server reads and discards what a client still sends after the response (lingering
/// close). Without it the client could see a reset connection before it has read the response.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// How many connections the kernel queues until they are accepted, unless its own limit is lower.
const BACKLOG: u32 = 4096;

/// Makes a server that listens on the configured address. Returns it with its actual address: for
/// port 0 the system chooses a free port.
///
/// The server speaks only HTTP/1.1, over TLS too, because the limits on connections, heads and
/// bodies are made for that protocol.
///
/// # Errors
///
/// Returns an error if the address cannot be listened on, or the certificate cannot be used.
pub fn serve(api: Arc<ApiState>) -> io::Result<(Server, SocketAddr)> {
    let socket = bind(api.settings.http.listen)?;
    serve_on(api, listen(socket)?)
}

/// Makes the same server as [`serve`], on a listener. Several servers may have clones of it: each
/// connection goes to one of them.
///
/// # Errors
///
/// Returns an error if the certificate cannot be used.
pub fn serve_on(
    api: Arc<ApiState>,
    listener: std::net::TcpListener,
) -> io::Result<(Server, SocketAddr)> {
    let shutdown_timeout = match api.role {
        Role::Active(_) => SHUTDOWN_TIMEOUT,
        Role::Standby(_) => HANDOVER_TIMEOUT,
    };
    let http = api.settings.http.clone();
    let certificate = api.access.certificate(&http.tls).map_err(io::Error::other)?;
    let address = listener.local_addr()?;
    let connections_max = http_connections_max(&api.settings);
    let slots = ConnectionSlots::new(
        &api,
        "http.connections_max",
        connections_max,
        http.address_connections_max,
    );
    let builder = Server::build();
    let shutdown_signal = builder.graceful_shutdown_signal();
    let service = move || {
        let app = app(api.clone())
            .into_factory()
            .map_err(|error: actix_web::Error| error.as_response_error().error_response());
        let is_tls = certificate.is_some();
        // `HttpServer` would offer HTTP/2 over TLS. A service that is built by hand needs this
        // configuration, which has no other public constructor.
        let app_config = move |()| AppConfig::__priv_test_new(is_tls, address.to_string(), address);
        let (certificate, slots) = (certificate.clone(), slots.clone());
        let head_timeout = http.header_timeout.0;
        let shutdown_signal = shutdown_signal.clone();
        let mut http_service = HttpService::build()
            .graceful_shutdown_signal(move || {
                let shutdown_signal = shutdown_signal.clone();
                async move { shutdown_signal.notified().await }
            })
            .keep_alive(http.keep_alive.0)
            .client_request_timeout(head_timeout)
            .client_disconnect_timeout(LINGER_TIMEOUT)
            // A client that closes its side has disconnected, as a killed worker does: its pending
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
            // A connection keeps the certificate that is current when it is accepted.
            let tls = certificate.as_ref().map(|certificate| certificate.current().http);
            let connection =
                open_connection(socket, tls.map(TlsAcceptor::from), &slots, head_timeout);
            async move { connection.map_err(DispatchError::Io) }
        })
        .and_then(http_service)
    };
    let server = builder
        .workers(HTTP_WORKERS)
        .max_concurrent_connections(connections_max.div_ceil(HTTP_WORKERS))
        .disable_signals()
        .shutdown_timeout(shutdown_timeout.as_secs())
        .listen("api", listener, service)?;
    Ok((server.run(), address))
}

/// Acquires a slot for a socket, and makes its connection, which is returned with the address of
/// the client. Returns an error if the socket is closed, or there is no slot.
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

/// Binds a socket to an address. The socket does not listen yet.
///
/// # Errors
///
/// Returns an error if another process has bound the address, or it is not one of this machine's.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart need not wait until connections of the previous process leave TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Makes a bound socket listen.
///
/// # Errors
///
/// Returns an error if another process listens on the address.
pub fn listen(socket: TcpSocket) -> io::Result<std::net::TcpListener> {
    socket.listen(BACKLOG)?.into_std()
}
