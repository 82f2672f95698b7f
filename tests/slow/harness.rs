//! What every test stands on: the daemon as a process, its HTTP API, and waiting for a condition.

use std::{
    fmt::Display,
    fs::{self, File},
    io::Read,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tempfile::TempDir;
use ureq::http::{Request, StatusCode};
use uuid::Uuid;

/// How long a condition is waited for where a test gives no other time: generous, since it passes
/// only when something is wrong.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

const BINARY: &str = env!("CARGO_BIN_EXE_workflow-manager");
const RESPONSE_BYTES_MAX: u64 = 256 * 1024 * 1024;
const LOG_LINES_SHOWN: usize = 60;

// ---- waiting
// ---------------------------------------------------------------------------------------------------

/// Asks `probe` until it answers `Ok`; its last `Err` says what was seen instead when the deadline
/// passes.
#[track_caller]
pub(crate) fn eventually<T, E: Display>(what: &str, probe: impl FnMut() -> Result<T, E>) -> T {
    within(DEADLINE, what, probe)
}

/// As [`eventually`], with a deadline of its own.
#[track_caller]
pub(crate) fn within<T, E: Display>(
    deadline: Duration,
    what: &str,
    mut probe: impl FnMut() -> Result<T, E>,
) -> T {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        match probe() {
            Ok(found) => return found,
            Err(seen) if begun.elapsed() > deadline => {
                panic!("not within {deadline:?}: {what}; seen last: {seen}")
            }
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// For probes: `Ok` when the condition holds, else what was seen.
pub(crate) fn when(condition: bool, seen: impl Display) -> Result<(), String> {
    if condition { Ok(()) } else { Err(seen.to_string()) }
}

// ---- the daemon
// ------------------------------------------------------------------------------------------------

/// How a daemon is to be started.
pub(crate) struct Setup {
    pub(crate) dir: TempDir,
    server: String,
    workflows: String,
    settings: Vec<(String, String)>,
    flags: Vec<String>,
    listen: Option<String>,
    faults: Option<String>,
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
            flags: Vec::new(),
            listen: None,
            faults: None,
            stderr: None,
        }
    }

    /// A setting by its path, as `http.token`; it is handed over in the environment.
    pub(crate) fn set(mut self, path: &str, value: &str) -> Setup {
        self.settings.push((path.to_owned(), value.to_owned()));
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

    /// Where it breaks, in the words of `src/faults.rs`.
    pub(crate) fn faults(mut self, faults: &str) -> Setup {
        self.faults = Some(faults.to_owned());
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

    /// Of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Replaces the workflow file, for the next start or reload.
    pub(crate) fn write_workflows(&self, text: &str) {
        fs::write(self.dir().join("workflows.yaml"), text).unwrap();
    }

    pub(crate) fn spawn_again(&mut self) {
        assert!(self.child.is_none(), "the daemon runs already");
        let dir = self.setup.dir.path();
        let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
        let listen = self
            .setup
            .listen
            .clone()
            .unwrap_or_else(|| format!("127.0.0.1:{}", self.port))
            .replace("{port}", &self.port.to_string());
        let mut command = command();
        command
            .arg("serve")
            .arg("--workflows")
            .arg(dir.join("workflows.yaml"))
            .arg("--db")
            .arg(dir.join("journal.db"));
        command
            .args(["--amqp-server", &self.setup.server, "--listen", &listen])
            .args(&self.setup.flags);
        command.envs(self.setup.settings.iter().map(|(path, value)| (variable(path), value)));
        command.envs(self.setup.faults.iter().map(|faults| ("FAILPOINTS", faults)));
        let stderr = self.setup.stderr.as_ref().unwrap_or(&log).try_clone().unwrap();
        command.current_dir(dir).stdin(Stdio::null()).stdout(log).stderr(stderr);
        self.child = Some(command.spawn().unwrap());
    }

    /// Where it breaks from its next start on.
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

    /// As [`Daemon::kill`], of a process that may have ended by itself.
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

/// The program, with nothing of the tests' own environment that would be a setting.
pub(crate) fn command() -> Command {
    let mut command = Command::new(BINARY);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("WORKFLOW_MANAGER") || text == "AMQP_SERVER" {
            command.env_remove(&name);
        }
    }
    command.env("NO_COLOR", "1");
    command
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

fn resident_bytes(pid: u32) -> u64 {
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

// ---- the HTTP API
// ----------------------------------------------------------------------------------------------

/// A client of the HTTP API.
#[derive(Clone)]
pub(crate) struct Api {
    agent: ureq::Agent,
    base: String,
    token: Option<String>,
}

impl Api {
    pub(crate) fn new(base: &str, token: Option<&str>) -> Api {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(DEADLINE))
            .proxy(None)
            .build();
        Api { agent: config.into(), base: base.to_owned(), token: token.map(str::to_owned) }
    }

    pub(crate) fn with_token(&self, token: Option<&str>) -> Api {
        Api { token: token.map(str::to_owned), ..self.clone() }
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], None)
    }

    #[track_caller]
    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], None)
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.send("POST", path, &[], Some(body.as_ref()))
    }

    #[track_caller]
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Answer {
        self.try_send(method, path, headers, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Sends a request; an `Err` is a request that got no answer.
    pub(crate) fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Result<Answer, ureq::Error> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = match body {
            Some(bytes) => {
                self.agent.run(request.header("Content-Type", "application/json").body(bytes)?)?
            }
            None => self.agent.run(request.body(())?)?,
        };
        let text = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_string()?;
        let headers = response.headers().iter().map(|(name, value)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        Ok(Answer {
            request: format!("{method} {path}"),
            status: response.status().as_u16(),
            headers: headers.collect(),
            text,
        })
    }

    /// Creates a job, which must be accepted, and gives its id.
    #[track_caller]
    pub(crate) fn create(&self, workflow: &str, message: &str) -> Uuid {
        self.post(&format!("/api/workflow/{workflow}"), message).expect(201).id()
    }

    #[track_caller]
    pub(crate) fn job(&self, id: Uuid) -> JobView {
        JobView::read(&self.get(&format!("/api/job/{id}")).expect(200))
    }

    /// Waits until the job has the state.
    #[track_caller]
    pub(crate) fn await_state(&self, id: Uuid, state: &str) -> JobView {
        eventually(&format!("job {id} is {state}"), || {
            let job = self.job(id);
            if job.state == state { Ok(job) } else { Err(job.text) }
        })
    }

    /// Waits until the job is completed and gives its result as text.
    #[track_caller]
    pub(crate) fn await_result(&self, id: Uuid) -> String {
        self.await_state(id, "completed").message_of("__end__")
    }
}

/// An answer of the HTTP API.
#[derive(Debug)]
pub(crate) struct Answer {
    request: String,
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Answer {
        assert!(self.status == status, "expected {status}: {self}");
        self
    }

    /// The answer must be the problem details of RFC 9457 with this code, and its detail must have
    /// all of the words.
    #[track_caller]
    pub(crate) fn expect_problem(self, status: u16, words: &[&str]) -> Answer {
        let answer = self.expect(status);
        assert!(
            answer.header("content-type").starts_with("application/problem+json"),
            "expected problem details: {answer}"
        );
        let problem = answer.json();
        assert_eq!(problem["status"], status, "the member status must repeat the code: {answer}");
        assert!(
            problem["title"].as_str().is_some_and(|title| !title.is_empty()),
            "a problem has a title: {answer}"
        );
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(!detail.is_empty(), "a problem has a detail: {answer}");
        let missing: Vec<_> = words
            .iter()
            .filter(|word| !detail.to_lowercase().contains(&word.to_lowercase()))
            .collect();
        assert!(missing.is_empty(), "the detail must have {missing:?}: {answer}");
        answer
    }

    /// The value of a header, empty where it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map_or("", |(_, value)| value)
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {self}"))
    }

    /// The member `id` of a creation's answer.
    #[track_caller]
    pub(crate) fn id(&self) -> Uuid {
        self.json()["id"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("no \"id\" that is a UUID: {self}"))
    }

    /// A list of UUIDs under a key; a key that is missing is an empty list.
    #[track_caller]
    pub(crate) fn ids(&self, key: &str) -> Vec<Uuid> {
        let json = self.json();
        let list = json.get(key).cloned().unwrap_or_else(|| Value::Array(Vec::new()));
        serde_json::from_value(list)
            .unwrap_or_else(|error| panic!("\"{key}\" is not a list of UUIDs ({error}): {self}"))
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = StatusCode::from_u16(self.status)
            .ok()
            .and_then(|code| code.canonical_reason())
            .unwrap_or_default();
        let shown: String = self.text.chars().take(2000).collect();
        write!(
            f,
            "{} -> {} {reason}, {}: {shown}",
            self.request,
            self.status,
            self.header("content-type")
        )
    }
}

/// `GET /api/job/{id}`, with the messages as the text that was sent.
#[derive(Deserialize)]
pub(crate) struct JobView {
    pub(crate) uuid: Uuid,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) running: Vec<StepView>,
    #[serde(default)]
    pub(crate) completed: Vec<StepView>,
    #[serde(skip)]
    pub(crate) text: String,
}

/// An entry of a job's `running` or `completed`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepView {
    pub(crate) name: String,
    pub(crate) start_time: String,
    #[serde(default)]
    pub(crate) elapsed: u64,
    #[serde(default)]
    pub(crate) tasks: Vec<Uuid>,
    #[serde(default)]
    pub(crate) message: Option<Box<RawValue>>,
}

impl JobView {
    #[track_caller]
    pub(crate) fn read(answer: &Answer) -> JobView {
        let mut job: JobView = serde_json::from_str(&answer.text)
            .unwrap_or_else(|error| panic!("not a job ({error}): {answer}"));
        job.text.clone_from(&answer.text);
        job
    }

    #[track_caller]
    pub(crate) fn running_step(&self, name: &str) -> &StepView {
        self.running
            .iter()
            .find(|step| step.name == name)
            .unwrap_or_else(|| panic!("{name} is not among the running steps: {}", self.text))
    }

    #[track_caller]
    pub(crate) fn completed_step(&self, name: &str) -> &StepView {
        self.completed
            .iter()
            .find(|step| step.name == name)
            .unwrap_or_else(|| panic!("{name} is not among the completed steps: {}", self.text))
    }

    /// The message of a completed step, byte for byte.
    #[track_caller]
    pub(crate) fn message_of(&self, name: &str) -> String {
        let step = self.completed_step(name);
        step.message.as_ref().map_or_else(
            || panic!("{name} has no message: {}", self.text),
            |raw| raw.get().to_owned(),
        )
    }
}
