//! The command line (docs/command-line.md). Client commands use the HTTP API only.

mod arguments;
mod backup;
mod check;
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
mod test;
mod text;
mod tokens;
mod wait;
mod watch;
mod whoami;
mod work;
mod worker_test;
pub mod workflow_test;

use arguments::ClientCommand;
use daemon::load::json_schema;
use std::io::{self, Write};
use std::process::ExitCode;

pub use arguments::{Arguments, Command, ServeArguments};
pub use backup::{back_up, restore};
pub use check::check;
pub use compare::check_against;
pub use contexts::run_context_command;
pub use doctor::doctor;
pub use error::{ClientError, is_closed_pipe};
pub use groups::command;
pub use history::replay;
pub use test::test;
pub use tokens::run_token_command;
pub use worker_test::worker_test;

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
