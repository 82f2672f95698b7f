//! The binary: reads the arguments, runs the daemon or a client command, and returns the exit code.

mod standby;

use anyhow::{Context, Result};
use clap::FromArgMatches;
use rustix::process::{Resource, getrlimit};
use standby::{Activation, Candidacy, HttpSocket, Listeners, StandbyServers, become_active};
use std::fs::DirBuilder;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use workflow_manager::actors::bus_starter::StartError;
use workflow_manager::actors::fatal::StopReason;
use workflow_manager::actors::journal::EXIT_TAKEN_OVER;
use workflow_manager::actors::loaded_definitions::{Definitions, index_by_name};
use workflow_manager::actors::manager::{self, Manager, Parts, Threads};
use workflow_manager::actors::manager_handle::ManagerHandle;
use workflow_manager::api::Server;
use workflow_manager::api::state::ApiState;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::cli::dev::DevSession;
use workflow_manager::cli::signals::Signals;
use workflow_manager::cli::{self, Arguments, ClientError, ServeArguments};
use workflow_manager::clock;
use workflow_manager::engine::Definition;
#[cfg(feature = "grpc")]
use workflow_manager::grpc::GrpcServer;
use workflow_manager::journal::Journal;
use workflow_manager::load::LoadedWorkflows;
use workflow_manager::reload::Reloader;
use workflow_manager::service::SystemdNotifier;
use workflow_manager::settings::{BusKind, Settings};
use workflow_manager::telemetry::{Metrics, log};
use workflow_manager::{api, load, reload};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code of a stop that was aborted because a thread did not end.
const EXIT_ABORTED: i32 = 1;

/// The exit code of wrong usage. clap uses it too.
const EXIT_USAGE: u8 = 2;

/// The exit code when the manager is unreachable.
const EXIT_UNREACHABLE: u8 = 3;

/// The exit code of `wait` after its time limit.
const EXIT_TIMEOUT: u8 = 4;

/// How long a stop may take beyond its grace period before it is aborted. In this time the manager
/// closes what did not end within the grace period.
const STOP_OVERTIME: Duration = Duration::from_secs(2);

/// The minimum limit of open files: for the journal and its readers, threads, brokers, and a few
/// connections.
const OPEN_FILES_MIN: u64 = 128;

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    let _failpoints = fail::FailScenario::setup();
    let mut out = std::io::stdout().lock();
    let matches = cli::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let run_daemon = |arguments: &ServeArguments, out: &mut dyn Write| {
        serve(arguments, out).map_err(|error| ClientError::Refused(format!("{error:#}")))
    };
    let code = report_result(cli::run(arguments, run_daemon, &mut out));
    log::flush();
    code
}

/// Returns the exit code of a command. Prints its error, if it has one.
fn report_result(result: Result<ExitCode, ClientError>) -> ExitCode {
    let (error, code) = match result {
        Ok(code) => return code,
        // The reader of the output has closed its pipe, as in `| head`.
        Err(ClientError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
            return ExitCode::SUCCESS;
        }
        Err(error @ ClientError::Unreachable { .. }) => (error, ExitCode::from(EXIT_UNREACHABLE)),
        Err(error @ ClientError::Usage(_)) => (error, ExitCode::from(EXIT_USAGE)),
        Err(error @ ClientError::TimedOut(_)) => (error, ExitCode::from(EXIT_TIMEOUT)),
        Err(error @ (ClientError::Refused(_) | ClientError::Output(_))) => {
            (error, ExitCode::FAILURE)
        }
    };
    log::print(&format!("workflow-manager: {error}"));
    code
}

/// Runs the daemon until it stops, or only prints its settings if the arguments say so.
fn serve(arguments: &ServeArguments, out: &mut dyn Write) -> Result<ExitCode> {
    log::start()?;
    let mut settings = {
        let flags = &arguments.settings;
        Settings::load(flags.config.as_deref(), &flags.overrides())?
    };
    if arguments.print_settings {
        writeln!(out, "{}", serde_json::to_string_pretty(&settings.masked())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let dev = arguments.dev.map(|options| DevSession::prepare(options, &mut settings));
    let dev = dev.transpose().context("the example of dev cannot be written")?;
    log::init(&settings.log, clock::timer_now)?;
    check_open_files_limit()?;
    for warning in settings.warnings() {
        tracing::warn!(%warning, "settings");
    }
    let loaded = match (load::load_for_manager(&settings.workflows, &settings), &dev) {
        (Err(errors), Some(dev)) => {
            dev.accept_errors(&settings, errors)?;
            LoadedWorkflows::default()
        }
        (result, _) => result?,
    };
    for warning in &loaded.warnings {
        tracing::warn!(%warning, "workflow file");
    }
    let is_in_memory = settings.is_in_memory();
    let _temporary_journal = is_in_memory.then(|| TemporaryJournal::create(&mut settings));
    let _temporary_journal = _temporary_journal.transpose()?;
    if dev.is_none() {
        warn_of_surprises(&settings, &loaded.definitions, is_in_memory);
    }
    actix_rt::System::new()
        .block_on(run(settings, index_by_name(loaded.definitions), dev))
        .or_else(exit_if_fenced)
}

/// Logs warnings about settings that are allowed, but may not be what the user expects.
fn warn_of_surprises(settings: &Settings, definitions: &[Arc<Definition>], is_in_memory: bool) {
    if definitions.is_empty() {
        tracing::warn!(
            "no workflow is loaded: name files with --workflows; only jobs from the \
             journal continue"
        );
    }
    if settings.default_bus() == BusKind::Embedded.name() && needs_external_workers(definitions) {
        tracing::warn!(
            "no broker is set: workers take their messages over HTTP (workflow-manager work QUEUE \
             -- CMD, or POST /api/queue/QUEUE/receive); for RabbitMQ set AMQP_SERVER or \
             --amqp-server to amqp://user:password@host:port/vhost"
        );
    }
    if is_in_memory {
        tracing::warn!(
            journal = %settings.journal.file.display(),
            "--db :memory: keeps nothing: the journal is removed when the manager ends, and all \
             jobs with it; for jobs that outlive it name a file"
        );
    }
}

/// Returns an error if the process may open fewer files than [`OPEN_FILES_MIN`].
fn check_open_files_limit() -> Result<()> {
    let open_files_max = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    anyhow::ensure!(
        open_files_max >= OPEN_FILES_MIN,
        "the process may have {open_files_max} open files, and needs {OPEN_FILES_MIN} at least, \
         one more for each connection: raise the limit (ulimit -n 65536; LimitNOFILE=65536 in a \
         unit of systemd; --ulimit nofile=65536 of a container)"
    );
    Ok(())
}

/// Logs the first time that `/readyz` reports readiness.
async fn log_when_ready(manager: ManagerHandle) {
    manager.health().wait_until_ready().await;
    tracing::info!("ready");
}

/// The directory of a journal that is removed when the process ends. Such a journal is a file too,
/// because readers open it by name.
struct TemporaryJournal(PathBuf);

impl TemporaryJournal {
    /// Creates the directory, and sets the journal's file in the settings to a file in it.
    fn create(settings: &mut Settings) -> Result<TemporaryJournal> {
        let directory =
            std::env::temp_dir().join(format!("workflow-manager-{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .with_context(|| format!("cannot create {} for the journal", directory.display()))?;
        settings.journal.file = directory.join("journal.db");
        Ok(TemporaryJournal(directory))
    }
}

impl Drop for TemporaryJournal {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(
                directory = %self.0.display(),
                %error,
                "the journal could not be removed"
            );
        }
    }
}

/// Returns whether a step sends messages to workers on the default bus. The steps that call one of
/// these workflows do not.
fn needs_external_workers(definitions: &[Arc<Definition>]) -> bool {
    let workflow_queues: Vec<String> =
        definitions.iter().map(|definition| Definition::workflow_queue(&definition.name)).collect();
    definitions
        .iter()
        .flat_map(|definition| definition.sending_steps())
        .any(|step| step.bus.is_none() && !workflow_queues.contains(&step.queue.to_string()))
}

/// Starts the manager and its servers, waits for a reason to stop, and stops them.
async fn run(
    settings: Settings,
    definitions: Definitions,
    dev: Option<DevSession>,
) -> Result<ExitCode> {
    let stop_grace = settings.shutdown.grace.0 + drain_time(&settings);
    let mut signals = Signals::for_stop()?;
    warn_of_ignored_signals()?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let stop_sender = abort_late_stops(stop_grace)?;
    let service = SystemdNotifier::from_env();
    let postgres = settings.postgres_options().map_err(anyhow::Error::msg)?;
    let workers = dev.as_ref().map_or_else(Workers::new, DevSession::workers);
    let candidacy = Candidacy { settings, definitions, metrics: Metrics::new(), workers };
    let activation = match postgres {
        None => None,
        Some(options) => {
            match become_active(options, &candidacy, &mut signals, &mut hang_up, &service).await? {
                None => return Ok(ExitCode::SUCCESS),
                activation => activation,
            }
        }
    };
    let Running { mut manager, state, server, address, grpc } =
        start(candidacy, activation, &service, hang_up).await?;
    // Without gRPC there is nothing to stop.
    #[cfg(not(feature = "grpc"))]
    let () = grpc;
    let server_handle = server.handle();
    actix_rt::spawn(reload::watch_certificate(state.reloader()));
    actix_rt::spawn(log_when_ready(manager.handle().clone()));
    let (handle, systemd) = (manager.handle().clone(), service.clone());
    actix_rt::spawn(async move { systemd.run(&handle).await });
    if let Some(dev) = &dev {
        dev.begin(&state, address).await;
    }
    let code = tokio::select! {
        result = server => {
            let error = result.err().map(tracing::field::display);
            tracing::error!(error, "the HTTP server ended: stopping");
            ExitCode::FAILURE
        }
        signal = signals.next() => { tracing::info!("{signal}: stopping"); ExitCode::SUCCESS }
        reason = manager.wait_for_stop_reason() => report_stop_reason(&reason),
    };
    manager.announce_leaving();
    // An error means that a signal began the stop: the receiver was dropped then.
    let _ = stop_sender.send(());
    service.notify_stopping(stop_grace + STOP_OVERTIME);
    state.event_hub.close();
    #[cfg(feature = "grpc")]
    if let Some(grpc) = grpc {
        // Both servers wait for active calls, so they stop in parallel.
        actix_rt::spawn(server_handle.stop(true));
        grpc.stop().await;
    }
    server_handle.stop(true).await;
    manager.stop().await;
    tracing::info!("stopped");
    Ok(code)
}

/// Logs why the manager asks for a stop, and returns the exit code.
fn report_stop_reason(reason: &StopReason) -> ExitCode {
    match reason {
        StopReason::Failed(reason) => {
            tracing::error!(reason, "the manager cannot continue: stopping");
            ExitCode::FAILURE
        }
        StopReason::StepDown(reason) => {
            tracing::warn!(reason, "this manager steps down: stopping");
            ExitCode::from(EXIT_TAKEN_OVER)
        }
    }
}

/// A manager that runs, with its servers.
struct Running {
    manager: Manager,
    state: Arc<ApiState>,
    server: Server,
    address: SocketAddr,
    grpc: RunningGrpc,
}

#[cfg(feature = "grpc")]
type RunningGrpc = Option<GrpcServer>;

#[cfg(not(feature = "grpc"))]
type RunningGrpc = ();

/// Starts the manager and its servers. If it stood by, they go on where the servers of the standby
/// have been.
async fn start(
    candidacy: Candidacy,
    activation: Option<Activation>,
    service: &Arc<SystemdNotifier>,
    hang_up: Signal,
) -> Result<Running> {
    let (journal, standby) =
        activation.map_or((None, None), |active| (Some(active.journal), active.servers));
    service.notify_recovering(&candidacy.settings.journal.location());
    // The socket is bound before a file is opened, so that a start that fails for its address
    // leaves the journal unchanged.
    let listen = candidacy.settings.http.listen;
    let listeners = match &standby {
        Some(standby) => standby.listeners(),
        None => api::bind(listen).map(Listeners::bound),
    };
    let listeners = listeners.with_context(|| cannot_listen(listen))?;
    let manager = start_manager(candidacy, standby.as_ref(), journal, service)?;
    let state = match &standby {
        Some(standby) => ApiState::with_access(&manager, standby.access()),
        None => ApiState::new(&manager),
    };
    let (handle, systemd) = (manager.handle().clone(), service.clone());
    actix_rt::spawn(reload_on_hang_up(hang_up, state.reloader(), handle, systemd));
    let ((server, address), grpc) = match start_servers(&state, listeners).await {
        Ok(servers) => servers,
        Err(error) => {
            // A stop closes the journal properly.
            manager.stop().await;
            return Err(error);
        }
    };
    if let Some(standby) = standby {
        standby.retire();
    }
    let settings = &state.settings;
    let bus = match settings.amqp_bus(settings.default_bus()) {
        Some(amqp) => amqp.server.to_string(),
        None => settings.default_bus().to_owned(),
    };
    tracing::info!(%address, bus, journal = settings.journal.location(), "listening");
    Ok(Running { manager, state, server, address, grpc })
}

/// Says that an address cannot be listened on.
fn cannot_listen(listen: SocketAddr) -> String {
    format!("cannot listen on {listen}; choose another address with --listen")
}

/// Starts the manager on the journal, or on that of the settings if there is none here. If it stood
/// by, it goes on with the definitions of that time.
fn start_manager(
    candidacy: Candidacy,
    standby: Option<&StandbyServers>,
    journal: Option<Box<dyn Journal>>,
    service: &Arc<SystemdNotifier>,
) -> Result<Manager, StartError> {
    let Candidacy { settings, definitions, metrics, workers } = candidacy;
    let definitions = standby.map_or(definitions, StandbyServers::definitions);
    let definitions = definitions.into_values().collect();
    let parts = Parts { journal, metrics, ..Parts::standard(workers) };
    let _keeper = service.keep_watchdog();
    manager::start_on(Threads::Own(Vec::new()), settings, definitions, parts)
}

/// Returns the exit code of a start that failed because another manager has taken the name. Any
/// other error stays one.
fn exit_if_fenced(error: anyhow::Error) -> Result<ExitCode> {
    match error.downcast_ref::<StartError>() {
        Some(StartError::Journal(journal_error)) if journal_error.is_fenced() => {
            tracing::error!(error = %journal_error, "the start ends");
            Ok(ExitCode::from(EXIT_TAKEN_OVER))
        }
        Some(_) | None => Err(error),
    }
}

/// Starts a task that logs each signal that the manager ignores.
fn warn_of_ignored_signals() -> Result<()> {
    let mut signals = Signals::for_ignored()?;
    actix_rt::spawn(async move {
        loop {
            let signal = signals.next().await;
            tracing::warn!(
                signal,
                "this signal is ignored: SIGTERM stops the manager, SIGHUP reloads the workflow \
                 files"
            );
        }
    });
    Ok(())
}

/// Reloads the workflow files, the tokens file and the certificate at each SIGHUP.
async fn reload_on_hang_up(
    mut hang_up: Signal,
    reloader: Reloader,
    manager: ManagerHandle,
    systemd: Arc<SystemdNotifier>,
) {
    while hang_up.recv().await.is_some() {
        systemd.notify_reloading();
        let outcome = match reload::reload(&reloader).await {
            Ok(_) => "the files were reloaded",
            Err(error) => {
                tracing::error!(%error, "SIGHUP: nothing was reloaded or changed");
                "the last reload was refused: the log says why"
            }
        };
        systemd.notify_reloaded(&manager, outcome);
    }
}

/// Starts the servers of HTTP and gRPC.
#[cfg(feature = "grpc")]
async fn start_servers(
    state: &Arc<ApiState>,
    listeners: Listeners,
) -> Result<((Server, SocketAddr), RunningGrpc)> {
    let http = start_http(state, listeners.http)?;
    let grpc = match listeners.grpc {
        Some(listener) => workflow_manager::grpc::start_on(state.clone(), listener).map(Some),
        None => workflow_manager::grpc::start(state.clone()).await,
    };
    let grpc = grpc.with_context(|| {
        let listen = state.settings.grpc.listen;
        let listen = listen.map_or_else(String::new, |listen| listen.to_string());
        format!("cannot listen on {listen}; choose another address in grpc.listen")
    })?;
    if let Some(grpc) = &grpc {
        tracing::info!(address = %grpc.address, "listening for workers over gRPC");
    }
    Ok((http, grpc))
}

/// Starts the server of HTTP.
#[cfg(not(feature = "grpc"))]
async fn start_servers(
    state: &Arc<ApiState>,
    listeners: Listeners,
) -> Result<((Server, SocketAddr), RunningGrpc)> {
    Ok((start_http(state, listeners.http)?, ()))
}

fn start_http(state: &Arc<ApiState>, socket: HttpSocket) -> Result<(Server, SocketAddr)> {
    socket
        .listen()
        .and_then(|listener| api::serve_on(state.clone(), listener))
        .with_context(|| cannot_listen(state.settings.http.listen))
}

/// Returns how long workers over gRPC may take at a stop to finish their messages. It precedes
/// `shutdown.grace`.
fn drain_time(settings: &Settings) -> Duration {
    settings.grpc.listen.map_or(Duration::ZERO, |_| settings.grpc.drain.0)
}

/// Starts a thread that ends the process if a stop takes longer than `stop_grace` and
/// [`STOP_OVERTIME`] together. The stop begins with a signal, or with a message to the returned
/// sender. As in a crash, nothing is lost. It is a thread of its own because the others may hang.
fn abort_late_stops(stop_grace: Duration) -> Result<mpsc::UnboundedSender<()>> {
    let (sender, mut stop_requests) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::for_stop()?
    };
    let watch = async move {
        tokio::select! {
            _ = signals.next() => {}
            // Without a request, the sender was dropped: the start failed.
            request = stop_requests.recv() => if request.is_none() { return },
        }
        tokio::time::sleep(stop_grace + STOP_OVERTIME).await;
        let grace_ms = u64::try_from(stop_grace.as_millis()).unwrap_or(u64::MAX);
        tracing::error!(
            grace_ms,
            "a thread does not end: the process ends without it, and the next start recovers"
        );
        log::flush();
        std::process::exit(EXIT_ABORTED);
    };
    std::thread::Builder::new().name("stop".to_owned()).spawn(move || runtime.block_on(watch))?;
    Ok(sender)
}
