//! Workers over gRPC: they use the lease queue of the embedded bus, as those of
//! `daemon::api::worker` do over HTTP. What both share is in [`daemon::api::leases`]; the
//! messages are defined in `proto/workers.proto`.
//!
//! A call passes [`connection`] (how many there are, and how long they may stay unauthenticated),
//! then [`admission`] (who may call, and how much a call may send), then [`service`] (a unary call)
//! or [`stream`] (the session of a worker).

mod admission;
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
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use wire::workers_server::WorkersServer;

/// How often readiness is polled for the health service.
const HEALTH_INTERVAL: Duration = Duration::from_millis(500);

/// The most streams that a semaphore permit can cover at once.
const STREAMS_MAX: usize = 1 << 28;

/// How long the other end of a connection may take to say that it is there: as long as clients of
/// gRPC wait by default.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The largest metadata of a call, in bytes: as much as clients of gRPC take by default.
const HEADER_BYTES_MAX: u32 = 16 * 1024;

/// How long the last answers may take to reach their clients once all streams have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// A running server, on a thread of its own.
pub struct GrpcServer {
    /// The address on which it listens.
    pub address: SocketAddr,
    arbiter: Arbiter,
    phase: watch::Sender<ServerPhase>,
    streams: Arc<Semaphore>,
    ended: oneshot::Receiver<()>,
    api: Arc<ApiState>,
}

/// Starts the server of the setting `grpc.listen`, if that is set. For port 0 the system chooses a
/// port.
///
/// # Errors
///
/// It cannot listen on that address.
pub async fn start(api: Arc<ApiState>) -> io::Result<Option<GrpcServer>> {
    let Some(listen) = api.settings.grpc.listen else { return Ok(None) };
    let listener = std::net::TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let streams = Arc::new(Semaphore::new(streams_max(&api)));
    let (phase, phases) = watch::channel(ServerPhase::Serving);
    let (ended_sender, ended) = oneshot::channel();
    let arbiter = Arbiter::new();
    let (run_handles, run_streams) = (api.clone(), streams.clone());
    arbiter.spawn(async move {
        if let Err(error) = run(run_handles, listener, phases, run_streams).await {
            tracing::error!(error, "the gRPC server ended");
        }
        // The receiver may be gone.
        let _ = ended_sender.send(());
    });
    Ok(Some(GrpcServer { address, arbiter, phase, streams, ended, api }))
}

fn streams_max(api: &ApiState) -> usize {
    api.settings.grpc.streams_max.min(STREAMS_MAX)
}

async fn run(
    api: Arc<ApiState>,
    listener: std::net::TcpListener,
    phases: watch::Receiver<ServerPhase>,
    streams: Arc<Semaphore>,
) -> Result<(), String> {
    let listener =
        tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
    let settings = &api.settings;
    let (grpc, body_bytes_max) = (settings.grpc.clone(), settings.http.body_bytes_max);
    let (reporter, health) = tonic_health::server::health_reporter();
    let described = |error: tonic_reflection::server::Error| error.to_string();
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(wire::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let service = WorkerService::new(api.clone(), phases.clone(), streams);
    let workers = WorkersServer::new(service).max_decoding_message_size(body_bytes_max);
    let routes = Routes::new(workers)
        .add_service(health)
        .add_service(builder().build_v1().map_err(described)?)
        .add_service(builder().build_v1alpha().map_err(described)?)
        .prepare();
    let certificate = api.access.certificate(&settings.http.tls)?;
    let (max, address_max) = (connections_max(settings), settings.http.address_connections_max);
    let slots = ConnectionSlots::new(&api, "grpc.connections_max", max, address_max);
    let health_reports = report_health(api.clone(), reporter, phases.clone());
    let mut ending = phases;
    let server = Server::builder()
        .http2_keepalive_interval(Some(grpc.keep_alive.0))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .max_concurrent_streams(grpc.connection_calls_max)
        .initial_stream_window_size(grpc.window_bytes)
        .initial_connection_window_size(grpc.window_bytes)
        .serve_with_incoming_shutdown(
            Admission::new(routes, api.clone()),
            connection::incoming(listener, certificate, max, slots, grpc.handshake_timeout.0),
            async move {
                // An error means that the handle is gone, and nobody can stop the server any more.
                let _ = ending.wait_for(|phase| *phase == ServerPhase::Stopping).await;
            },
        );
    tokio::select! {
        served = server => served.map_err(|error| error.to_string()),
        () = health_reports => Ok(()),
    }
}

/// Reports readiness to the health service. Returns a moment after all streams must have ended.
async fn report_health(
    api: Arc<ApiState>,
    reporter: tonic_health::server::HealthReporter,
    mut phases: watch::Receiver<ServerPhase>,
) {
    loop {
        let phase = *phases.borrow_and_update();
        let checks = api.manager.health().checks();
        let is_ready = phase == ServerPhase::Serving && checks.iter().all(|(_, good, _)| *good);
        let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in ["", wire::workers_server::SERVICE_NAME] {
            reporter.set_service_status(name, status).await;
        }
        if phase == ServerPhase::Stopping {
            return tokio::time::sleep(CLOSE_TIMEOUT).await;
        }
        tokio::select! {
            changed = phases.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(HEALTH_INTERVAL) => {}
        }
    }
}

impl GrpcServer {
    /// Stops the server. Workers with a session are notified, and have the time `grpc.drain` to
    /// send finished work.
    pub async fn stop(self) {
        let GrpcServer { arbiter, phase, streams, mut ended, api, .. } = self;
        // Errors mean that the server has ended by itself.
        let _ = phase.send(ServerPhase::Draining);
        let all_ended = streams.acquire_many(u32::try_from(streams_max(&api)).unwrap_or(u32::MAX));
        let _ = tokio::time::timeout(api.settings.grpc.drain.0, all_ended).await;
        let _ = phase.send(ServerPhase::Stopping);
        let _ = tokio::time::timeout(2 * CLOSE_TIMEOUT, &mut ended).await;
        arbiter.stop();
        // The thread has nothing left to do; one that does not end is left behind.
        let _ = actix_rt::task::spawn_blocking(move || arbiter.join()).await;
    }
}
