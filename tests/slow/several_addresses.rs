//! Clients with several addresses: the command line, and a worker of each library, go where the
//! active manager is.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use support::journal_rules::InDatabase;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use uuid::Uuid;
use workflow_worker::{Failure, RawJson, Step, Worker};

use crate::amqp::RUNTIME;
use crate::harness::{Daemon, Ran, Running, Setup, command, eventually, free_port, run, when};

const WORKFLOWS: &str = "workflows: [{ name: signed, steps: [{ name: sign, external: true }] }]";

/// Each kind of worker, which is the name of its workflow and queue, too.
const KINDS: [&str; 4] = ["python", "node", "rust", "work"];

/// The size of the buffer into which a request is read.
const REQUEST_BYTES_MAX: usize = 1 << 16;

/// A server in the place of a manager: it answers each request with the same text, or breaks the
/// connection off if that is empty.
struct Other {
    url: String,
    /// The first line of each request, with the token after it.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Other {
    fn start(answer: String) -> Other {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                seen.lock().unwrap().push(answer_one(stream, &answer));
            }
        });
        Other { url, requests }
    }

    /// One that stands by, and names the active one in the header.
    fn standing_by(active: &str) -> Other {
        let detail = format!("stands by; active is {active}");
        Other::refusing(503, &format!("Workflow-Manager-Active: {active}\r\n"), &detail)
    }

    fn refusing(status: u16, headers: &str, detail: &str) -> Other {
        let body = json!({ "detail": detail }).to_string();
        Other::start(format!(
            "HTTP/1.1 {status} Refused\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n\
             {body}",
            body.len()
        ))
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn answer_one(mut stream: TcpStream, answer: &str) -> String {
    let mut bytes = vec![0; REQUEST_BYTES_MAX];
    let count = stream.read(&mut bytes).unwrap_or(0);
    let head = String::from_utf8_lossy(&bytes[..count]).into_owned();
    let _gone = stream.write_all(answer.as_bytes());
    let _closed = stream.shutdown(Shutdown::Both);
    let token = head.lines().find(|line| line.to_lowercase().starts_with("authorization: "));
    format!("{} {}", head.lines().next().unwrap_or_default(), token.unwrap_or_default())
}

fn at(servers: &str, arguments: &[&str]) -> Ran {
    run(command().args(arguments).args(["--server", servers]))
}

#[track_caller]
fn succeed(servers: &str, arguments: &[&str]) -> String {
    let ran = at(servers, arguments);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {ran}");
    ran.stdout
}

fn dead() -> String {
    format!("http://127.0.0.1:{}", free_port())
}

fn count_jobs(daemon: &Daemon) -> usize {
    daemon.api.get("/api/jobs").expect(200).json()["jobs"].as_array().unwrap().len()
}

// ---- the command line

#[test]
fn commands_pass_an_address_that_cannot_be_reached() {
    let daemon = Setup::new("", WORKFLOWS).start();
    let servers = format!("{},{}", dead(), daemon.url());
    let id = succeed(&servers, &["run", "signed", "--detach"]);
    let id = id.trim();
    assert!(succeed(&servers, &["jobs"]).contains(id));
    assert!(succeed(&servers, &["cancel", id]).contains("cancelled"));
    assert!(succeed(&servers, &["wait", id]).contains("cancelled"));
    let whoami = succeed(&servers, &["whoami"]);
    assert!(whoami.contains(&format!("manager   {} (from --server)", daemon.url())), "{whoami}");
    let doctor = succeed(&servers, &["doctor"]);
    assert!(doctor.contains("warning  manager") && doctor.contains("so that it stands by"));
}

#[test]
fn commands_go_to_the_address_that_a_standby_names_with_their_token() {
    let daemon = Setup::new("", WORKFLOWS).start();
    let other = Other::standing_by(&daemon.url());
    let id = succeed(&other.url, &["run", "signed", "--detach", "--token", "a-secret"]);
    daemon.api.job(id.trim().parse().unwrap());
    assert_eq!(count_jobs(&daemon), 1, "it was refused before it was created");
    assert!(other.requests()[0].ends_with("Bearer a-secret"), "{:?}", other.requests());
    let misdirected = format!("Workflow-Manager-Active: {}\r\n", daemon.url());
    let other = Other::refusing(421, &misdirected, "it has another name");
    succeed(&other.url, &["job", id.trim()]);
    // Health is that of the very manager which is asked; of several, one must be healthy.
    let other = Other::standing_by(&daemon.url());
    assert_eq!(at(&other.url, &["health"]).code, Some(1));
    succeed(&format!("{},{}", other.url, daemon.url()), &["health"]);
}

#[test]
fn a_standby_that_names_nobody_is_passed_and_an_overload_is_not() {
    let daemon = Setup::new("", WORKFLOWS).start();
    let other = Other::refusing(503, "", "stands by; the active one is unknown");
    succeed(&format!("{},{}", other.url, daemon.url()), &["run", "signed", "--detach"]);
    let busy = Other::refusing(503, "Retry-After: 1\r\n", "too many jobs");
    let ran = at(&format!("{},{}", busy.url, daemon.url()), &["run", "signed", "--detach"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("too many jobs"), "{ran}");
    assert_eq!(count_jobs(&daemon), 1);
}

#[test]
fn a_creation_that_may_have_been_executed_is_not_repeated_elsewhere_and_a_read_is() {
    let daemon = Setup::new("", WORKFLOWS).start();
    let cut = Other::start(String::new());
    let servers = format!("{},{}", cut.url, daemon.url());
    let ran = at(&servers, &["run", "signed", "--detach"]);
    assert!(ran.code == Some(3) && ran.stderr.contains(&cut.url), "{ran}");
    assert_eq!(count_jobs(&daemon), 0);
    succeed(&servers, &["jobs"]);
    assert_eq!(cut.requests().len(), 2);
}

#[test]
fn an_error_names_all_addresses_that_were_tried() {
    let (first, second) = (dead(), dead());
    let other = Other::standing_by(&second);
    let ran = at(&format!("{first},{}", other.url), &["jobs"]);
    assert_eq!(ran.code, Some(3), "{ran}");
    for words in [
        format!("cannot reach the manager at {first}, {}, {second}: ", other.url),
        format!("{first}: io: Connection refused"),
        format!("{}: 503 Service Unavailable: stands by; active is {second}", other.url),
        format!("{second}: io: Connection refused"),
    ] {
        assert!(ran.stderr.contains(&words), "{words}: {ran}");
    }
    let mixed = at("http://a,https://b", &["jobs"]);
    assert!(mixed.code == Some(2) && mixed.stderr.contains("mixes http:// and https://"));
}

#[test]
fn a_context_may_have_several_addresses() {
    let daemon = Setup::new("", WORKFLOWS).start();
    let home = tempfile::tempdir().unwrap();
    let servers = format!("{},{}", dead(), daemon.url());
    for arguments in [vec!["context", "add", "pair", "--server", &servers], vec!["jobs"]] {
        let ran = run(command().args(&arguments).env("XDG_CONFIG_HOME", home.path()));
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran}");
    }
    let ran = run(command().args(["jobs"]).env("WORKFLOW_MANAGER_URL", &servers));
    assert_eq!(ran.code, Some(0), "{ran}");
}

// ---- two managers, and a worker of each kind

/// A worker that has a folder. Its program writes a line into `begun` for each message, waits for
/// the file `release`, and returns its kind.
struct KindOfWorker {
    dir: TempDir,
    running: RunningWorker,
}

enum RunningWorker {
    Process(Running),
    InProcess(oneshot::Sender<()>, JoinHandle<Result<(), workflow_worker::Error>>),
}

impl KindOfWorker {
    fn start(kind: &str, servers: &str) -> KindOfWorker {
        let dir = tempfile::tempdir().unwrap();
        let running = match kind {
            "rust" => start_in_process(dir.path(), servers),
            "python" => start_process(&mut python(), dir.path(), servers),
            "node" => start_process(&mut node(), dir.path(), servers),
            kind => start_process(&mut work(kind), dir.path(), servers),
        };
        KindOfWorker { dir, running }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// How often its program was begun.
    fn begun(&self) -> usize {
        fs::read_to_string(self.path("begun")).unwrap_or_default().lines().count()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Asks it to stop, which it does once nothing is in hand.
    #[track_caller]
    fn stop(self) {
        match self.running {
            RunningWorker::Process(mut process) => {
                let pid = process.0.id().to_string();
                assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
                let probe = || process.0.try_wait().unwrap().ok_or("it runs");
                assert_eq!(eventually("the worker ends", probe).code(), Some(0));
            }
            RunningWorker::InProcess(stop, task) => {
                stop.send(()).unwrap();
                RUNTIME.block_on(task).unwrap().unwrap();
            }
        }
    }
}

fn start_process(command: &mut Command, dir: &Path, servers: &str) -> RunningWorker {
    let log = File::create(dir.join("log")).unwrap();
    command.current_dir(dir).env_remove("AMQP_SERVER").env("WORKFLOW_MANAGER_URL", servers);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let child: Child = command.spawn().unwrap();
    RunningWorker::Process(Running(child))
}

fn python() -> Command {
    let script = "import pathlib, time\nfrom pyworker import run\ndef work(message):\n    \
                  open('begun', 'a').write('x\\n')\n    \
                  while not pathlib.Path('release').exists(): time.sleep(0.02)\n    \
                  return {'by': 'python'}\nrun('python', work)\n";
    let mut command = Command::new("python3");
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("pyworker/src");
    command.args(["-c", script]).env("PYTHONPATH", library).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn node() -> Command {
    let library = std::env::var("JSWORKER").expect(
        "JSWORKER is not set: it names the built jsworker/dist/index.js; tests/run builds it",
    );
    let script = format!(
        "import {{ appendFileSync, existsSync }} from 'node:fs';
         import {{ setTimeout as pause }} from 'node:timers/promises';
         import {{ run }} from 'file://{library}';
         run('node', async () => {{
           appendFileSync('begun', 'x\\n');
           while (!existsSync('release')) await pause(20);
           return {{ by: 'node' }};
         }});"
    );
    let mut command = Command::new("node");
    command.args(["--input-type=module", "-e", &script]);
    command
}

fn work(kind: &str) -> Command {
    let script = format!(
        "echo x >>begun; while [ ! -e release ]; do sleep 0.05; done; echo '{{\"by\":\"{kind}\"}}'"
    );
    let mut command = command();
    command.args(["work", kind, "--", "sh", "-c", &script]);
    command
}

fn start_in_process(dir: &Path, servers: &str) -> RunningWorker {
    let dir = dir.to_owned();
    let function = move |_: RawJson, _: Step| {
        let dir = dir.clone();
        async move {
            let mut file = File::options().create(true).append(true).open(dir.join("begun"))?;
            writeln!(file, "x")?;
            while !dir.join("release").exists() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Ok::<Value, Failure>(json!({ "by": "rust" }))
        }
    };
    let worker = Worker::new().server(servers).queue("rust", function);
    let (stop, stopped) = oneshot::channel();
    let task = RUNTIME.spawn(worker.run_until(async {
        let _ = stopped.await;
    }));
    RunningWorker::InProcess(stop, task)
}

/// A manager with a workflow of one step for each kind of worker.
fn for_all_kinds() -> Setup {
    let workflows: Vec<String> = KINDS
        .iter()
        .map(|kind| format!("{{ name: {kind}, steps: [{{ name: {kind} }}] }}"))
        .collect();
    Setup::new("", &format!("workflows: [{}]", workflows.join(", ")))
}

#[test]
fn workers_of_each_kind_go_where_a_standby_says_that_the_active_one_is() {
    let daemon = for_all_kinds().start();
    let other = Other::standing_by(&daemon.url());
    let workers = KINDS.map(|kind| KindOfWorker::start(kind, &other.url));
    workers.iter().for_each(|worker| drop(File::create(worker.path("release")).unwrap()));
    for kind in KINDS {
        let job = daemon.api.create(kind, "{}");
        assert_eq!(daemon.api.await_result(job), format!("{{\"by\":\"{kind}\"}}"));
    }
    workers.into_iter().for_each(KindOfWorker::stop);
}

#[test]
fn workers_of_each_kind_keep_what_they_have_in_hand_when_another_manager_takes_over() {
    let database = InDatabase::create();
    let on_database = || for_all_kinds().set("journal.url", &database.url());
    let mut first = on_database().start();
    let mut second = on_database().spawn();
    second.await_standby();
    let servers = format!("{},{}", first.url(), second.url());
    let workers = KINDS.map(|kind| KindOfWorker::start(kind, &servers));
    let mut follower = command();
    follower.args(["run", "work", "--server", &servers]).stdout(Stdio::piped());
    let mut follower = Running(follower.stderr(Stdio::piped()).spawn().unwrap());
    let mut jobs: Vec<Uuid> = KINDS[..3].iter().map(|kind| first.api.create(kind, "{}")).collect();
    for (kind, worker) in KINDS.iter().zip(&workers) {
        eventually(&format!("{kind} has its message in hand"), || {
            when(worker.begun() == 1, worker.log())
        });
    }
    first.kill();
    second.await_ready();
    workers.iter().for_each(|worker| drop(File::create(worker.path("release")).unwrap()));
    for (kind, job) in KINDS.iter().zip(&jobs) {
        assert_eq!(second.api.await_result(*job), format!("{{\"by\":\"{kind}\"}}"));
    }
    // What `run` follows ends, too.
    let ended = eventually("run ends", || follower.0.try_wait().unwrap().ok_or("it runs"));
    let mut result = String::new();
    follower.0.stdout.take().unwrap().read_to_string(&mut result).unwrap();
    assert_eq!((ended.code(), result.trim()), (Some(0), "{\"by\":\"work\"}"));
    for (kind, worker) in KINDS.iter().zip(&workers) {
        assert_eq!(worker.begun(), 1, "{kind}: {}", worker.log());
        assert!(!worker.log().contains("changed nothing"), "{kind}: {}", worker.log());
    }
    // And back, when that one is stopped.
    first.spawn_again();
    first.await_standby();
    assert_eq!(second.stop().code(), Some(0));
    first.await_ready();
    let more: Vec<Uuid> = KINDS.iter().map(|kind| first.api.create(kind, "{}")).collect();
    for (kind, job) in KINDS.iter().zip(&more) {
        assert_eq!(first.api.await_result(*job), format!("{{\"by\":\"{kind}\"}}"));
    }
    jobs.extend(more);
    // With the one of `run`.
    assert_one_result_each(&database, jobs.len() + 1);
    workers.into_iter().for_each(KindOfWorker::stop);
}

/// Checks by SQL that there are so many jobs, that all are completed, and that each step has one
/// result.
#[track_caller]
fn assert_one_result_each(database: &InDatabase, count: usize) {
    let completed: usize = KINDS
        .iter()
        .map(|kind| {
            let query = format!("SELECT count(*) FROM \"status_{kind}\" WHERE state = 'completed'");
            database.query(&query).trim().parse::<usize>().unwrap()
        })
        .sum();
    assert_eq!(completed, count);
    let repeated = "SELECT e.job, element -> 'step' -> 0
                    FROM entries e, jsonb_array_elements(e.body::jsonb) AS element
                    WHERE element -> 'step' -> 1 ? 'completed' GROUP BY 1, 2 HAVING count(*) <> 1";
    assert_eq!(database.query(repeated), "");
}
