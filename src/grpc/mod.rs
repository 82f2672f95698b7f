//! The gRPC server for workers. It leases messages of the embedded bus, as `daemon::api::worker`
//! does over HTTP. Both use [`daemon::api::leases`]. The protocol is `proto/workers.proto`.
//!
//! A call passes through [`connection`], which limits connections and the time until they
//! authenticate, and [`admission`], which checks the token and limits the body. Then [`service`]
//! handles a unary call, and [`stream`] the session of a worker.

mod admission;
pub mod batch;
mod call_metrics;
mod connection;
mod conversions;
mod incoming;
mod outbound;
mod phase;
pub mod probe;
mod service;
mod session;
mod session_messages;
mod status;
mod stream;
mod stream_action;
pub mod stub;
mod times;
pub mod wire;

use actix_rt::Arbiter;
use admission::Admission;
use daemon::api::connection_limits::grpc_connections_max as connections_max;
use daemon::api::connection_slots::ConnectionSlots;
use daemon::api::state::ApiState;
use phase::ServerPhase;
use service::WorkerService;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use wire::workers_server::WorkersServer;

/// How often the health service is updated with the manager's readiness.
const HEALTH_INTERVAL: Duration = Duration::from_millis(500);

/// The upper limit of the setting `grpc.streams_max`: `stop` acquires all permits at once, as a
/// `u32`.
const STREAMS_MAX: usize = 1 << 28;

/// How long a client may take to acknowledge a keep-alive ping. This is the default of gRPC
/// clients.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The largest metadata of a call, in bytes. This is the default limit of gRPC clients.
const METADATA_BYTES_MAX: u32 = 16 * 1024;

/// How long the last responses may take to be sent once all streams have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// A running server, on its own thread.
pub struct GrpcServer {
    /// The address on which it listens.
    pub address: SocketAddr,
    arbiter: Arbiter,
    /// The phase of the server, which its streams watch.
    phase: watch::Sender<ServerPhase>,
    /// The permits of streams. All are available when no stream is open.
    streams: Arc<Semaphore>,
    /// Notified when the server has ended.
    ended: oneshot::Receiver<()>,
    api: Arc<ApiState>,
}

/// Starts the server on the address of the setting `grpc.listen`; `None`: it is not set. For port 0
/// the system chooses a port.
///
/// # Errors
///
/// Returns an error if it cannot listen on that address.
pub async fn start(api: Arc<ApiState>) -> io::Result<Option<GrpcServer>> {
    let Some(listen) = api.settings.grpc.listen else { return Ok(None) };
    start_on(api, TcpListener::bind(listen)?).map(Some)
}

/// Starts the same server as [`start`], on a listener. Several servers may have clones of it: each
/// connection goes to one of them.
///
/// # Errors
///
/// Returns an error if the listener cannot be used.
pub fn start_on(api: Arc<ApiState>, listener: TcpListener) -> io::Result<GrpcServer> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let streams = Arc::new(Semaphore::new(streams_max(&api)));
    let (phase, phases) = watch::channel(ServerPhase::Serving);
    let (ended_sender, ended) = oneshot::channel();
    let arbiter = Arbiter::new();
    let server = run(api.clone(), listener, phases, streams.clone());
    arbiter.spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(error, "the gRPC server ended");
        }
        // An error means that the handle was dropped.
        let _ = ended_sender.send(());
    });
    Ok(GrpcServer { address, arbiter, phase, streams, ended, api })
}

/// Returns how many streams may be open at the same time.
fn streams_max(api: &ApiState) -> usize {
    api.settings.grpc.streams_max.min(STREAMS_MAX)
}

/// Runs the server until it is stopped.
async fn run(
    api: Arc<ApiState>,
    listener: TcpListener,
    phases: watch::Receiver<ServerPhase>,
    streams: Arc<Semaphore>,
) -> Result<(), String> {
    let listener =
        tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
    let settings = &api.settings;
    let (grpc, body_bytes_max) = (settings.grpc.clone(), settings.http.body_bytes_max);
    let (reporter, health) = tonic_health::server::health_reporter();
    let to_text = |error: tonic_reflection::server::Error| error.to_string();
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(wire::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let service = WorkerService::new(api.clone(), phases.clone(), streams);
    let workers = WorkersServer::new(service).max_decoding_message_size(body_bytes_max);
    let routes = Routes::new(workers)
        .add_service(health)
        .add_service(builder().build_v1().map_err(to_text)?)
        .add_service(builder().build_v1alpha().map_err(to_text)?)
        .prepare();
    let certificate = api.access.certificate(&settings.http.tls)?;
    let total_max = connections_max(settings);
    let per_address_max = settings.http.address_connections_max;
    let slots = ConnectionSlots::new(&api, "grpc.connections_max", total_max, per_address_max);
    let health_reports = report_health(api.clone(), reporter, phases.clone());
    let mut shutdown_phases = phases;
    let server = Server::builder()
        .http2_keepalive_interval(Some(grpc.keep_alive.0))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .http2_max_header_list_size(METADATA_BYTES_MAX)
        .max_concurrent_streams(grpc.connection_calls_max)
        .initial_stream_window_size(grpc.window_bytes)
        .initial_connection_window_size(grpc.window_bytes)
        .serve_with_incoming_shutdown(
            Admission::new(routes, api.clone()),
            connection::incoming(listener, certificate, total_max, slots, grpc.handshake_timeout.0),
            async move {
                // An error means that the handle was dropped without stopping the server.
                let _ = shutdown_phases.wait_for(|phase| *phase == ServerPhase::Stopping).await;
            },
        );
    tokio::select! {
        result = server => result.map_err(|error| error.to_string()),
        () = health_reports => Ok(()),
    }
}

/// Reports readiness to the health service until the server stops. Then waits for `CLOSE_TIMEOUT`,
/// so that the last responses are sent, and returns.
async fn report_health(
    api: Arc<ApiState>,
    reporter: tonic_health::server::HealthReporter,
    mut phases: watch::Receiver<ServerPhase>,
) {
    loop {
        let phase = *phases.borrow_and_update();
        let checks = api.checks();
        let is_ready = phase == ServerPhase::Serving && checks.iter().all(|check| check.is_passed);
        let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in ["", wire::workers_server::SERVICE_NAME] {
            reporter.set_service_status(name, status).await;
        }
        if phase == ServerPhase::Stopping {
            return tokio::time::sleep(CLOSE_TIMEOUT).await;
        }
        tokio::select! {
            result = phases.changed() => if result.is_err() { return },
            () = tokio::time::sleep(HEALTH_INTERVAL) => {}
        }
    }
}

impl GrpcServer {
    /// Stops the server. Workers with a session are notified first, and may still reply for the
    /// time of the setting `grpc.drain`.
    pub async fn stop(self) {
        let GrpcServer { arbiter, phase, streams, mut ended, api, .. } = self;
        // An error of `send` means that the server has already ended.
        let _ = phase.send(ServerPhase::Draining);
        // All permits are available only after every stream has ended.
        let all_permits = u32::try_from(streams_max(&api)).unwrap_or(u32::MAX);
        let streams_ended = streams.acquire_many(all_permits);
        let _ = tokio::time::timeout(api.settings.grpc.drain.0, streams_ended).await;
        let _ = phase.send(ServerPhase::Stopping);
        // The server should end on its own after `CLOSE_TIMEOUT`.
        let _ = tokio::time::timeout(2 * CLOSE_TIMEOUT, &mut ended).await;
        arbiter.stop();
        // The thread has no work left. Joining it may block, so a thread for blocking tasks does
        // it.
        let _ = actix_rt::task::spawn_blocking(move || arbiter.join()).await;
    }
}
