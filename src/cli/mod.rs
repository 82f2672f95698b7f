//! The command line (docs/reference/command-line.md): its arguments, and all commands but `serve`.
//! Client commands use only the HTTP API of a manager.

mod active;
mod addresses;
mod arguments;
mod backup;
mod check;
mod check_json;
mod client;
mod cluster;
mod columns;
mod compare;
mod confirm;
mod contexts;
mod controls;
pub mod dev;
mod doctor;
mod error;
mod file_watcher;
mod follow;
mod groups;
mod health;
mod history;
mod inbox;
mod init;
mod items;
mod job;
mod job_lookup;
mod journal;
mod limits;
mod list_commands;
mod list_printer;
mod operate;
mod plural;
mod progress;
mod reasons;
mod responses;
mod run;
mod schedules;
mod screen;
mod shells;
pub mod signals;
mod status;
mod step;
mod step_down;
mod stream;
mod table;
mod target;
mod templates;
mod test;
mod text;
mod tokens;
mod wait;
mod watch;
mod whoami;
mod work;
mod worker_test;
pub mod workflow_test;

use arguments::{
    ClientCommand, ClusterArguments, ClusterCommand, Command, JournalCommand, PauseArguments,
    ResumeArguments,
};
use daemon::load::json_schema;
use daemon::settings::{Overrides, Settings};
use daemon::telemetry::log;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

pub use arguments::{Arguments, ServeArguments};
pub use check::check;
pub use compare::check_against;
pub use error::ClientError;
pub use groups::command;

/// Runs the command that the arguments name, and writes its output to `out`. The commands `serve`
/// and `dev` are run by the caller's function `serve`.
///
/// # Errors
///
/// Returns an error if the command fails. A command that reports a negative result, such as a
/// failed check, returns an exit code instead.
pub fn run(
    arguments: Arguments,
    serve: impl FnOnce(&ServeArguments, &mut dyn Write) -> Result<ExitCode, ClientError>,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    match arguments.command {
        Command::Serve(arguments) => return serve(&arguments, out),
        Command::Dev(arguments) => return serve(&arguments.into_serve_arguments(), out),
        Command::Check { files, against, config, json } => {
            let settings = config.map(|file| load_settings(&file)).transpose()?;
            return match against {
                Some(journal) => check_against(&files, settings.as_ref(), &journal, json, out),
                None => Ok(to_exit_code(check(&files, settings.as_ref(), json, out)?)),
            };
        }
        Command::Schema => print_schema(out)?,
        Command::Test { files, verbose, json } => {
            return Ok(to_exit_code(test::run_test_files(&files, verbose, json, out)?));
        }
        Command::Init(arguments) => init::init(&arguments, out)?,
        Command::Replay(arguments) => history::replay(&arguments, out)?,
        Command::Backup(arguments) => backup::back_up(&arguments, out)?,
        Command::Restore(arguments) => backup::restore(&arguments, out)?,
        Command::Journal(JournalCommand::Copy(arguments)) => journal::copy(&arguments, out)?,
        Command::Doctor(arguments) => return doctor::run_doctor(&arguments, out),
        Command::WorkerTest(arguments) => return worker_test::run_worker_test(&arguments, out),
        Command::Context(command) => contexts::run(&command, out)?,
        Command::Token(command) => tokens::run(&command, out)?,
        Command::Completions { shell } => shells::print_completions(shell, out)?,
        Command::Man { directory } => shells::write_manual_pages(&directory, out)?,
        Command::Client(command) => return run_client_command(*command, out),
    }
    Ok(ExitCode::SUCCESS)
}

/// Converts the result of a check to an exit code.
fn to_exit_code(is_success: bool) -> ExitCode {
    if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Loads the settings for `check`, and prints their warnings.
fn load_settings(file: &Path) -> Result<Settings, ClientError> {
    let settings = Settings::load(Some(file), &Overrides::default())
        .map_err(|error| ClientError::Refused(error.to_string()))?;
    for warning in settings.warnings() {
        log::print(&format!("workflow-manager: warning: settings: {warning}"));
    }
    Ok(settings)
}

/// Prints the JSON Schema of workflow files.
///
/// # Errors
///
/// Returns an error if `out` cannot be written.
pub fn print_schema(out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &json_schema())?;
    writeln!(out)?;
    out.flush()
}

/// Runs a command that calls a manager.
fn run_client_command(
    command: ClientCommand,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    match command {
        ClientCommand::Run(arguments) => run::run(&arguments, out)?,
        ClientCommand::Jobs { workflow, interval, list } => {
            list_commands::list_jobs(workflow.as_deref(), interval, &list, out)?;
        }
        ClientCommand::Job { id, children, list } if children.children => {
            job::list_children(&id, &children, &list, out)?;
        }
        ClientCommand::Job { id, list, .. } => job::show_job(&id, &list, out)?,
        ClientCommand::Step(arguments) => step::show_step(&arguments, out)?,
        ClientCommand::Items(arguments) => items::list_items(&arguments, out)?,
        ClientCommand::Workflows { stats, list } => {
            list_commands::list_workflows(stats, &list, out)?
        }
        ClientCommand::Queues { unattended, list } => {
            list_commands::list_queues(unattended, &list, out)?;
        }
        ClientCommand::Limits(arguments) => {
            limits::list_limits(&arguments, out)?;
        }
        ClientCommand::Limit(arguments) => controls::change_limit(arguments, out)?,
        ClientCommand::Columns(command) => return columns::run(&command, out),
        ClientCommand::Schedules(arguments) => schedules::list_schedules(&arguments, out)?,
        ClientCommand::Schedule(arguments) => schedules::run_schedule(&arguments, out)?,
        ClientCommand::Cluster(ClusterArguments { command, list }) => match command {
            Some(ClusterCommand::StepDown(arguments)) => {
                return step_down::step_down(&arguments, out);
            }
            None => cluster::list_managers(&list, out)?,
        },
        ClientCommand::Wait(arguments) => wait::wait(&arguments, out)?,
        ClientCommand::Work(arguments) => return work::work(&arguments),
        ClientCommand::Health { live, target } => health::print_health(live, &target, out)?,
        ClientCommand::Whoami { client } => return whoami::print_identity(&client, out),
        ClientCommand::Why { id, client } => operate::explain_job(&id, &client, out)?,
        ClientCommand::Reload { client } => operate::reload(&client, out)?,
        ClientCommand::Search(arguments) => operate::search(&arguments, out)?,
        ClientCommand::Inbox(arguments) => inbox::list_inbox(&arguments, out)?,
        ClientCommand::Reasons(arguments) => reasons::list_reasons(&arguments, out)?,
        ClientCommand::Cancel(jobs) => return operate::operate("cancel", &[], &jobs, out),
        ClientCommand::Pause(PauseArguments { jobs, subject }) => match subject {
            Some(subject) => controls::pause(subject, out)?,
            None => return operate::operate("pause", &[], &jobs, out),
        },
        ClientCommand::Resume(ResumeArguments { jobs, subject }) => match subject {
            Some(subject) => controls::resume(subject, out)?,
            None => return operate::operate("resume", &[], &jobs, out),
        },
        ClientCommand::Retry(jobs) => return operate::operate("retry", &[], &jobs, out),
        ClientCommand::Rerun { step, items, jobs } => {
            let parameters = [("step", Some(step)), ("items", items)];
            return operate::operate("rerun", &parameters, &jobs, out);
        }
        ClientCommand::Delete(jobs) => return operate::operate("delete", &[], &jobs, out),
        ClientCommand::Redispatch(arguments) => operate::redispatch(&arguments, out)?,
        ClientCommand::Complete(arguments) => operate::complete(&arguments, out)?,
        ClientCommand::History(arguments) => history::print_history(&arguments, out)?,
        ClientCommand::Watch(arguments) => return watch::watch(&arguments, out),
        ClientCommand::Status(arguments) => status::list_statuses(&arguments, out)?,
    }
    Ok(ExitCode::SUCCESS)
}
