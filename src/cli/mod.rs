//! The command line (SPEC §10). The client commands speak to the HTTP API only.

mod against;
mod arguments;
pub mod check;
mod check_json;
mod client;
mod follow;
mod history;
mod job;
mod operate;
mod run;
mod show;
mod status;
mod stream;
pub mod test;
mod text;
mod watch;
mod words;

use crate::load::json_schema;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use arguments::{
    Arguments, ChildrenArguments, ClientArguments, ClientCommand, Command, CompleteArguments,
    FilterArguments, HistoryArguments, OperateArguments, RecordArguments, RedispatchArguments,
    ReplayArguments, RunArguments, ServeArguments, StatusArguments, StepStatus, WatchArguments,
};
pub use client::{ClientError, is_closed_pipe};

/// Prints the JSON Schema of workflow files.
///
/// # Errors
///
/// What writing to `out` gives.
pub fn schema(out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &json_schema())?;
    writeln!(out)?;
    out.flush()
}

/// Rebuilds a job from a journal's file.
///
/// # Errors
///
/// The file cannot be read, or has no such job or entry.
pub fn replay(arguments: &ReplayArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    history::replay(arguments, out)
}

/// Validates workflow files and compares them with the jobs that a journal keeps.
///
/// # Errors
///
/// The journal cannot be read, or what writing to `out` gives.
pub fn check_against(
    files: &[PathBuf],
    journal: &Path,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    against::check(files, journal, json, out)
}

/// Runs a client command.
pub fn client(command: ClientCommand, out: &mut dyn Write) -> Result<ExitCode, ClientError> {
    match command {
        ClientCommand::Run(arguments) => run::run(&arguments, out),
        ClientCommand::Jobs { workflow, interval, client } => {
            show::jobs(workflow.as_deref(), interval, &client, out)
        }
        ClientCommand::Job { id, children, client } if children.children => {
            job::children(id, &children, &client, out)
        }
        ClientCommand::Job { id, client, .. } => job::job(id, &client, out),
        ClientCommand::Why { id, client } => operate::why(id, &client, out),
        ClientCommand::Reload { client } => operate::reload(&client, out),
        ClientCommand::Search { filter, client } => operate::search(&filter, &client, out),
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
