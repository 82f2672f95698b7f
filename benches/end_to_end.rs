//! A chain of five steps over a real broker, compared with raw round trips over the same broker in
//! the same run. The ratios are what counts.
//!
//! `AMQP_SERVER` names the broker (`tests/rabbitmq start DIR; . DIR/env`). A raw round trip
//! publishes a persistent message with a confirm to a durable queue, and receives and acknowledges
//! the reply: the least that a step can cost. The workers run in a process of their own, so that
//! neither side is charged for them.
//!
//! If `POSTGRES_URL` and `POSTGRES_BIN` name a server (`POSTGRES_FSYNC=on tests/postgres start
//! DIR`), the same chains also run with the journal in a database of it.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod chain;
mod process;

use bytes::Bytes;
use chain::{BODY, CHAIN, CONCURRENCY, QUEUES, consume, echo, open_channel, run_jobs};
use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicPublishOptions};
use lapin::{BasicProperties, Channel, Confirmation};
use std::io::Write;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::journal_rules::InDatabase;
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::engine::Definition;
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const STEPS: usize = QUEUES.len();
/// The number of jobs in a run. `END_TO_END_JOBS` sets another one, for example for a profile.
const JOBS: usize = 4_000;
/// The number of sequential jobs, for the latency.
const SEQUENTIAL_JOBS: usize = 200;

/// The variable that is set for the process of the workers.
const WORKERS_ENV: &str = "END_TO_END_WORKERS";

/// A raw client with one channel, as each worker has it.
struct RawClient {
    channel: Channel,
    replies: lapin::Consumer,
}

impl RawClient {
    async fn open(server: &str) -> RawClient {
        let channel = open_channel(server).await;
        let replies = consume(&channel, "bench-replies").await;
        RawClient { channel, replies }
    }

    /// Publishes a message, and returns a future of its confirm.
    async fn publish(
        &self,
        number: usize,
    ) -> impl Future<Output = lapin::Result<Confirmation>> + use<> {
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_reply_to("bench-replies".into())
            .with_correlation_id(number.to_string().into());
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        self.channel
            .basic_publish("".into(), QUEUES[number % STEPS].into(), options, BODY, properties)
            .await
            .expect("published")
    }

    async fn receive_reply(&mut self) {
        let delivery = self.replies.next().await.expect("a reply").expect("a reply");
        delivery.ack(BasicAckOptions::default()).await.expect("acknowledged");
    }

    /// Runs round trips, `CONCURRENCY` of them at once.
    async fn round_trips(&mut self, total: usize) {
        let mut confirms = Vec::with_capacity(total);
        for number in 0..total + CONCURRENCY {
            if number >= CONCURRENCY {
                self.receive_reply().await;
            }
            if number < total {
                confirms.push(self.publish(number).await);
            }
        }
        for confirm in confirms {
            confirm.await.expect("confirmed");
        }
    }

    /// Runs chains of five sequential round trips, each with a synced write to a file. Returns the
    /// median time of a chain.
    async fn run_chains(&mut self, folder: &std::path::Path) -> Duration {
        let mut file = std::fs::File::create(folder.join("raw")).expect("a file");
        let mut times = Vec::with_capacity(SEQUENTIAL_JOBS);
        for _ in 0..SEQUENTIAL_JOBS {
            let begun = Instant::now();
            for step in 0..STEPS {
                self.publish(step).await.await.expect("confirmed");
                self.receive_reply().await;
                file.write_all(&[0; 4096]).expect("written");
                file.sync_data().expect("synced");
            }
            times.push(begun.elapsed());
        }
        median(times)
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn settings(server: &str, folder: &std::path::Path) -> Settings {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.join("j.db");
    settings.amqp.server = server.into();
    settings.amqp.reply_queue = "bench-manager".to_owned();
    settings
}

/// Counters of the journal.
struct JournalStats {
    commits: u64,
    records: f64,
    rows: i64,
    bytes: u64,
}

impl JournalStats {
    fn read(manager: &Manager) -> JournalStats {
        let common = manager.core();
        let file = rusqlite::Connection::open(&common.settings.journal.file).expect("opens");
        let last_number = |table| {
            let sql = format!("SELECT coalesce(max(seq), 0) FROM {table}");
            file.query_row(&sql, [], |row| row.get::<_, i64>(0)).expect("a number")
        };
        JournalStats {
            commits: common.metrics.commit.get_sample_count(),
            records: common.metrics.batch_records.get_sample_sum(),
            rows: last_number("entries").max(last_number("confirmed")),
            bytes: process::written_bytes(),
        }
    }

    fn since(&self, before: &JournalStats) -> JournalStats {
        JournalStats {
            commits: self.commits - before.commits,
            records: self.records - before.records,
            rows: self.rows - before.rows,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// Returns the id of the process that listens on a port of this machine.
fn find_listener(port: u16) -> Option<String> {
    let is_on_port = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1).is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
            && fields.get(3) == Some(&"0A")
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let inodes: Vec<String> = tables
        .iter()
        .flatten()
        .flat_map(|table| table.lines().filter(is_on_port))
        .filter_map(|line| Some(format!("socket:[{}]", line.split_whitespace().nth(9)?)))
        .collect();
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.map(|process| process.file_name().to_string_lossy().into_owned()).find(|process| {
        let files = std::fs::read_dir(format!("/proc/{process}/fd"));
        files.into_iter().flatten().flatten().any(|file| {
            std::fs::read_link(file.path())
                .is_ok_and(|target| inodes.iter().any(|inode| target.to_string_lossy() == **inode))
        })
    })
}

fn parse_port(server: &str) -> u16 {
    let rest = server.rsplit('@').next().unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(5672)
}

/// The cost of some work: operations a second, and microseconds of CPU for each operation.
struct Cost {
    per_second: f64,
    client_us: f64,
    broker_us: f64,
}

async fn measure_cost(broker: Option<&str>, count: usize, work: impl Future<Output = ()>) -> Cost {
    let cpu = || (process::cpu_seconds("self"), broker.map_or(f64::NAN, process::cpu_seconds));
    let (before, begun) = (cpu(), Instant::now());
    work.await;
    let (after, count, elapsed) = (cpu(), count as f64, begun.elapsed().as_secs_f64());
    Cost {
        per_second: count / elapsed,
        client_us: (after.0 - before.0) * 1e6 / count,
        broker_us: (after.1 - before.1) * 1e6 / count,
    }
}

fn print_line(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("written");
}

fn print_header(base: &str, ours: &str) {
    print_line(&format!("{:<34} {base:>9} {ours:>9} {:<3} {:>6}   to reach", "", "", "ratio"));
}

fn print_row(figure: &str, raw: f64, ours: f64, unit: &str, target: &str, ratio: f64) {
    print_line(&format!("{figure:<34} {raw:>9.1} {ours:>9.1} {unit:<3} {ratio:>6.2}   {target}"));
}

async fn measure(server: String) {
    let broker = find_listener(parse_port(&server));
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let count = std::env::var("END_TO_END_JOBS").ok().and_then(|text| text.parse().ok());
    let count: usize = count.unwrap_or(JOBS);
    let total = count * STEPS;
    let mut client = RawClient::open(&server).await;
    client.round_trips(total / 4).await;
    let before = measure_cost(broker.as_deref(), total, client.round_trips(total)).await;
    let chain_raw = client.run_chains(folder.path()).await;
    let definitions = load_text("chain.yaml", CHAIN).expect("valid").definitions;
    let settings = settings(&server, folder.path());
    let manager = manager::start(settings, definitions.clone(), Workers::new()).await;
    let manager = manager.expect("starts");
    run_jobs(&manager, count / 4, CONCURRENCY).await;
    let work = async { drop(run_jobs(&manager, count, CONCURRENCY).await) };
    let journal_before = JournalStats::read(&manager);
    let ours = measure_cost(broker.as_deref(), total, work).await;
    let journal = JournalStats::read(&manager).since(&journal_before);
    let chain = median(run_jobs(&manager, SEQUENTIAL_JOBS, 1).await);
    manager.stop().await;
    let after = measure_cost(broker.as_deref(), total, client.round_trips(total)).await;
    let raw = Cost {
        per_second: f64::midpoint(before.per_second, after.per_second),
        client_us: f64::midpoint(before.client_us, after.client_us),
        broker_us: f64::midpoint(before.broker_us, after.broker_us),
    };
    print_header("raw", "manager");
    let rate = ours.per_second / raw.per_second;
    print_row("round trips, steps a second", raw.per_second, ours.per_second, "/s", "≥ 0.95", rate);
    let cpu = ours.client_us / raw.client_us;
    print_row("CPU of the client, the manager", raw.client_us, ours.client_us, "µs", "≤ 1.3", cpu);
    let cpu = ours.broker_us / raw.broker_us;
    print_row("CPU of the broker for each", raw.broker_us, ours.broker_us, "µs", "≤ 1.05", cpu);
    let (one, five) = (chain_raw.as_secs_f64() * 1e3, chain.as_secs_f64() * 1e3);
    let (commits, steps) = (journal.commits as f64, total as f64);
    let (records, bytes) = (journal.records, journal.bytes as f64);
    print_line(&format!(
        "the journal: {:.2} rows and {:.0} bytes to the disk for each step, {:.1} records a commit",
        journal.rows as f64 / steps,
        bytes / steps,
        records / commits
    ));
    print_row("a chain of five alone, median", one, five, "ms", "≤ 1.5", five / one);
    if std::env::var_os("POSTGRES_URL").is_some() {
        measure_database(&server, count, &definitions, &ours, chain).await;
    }

    let mut embedded = Settings::defaults().expect("defaults");
    embedded.journal.file = folder.path().join("e.db");
    let work =
        |message: &Publication| -> Result<Bytes, WorkerError> { Ok(message.body.to_bytes()) };
    let workers =
        QUEUES.iter().fold(Workers::new(), |workers, queue| workers.with_worker(queue, 1, work));
    let manager = manager::start(embedded, definitions, workers).await.expect("starts");
    let work = async { drop(run_jobs(&manager, count, CONCURRENCY).await) };
    let alone = measure_cost(None, total, work).await;
    manager.stop().await;
    print_line(&format!(
        "on the embedded bus: {:.0} steps/s, {:.1} µs of CPU for each",
        alone.per_second, alone.client_us
    ));
}

/// Measures the same with the journal in a database, and compares it with the journal in a file.
async fn measure_database(
    server: &str,
    count: usize,
    definitions: &[Arc<Definition>],
    file: &Cost,
    file_chain: Duration,
) {
    let broker = find_listener(parse_port(server));
    let database = InDatabase::create();
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.url.0 = database.url();
    settings.amqp.server = server.into();
    settings.amqp.reply_queue = "bench-manager-database".to_owned();
    let manager = manager::start(settings, definitions.to_vec(), Workers::new()).await;
    let manager = manager.expect("starts");
    run_jobs(&manager, count / 4, CONCURRENCY).await;
    let work = async { drop(run_jobs(&manager, count, CONCURRENCY).await) };
    let cost = measure_cost(broker.as_deref(), count * STEPS, work).await;
    let chain = median(run_jobs(&manager, SEQUENTIAL_JOBS, 1).await);
    manager.stop().await;
    let round_trip = measure_round_trip(&database);
    print_header("file", "database");
    let rate = cost.per_second / file.per_second;
    print_row("steps a second", file.per_second, cost.per_second, "/s", "≥ 0.65", rate);
    let cpu = cost.client_us / file.client_us;
    print_row("CPU of the manager", file.client_us, cost.client_us, "µs", "≤ 1.3", cpu);
    let [file_ms, ms, round_trip_ms] =
        [file_chain, chain, round_trip].map(|time| time.as_secs_f64() * 1e3);
    let max_ms = 1.5 * file_ms + 5.0 * round_trip_ms;
    let target = format!("≤ {max_ms:.1} ms (a durable round trip takes {round_trip_ms:.2} ms)");
    print_row("a chain of five alone, median", file_ms, ms, "ms", &target, ms / file_ms);
}

/// Returns the median time of a commit of one row, as psql measures it.
fn measure_round_trip(database: &InDatabase) -> Duration {
    let mut statements = vec!["CREATE TABLE round_trips (n int)", "\\timing on"];
    statements.resize(SEQUENTIAL_JOBS, "INSERT INTO round_trips VALUES (1)");
    let output = database.query_each(&statements);
    let milliseconds = output
        .lines()
        .filter_map(|line| line.strip_prefix("Time: ")?.split_whitespace().next()?.parse().ok());
    median(milliseconds.map(|text: f64| Duration::from_secs_f64(text / 1e3)).collect())
}

/// Starts the workers of all queues in a process of their own.
fn start_workers() -> Child {
    let program = std::env::current_exe().expect("this program");
    Command::new(program).env(WORKERS_ENV, "1").spawn().expect("the workers' process")
}

fn main() {
    let server = std::env::var("AMQP_SERVER")
        .expect("AMQP_SERVER names a broker: tests/rabbitmq start DIR; . DIR/env");
    if std::env::var_os(WORKERS_ENV).is_some() {
        let work = QUEUES.map(|queue| echo(server.clone(), queue));
        actix_rt::System::new().block_on(async { futures_util::future::join_all(work).await });
        return;
    }
    let mut workers = start_workers();
    actix_rt::System::new().block_on(measure(server));
    workers.kill().expect("ended");
    workers.wait().expect("ended");
}
