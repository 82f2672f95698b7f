//! The worker as a process. It has a process group of its own, so that signals reach its children
//! too. Its output is forwarded to standard error, line by line and escaped.

use super::super::error::ClientError;
use crate::clock;
use crate::engine::words::{cut, escaped};
use crate::service;
use crate::telemetry::log::say;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// The pause between two checks whether the process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The longest line that is printed as one, in bytes.
const LINE_BYTES_MAX: usize = 4096;

/// The process of a worker. It is killed on drop.
pub(super) struct Program {
    command: Vec<OsString>,
    /// Environment variables; those without a value are removed.
    variables: Vec<(&'static str, Option<String>)>,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Program {
    pub(super) fn start(
        command: &[OsString],
        variables: Vec<(&'static str, Option<String>)>,
    ) -> Result<Program, ClientError> {
        let child = spawn(command, &variables)?;
        Ok(Program { command: command.to_vec(), variables, child, ended: None })
    }

    /// Kills the process and its group, and starts it again.
    pub(super) fn start_again(&mut self) -> Result<(), ClientError> {
        self.kill();
        self.child = spawn(&self.command, &self.variables)?;
        self.ended = None;
        Ok(())
    }

    /// Returns how the process ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.map(|status| match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => status.to_string(),
        })
    }

    /// Returns whether the process ended with exit code 0.
    pub(super) fn is_success(&self) -> bool {
        self.ended.is_some_and(|status| status.success())
    }

    /// Sends SIGTERM to the process, as a service manager does.
    pub(super) fn terminate(&self) {
        if self.ended.is_none() {
            // The process id stays valid until the process is waited for.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    /// Waits until the process ends. Returns how it ended, or `None` after this time.
    pub(super) async fn await_end(&mut self, within: Duration) -> Option<String> {
        let until = clock::ticks() + within;
        loop {
            match self.ended() {
                Some(how) => return Some(how),
                None if clock::ticks() >= until => return None,
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Sends SIGTERM to the process group, and waits for the end of the process.
    pub(super) async fn end(&mut self) {
        if self.ended().is_none() {
            // Signalling fails only if the process has ended.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::TERM);
            self.await_end(GRACE).await;
        }
    }

    fn kill(&mut self) {
        // The group may outlive its first process. The id of the group is not used again before the
        // group has ended.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        if self.ended.is_none() {
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(
    command: &[OsString],
    variables: &[(&'static str, Option<String>)],
) -> Result<Child, ClientError> {
    let Some((name, arguments)) = command.split_first() else {
        return Err(ClientError::Usage("name a program after --".to_owned()));
    };
    let mut process = Command::new(name);
    process.args(arguments).process_group(0).stdin(Stdio::null());
    service::keep_from(&mut process);
    process.stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in variables {
        match value {
            Some(value) => process.env(name, value),
            None => process.env_remove(name),
        };
    }
    let cannot = |error: io::Error| {
        let shown = escaped(&name.to_string_lossy()).into_owned();
        ClientError::Usage(format!("cannot run {shown}: {error}"))
    };
    let mut child = process.spawn().map_err(cannot)?;
    let passed_on = [
        child.stdout.take().map(|from| Box::new(from) as Box<dyn Read + Send>),
        child.stderr.take().map(|from| Box::new(from) as Box<dyn Read + Send>),
    ];
    for from in passed_on.into_iter().flatten() {
        std::thread::Builder::new().spawn(move || pass_on(from))?;
    }
    Ok(child)
}

/// Forwards the output of a process, line by line. A line that is too long is split.
fn pass_on(mut from: Box<dyn Read + Send>) {
    let (mut line, mut buffer) = (Vec::new(), [0; LINE_BYTES_MAX]);
    let tell = |line: &[u8]| {
        say(&format!("worker: {}", cut(&escaped(&String::from_utf8_lossy(line)), LINE_BYTES_MAX)))
    };
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        for byte in &buffer[..count] {
            if *byte == b'\n' || line.len() == LINE_BYTES_MAX {
                tell(&line);
                line.clear();
            }
            if *byte != b'\n' {
                line.push(*byte);
            }
        }
    }
    if !line.is_empty() {
        tell(&line);
    }
}
