//! Arguments → settings → supervisor → exit code.

use anyhow::{Context, Result};
use clap::Parser;
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use workflow_manager::actors::shared::Shared;
use workflow_manager::actors::{clock, reload, supervisor};
use workflow_manager::bus::embedded::Workers;
use workflow_manager::cli::{self, Arguments, ClientError, Command, ServeArguments};
use workflow_manager::engine::Definition;
use workflow_manager::settings::Settings;
use workflow_manager::telemetry::log;
use workflow_manager::{api, load};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code when the manager cannot be reached.
const EXIT_UNREACHABLE: u8 = 3;
/// The exit code of wrong usage, as clap has it.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    match Arguments::parse().command {
        Command::Serve(arguments) => {
            let code = serve(&arguments, &mut out).unwrap_or_else(|error| failed(&format!("{error:#}"), ExitCode::FAILURE));
            log::flush();
            code
        }
        Command::Check { files, json } => match cli::check::check(&files, json, &mut out) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => not_written(&error),
        },
        Command::Schema => match cli::schema(&mut out) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => not_written(&error),
        },
        Command::Test { files, verbose, json } => match cli::test::test(&files, verbose, json, &mut out) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => not_written(&error),
        },
        Command::Client(command) => match cli::client(command, &mut out) {
            Ok(code) => code,
            Err(ClientError::Output(error)) => not_written(&error),
            Err(error) => {
                let code = match error {
                    ClientError::Unreachable { .. } => ExitCode::from(EXIT_UNREACHABLE),
                    ClientError::Usage(_) => ExitCode::from(EXIT_USAGE),
                    ClientError::Refused(_) | ClientError::Output(_) => ExitCode::FAILURE,
                };
                failed(&error.to_string(), code)
            }
        },
    }
}

/// Standard output is closed or full. A reader that has what it wanted (`| head`) is no failure.
fn not_written(error: &std::io::Error) -> ExitCode {
    if cli::is_closed_pipe(error) { ExitCode::SUCCESS } else { failed(&format!("cannot write: {error}"), ExitCode::FAILURE) }
}

fn failed(error: &str, code: ExitCode) -> ExitCode {
    log::say(&format!("workflow-manager: {error}"));
    code
}

fn serve(arguments: &ServeArguments, out: &mut dyn Write) -> Result<ExitCode> {
    log::begin()?;
    let mut settings = Settings::load(arguments.config.as_deref(), &arguments.overrides())?;
    if arguments.print_settings {
        writeln!(out, "{}", serde_json::to_string_pretty(&settings)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    log::set_up(&settings.log, clock::ticks)?;
    let loaded = load::load_to_serve(&settings.workflows, &settings.amqp.reply_queue)?;
    for warning in &loaded.warnings {
        tracing::warn!(%warning, "workflow file");
    }
    if loaded.definitions.is_empty() {
        tracing::warn!("no workflow is loaded: name files with --workflows; only jobs from the journal go on");
    }
    if settings.amqp.server.0.is_empty() && needs_other_processes(&loaded.definitions) {
        tracing::warn!(
            "no broker is set: the embedded bus reaches no worker of another process; set AMQP_SERVER or --amqp-server to amqp://user:password@host:port/vhost"
        );
    }
    let _throwaway = if settings.keeps_nothing() { Some(Throwaway::begin(&mut settings)?) } else { None };
    #[cfg(feature = "failpoints")]
    let _failpoints = fail::FailScenario::setup();
    actix_rt::System::new().block_on(run(settings, loaded.definitions))
}

/// Says when `/readyz` turns green for the first time.
async fn tell_when_ready(shared: Arc<Shared>) {
    shared.health.ready().await;
    tracing::info!("ready");
}

/// A journal that goes with the process: a file in a directory of its own, since its readers open it by its name.
struct Throwaway(PathBuf);

impl Throwaway {
    fn begin(settings: &mut Settings) -> Result<Throwaway> {
        let directory = std::env::temp_dir().join(format!("workflow-manager-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).with_context(|| format!("cannot make {} for the journal", directory.display()))?;
        settings.journal.file = directory.join("journal.db");
        tracing::warn!(
            journal = %settings.journal.file.display(),
            "--db :memory: keeps nothing: the journal is removed when the manager ends, and all jobs with it; for jobs that outlive it name a file"
        );
        Ok(Throwaway(directory))
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(directory = %self.0.display(), %error, "the journal could not be removed");
        }
    }
}

/// Whether any step goes to a queue other than those that ask for jobs of these workflows.
fn needs_other_processes(definitions: &[Arc<Definition>]) -> bool {
    let own: Vec<String> = definitions.iter().map(|definition| Definition::call_queue(&definition.name)).collect();
    definitions.iter().flat_map(|definition| definition.queues()).any(|queue| !own.contains(&queue.to_string()))
}

async fn run(settings: Settings, definitions: Vec<Arc<Definition>>) -> Result<ExitCode> {
    let listen = settings.http.listen;
    let bus = if settings.amqp.server.0.is_empty() { "embedded".to_owned() } else { settings.amqp.server.to_string() };
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let mut hang_up = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    let mut manager = supervisor::start(settings, definitions, Workers::new()).await?;
    let shared = manager.shared().clone();
    actix_rt::spawn(async move {
        while hang_up.recv().await.is_some() {
            if let Err(error) = reload::reload(&shared).await {
                tracing::error!(%error, "SIGHUP: the workflow files were not reloaded, nothing was changed");
            }
        }
    });
    let (server, address) =
        api::serve(manager.shared().clone()).with_context(|| format!("cannot listen on {listen}; choose another address with --listen"))?;
    let server_handle = server.handle();
    tracing::info!(%address, bus, journal = %manager.shared().settings.journal.file.display(), "listening");
    actix_rt::spawn(tell_when_ready(manager.shared().clone()));
    let code = tokio::select! {
        result = server => { result.context("the HTTP server ended")?; ExitCode::FAILURE }
        _ = terminate.recv() => { tracing::info!("SIGTERM: stopping"); ExitCode::SUCCESS }
        _ = interrupt.recv() => { tracing::info!("SIGINT: stopping"); ExitCode::SUCCESS }
        reason = manager.failed() => { tracing::error!(reason, "the manager cannot go on: stopping"); ExitCode::FAILURE }
    };
    manager.shared().feeds.close();
    server_handle.stop(true).await;
    manager.stop().await;
    tracing::info!("stopped");
    Ok(code)
}
