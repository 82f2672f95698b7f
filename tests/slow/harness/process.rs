//! The program as a command, and what a process of it needs: its environment and a port.

use super::DEADLINE;
use std::{
    fmt::Display,
    fs,
    io::Read,
    net::TcpListener,
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

const BINARY: &str = env!("CARGO_BIN_EXE_workflow-manager");

/// The program, with nothing of the tests' own environment that would be a setting.
pub(crate) fn command() -> Command {
    without_settings(Command::new(BINARY))
}

/// The same, in a process with no more address space than this, in bytes. As
/// `docs/reference/capacity.md` says, the C library then reserves none for each thread.
pub(crate) fn command_within(address_space: u64) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--as={address_space}")).arg(BINARY).env("MALLOC_ARENA_MAX", "2");
    without_settings(command)
}

/// The same, in a process that does not go on without its terminal, also if the tests do.
pub(crate) fn command_at_terminal() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(BINARY);
    without_settings(command)
}

fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_ours = ["AMQP_SERVER", "CLICOLOR_FORCE", "NOTIFY_SOCKET"].contains(&&*text);
        if is_ours || text.starts_with("WORKFLOW_MANAGER") || text.starts_with("WATCHDOG_") {
            command.env_remove(&name);
        }
    }
    command.env("NO_COLOR", "1").env("XDG_CONFIG_HOME", "/nonexistent");
    command
}

/// A process that does not outlive its test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// What a command printed and how it ended.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The most memory it ever had resident, in bytes.
    pub(crate) memory: u64,
}

impl Ran {
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

impl Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {:?}\nstdout:\n{}\nstderr:\n{}", self.code, self.stdout, self.stderr)
    }
}

/// Runs a command to its end, which must come before the deadline.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Ran {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = drain(child.stdout.take().unwrap());
    let stderr = drain(child.stderr.take().unwrap());
    let begun = Instant::now();
    let mut memory = 0;
    let status = loop {
        memory = memory.max(resident_bytes(child.id()));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > DEADLINE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!(
                "{command:?} did not end within {DEADLINE:?}\nstdout:\n{}\nstderr:\n{}",
                stdout.join().unwrap(),
                stderr.join().unwrap()
            );
        }
        thread::sleep(Duration::from_millis(2));
    };
    Ran {
        code: status.code(),
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
        memory,
    }
}

fn drain(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _partial = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

pub(super) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0)
        * 1024
}

/// The environment variable of a setting.
pub(crate) fn variable(path: &str) -> String {
    format!("WORKFLOW_MANAGER__{}", path.to_uppercase().replace('.', "__"))
}

/// A port that nothing listens on, from a range that the kernel gives to no outgoing connection.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 9_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap();
    loop {
        let port = FIRST
            + (own.wrapping_mul(7).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Runs a command of the test's own; it must succeed.
#[track_caller]
pub(crate) fn must_succeed(command: &mut Command) -> Output {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
