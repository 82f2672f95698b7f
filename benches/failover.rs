//! How long creations are refused while the active manager of a name ends and its standby takes
//! over: after `kill -9`, after SIGTERM, and after a step-down. Medians and the longest of five.
//!
//! `POSTGRES_URL` and `POSTGRES_BIN` name the server (`POSTGRES_FSYNC=on tests/postgres start DIR;
//! . DIR/env`).

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::journal_rules::InDatabase;

const WORKFLOW: &str = "workflows: [{name: chain, steps: [{name: only}]}]";
/// How often each end is measured.
const RUNS: usize = 5;
/// How long the bench waits for a manager before it gives up.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How an active manager ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    Terminate,
    StepDown,
}

/// A manager in a process of its own.
struct Process {
    child: Child,
    port: u16,
}

impl Process {
    fn start(database: &InDatabase, file: &std::path::Path) -> Process {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        let address = format!("127.0.0.1:{}", port.port());
        let child = Command::new(env!("CARGO_BIN_EXE_workflow-manager"))
            .args(["serve", "--listen", &address, "--workflows"])
            .arg(file)
            .env("WORKFLOW_MANAGER__JOURNAL__URL", database.url())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        Process { child, port: port.port() }
    }

    /// Sends a request, and returns the status of the answer; `None`: nobody answers.
    fn ask(&self, method: &str, path: &str, body: &str) -> Option<u16> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        String::from_utf8_lossy(&answer).split_whitespace().nth(1)?.parse().ok()
    }

    fn takes_jobs(&self) -> bool {
        self.ask("POST", "/api/workflow/chain", "{}") == Some(201)
    }

    /// Waits until the process answers that it stands by.
    fn await_standby(&self) {
        wait(|| self.ask("GET", "/readyz", "") == Some(503));
    }

    fn end(&self, end: End) {
        let signal = |name: &str| {
            let pid = self.child.id().to_string();
            let status = Command::new("kill").args([name, &pid]).status().expect("kill runs");
            assert!(status.success(), "the signal is sent");
        };
        match end {
            End::Kill => signal("-KILL"),
            End::Terminate => signal("-TERM"),
            End::StepDown => {
                assert_eq!(self.ask("POST", "/api/manager/step-down", ""), Some(202));
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(is_met: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_met() {
        assert!(begun.elapsed() < WAIT_MAX, "the manager does not come");
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn main() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let file = folder.path().join("chain.yaml");
    std::fs::write(&file, WORKFLOW).expect("written");
    let database = InDatabase::create();
    let mut active = Process::start(&database, &file);
    wait(|| active.takes_jobs());
    for end in [End::Kill, End::Terminate, End::StepDown] {
        let mut times: Vec<Duration> = (0..RUNS)
            .map(|_| {
                let standby = Process::start(&database, &file);
                standby.await_standby();
                // The standby has seen a few beats.
                std::thread::sleep(Duration::from_secs(2));
                active.end(end);
                let begun = Instant::now();
                wait(|| standby.takes_jobs());
                let elapsed = begun.elapsed();
                active = standby;
                elapsed
            })
            .collect();
        times.sort();
        let [median, longest] = [RUNS / 2, RUNS - 1].map(|at| times[at].as_secs_f64());
        writeln!(
            std::io::stdout(),
            "{:<10} a job is taken again after {median:>6.2} s, the longest {longest:>6.2} s",
            format!("{end:?}")
        )
        .expect("written");
    }
}
