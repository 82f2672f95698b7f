//! Stands by: looks whether this process can become active, and serves reads meanwhile.

use crate::cannot_listen;
use anyhow::{Context, Result};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use workflow_manager::access::Access;
use workflow_manager::actors::broker_probe::BrokerProbe;
use workflow_manager::actors::loaded_definitions::Definitions;
use workflow_manager::actors::role::{LastLook, Standby};
use workflow_manager::actors::standby_watch::StandbyWatch;
use workflow_manager::api::ServerHandle;
use workflow_manager::api::state::ApiState;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::cli::signals::Signals;
#[cfg(feature = "grpc")]
use workflow_manager::grpc::{self, GrpcServer};
use workflow_manager::journal::{
    ActiveProcess, Journal, JournalError, PostgresOptions, PostgresStandby, Remedy,
};
use workflow_manager::service::SystemdNotifier;
use workflow_manager::settings::Settings;
use workflow_manager::telemetry::Metrics;
use workflow_manager::{api, reload};

/// How long the servers of a standby that takes over serve the connections that they have just
/// accepted.
const ACCEPTED_GRACE: Duration = Duration::from_millis(100);

/// How long a stop of a standby waits for requests under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What a process needs to stand by, and then to be active.
pub(crate) struct Candidacy {
    pub(crate) settings: Settings,
    pub(crate) definitions: Definitions,
    pub(crate) metrics: Metrics,
    /// The workers in this process, on the embedded bus.
    pub(crate) workers: Workers,
}

/// A process that has become active.
pub(crate) struct Activation {
    pub(crate) journal: Box<dyn Journal>,
    /// The servers that have served reads while it stood by; `None`: it did not wait.
    pub(crate) servers: Option<StandbyServers>,
}

/// Waits until this process is the active one of its name. Returns `None` if a signal asks for a
/// stop before.
pub(crate) async fn become_active(
    options: PostgresOptions,
    candidacy: &Candidacy,
    signals: &mut Signals,
    hang_up: &mut Signal,
    service: &SystemdNotifier,
) -> Result<Option<Activation>> {
    // A server that cannot be reached ends the start: its address may be wrong.
    let mut standby = tokio::task::spawn_blocking(|| PostgresStandby::register(options)).await??;
    let mut watch = StandbyWatch::new(BrokerProbe::from_settings(&candidacy.settings)?);
    let mut servers: Option<StandbyServers> = None;
    loop {
        let error = match tokio::task::spawn_blocking(|| standby.try_activate()).await? {
            Ok(journal) => {
                candidacy.metrics.cluster.record_activation(journal.has_taken_over());
                if let Some(servers) = &servers {
                    servers.looks.send_replace(LastLook::Taken);
                }
                return Ok(Some(Activation { journal: Box::new(journal), servers }));
            }
            Err((error, waiting)) => {
                standby = waiting;
                error
            }
        };
        let text = error.to_string();
        let look = to_look(error)?;
        service.notify_standby(&text);
        match &servers {
            Some(servers) => drop(servers.looks.send_replace(look)),
            None => {
                tracing::warn!("{text}");
                servers = Some(StandbyServers::start(candidacy, &standby, look)?);
            }
        }
        watch.probe_if_lost(&mut standby).await;
        tokio::select! {
            signal = signals.next() => {
                tracing::info!("{signal}: stopping");
                if let Some(servers) = servers {
                    servers.stop().await;
                }
                return Ok(None);
            }
            Some(()) = hang_up.recv() => if let Some(servers) = &servers {
                servers.reload(service).await;
            },
            () = tokio::time::sleep(watch.look_interval(&standby)) => {}
        }
    }
}

/// Returns what a look has found that did not make this process active. An error that time does not
/// mend stays one.
fn to_look(error: JournalError) -> Result<LastLook, JournalError> {
    if let JournalError::ActiveElsewhere { manager, address, since, .. } = error {
        return Ok(LastLook::ActiveElsewhere(ActiveProcess { manager, address, since }));
    }
    if error.remedy() == Remedy::WaitForServer {
        return Ok(LastLook::Failed(error.to_string()));
    }
    Err(error)
}

/// The servers of a process that stands by. Those of the manager take over their listeners, so that
/// no connection is refused in between.
pub(crate) struct StandbyServers {
    state: Arc<ApiState>,
    looks: watch::Sender<LastLook>,
    http_listener: TcpListener,
    grpc_listener: Option<TcpListener>,
    http: ServerHandle,
    #[cfg(feature = "grpc")]
    grpc: Option<GrpcServer>,
    certificate_watch: JoinHandle<()>,
}

/// The sockets of the servers.
pub(crate) struct Listeners {
    pub(crate) http: HttpSocket,
    /// `None`: the gRPC server, if there is one, binds its address itself.
    pub(crate) grpc: Option<TcpListener>,
}

impl Listeners {
    /// Returns the sockets of a start that did not stand by.
    pub(crate) fn bound(http: TcpSocket) -> Listeners {
        Listeners { http: HttpSocket::Bound(http), grpc: None }
    }
}

/// The socket of the HTTP server.
pub(crate) enum HttpSocket {
    /// It does not listen yet: clients are refused until the manager has started.
    Bound(TcpSocket),
    /// It listens.
    Listening(TcpListener),
}

impl HttpSocket {
    /// Returns the socket as one that listens.
    pub(crate) fn listen(self) -> std::io::Result<TcpListener> {
        match self {
            HttpSocket::Bound(socket) => api::listen(socket),
            HttpSocket::Listening(listener) => Ok(listener),
        }
    }
}

impl StandbyServers {
    fn start(
        candidacy: &Candidacy,
        standby: &PostgresStandby,
        look: LastLook,
    ) -> Result<StandbyServers> {
        let Candidacy { settings, definitions, metrics, .. } = candidacy;
        let cannot_listen = || cannot_listen(settings.http.listen);
        let http_listener =
            api::bind(settings.http.listen).and_then(api::listen).with_context(cannot_listen)?;
        let (looks, receiver) = watch::channel(look);
        let state = ApiState::stand_by(
            settings.clone(),
            definitions.clone(),
            standby.records(),
            metrics.clone(),
            Standby::new(receiver),
        );
        let (server, address) =
            api::serve_on(state.clone(), http_listener.try_clone()?).with_context(cannot_listen)?;
        let http = server.handle();
        actix_rt::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the HTTP server of the standby ended");
            }
        });
        tracing::info!(%address, "this manager stands by, and serves reads");
        #[cfg(feature = "grpc")]
        let (grpc_listener, grpc) = start_grpc(&state)?.unzip();
        #[cfg(not(feature = "grpc"))]
        let grpc_listener = None;
        let certificate_watch = actix_rt::spawn(reload::watch_certificate(state.reloader()));
        Ok(StandbyServers {
            state,
            looks,
            http_listener,
            grpc_listener,
            http,
            #[cfg(feature = "grpc")]
            grpc,
            certificate_watch,
        })
    }

    /// Returns clones of the listeners, for the servers of the manager.
    pub(crate) fn listeners(&self) -> std::io::Result<Listeners> {
        let grpc = self.grpc_listener.as_ref().map(TcpListener::try_clone).transpose()?;
        Ok(Listeners { http: HttpSocket::Listening(self.http_listener.try_clone()?), grpc })
    }

    /// Returns the tokens and the certificate, which a reload may have replaced.
    pub(crate) fn access(&self) -> Arc<Access> {
        self.state.access.clone()
    }

    /// Returns the definitions, which a reload may have replaced.
    pub(crate) fn definitions(&self) -> Definitions {
        (*self.state.definitions()).clone()
    }

    /// Stops the servers once the manager's own have the listeners. Requests under way are answered
    /// to their end; this does not wait for them.
    pub(crate) fn retire(self) {
        actix_rt::spawn(async move {
            // A stop drops the connections that are accepted and not served yet. From now on the
            // other server accepts them.
            self.http.pause().await;
            tokio::time::sleep(ACCEPTED_GRACE).await;
            self.close().await;
        });
    }

    /// Stops the servers, and waits a moment for requests under way.
    async fn stop(self) {
        // Requests that take longer are cut off: the process ends.
        let _ = tokio::time::timeout(STOP_TIMEOUT, self.close()).await;
    }

    async fn close(self) {
        self.certificate_watch.abort();
        #[cfg(feature = "grpc")]
        if let Some(grpc) = self.grpc {
            actix_rt::spawn(grpc.stop());
        }
        self.http.stop(true).await;
    }

    /// Reloads the workflow files, the tokens file and the certificate.
    async fn reload(&self, service: &SystemdNotifier) {
        service.notify_reloading();
        if let Err(error) = reload::reload(&self.state.reloader()).await {
            tracing::error!(%error, "SIGHUP: nothing was reloaded or changed");
        }
        if let Some(standby) = self.state.role.standby() {
            service.notify_standby(&standby.describe());
        }
    }
}

/// Starts the gRPC server, which refuses workers; `None`: it is disabled.
#[cfg(feature = "grpc")]
fn start_grpc(state: &Arc<ApiState>) -> Result<Option<(TcpListener, GrpcServer)>> {
    let Some(listen) = state.settings.grpc.listen else { return Ok(None) };
    let start = || {
        let listener = TcpListener::bind(listen)?;
        Ok::<_, std::io::Error>((listener.try_clone()?, grpc::start_on(state.clone(), listener)?))
    };
    start().map(Some).with_context(|| {
        format!("cannot listen on {listen}; choose another address in grpc.listen")
    })
}
