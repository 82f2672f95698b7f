//! The binary: arguments → settings → manager → exit code.

use anyhow::{Context, Result};
use clap::FromArgMatches;
use rustix::process::{Resource, getrlimit};
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use workflow_manager::actors::manager;
use workflow_manager::actors::manager_handle::ManagerHandle;
use workflow_manager::api::state::ApiState;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::cli::signals::Signals;
use workflow_manager::cli::{self, Arguments, ClientError, Command, ServeArguments};
use workflow_manager::clock;
use workflow_manager::engine::Definition;
#[cfg(feature = "grpc")]
use workflow_manager::grpc::GrpcServer;
use workflow_manager::reload::Reloader;
use workflow_manager::service::SystemdNotifier;
use workflow_manager::settings::{BusKind, Overrides, Settings};
use workflow_manager::telemetry::log;
use workflow_manager::{api, load, reload};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code when the manager cannot be reached.
const EXIT_UNREACHABLE: u8 = 3;
/// The exit code of a stop that was aborted because a thread did not end.
const EXIT_ABORTED: i32 = 1;
/// How long a stop may take beyond `shutdown.grace` before it is aborted: the manager then still
/// closes what it has given up on.
const STOP_OVERTIME: Duration = Duration::from_secs(2);
/// The exit code of wrong usage, which is also clap's.
const EXIT_USAGE: u8 = 2;

/// The exit code of `wait` when its time limit has passed.
const EXIT_TIMEOUT: u8 = 4;

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    let _failpoints = fail::FailScenario::setup();
    let mut out = std::io::stdout().lock();
    let parsed = cli::command().get_matches();
    let arguments = Arguments::from_arg_matches(&parsed).unwrap_or_else(|error| error.exit());
    match arguments.command {
        Command::Serve(arguments) => {
            let code = serve(&arguments, &mut out)
                .unwrap_or_else(|error| report_failure(&format!("{error:#}"), ExitCode::FAILURE));
            log::flush();
            code
        }
        Command::Check { files, against, config, json } => {
            check(&files, against.as_deref(), config.as_deref(), json, &mut out)
        }
        Command::Schema => match cli::schema(&mut out) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => output_error(&error),
        },
        Command::Test { files, verbose, json } => {
            match cli::test::test(&files, verbose, json, &mut out) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(error) => output_error(&error),
            }
        }
        Command::Replay(arguments) => {
            to_exit_code(cli::replay(&arguments, &mut out).map(|()| ExitCode::SUCCESS))
        }
        Command::Backup(arguments) => {
            to_exit_code(cli::back_up(&arguments, &mut out).map(|()| ExitCode::SUCCESS))
        }
        Command::Restore(arguments) => {
            to_exit_code(cli::restore(&arguments, &mut out).map(|()| ExitCode::SUCCESS))
        }
        Command::Doctor(arguments) => to_exit_code(cli::doctor(&arguments, &mut out)),
        Command::WorkerTest(arguments) => to_exit_code(cli::worker_test(&arguments, &mut out)),
        Command::Context(command) => to_exit_code(cli::context(&command, &mut out)),
        Command::Token(command) => to_exit_code(cli::token(&command, &mut out)),
        Command::Completions { shell } => match cli::shells::completions(shell, &mut out) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => output_error(&error),
        },
        Command::Man { directory } => {
            to_exit_code(cli::shells::man(&directory, &mut out).map(|()| ExitCode::SUCCESS))
        }
        Command::Client(command) => to_exit_code(cli::run_client_command(command, &mut out)),
    }
}

/// Returns the exit code of a command, after printing its error.
fn to_exit_code(result: Result<ExitCode, ClientError>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(ClientError::Output(error)) => output_error(&error),
        Err(error) => {
            let code = match error {
                ClientError::Unreachable { .. } => ExitCode::from(EXIT_UNREACHABLE),
                ClientError::Usage(_) => ExitCode::from(EXIT_USAGE),
                ClientError::TimedOut(_) => ExitCode::from(EXIT_TIMEOUT),
                ClientError::Refused(_) | ClientError::Output(_) => ExitCode::FAILURE,
            };
            report_failure(&error.to_string(), code)
        }
    }
}

/// Returns the exit code when standard output is closed or full. That is no failure if its reader
/// has what it wanted (`| head`).
fn output_error(error: &std::io::Error) -> ExitCode {
    if cli::is_closed_pipe(error) {
        ExitCode::SUCCESS
    } else {
        report_failure(&format!("cannot write: {error}"), ExitCode::FAILURE)
    }
}

fn report_failure(error: &str, code: ExitCode) -> ExitCode {
    log::print(&format!("workflow-manager: {error}"));
    code
}

fn check(
    files: &[PathBuf],
    against: Option<&Path>,
    config: Option<&Path>,
    json: bool,
    out: &mut dyn Write,
) -> ExitCode {
    let settings = config.map(|file| Settings::load(Some(file), &Overrides::default()));
    let settings = match settings.transpose() {
        Ok(settings) => settings,
        Err(error) => return report_failure(&error.to_string(), ExitCode::FAILURE),
    };
    let settings = settings.as_ref();
    for warning in settings.iter().flat_map(|settings| settings.warnings()) {
        log::print(&format!("workflow-manager: warning: settings: {warning}"));
    }
    let Some(journal) = against else {
        return match cli::check::check(files, settings, json, out) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => output_error(&error),
        };
    };
    to_exit_code(cli::check_against(files, settings, journal, json, out))
}

fn serve(arguments: &ServeArguments, out: &mut dyn Write) -> Result<ExitCode> {
    log::start()?;
    let mut settings = {
        let given = &arguments.settings;
        Settings::load(given.config.as_deref(), &given.overrides())?
    };
    if arguments.print_settings {
        writeln!(out, "{}", serde_json::to_string_pretty(&settings.masked())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    log::init(&settings.log, clock::timer_now)?;
    check_open_files_limit()?;
    for warning in settings.warnings() {
        tracing::warn!(%warning, "settings");
    }
    let loaded = load::load_for_manager(&settings.workflows, &settings)?;
    for warning in &loaded.warnings {
        tracing::warn!(%warning, "workflow file");
    }
    if loaded.definitions.is_empty() {
        tracing::warn!(
            "no workflow is loaded: name files with --workflows; only jobs from the journal go on"
        );
    }
    if settings.default_bus() == BusKind::Embedded.name()
        && needs_external_workers(&loaded.definitions)
    {
        tracing::warn!(
            "no broker is set: workers take their messages over HTTP (workflow-manager work QUEUE \
             -- CMD, or POST /api/queue/QUEUE/receive); for RabbitMQ set AMQP_SERVER or \
             --amqp-server to amqp://user:password@host:port/vhost"
        );
    }
    let _temporary_journal =
        if settings.is_in_memory() { Some(TemporaryJournal::create(&mut settings)?) } else { None };
    actix_rt::System::new().block_on(run(settings, loaded.definitions))
}

/// The fewest open files with which the manager works: for its journal and the journal's readers,
/// its threads, the brokers, and a few connections.
const FILES_MIN: u64 = 128;

/// Returns an error if the first calls would fail because too few files may be open.
fn check_open_files_limit() -> Result<()> {
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    anyhow::ensure!(
        files >= FILES_MIN,
        "the process may have {files} open files, and needs {FILES_MIN} at least, one more for \
         each connection: raise the limit (ulimit -n 65536; LimitNOFILE=65536 in a unit of \
         systemd; --ulimit nofile=65536 of a container)"
    );
    Ok(())
}

/// Logs when `/readyz` first reports readiness.
async fn log_when_ready(manager: ManagerHandle) {
    manager.health().wait_until_ready().await;
    tracing::info!("ready");
}

/// A journal that is removed with the process: a file in its own directory, because readers open it
/// by name.
struct TemporaryJournal(PathBuf);

impl TemporaryJournal {
    fn create(settings: &mut Settings) -> Result<TemporaryJournal> {
        let directory =
            std::env::temp_dir().join(format!("workflow-manager-{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .with_context(|| format!("cannot make {} for the journal", directory.display()))?;
        settings.journal.file = directory.join("journal.db");
        tracing::warn!(
            journal = %settings.journal.file.display(),
            "--db :memory: keeps nothing: the journal is removed when the manager ends, and all \
             jobs with it; for jobs that outlive it name a file"
        );
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

/// Returns whether messages of any step on the default bus go to a queue other than those on which
/// these workflows take calls.
fn needs_external_workers(definitions: &[Arc<Definition>]) -> bool {
    let own: Vec<String> =
        definitions.iter().map(|definition| Definition::call_queue(&definition.name)).collect();
    definitions
        .iter()
        .flat_map(|definition| definition.sending_steps())
        .any(|step| step.bus.is_none() && !own.contains(&step.queue.to_string()))
}

async fn run(settings: Settings, definitions: Vec<Arc<Definition>>) -> Result<ExitCode> {
    let listen = settings.http.listen;
    let bus = match settings.amqp_bus(settings.default_bus()) {
        None => settings.default_bus().to_owned(),
        Some(amqp) => amqp.server.to_string(),
    };
    let mut stops = Signals::for_stop()?;
    warn_of_ignored_signals()?;
    let hang_up = signal(SignalKind::hangup())?;
    let stop_sender = abort_late_stops(settings.shutdown.grace.0 + drain_time(&settings))?;
    let service = SystemdNotifier::from_env();
    service.notify_recovering(&settings.journal.file);
    let stop_max = settings.shutdown.grace.0 + drain_time(&settings) + STOP_OVERTIME;
    let cannot_listen =
        || format!("cannot listen on {listen}; choose another address with --listen");
    // Before the journal is opened, so that a start that fails leaves it as it was.
    let socket = api::bind(listen).with_context(cannot_listen)?;
    let mut manager = manager::start(settings, definitions, Workers::new()).await?;
    let state = ApiState::new(manager.handle().clone());
    actix_rt::spawn(reload_on_hang_up(hang_up, state.reloader(), service.clone()));
    let served = match api::serve_at(state.clone(), socket).with_context(cannot_listen) {
        #[cfg(feature = "grpc")]
        Ok(http) => start_grpc(state.clone()).await.map(|grpc| (http, grpc)),
        #[cfg(not(feature = "grpc"))]
        Ok(http) => Ok((http, ())),
        Err(error) => Err(error),
    };
    let ((server, address), grpc) = match served {
        Ok(served) => served,
        Err(error) => {
            // The journal must be closed properly.
            manager.stop().await;
            return Err(error);
        }
    };
    #[cfg(not(feature = "grpc"))]
    let () = grpc;
    let server_handle = server.handle();
    tracing::info!(
        %address,
        bus,
        journal = %state.settings.journal.file.display(),
        "listening"
    );
    actix_rt::spawn(reload::watch_certificate(state.reloader()));
    actix_rt::spawn(log_when_ready(manager.handle().clone()));
    let (handle, systemd) = (manager.handle().clone(), service.clone());
    actix_rt::spawn(async move { systemd.run(&handle).await });
    let code = tokio::select! {
        result = server => {
            let error = result.err().map(tracing::field::display);
            tracing::error!(error, "the HTTP server ended: stopping");
            ExitCode::FAILURE
        }
        signal = stops.next() => { tracing::info!("{signal}: stopping"); ExitCode::SUCCESS }
        reason = manager.wait_for_failure() => {
            tracing::error!(reason, "the manager cannot go on: stopping");
            ExitCode::FAILURE
        }
    };
    // Fails only after a signal has begun a stop, which drops the receiver.
    let _ = stop_sender.send(());
    service.notify_stopping(stop_max);
    state.feeds.close();
    #[cfg(feature = "grpc")]
    if let Some(grpc) = grpc {
        // In parallel: each waits for calls that are under way.
        actix_rt::spawn(server_handle.stop(true));
        grpc.stop().await;
    }
    server_handle.stop(true).await;
    manager.stop().await;
    tracing::info!("stopped");
    Ok(code)
}

/// Logs signals that mean nothing to the manager, for as long as it runs.
fn warn_of_ignored_signals() -> Result<()> {
    let mut ignored = Signals::for_ignored()?;
    actix_rt::spawn(async move {
        loop {
            let signal = ignored.next().await;
            tracing::warn!(
                signal,
                "this signal means nothing here: SIGTERM stops, SIGHUP reads the workflow files \
                 again"
            );
        }
    });
    Ok(())
}

/// Reads the workflow files again at each SIGHUP.
async fn reload_on_hang_up(mut hang_up: Signal, reloader: Reloader, systemd: Arc<SystemdNotifier>) {
    while hang_up.recv().await.is_some() {
        systemd.notify_reloading();
        let outcome = match reload::reload(&reloader).await {
            Ok(_) => "the files were reloaded",
            Err(error) => {
                tracing::error!(%error, "SIGHUP: nothing was reloaded, nothing was changed");
                "the last reload was refused: the log says why"
            }
        };
        systemd.notify_reloaded(&reloader.manager, outcome);
    }
}

/// Starts the server for workers over gRPC, if the settings have one.
#[cfg(feature = "grpc")]
async fn start_grpc(state: Arc<ApiState>) -> Result<Option<GrpcServer>> {
    let listen = state.settings.grpc.listen;
    let server = workflow_manager::grpc::start(state).await.with_context(|| {
        let listen = listen.map_or_else(String::new, |listen| listen.to_string());
        format!("cannot listen on {listen}; choose another address in grpc.listen")
    })?;
    if let Some(server) = &server {
        tracing::info!(address = %server.address, "listening for workers over gRPC");
    }
    Ok(server)
}

/// Returns how long workers have at a stop before the manager itself stops.
fn drain_time(settings: &Settings) -> Duration {
    settings.grpc.listen.map_or(Duration::ZERO, |_| settings.grpc.drain.0)
}

/// Ends the process if a stop, begun by a signal or by the returned sender, takes longer than it
/// may, whatever other threads do. As in a crash, nothing is lost. This runs on a thread of its
/// own, because the others may be the ones that do not end.
fn abort_late_stops(grace: Duration) -> Result<mpsc::UnboundedSender<()>> {
    let (sender, mut begun) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut stops = {
        let _entered = runtime.enter();
        Signals::for_stop()?
    };
    let watch = async move {
        tokio::select! {
            _ = stops.next() => {}
            stop = begun.recv() => if stop.is_none() { return },
        }
        tokio::time::sleep(grace + STOP_OVERTIME).await;
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        tracing::error!(
            grace_ms,
            "a thread does not end: the process ends without it, and the next start goes on with \
             what is left"
        );
        log::flush();
        std::process::exit(EXIT_ABORTED);
    };
    std::thread::Builder::new().name("stop".to_owned()).spawn(move || runtime.block_on(watch))?;
    Ok(sender)
}
