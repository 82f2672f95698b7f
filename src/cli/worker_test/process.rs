//! The process of the worker under test. It leads a process group, so that signals also reach its
//! children. Its output is forwarded to standard error, line by line and escaped.

use super::super::error::ClientError;
use crate::work::read_chunk;
use base::clock;
use daemon::service;
use daemon::telemetry::log::print;
use engine::text::{escape, truncate};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The grace period between SIGTERM and SIGKILL.
const TERMINATION_GRACE: Duration = Duration::from_secs(5);

/// The interval at which the process is polled until it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The maximum length of a printed line, in bytes. A longer line is split.
const LINE_BYTES_MAX: usize = 4096;

/// The process of a worker. It is killed on drop, with its process group.
pub(super) struct WorkerProcess {
    command: Vec<OsString>,
    /// The environment variables to set, or to remove if the value is `None`.
    variables: Vec<(&'static str, Option<String>)>,
    child: Child,
    /// The exit status. `None` until the process was reaped.
    exit_status: Option<ExitStatus>,
}

impl WorkerProcess {
    /// Starts the process.
    pub(super) fn start(
        command: &[OsString],
        variables: Vec<(&'static str, Option<String>)>,
    ) -> Result<WorkerProcess, ClientError> {
        let child = spawn(command, &variables)?;
        Ok(WorkerProcess { command: command.to_vec(), variables, child, exit_status: None })
    }

    /// Kills the process and its group, and starts it again.
    pub(super) fn restart(&mut self) -> Result<(), ClientError> {
        self.kill();
        self.child = spawn(&self.command, &self.variables)?;
        self.exit_status = None;
        Ok(())
    }

    /// Returns how the process ended, if it has. Does not wait for it.
    pub(super) fn poll_exit(&mut self) -> Option<String> {
        if self.exit_status.is_none() {
            self.exit_status = self.child.try_wait().ok().flatten();
        }
        self.exit_status.map(|status| match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => status.to_string(),
        })
    }

    /// Returns whether the process ended with exit code 0.
    pub(super) fn is_success(&self) -> bool {
        self.exit_status.is_some_and(|status| status.success())
    }

    /// Sends SIGTERM to the process alone, without its children.
    pub(super) fn terminate(&self) {
        if self.exit_status.is_none() {
            // Signalling fails only if the process has ended. Its id is not reused before it is
            // reaped.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    /// Waits until the process has ended. Returns how it ended, or `None` after the timeout.
    pub(super) async fn wait_for_exit(&mut self, timeout: Duration) -> Option<String> {
        let deadline = clock::timer_now() + timeout;
        loop {
            match self.poll_exit() {
                Some(exit_text) => return Some(exit_text),
                None if clock::timer_now() >= deadline => return None,
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Sends SIGTERM to the process group, and waits until the process has ended, but no longer
    /// than the grace period. Dropping the process then kills what is left.
    pub(super) async fn stop(&mut self) {
        if self.poll_exit().is_none() {
            // Signalling fails only if the process has ended.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::TERM);
            self.wait_for_exit(TERMINATION_GRACE).await;
        }
    }

    /// Kills the process group, and reaps the process.
    fn kill(&mut self) {
        // The group may outlive its first process. Its id is not reused before the group has ended.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        if self.exit_status.is_none() {
            self.exit_status = self.child.wait().ok();
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Spawns a process, and the threads that forward its output.
fn spawn(
    command: &[OsString],
    variables: &[(&'static str, Option<String>)],
) -> Result<Child, ClientError> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(ClientError::Usage("name a program after --".to_owned()));
    };
    let mut process = Command::new(program);
    process.args(arguments).process_group(0).stdin(Stdio::null());
    service::clear_systemd_env(&mut process);
    process.stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in variables {
        match value {
            Some(value) => process.env(name, value),
            None => process.env_remove(name),
        };
    }
    let to_usage_error = |error: io::Error| {
        let escaped_program = escape(&program.to_string_lossy()).into_owned();
        ClientError::Usage(format!("cannot run {escaped_program}: {error}"))
    };
    let mut child = process.spawn().map_err(to_usage_error)?;
    let outputs = [
        child.stdout.take().map(|stdout| Box::new(stdout) as Box<dyn Read + Send>),
        child.stderr.take().map(|stderr| Box::new(stderr) as Box<dyn Read + Send>),
    ];
    for output in outputs.into_iter().flatten() {
        std::thread::Builder::new().spawn(move || forward_output(output))?;
    }
    Ok(child)
}

/// Prints the output of a process line by line, until the output ends. A line that is longer than
/// `LINE_BYTES_MAX` is split.
fn forward_output(mut output: Box<dyn Read + Send>) {
    let (mut line, mut buffer) = (Vec::new(), [0; LINE_BYTES_MAX]);
    let print_line = |line: &[u8]| {
        print(&format!(
            "worker: {}",
            truncate(&escape(&String::from_utf8_lossy(line)), LINE_BYTES_MAX)
        ))
    };
    while let Some(chunk) = read_chunk(&mut output, &mut buffer) {
        for byte in chunk {
            if *byte == b'\n' || line.len() == LINE_BYTES_MAX {
                print_line(&line);
                line.clear();
            }
            if *byte != b'\n' {
                line.push(*byte);
            }
        }
    }
    if !line.is_empty() {
        print_line(&line);
    }
}
