//! The program that does the work: a process for each message, in a group of its own, so that the
//! signals of a terminal do not reach it and ours reach all of it.

use super::super::error::ClientError;
use super::tail::Tail;
use crate::engine::words::escaped;
use crate::service;
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::ffi::OsString;
use std::io::{self, Read, Write, stderr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// The largest output of a program, in bytes. It is the manager's default too
/// (`limits.reply_bytes_max`).
pub(super) const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// How long the output is waited for when the program has ended, and what it has started holds it
/// open.
const OPEN_FOR: Duration = Duration::from_secs(1);

/// A line of a program that is longer is told in parts.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What happens to a message in hand.
pub(super) enum Event {
    /// The program has ended.
    Ended,
    /// Its output is larger than it may be.
    TooLarge,
    /// The message was lent to this worker once more; the reply goes here.
    LentAgain(String),
    /// Give it back.
    GiveUp,
}

/// A program and its arguments.
pub(super) struct Program {
    name: OsString,
    arguments: Vec<OsString>,
}

impl Program {
    /// # Errors
    ///
    /// There is no such program.
    pub(super) fn find(command: &[OsString]) -> Result<Program, ClientError> {
        let (name, arguments) = command
            .split_first()
            .ok_or_else(|| ClientError::Usage("name a program after --".to_owned()))?;
        let is_there = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
        let shown = escaped(&name.to_string_lossy()).into_owned();
        let why = if name.as_bytes().contains(&b'/') {
            let path = Path::new(name);
            match (path.is_file(), is_there(path)) {
                (_, true) => None,
                (true, false) => Some("it may not be executed (chmod +x)"),
                (false, false) => Some("there is no such file"),
            }
        } else {
            let paths = std::env::var_os("PATH").unwrap_or_default();
            let is_found = std::env::split_paths(&paths).any(|folder| is_there(&folder.join(name)));
            (!is_found).then_some("it is in no folder of PATH")
        };
        match why {
            Some(why) => Err(ClientError::Usage(format!("cannot run {shown}: {why}"))),
            None => Ok(Program { name: name.clone(), arguments: arguments.to_vec() }),
        }
    }

    /// The program, for people.
    pub(super) fn shown(&self) -> String {
        escaped(&self.name.to_string_lossy()).into_owned()
    }

    /// Runs it with an input. What happens to it is told to `events`.
    pub(super) fn start(
        &self,
        variables: Vec<(&'static str, Option<OsString>)>,
        input: Vec<u8>,
        events: &Sender<Event>,
    ) -> io::Result<Running> {
        let mut command = Command::new(&self.name);
        command.args(&self.arguments).process_group(0);
        service::keep_from(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        match attend(&mut child, pid, input, events) {
            Ok((chunks, tail)) => Ok(Running { child, pid, chunks, tail }),
            Err(error) => {
                // Nobody would attend to it.
                let _ = kill_process_group(pid, Signal::KILL);
                child.wait()?;
                Err(error)
            }
        }
    }
}

/// What a program gives, and the end of what it says.
type Said = (Receiver<Vec<u8>>, Receiver<Tail>);

/// Starts the threads that give a program its input, take what it gives, and wait for its end.
fn attend(child: &mut Child, pid: Pid, input: Vec<u8>, events: &Sender<Event>) -> io::Result<Said> {
    let (output, chunks) = channel();
    let (told, tail) = channel();
    if let Some(mut stdin) = child.stdin.take() {
        // A program need not read its input.
        begin(move || drop(stdin.write_all(&input)))?;
    }
    if let Some(stdout) = child.stdout.take() {
        let events = events.clone();
        begin(move || collect(stdout, &output, &events))?;
    }
    if let Some(stderr) = child.stderr.take() {
        begin(move || drop(told.send(pass_on(stderr))))?;
    }
    let events = events.clone();
    begin(move || {
        await_end(pid);
        // Nobody listens if the worker ends.
        drop(events.send(Event::Ended));
    })?;
    Ok((chunks, tail))
}

fn begin(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().spawn(work).map(drop)
}

/// A program that runs.
pub(super) struct Running {
    child: Child,
    pid: Pid,
    chunks: Receiver<Vec<u8>>,
    tail: Receiver<Tail>,
}

/// How a program ended.
pub(super) struct Ended {
    status: ExitStatus,
    /// None: too large.
    output: Option<Vec<u8>>,
    tail: String,
}

impl Running {
    /// Asks the program, and all that it has started, to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// The process is there until `end` has waited for it, so that no other one is meant.
    fn signal(&self, signal: Signal) {
        // A group that has ended needs no signal.
        let _ = kill_process_group(self.pid, signal);
    }

    /// What it has given, when it has ended.
    pub(super) fn end(mut self) -> io::Result<Ended> {
        let mut output = Some(Vec::new());
        loop {
            match (self.chunks.recv_timeout(OPEN_FOR), &mut output) {
                (Ok(chunk), Some(bytes)) if bytes.len() + chunk.len() <= OUTPUT_BYTES_MAX => {
                    bytes.extend_from_slice(&chunk);
                }
                (Ok(_), _) => output = None,
                (Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected), _) => break,
            }
        }
        let tail = self.tail.recv_timeout(OPEN_FOR).unwrap_or_default().text();
        Ok(Ended { status: self.child.wait()?, output, tail })
    }
}

impl Ended {
    /// Its output, or why it failed.
    pub(super) fn output(self) -> Result<Vec<u8>, String> {
        let Some(output) = self.output else {
            return Err(format!(
                "the output is larger than {OUTPUT_BYTES_MAX} bytes, the most that \
                 workflow-manager work takes"
            ));
        };
        if self.status.success() {
            let is_empty = output.trim_ascii().is_empty();
            return Ok(if is_empty { Vec::new() } else { output });
        }
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => self.status.to_string(),
        };
        Err(if self.tail.is_empty() { how } else { format!("{how}: {}", self.tail) })
    }
}

/// Waits for the end of a process and leaves its status to whoever waits for it.
fn await_end(pid: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}

/// Passes on what a program gives, up to the largest output and a little more.
fn collect(mut from: impl Read, to: &Sender<Vec<u8>>, events: &Sender<Event>) {
    let mut buffer = vec![0; LINE_BYTES_MAX];
    let mut total = 0;
    while let Some(chunk) = next(&mut from, &mut buffer) {
        total += chunk.len();
        if to.send(chunk.to_vec()).is_err() {
            return;
        }
        if total > OUTPUT_BYTES_MAX {
            // Closed, the output takes no more.
            drop(events.send(Event::TooLarge));
            return;
        }
    }
}

/// Passes on what a program says, in whole lines, and keeps its end.
fn pass_on(mut from: impl Read) -> Tail {
    let (mut tail, mut line) = (Tail::default(), Vec::new());
    let mut buffer = vec![0; LINE_BYTES_MAX];
    // With standard error closed there is nobody to tell.
    let tell = |bytes: &[u8]| drop(stderr().write_all(bytes));
    while let Some(chunk) = next(&mut from, &mut buffer) {
        tail.add(chunk);
        line.extend_from_slice(chunk);
        let whole = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let whole = if line.len() > LINE_BYTES_MAX { line.len() } else { whole };
        tell(&line[..whole]);
        line.drain(..whole);
    }
    if !line.is_empty() {
        line.push(b'\n');
        tell(&line);
    }
    tail
}

/// The next bytes; none at the end.
fn next<'b>(from: &mut impl Read, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    loop {
        match from.read(buffer) {
            Ok(0) => return None,
            Ok(count) => return Some(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Whether a program could not be started for want of something that may be there later.
pub(super) fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY];
    let code = error.raw_os_error();
    passing.iter().any(|errno| code == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let find = |name: &str| Program::find(&[name.into()]).map(drop);
        assert!(find("sh").is_ok() && find("/bin/sh").is_ok());
        for (name, why) in
            [("no-such-program", "PATH"), ("/etc/passwd", "chmod"), ("/no/such", "no such file")]
        {
            let error = find(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(why), "{error}");
        }
    }
}
