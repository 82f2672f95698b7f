//! A chain of five steps with workers over HTTP or gRPC, compared with the same chain over a real
//! broker in the same run. The ratios are what counts.
//!
//! `AMQP_SERVER` names the broker (`tests/rabbitmq start DIR; . DIR/env`). The workers run in a
//! process of their own, so that the manager is not charged for them. Then the manager's memory is
//! measured, for many workers that wait for messages over HTTP, and for gRPC streams that wait or
//! have messages in flight.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod chain;
mod process;

use chain::{CHAIN, CONCURRENCY, QUEUES, echo, run_jobs};
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::grpc::{GrpcWorker, connect};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::api;
use workflow_manager::api::state::ApiState;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::Message;
use workflow_manager::grpc;
use workflow_manager::grpc::wire::Kind;
use workflow_manager::grpc::wire::to_worker::Say as Tell;
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const JOBS: usize = 4_000;
/// The number of workers over HTTP, for all queues together.
const WORKERS: usize = 64;
/// The number of waiting workers whose memory is measured.
const WAITING_WORKERS: usize = 10_000;
/// How many messages a worker over gRPC may have in flight.
const CREDIT: u32 = 64;

/// The number of gRPC streams whose memory is measured, each on its own connection.
const STREAMS: usize = 1_000;
/// How many messages each of them has in flight, and the size of a message.
const IN_FLIGHT: usize = 4;
const MESSAGE_BYTES: usize = 4 << 10;

/// The role of a child process: `waiting` or `streams` measures the memory of such workers; `hold`,
/// `amqp`, `wait`, `grpc-` with the number of streams, and a number (of messages per request over
/// HTTP) are kinds of workers.
const ROLE_ENV: &str = "HTTP_WORKERS_ROLE";
/// The variable with the address of the manager.
const MANAGER_ENV: &str = "HTTP_WORKERS_MANAGER";

/// A minimal client of HTTP/1.1, with a connection of its own.
struct HttpClient {
    stream: TcpStream,
    buffer: Vec<u8>,
}

struct HttpResponse {
    status: u16,
    reply_to: String,
    body: Vec<u8>,
}

impl HttpClient {
    async fn open(address: &str) -> HttpClient {
        let stream = TcpStream::connect(address).await.expect("the manager listens");
        stream.set_nodelay(true).expect("a socket");
        HttpClient { stream, buffer: Vec::new() }
    }

    async fn send_request(&mut self, path: &str, body: &[u8]) {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        let request = [head.as_bytes(), body].concat();
        let mut rest = &request[..];
        while !rest.is_empty() {
            self.stream.ready(Interest::WRITABLE).await.expect("a connection");
            match self.stream.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn read_response(&mut self) -> HttpResponse {
        let end = loop {
            match self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => self.read().await,
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
        };
        let length: usize = header("content-length").parse().unwrap_or_default();
        while self.buffer.len() < end + length {
            self.read().await;
        }
        let body = self.buffer[end..end + length].to_vec();
        self.buffer.drain(..end + length);
        let status = head[9..12].parse().expect("a status");
        HttpResponse { status, reply_to: header("reply-to").to_owned(), body }
    }

    async fn read(&mut self) {
        self.stream.ready(Interest::READABLE).await.expect("a connection");
        let mut buffer = [0; 16 << 10];
        match self.stream.try_read(&mut buffer) {
            Ok(0) => panic!("the manager has closed the connection"),
            Ok(count) => self.buffer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn post(&mut self, path: &str, body: &[u8]) -> HttpResponse {
        self.send_request(path, body).await;
        self.read_response().await
    }
}

#[derive(Deserialize)]
struct StepMessage {
    reply_to: String,
    body: Box<RawValue>,
}

/// Echoes each message of a queue, received one or several at a time.
async fn echo_over_http(address: String, queue: &'static str, messages_max: usize) {
    let mut client = HttpClient::open(&address).await;
    let path_of_one = format!("/api/queue/{queue}/receive");
    let path_of_many = format!("{path_of_one}?max={messages_max}");
    loop {
        let answer =
            client.post(if messages_max == 1 { &path_of_one } else { &path_of_many }, b"").await;
        match answer.status {
            200 if messages_max == 1 => {
                let reply = client.post(&answer.reply_to, &answer.body).await;
                assert_eq!(reply.status, 200);
            }
            200 => {
                let messages: Vec<StepMessage> =
                    serde_json::from_slice(&answer.body).expect("JSON");
                for StepMessage { reply_to, body } in messages {
                    let reply = client.post(&reply_to, body.get().as_bytes()).await;
                    assert_eq!(reply.status, 200);
                }
            }
            204 => {}
            status => panic!("{status}: {}", String::from_utf8_lossy(&answer.body)),
        }
    }
}

/// Echoes each message of all queues, over one stream.
async fn echo_over_grpc(address: String) {
    let client = connect(address.parse().expect("an address")).await;
    let mut worker = GrpcWorker::open(&client, &QUEUES).await.expect("a stream");
    worker.want(CREDIT);
    while let Some(event) = worker.receive().await.expect("a stream") {
        if let Tell::Message(message) = event {
            worker.reply(&message.receipt, Kind::Result, message.body);
            worker.want(1);
        }
    }
}

/// Waits again and again for a message that never comes.
async fn wait_over_http(address: String, queue: &'static str) {
    let mut client = HttpClient::open(&address).await;
    loop {
        let answer = client.post(&format!("/api/queue/{queue}/receive?wait=50s"), b"").await;
        assert_eq!(answer.status, 204);
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// Opens streams that wait until a line on standard input asks them to give credit, and then keep
/// the messages that they receive. Reports its progress on standard output.
async fn hold_streams(address: String) {
    let address = address.parse().expect("an address");
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let client = connect(address).await;
        streams.push(GrpcWorker::open(&client, &QUEUES[..1]).await.expect("a stream"));
    }
    print_line("open");
    std::io::stdin().read_line(&mut String::new()).expect("told");
    streams.iter_mut().for_each(|stream| stream.want(IN_FLIGHT as u32));
    print_line("wanted");
    for stream in &mut streams {
        for _ in 0..IN_FLIGHT {
            stream.message().await;
        }
    }
    print_line("in hand");
    std::future::pending().await
}

fn run_role(role: &str) {
    actix_rt::System::new().block_on(async {
        match role {
            "amqp" => {
                drop(join_all(QUEUES.map(|queue| echo(variable("AMQP_SERVER"), queue))).await)
            }
            "wait" => {
                let address = variable(MANAGER_ENV);
                let all = (0..WAITING_WORKERS)
                    .map(|number| wait_over_http(address.clone(), QUEUES[number % 5]));
                join_all(all).await;
            }
            "hold" => hold_streams(variable(MANAGER_ENV)).await,
            "waiting" => measure_waiting().await,
            "streams" => measure_streams().await,
            streams if streams.starts_with("grpc-") => {
                let streams = streams.trim_start_matches("grpc-").parse().expect("a number");
                join_all((0..streams).map(|_: usize| echo_over_grpc(variable(MANAGER_ENV)))).await;
            }
            many => {
                let (address, many) = (variable(MANAGER_ENV), many.parse().expect("a number"));
                let all = (0..WORKERS)
                    .map(|number| echo_over_http(address.clone(), QUEUES[number % 5], many));
                join_all(all).await;
            }
        }
    });
}

/// A child process, which is killed on drop.
struct ChildProcess(Child);

impl ChildProcess {
    fn start(role: &str, address: &str) -> ChildProcess {
        ChildProcess(ChildProcess::command(role, address).spawn().expect("a process"))
    }

    /// Starts a child process with pipes for its input and output.
    fn start_with_pipes(role: &str, address: &str) -> ChildProcess {
        let mut command = ChildProcess::command(role, address);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        ChildProcess(command.spawn().expect("a process"))
    }

    fn command(role: &str, address: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(ROLE_ENV, role).env(MANAGER_ENV, address);
        command
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.0.kill().expect("ended");
        self.0.wait().expect("ended");
    }
}

/// Returns steps a second, and microseconds of the manager's CPU for each step.
async fn measure_cost(manager: &Manager) -> (f64, f64) {
    run_jobs(manager, JOBS / 4, CONCURRENCY).await;
    let (cpu, begun) = (process::cpu_seconds("self"), Instant::now());
    run_jobs(manager, JOBS, CONCURRENCY).await;
    let steps = (JOBS * QUEUES.len()) as f64;
    (steps / begun.elapsed().as_secs_f64(), (process::cpu_seconds("self") - cpu) * 1e6 / steps)
}

fn settings(folder: &Path, name: &str) -> Settings {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.join(name);
    settings.http.connections_max = 2 * WAITING_WORKERS;
    settings.http.waiters_max = WAITING_WORKERS;
    settings
}

async fn start(settings: Settings) -> Manager {
    let definitions = load_text("chain.yaml", CHAIN).expect("valid").definitions;
    manager::start(settings, definitions, Workers::new()).await.expect("starts")
}

/// Waits until the resident memory no longer changes, and returns it in KiB.
async fn settled_memory_kib() -> u64 {
    let mut before = 0;
    loop {
        let now = process::resident_kib();
        if now.abs_diff(before) < 256 {
            return now;
        }
        before = now;
        actix_rt::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Measures the memory of streams: without credit, with credit, with messages in flight, and with
/// as many more messages that wait.
async fn measure_streams() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let mut settings = settings(folder.path(), "streams.db");
    settings.grpc.listen = Some("127.0.0.1:0".parse().expect("an address"));
    let manager = start(settings).await;
    let server = grpc::start(ApiState::new(&manager)).await.expect("listens").expect("it is on");
    let before = settled_memory_kib().await;
    // From here on the peak is that of the streams.
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak begins anew");
    let mut process = ChildProcess::start_with_pipes("hold", &server.address.to_string());
    let lines = BufReader::new(process.0.stdout.take().expect("a pipe")).lines();
    let (line_sender, mut progress) = mpsc::unbounded_channel();
    // This thread serves the manager, so another one reads.
    std::thread::spawn(move || {
        lines.for_each(|line| drop(line_sender.send(line.expect("a line"))))
    });
    assert_eq!(progress.recv().await.expect("it runs"), "open");
    let idle = settled_memory_kib().await;
    let mut input = process.0.stdin.take().expect("a pipe");
    writeln!(input, "go on").expect("told");
    assert_eq!(progress.recv().await.expect("it runs"), "wanted");
    let with_credit = settled_memory_kib().await;
    let text = format!(r#"{{"text":"{}"}}"#, "x".repeat(MESSAGE_BYTES));
    let message = Message::parse(text.as_bytes()).expect("a message");
    let create = async || {
        for _ in 0..IN_FLIGHT {
            let jobs =
                (0..STREAMS).map(|_| manager.handle().create("chain", None, message.clone()));
            assert!(join_all(jobs).await.iter().all(Result::is_ok));
        }
    };
    create().await;
    assert_eq!(progress.recv().await.expect("it runs"), "in hand");
    let in_flight = settled_memory_kib().await;
    create().await;
    let waiting = settled_memory_kib().await;
    let mib = |now: u64, before: u64| (now as f64 - before as f64) / 1024.0;
    print_line(&format!(
        "{STREAMS} streams over gRPC: {:.1} MiB, with credit {:.1} more; with {IN_FLIGHT} messages \
         of {MESSAGE_BYTES} bytes in hand each {:.1} more; as many jobs that wait {:.1}; \
         peak {:.1} MiB",
        mib(idle, before),
        mib(with_credit, idle),
        mib(in_flight, with_credit),
        mib(waiting, in_flight),
        mib(process::peak_kib(), before),
    ));
    drop(process);
    server.stop().await;
    manager.stop().await;
}

fn print_line(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("written");
}

fn print_row(label: &str, (rate, cpu): (f64, f64), baseline: f64) {
    print_line(&format!("{label:<34} {rate:>9.0} {:>7.2} {cpu:>9.1}", rate / baseline));
}

async fn measure() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    // Each runs in a process of its own, since freed memory would be used again.
    for role in ["waiting", "streams"] {
        let status = ChildProcess::command(role, "").status().expect("a process");
        assert!(status.success());
    }
    if std::env::args().any(|argument| argument == "memory") {
        return;
    }
    let mut over_amqp = settings(folder.path(), "amqp.db");
    over_amqp.amqp.server = variable("AMQP_SERVER").into();
    over_amqp.amqp.reply_queue = "bench-manager".to_owned();
    let manager = start(over_amqp).await;
    let process = ChildProcess::start("amqp", "");
    let baseline = measure_cost(&manager).await;
    manager.stop().await;
    drop(process);
    print_line(&format!("{:<34} {:>9} {:>7} {:>9}", "", "steps/s", "ratio", "CPU in µs"));
    print_row("RabbitMQ, prefetch 2,000", baseline, baseline.0);

    let mut over_grpc = settings(folder.path(), "grpc.db");
    over_grpc.grpc.listen = Some("127.0.0.1:0".parse().expect("an address"));
    let manager = start(over_grpc).await;
    let server = grpc::start(ApiState::new(&manager)).await.expect("listens").expect("it is on");
    let address = server.address.to_string();
    for streams in [1, 4, 16] {
        let process = ChildProcess::start(&format!("grpc-{streams}"), &address);
        let measured = measure_cost(&manager).await;
        print_row(&format!("gRPC, credit {CREDIT}, streams: {streams}"), measured, baseline.0);
        drop(process);
    }
    server.stop().await;
    manager.stop().await;

    let mut over_http = settings(folder.path(), "http.db");
    over_http.http.listen = "127.0.0.1:0".parse().expect("an address");
    let manager = start(over_http).await;
    let (server, address) = api::serve(ApiState::new(&manager)).expect("listens");
    let handle = server.handle();
    let server = actix_rt::spawn(server);
    let address = address.to_string();
    for messages_max in [1, 10] {
        let process = ChildProcess::start(&messages_max.to_string(), &address);
        let measured = measure_cost(&manager).await;
        print_row(
            &format!("HTTP, {WORKERS} workers, {messages_max} at a time"),
            measured,
            baseline.0,
        );
        drop(process);
    }
    handle.stop(false).await;
    server.await.expect("ends").expect("ends");
    manager.stop().await;
}

/// Measures the memory of workers that wait over HTTP.
async fn measure_waiting() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let mut settings = settings(folder.path(), "waiting.db");
    settings.http.listen = "127.0.0.1:0".parse().expect("an address");
    let manager = start(settings).await;
    let state = ApiState::new(&manager);
    let (server, address) = api::serve(state.clone()).expect("listens");
    let handle = server.handle();
    let server = actix_rt::spawn(server);
    let before = process::resident_kib();
    let process = ChildProcess::start("wait", &address.to_string());
    // All workers wait once the last permit is taken.
    while state.budgets.waiters.try_acquire(1).is_some() {
        actix_rt::time::sleep(Duration::from_millis(10)).await;
    }
    let mib = (process::resident_kib() - before) / 1024;
    print_line(&format!("{WAITING_WORKERS} workers that wait: {mib} MiB"));
    drop(process);
    handle.stop(false).await;
    server.await.expect("ends").expect("ends");
    manager.stop().await;
}

fn main() {
    match std::env::var(ROLE_ENV) {
        Ok(role) => run_role(&role),
        Err(_) => actix_rt::System::new().block_on(measure()),
    }
}
