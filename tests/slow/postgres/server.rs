//! Servers of PostgreSQL that a test starts for itself, and SQL.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::must_succeed;

/// A server of a test's own, which can go away.
pub(crate) struct Server {
    pub(crate) dir: TempDir,
    /// The address of its database `postgres`.
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start() -> Server {
        let mut server = Server { dir: tempfile::tempdir().unwrap(), url: String::new() };
        server.run("start", &[]);
        server.read_url();
        server
    }

    /// Starts a server that follows this one.
    pub(crate) fn start_standby(&self) -> Server {
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
    pub(crate) fn host(&self) -> &str {
        self.url.split(['@', '/']).nth_back(1).unwrap()
    }

    fn run(&self, action: &str, more: &[&Path]) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/postgres");
        must_succeed(Command::new(script).arg(action).arg(self.dir.path()).args(more));
    }

    pub(crate) fn start_again(&self) {
        self.run("start", &[]);
    }

    /// Stops it in order.
    pub(crate) fn stop(&self) {
        self.run("stop", &[]);
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) {
        self.run("kill", &[]);
    }

    /// Ends it at once, and starts it.
    pub(crate) fn restart(&self) {
        self.run("restart", &[]);
    }

    pub(crate) fn promote(&self) {
        self.run("promote", &[]);
    }

    /// Runs an SQL statement on its database `postgres`; see [`query`].
    #[track_caller]
    pub(crate) fn query(&self, sql: &str) -> String {
        query(&self.url, sql)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs an SQL statement on a database, and returns what psql prints: a line for each row, with
/// columns separated by `|`.
#[track_caller]
pub(crate) fn query(url: &str, sql: &str) -> String {
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
