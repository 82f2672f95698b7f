//! The command line (docs/command-line.md). Client commands use the HTTP API only.

mod arguments;
mod backup;
pub mod check;
mod check_json;
mod client;
mod compare;
mod confirm;
mod contexts;
mod doctor;
mod error;
mod follow;
mod groups;
mod health;
mod history;
mod items;
mod job;
mod job_lookup;
mod list_commands;
mod listing;
mod operate;
mod phrases;
mod progress;
mod responses;
mod run;
mod screen;
pub mod shells;
pub mod signals;
mod status;
mod step;
mod stream;
mod table;
mod target;
pub mod test;
mod text;
mod tokens;
mod wait;
mod watch;
mod whoami;
mod work;
mod worker_test;
pub mod workflow_test;

use daemon::load::json_schema;
use daemon::settings::Settings;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use groups::command;

pub use arguments::{
    AddArguments, Arguments, AwaitedState, BackupArguments, ChildrenArguments, ClientArguments,
    ClientCommand, Command, CompleteArguments, ContextCommand, DoctorArguments, FilterArguments,
    Format, FormatArguments, HistoryArguments, ItemsArguments, JobRef, ListArguments,
    OperateArguments, ReachArguments, RecordArguments, RedispatchArguments, ReplayArguments,
    RestoreArguments, RunArguments, SearchArguments, ServeArguments, SettingsArguments,
    StatusArguments, StepArguments, StepStatusFilter, TestedBus, TimeArguments, TimeStyle,
    TokenCommand, WaitArguments, WatchArguments, WorkArguments, WorkerTestArguments,
};
pub use error::{ClientError, is_closed_pipe};

/// Prints the JSON Schema of workflow files.
///
/// # Errors
///
/// Returns an error if `out` cannot be written.
pub fn schema(out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &json_schema())?;
    writeln!(out)?;
    out.flush()
}

/// Rebuilds a job from a journal's file, and prints it or its entries.
///
/// # Errors
///
/// Returns an error if the file cannot be read, or has no such job or entry.
pub fn replay(arguments: &ReplayArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    history::replay(arguments, out)
}

/// Copies a journal's file.
///
/// # Errors
///
/// Returns an error if the file cannot be read, or the copy cannot be written.
pub fn back_up(arguments: &BackupArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    backup::back_up(arguments, out)
}

/// Restores a journal from a copy, or checks whether that is possible.
///
/// # Errors
///
/// Returns an error if the copy cannot be read, or the journal cannot be written.
pub fn restore(arguments: &RestoreArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    backup::restore(arguments, out)
}

/// Validates workflow files and compares them with the jobs in a journal.
///
/// # Errors
///
/// Returns an error if the journal cannot be read, or `out` cannot be written.
pub fn check_against(
    files: &[PathBuf],
    settings: Option<&Settings>,
    journal: &Path,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    compare::check(files, settings, journal, json, out)
}

/// Runs a command of `context`, which gives names to managers.
///
/// # Errors
///
/// Returns an error if the file of contexts cannot be read or written, or has no such context.
pub fn context(command: &ContextCommand, out: &mut dyn Write) -> Result<ExitCode, ClientError> {
    contexts::run(command, out)
}

/// Runs a command of `token`, which makes or hashes tokens.
///
/// # Errors
///
/// Returns an error if the arguments are not valid, the file of tokens cannot be read or written,
/// or `out` cannot be written.
pub fn token(command: &TokenCommand, out: &mut dyn Write) -> Result<ExitCode, ClientError> {
    tokens::run(command, out)
}

/// Checks an installation, and prints what is wrong with it.
///
/// # Errors
///
/// Returns an error if `out` cannot be written.
pub fn doctor(arguments: &DoctorArguments, out: &mut dyn Write) -> Result<ExitCode, ClientError> {
    doctor::doctor(arguments, out)
}

/// Tests a worker, and prints what is wrong with it.
///
/// # Errors
///
/// Returns an error if the arguments are not valid, the broker cannot be used, or `out` cannot be
/// written.
pub fn worker_test(
    arguments: &WorkerTestArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    worker_test::worker_test(arguments, out)
}

/// Runs a client command.
pub fn run_client_command(
    command: ClientCommand,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    match command {
        ClientCommand::Run(arguments) => run::run(&arguments, out),
        ClientCommand::Jobs { workflow, interval, list } => {
            list_commands::jobs(workflow.as_deref(), interval, &list, out)
        }
        ClientCommand::Job { id, children, list } if children.children => {
            job::children(&id, &children, &list, out)
        }
        ClientCommand::Job { id, list, .. } => job::job(&id, &list, out),
        ClientCommand::Step(arguments) => step::step(&arguments, out),
        ClientCommand::Items(arguments) => items::items(&arguments, out),
        ClientCommand::Workflows { stats, list } => list_commands::workflows(stats, &list, out),
        ClientCommand::Queues { unattended, list } => list_commands::queues(unattended, &list, out),
        ClientCommand::Wait(arguments) => wait::wait(&arguments, out),
        ClientCommand::Work(arguments) => work::work(&arguments),
        ClientCommand::Health { live, reach } => {
            health::health(live, &reach, out)?;
            Ok(ExitCode::SUCCESS)
        }
        ClientCommand::Whoami { client } => whoami::whoami(&client, out),
        ClientCommand::Why { id, client } => operate::why(&id, &client, out),
        ClientCommand::Reload { client } => operate::reload(&client, out),
        ClientCommand::Search(arguments) => operate::search(&arguments, out),
        ClientCommand::Cancel(jobs) => operate::operate("cancel", None, &jobs, out),
        ClientCommand::Pause(jobs) => operate::operate("pause", None, &jobs, out),
        ClientCommand::Resume(jobs) => operate::operate("resume", None, &jobs, out),
        ClientCommand::Retry(jobs) => operate::operate("retry", None, &jobs, out),
        ClientCommand::Rerun { step, jobs } => operate::operate("rerun", Some(&step), &jobs, out),
        ClientCommand::Delete(jobs) => operate::operate("delete", None, &jobs, out),
        ClientCommand::Redispatch(arguments) => operate::redispatch(&arguments, out),
        ClientCommand::Complete(arguments) => operate::complete(&arguments, out),
        ClientCommand::History(arguments) => history::history(&arguments, out),
        ClientCommand::Watch(arguments) => watch::watch(&arguments, out),
        ClientCommand::Status(arguments) => status::status(&arguments, out),
    }
}
