//! Several managers of one name on a journal in PostgreSQL, and what goes wrong with them: each
//! test is a line of the list of faults in docs/guarantees.md. Each plays under a load, and ends
//! with the same questions to the journal: see `load`.

mod broker;
mod deaths;
mod load;
mod network;
mod outages;
mod servers;
mod soak;
mod takeovers;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::tcp_proxy::TcpProxy;
use tempfile::TempDir;

use crate::harness::{Daemon, Setup, must_succeed};

/// How long the beat of an active manager may stand still before another one takes over.
const LEASE: Duration = Duration::from_secs(10);

/// The exit code of a manager whose name another one has taken.
const TAKEN_OVER: i32 = 75;

/// How a manager of the name `default` is started on a database.
fn manager(url: &str) -> Setup {
    manager_over("", url)
}

/// The same, over a broker.
fn manager_over(broker: &str, url: &str) -> Setup {
    let setup = Setup::new(broker, load::WORKFLOWS).set("journal.url", url);
    // A message whose reply was lost with its manager is lent again after this.
    setup.set("journal.full_retry", "100ms").set("embedded.lease", "2s")
}

/// A proxy to the server of a database, and the address of the database through it.
fn proxy_to(url: &str) -> (TcpProxy, String) {
    let (before, rest) = url.split_once("@").unwrap();
    let (server, database) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::start(server.parse().unwrap());
    let through = format!("{before}@127.0.0.1:{}/{database}", proxy.port());
    (proxy, through)
}

/// Sends a signal to a process.
fn signal(name: &str, daemon: &Daemon) {
    let pid = daemon.pid().to_string();
    must_succeed(Command::new("kill").args([&format!("-{name}"), &pid]));
}

/// How often a daemon has taken over from one that did not beat.
fn takeovers(daemon: &Daemon) -> usize {
    daemon.log().lines().filter(|line| line.contains("this one takes over")).count()
}

/// Runs an SQL statement on a database, and returns what psql prints: a line for each row, with
/// columns separated by `|`.
#[track_caller]
fn query(url: &str, sql: &str) -> String {
    let psql = Path::new(&std::env::var("POSTGRES_BIN").unwrap()).join("psql");
    let output = must_succeed(Command::new(psql).args([
        "-qAtX",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        url,
        "-c",
        sql,
    ]));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Who is active, as the database says it: how often the name was taken.
fn epoch(url: &str) -> u64 {
    query(url, "SELECT epoch FROM names WHERE name = 'default'").parse().unwrap()
}

/// A server of a test's own, which can go away.
struct Server {
    dir: TempDir,
    /// The address of its database `postgres`.
    url: String,
}

impl Server {
    fn start() -> Server {
        let mut server = Server { dir: tempfile::tempdir().unwrap(), url: String::new() };
        server.run("start", &[]);
        server.read_url();
        server
    }

    /// Starts a server that follows this one.
    fn start_standby(&self) -> Server {
        let mut standby = Server { dir: tempfile::tempdir().unwrap(), url: String::new() };
        standby.run("standby", &[self.dir.path()]);
        standby.read_url();
        standby
    }

    fn read_url(&mut self) {
        let env = std::fs::read_to_string(self.dir.path().join("env")).unwrap();
        let url = env.lines().find_map(|line| line.strip_prefix("export POSTGRES_URL=")).unwrap();
        self.url = format!("{url}/postgres");
    }

    /// Its host and port.
    fn host(&self) -> &str {
        self.url.split(['@', '/']).nth_back(1).unwrap()
    }

    fn run(&self, action: &str, more: &[&Path]) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/postgres");
        must_succeed(Command::new(script).arg(action).arg(self.dir.path()).args(more));
    }

    fn start_again(&self) {
        self.run("start", &[]);
    }

    /// Ends it at once.
    fn kill(&self) {
        self.run("kill", &[]);
    }

    fn promote(&self) {
        self.run("promote", &[]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
