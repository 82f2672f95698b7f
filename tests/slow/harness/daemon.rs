//! The daemon as a process: started, killed and started again on the same files.

use super::{
    Api, eventually,
    process::{command, command_within, free_port, resident_bytes, variable},
    when,
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};
use tempfile::TempDir;

const LOG_LINES_SHOWN: usize = 60;

/// How a daemon is to be started.
pub(crate) struct Setup {
    pub(crate) dir: TempDir,
    server: String,
    workflows: String,
    settings: Vec<(String, String)>,
    variables: Vec<(String, String)>,
    flags: Vec<String>,
    listen: Option<String>,
    faults: Option<String>,
    /// The authorities that it trusts, instead of those of this machine.
    authorities: Option<PathBuf>,
    /// The most address space that its process may have, in bytes.
    address_space: Option<u64>,
    /// Where its log goes instead of the file `log`.
    pub(crate) stderr: Option<File>,
}

impl Setup {
    /// A daemon on the broker `server` with the workflow file `workflows` (its text).
    pub(crate) fn new(server: &str, workflows: &str) -> Setup {
        let settings = [("amqp.reconnect_min", "100ms"), ("amqp.reconnect_max", "1s")];
        Setup {
            dir: tempfile::Builder::new().prefix("workflow-manager-slow-").tempdir().unwrap(),
            server: server.to_owned(),
            workflows: workflows.to_owned(),
            settings: settings
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            variables: Vec::new(),
            flags: Vec::new(),
            listen: None,
            faults: None,
            authorities: None,
            address_space: None,
            stderr: None,
        }
    }

    /// Changes a setting, given by its path such as `http.token`; it is handed over in the
    /// environment. `{port}` in it is the daemon's port.
    pub(crate) fn set(mut self, path: &str, value: &str) -> Setup {
        self.settings.push((path.to_owned(), value.to_owned()));
        self
    }

    /// Sets a variable of its environment.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Setup {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn flag(mut self, flag: &str) -> Setup {
        self.flags.push(flag.to_owned());
        self
    }

    pub(crate) fn listen(mut self, address: &str) -> Setup {
        self.listen = Some(address.to_owned());
        self
    }

    /// The file of the authorities that it trusts.
    pub(crate) fn trusting(mut self, authorities: &Path) -> Setup {
        self.authorities = Some(authorities.to_owned());
        self
    }

    /// Where it breaks, in the words of `src/faults.rs`.
    pub(crate) fn faults(mut self, faults: &str) -> Setup {
        self.faults = Some(faults.to_owned());
        self
    }

    /// Its process gets no more address space than this, in bytes.
    pub(crate) fn address_space(mut self, bytes: u64) -> Setup {
        self.address_space = Some(bytes);
        self
    }

    /// Starts it and waits until it is ready.
    #[track_caller]
    pub(crate) fn start(self) -> Daemon {
        let mut daemon = self.launch();
        daemon.await_ready();
        daemon
    }

    /// Starts it and waits until it is alive, ready or not.
    #[track_caller]
    pub(crate) fn launch(self) -> Daemon {
        let mut daemon = self.spawn();
        daemon.await_alive();
        daemon
    }

    /// Starts it and waits for nothing.
    pub(crate) fn spawn(self) -> Daemon {
        let port = free_port();
        fs::write(self.dir.path().join("workflows.yaml"), &self.workflows).unwrap();
        let token = self
            .settings
            .iter()
            .find(|(path, _)| path == "http.token")
            .map(|(_, value)| value.clone());
        let api = Api::new(&format!("http://127.0.0.1:{port}"), token.as_deref());
        let mut daemon = Daemon { setup: self, port, api, child: None };
        daemon.spawn_again();
        daemon
    }
}

/// A daemon, its files and its address; they outlive its process, so that it can be killed and
/// started again.
pub(crate) struct Daemon {
    setup: Setup,
    port: u16,
    pub(crate) api: Api,
    child: Option<Child>,
}

impl Daemon {
    pub(crate) fn dir(&self) -> &Path {
        self.setup.dir.path()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.dir().join("journal.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The id of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Replaces the workflow file, for the next start or reload.
    pub(crate) fn write_workflows(&self, text: &str) {
        fs::write(self.dir().join("workflows.yaml"), text).unwrap();
    }

    pub(crate) fn spawn_again(&mut self) {
        assert!(self.child.is_none(), "the daemon runs already");
        self.api = self.api.anew();
        let dir = self.setup.dir.path();
        let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
        let listen = self
            .setup
            .listen
            .clone()
            .unwrap_or_else(|| format!("127.0.0.1:{}", self.port))
            .replace("{port}", &self.port.to_string());
        let mut command = self.setup.address_space.map_or_else(command, command_within);
        command
            .arg("serve")
            .arg("--workflows")
            .arg(dir.join("workflows.yaml"))
            .arg("--db")
            .arg(dir.join("journal.db"));
        command
            .args(["--amqp-server", &self.setup.server, "--listen", &listen])
            .args(&self.setup.flags);
        let port = self.port.to_string();
        let with_port = |value: &String| value.replace("{port}", &port);
        let settings = self.setup.settings.iter();
        command.envs(settings.map(|(path, value)| (variable(path), with_port(value))));
        command.envs(self.setup.variables.iter().map(|(name, value)| (name, value)));
        command.envs(self.setup.faults.iter().map(|faults| ("FAILPOINTS", faults)));
        command.envs(self.setup.authorities.iter().map(|file| ("SSL_CERT_FILE", file)));
        let stderr = self.setup.stderr.as_ref().unwrap_or(&log).try_clone().unwrap();
        command.current_dir(dir).stdin(Stdio::null()).stdout(log).stderr(stderr);
        self.child = Some(command.spawn().unwrap());
    }

    /// Sets a setting from its next start on.
    pub(crate) fn set_setting(&mut self, path: &str, value: &str) {
        self.setup.settings.push((path.to_owned(), value.to_owned()));
    }

    /// Sets where it breaks from its next start on.
    pub(crate) fn set_faults(&mut self, faults: Option<&str>) {
        self.setup.faults = faults.map(str::to_owned);
    }

    /// Starts the process again after its end, and waits until it is ready.
    #[track_caller]
    pub(crate) fn start_again(&mut self) {
        self.spawn_again();
        self.await_ready();
    }

    #[track_caller]
    pub(crate) fn await_ready(&mut self) {
        self.await_health("/readyz");
    }

    #[track_caller]
    pub(crate) fn await_alive(&mut self) {
        self.await_health("/livez");
    }

    #[track_caller]
    fn await_health(&mut self, path: &str) {
        eventually(&format!("the daemon answers 200 to GET {path}"), || {
            if let Some(status) = self.ended() {
                panic!("the daemon ended ({status}) instead of starting:\n{}", self.log());
            }
            match self.api.try_send("GET", path, &[], None) {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("{answer}")),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    /// The most memory that the running process ever had resident, in bytes.
    pub(crate) fn memory_peak(&self) -> u64 {
        resident_bytes(self.child.as_ref().expect("the daemon runs").id())
    }

    /// How the process ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().unwrap()
    }

    /// Waits for the process to end by itself.
    #[track_caller]
    pub(crate) fn await_end(&mut self) -> ExitStatus {
        let status = eventually("the daemon ends", || self.ended().ok_or("it still runs"));
        self.child = None;
        status
    }

    /// Ends the process at once, as a crash would: `kill -9`.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().expect("the daemon runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// As [`Daemon::kill`], for a process that may have ended by itself.
    pub(crate) fn kill_if_alive(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }

    /// Asks the process to end, without waiting for it.
    pub(crate) fn ask_to_stop(&self) {
        let pid = self.child.as_ref().expect("the daemon runs").id();
        let status =
            Command::new("sh").args(["-c", &format!("kill -TERM {pid}")]).status().unwrap();
        assert!(status.success());
    }

    /// SIGTERM, and the end that follows.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.ask_to_stop();
        self.await_end()
    }

    /// All that the daemon has printed, over all its starts.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// Waits until it stands by. A warning about settings has these words too, long before.
    #[track_caller]
    pub(crate) fn await_standby(&self) {
        self.await_log(&["this manager stands by, and serves reads"]);
    }

    /// Waits until the log has all of the words in one line, without regard to case.
    #[track_caller]
    pub(crate) fn await_log(&self, words: &[&str]) {
        eventually(&format!("a line of the log has {words:?}"), || {
            let found = self.log().lines().any(|line| {
                words.iter().all(|word| line.to_lowercase().contains(&word.to_lowercase()))
            });
            when(found, "no such line")
        });
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
            eprintln!(
                "---- the last {} of {} lines of the daemon's log ----\n{}\n----",
                shown.len(),
                lines.len(),
                shown.join("\n")
            );
        }
    }
}
