//! The program that processes messages. Each message is processed by a new process, which leads a
//! process group: signals of the terminal do not reach the group, and signals of the worker also
//! reach the children of the process.

use super::super::error::ClientError;
use super::tail::Tail;
use daemon::service;
use engine::text::escape;
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write, stderr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// The maximum size of the output of a program, in bytes: the manager's default
/// (`limits.reply_bytes_max`).
pub(super) const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// How long to wait for the next chunk of output after the program has ended, in case a child
/// process keeps the pipe open.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// The maximum length of a line of standard error that is forwarded in one piece, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The size of the buffer for reading an output, in bytes: the default capacity of a pipe.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// An event for the task of a message.
pub(super) enum TaskEvent {
    /// The program has ended.
    ProgramEnded,
    /// The output is larger than allowed.
    OutputTooLarge,
    /// The message was delivered to this worker again, with this path for its reply.
    Redelivered(String),
    /// The dispatcher wants the program to be stopped, and the message to be requeued.
    Requeue,
    /// A file of the program has changed: the program is to be stopped and started again.
    Restart,
}

/// A program and its arguments.
pub(super) struct Program {
    name: OsString,
    arguments: Vec<OsString>,
}

impl Program {
    /// Finds the program of a command, by its path or in `PATH`.
    ///
    /// # Errors
    ///
    /// Returns an error if the command is empty, or the program is not an executable file.
    pub(super) fn find(command: &[OsString]) -> Result<Program, ClientError> {
        let (name, arguments) = command
            .split_first()
            .ok_or_else(|| ClientError::Usage("name a program after --".to_owned()))?;
        let name_text = escape(&name.to_string_lossy()).into_owned();
        let problem = if name.as_bytes().contains(&b'/') {
            let path = Path::new(name);
            match (path.is_file(), is_executable(path)) {
                (_, true) => None,
                (true, false) => Some("it may not be executed (chmod +x)"),
                (false, false) => Some("there is no such file"),
            }
        } else {
            find_in_path(name).is_none().then_some("it is in no folder of PATH")
        };
        match problem {
            Some(problem) => Err(ClientError::Usage(format!("cannot run {name_text}: {problem}"))),
            None => Ok(Program { name: name.clone(), arguments: arguments.to_vec() }),
        }
    }

    /// Returns the files whose change changes the program: its own, and those that its arguments
    /// name.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let program = if self.name.as_bytes().contains(&b'/') {
            Some(PathBuf::from(&self.name))
        } else {
            find_in_path(&self.name)
        };
        let arguments = self.arguments.iter().map(PathBuf::from).filter(|path| path.is_file());
        program.into_iter().chain(arguments).collect()
    }

    /// Returns the name of the program for people.
    pub(super) fn display_name(&self) -> String {
        escape(&self.name.to_string_lossy()).into_owned()
    }

    /// Starts the program with an input. Environment variables whose value is `None` are removed.
    /// `event_sender` receives the events of the program.
    pub(super) fn start(
        &self,
        variables: Vec<(&'static str, Option<OsString>)>,
        input: Vec<u8>,
        event_sender: &Sender<TaskEvent>,
    ) -> io::Result<RunningProgram> {
        let mut command = Command::new(&self.name);
        command.args(&self.arguments).process_group(0);
        service::clear_systemd_env(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        match start_threads(&mut child, pid, input, event_sender) {
            Ok((chunks, tail)) => Ok(RunningProgram { child, pid, chunks, tail }),
            Err(error) => {
                // Without the threads, the program would run unattended.
                let _ = kill_process_group(pid, Signal::KILL);
                child.wait()?;
                Err(error)
            }
        }
    }
}

/// Returns whether a path is a file that this process may execute.
fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

/// Finds a program in the folders of `PATH`.
fn find_in_path(name: &OsStr) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|folder| folder.join(name)).find(|path| is_executable(path))
}

/// The channels for the chunks of standard output, and for the tail of standard error.
type ProgramOutputs = (Receiver<Vec<u8>>, Receiver<Tail>);

/// Starts the threads that write a program's input, read its outputs, and wait for its end.
fn start_threads(
    child: &mut Child,
    pid: Pid,
    input: Vec<u8>,
    event_sender: &Sender<TaskEvent>,
) -> io::Result<ProgramOutputs> {
    let (chunk_sender, chunks) = channel();
    let (tail_sender, tail) = channel();
    if let Some(mut stdin) = child.stdin.take() {
        // Writing fails if the program does not read all of its input, which it need not do.
        spawn_thread(move || drop(stdin.write_all(&input)))?;
    }
    if let Some(stdout) = child.stdout.take() {
        let event_sender = event_sender.clone();
        spawn_thread(move || forward_output(stdout, &chunk_sender, &event_sender))?;
    }
    if let Some(stderr) = child.stderr.take() {
        spawn_thread(move || drop(tail_sender.send(forward_stderr(stderr))))?;
    }
    let event_sender = event_sender.clone();
    spawn_thread(move || {
        wait_for_exit(pid);
        // Sending fails only if the task of the message has panicked.
        drop(event_sender.send(TaskEvent::ProgramEnded));
    })?;
    Ok((chunks, tail))
}

fn spawn_thread(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().spawn(run).map(drop)
}

/// A running program.
pub(super) struct RunningProgram {
    child: Child,
    /// The id of the process, and of its process group.
    pid: Pid,
    /// The chunks of standard output.
    chunks: Receiver<Vec<u8>>,
    /// The tail of standard error, sent when standard error is closed.
    tail: Receiver<Tail>,
}

/// A program that has ended.
pub(super) struct EndedProgram {
    status: ExitStatus,
    /// Standard output. `None` if it was larger than `OUTPUT_BYTES_MAX`.
    output: Option<Vec<u8>>,
    /// The last lines of standard error.
    tail: String,
}

impl RunningProgram {
    /// Sends SIGTERM to the process group.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL to the process group.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Signals the process group. The process is not reaped before `wait_for_output`, so its id
    /// cannot have been reused.
    fn signal(&self, signal: Signal) {
        // Signalling fails if the group has exited.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Waits for the remaining output and the exit status, and reaps the process. To be called
    /// after
    /// `TaskEvent::ProgramEnded`.
    pub(super) fn wait_for_output(mut self) -> io::Result<EndedProgram> {
        let mut output = Some(Vec::new());
        loop {
            match (self.chunks.recv_timeout(OUTPUT_GRACE), &mut output) {
                (Ok(chunk), Some(bytes)) if bytes.len() + chunk.len() <= OUTPUT_BYTES_MAX => {
                    bytes.extend_from_slice(&chunk);
                }
                (Ok(_), _) => output = None,
                (Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected), _) => break,
            }
        }
        let tail = self.tail.recv_timeout(OUTPUT_GRACE).unwrap_or_default().render();
        Ok(EndedProgram { status: self.child.wait()?, output, tail })
    }
}

impl EndedProgram {
    /// Returns the output, which is empty if it is only whitespace, or why the program failed.
    pub(super) fn into_output(self) -> Result<Vec<u8>, String> {
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
        let exit_text = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => self.status.to_string(),
        };
        Err(if self.tail.is_empty() { exit_text } else { format!("{exit_text}: {}", self.tail) })
    }
}

/// Waits until a process has exited, without reaping it.
fn wait_for_exit(pid: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}

/// Sends standard output in chunks, until it is closed or larger than `OUTPUT_BYTES_MAX`.
fn forward_output(
    mut source: impl Read,
    chunk_sender: &Sender<Vec<u8>>,
    event_sender: &Sender<TaskEvent>,
) {
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    let mut total_bytes = 0;
    while let Some(chunk) = read_chunk(&mut source, &mut buffer) {
        total_bytes += chunk.len();
        if chunk_sender.send(chunk.to_vec()).is_err() {
            return;
        }
        if total_bytes > OUTPUT_BYTES_MAX {
            // Returning closes the pipe, so the program cannot write more.
            drop(event_sender.send(TaskEvent::OutputTooLarge));
            return;
        }
    }
}

/// Forwards a program's standard error to that of the worker, until it is closed. Writes complete
/// lines, so that the lines of several programs do not mix. Returns the tail.
fn forward_stderr(mut source: impl Read) -> Tail {
    let (mut tail, mut line) = (Tail::default(), Vec::new());
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    // Writing fails if the standard error of the worker is closed, so nobody reads it.
    let write = |bytes: &[u8]| drop(stderr().write_all(bytes));
    while let Some(chunk) = read_chunk(&mut source, &mut buffer) {
        tail.add(chunk);
        line.extend_from_slice(chunk);
        let lines_end = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
        let write_end = if line.len() > LINE_BYTES_MAX { line.len() } else { lines_end };
        write(&line[..write_end]);
        line.drain(..write_end);
    }
    if !line.is_empty() {
        line.push(b'\n');
        write(&line);
    }
    tail
}

/// Reads the next bytes into the buffer. Returns `None` at the end, or after an error.
pub(crate) fn read_chunk<'b>(source: &mut impl Read, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    loop {
        match source.read(buffer) {
            Ok(0) => return None,
            Ok(count) => return Some(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Returns whether an error of starting a program is transient: a resource is exhausted, or the
/// program's file is open for writing.
pub(super) fn is_transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let transient = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY];
    let code = error.raw_os_error();
    transient.iter().any(|errno| code == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_program_are_its_own_and_those_of_its_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script.sh");
        std::fs::write(&script, "").unwrap();
        let command = ["sh".into(), "-e".into(), script.clone().into()];
        let files = Program::find(&command).unwrap().files();
        assert!(files[0].ends_with("sh") && files[0].is_absolute(), "{files:?}");
        assert_eq!(files[1..], [script]);
    }

    #[test]
    fn a_missing_program_is_refused_with_a_reason() {
        let find = |name: &str| Program::find(&[name.into()]).map(drop);
        assert!(find("sh").is_ok() && find("/bin/sh").is_ok());
        for (name, reason) in
            [("no-such-program", "PATH"), ("/etc/passwd", "chmod"), ("/no/such", "no such file")]
        {
            let error = find(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(reason), "{error}");
        }
    }
}
