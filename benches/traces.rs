//! The trace of a job with very many items, over the embedded bus: the cost of building and sending
//! it, and the effect on other jobs. Other numbers of items can be given as arguments.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod process;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::manager::TestManager;
use support::waits::poll;
use workflow_manager::settings::{DurationSetting, ServerAddress};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WORKFLOWS: &str = "workflows: [
    {name: fan, steps: [{name: each, task: t}],
     tasks: [{name: t, itemListKey: items, tolerate: 1, steps: [{name: work}]}]},
    {name: one, steps: [{name: work}]}]";

/// The most spans of a job: the default.
const SPANS_MAX: usize = 10_000;

/// How many other jobs are run, one after another, for each measurement.
const OTHER_JOBS: usize = 50;

/// Counters of what the receiver was sent.
#[derive(Default)]
struct ReceiverStats {
    requests: AtomicU64,
    bytes: AtomicU64,
    largest: AtomicU64,
}

/// Starts a receiver that accepts everything and stores nothing. Returns its port and counters.
fn start_receiver() -> (u16, Arc<ReceiverStats>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let received: Arc<ReceiverStats> = Arc::default();
    let stats = received.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let seen = stats.clone();
            std::thread::spawn(move || serve_connection(&socket, &seen));
        }
    });
    (port, received)
}

fn serve_connection(mut socket: &TcpStream, stats: &ReceiverStats) {
    let mut reader = BufReader::new(socket);
    loop {
        let (mut line, mut length) = (String::new(), 0_u64);
        while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
            let value = line.to_ascii_lowercase();
            let value = value.strip_prefix("content-length:").map(str::trim);
            length = value.and_then(|text| text.parse().ok()).unwrap_or(length);
            line.clear();
        }
        let body = std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink());
        if length == 0 || body.is_err() {
            return;
        }
        stats.requests.fetch_add(1, Ordering::Relaxed);
        stats.bytes.fetch_add(length, Ordering::Relaxed);
        stats.largest.fetch_max(length, Ordering::Relaxed);
        if socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

async fn run_job(manager: &TestManager, workflow: &str, message: &str) -> Duration {
    let started = Instant::now();
    let id = manager.create_job(workflow, message).await;
    poll(|| manager.core().routes.find(id).is_none()).await;
    started.elapsed()
}

/// Runs other jobs one after another: a fixed number, and then more as long as `more` says so.
/// Returns their times, sorted.
async fn run_other_jobs(manager: &TestManager, more: impl Fn() -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    while times.len() < OTHER_JOBS || more() {
        times.push(run_job(manager, "one", "{}").await);
    }
    times.sort();
    times
}

/// Formats the median and the longest time.
fn format_times(times: &[Duration]) -> String {
    format!("{:.1?} and {:.1?} of {}", times[times.len() / 2], times[times.len() - 1], times.len())
}

async fn run(items: usize, traced: bool) {
    let (port, received) = start_receiver();
    let setup = TestManager::with(WORKFLOWS).echo(["work"]).set(|settings| {
        settings.traces.job_spans_max = SPANS_MAX;
        // Without a delay, the other jobs run while the record is read.
        settings.traces.delay = DurationSetting(Duration::ZERO);
        if traced {
            settings.traces.endpoint = ServerAddress(format!("http://127.0.0.1:{port}"));
        }
    });
    let manager = setup.await;
    let before = run_other_jobs(&manager, || false).await;
    let list: Vec<usize> = (0..items).collect();
    let elapsed = run_job(&manager, "fan", &serde_json::json!({ "items": list }).to_string()).await;
    let (resident, cpu, ended) =
        (process::resident_kib(), process::cpu_seconds("self"), Instant::now());
    let metrics = manager.core().metrics.clone();
    let sent = || metrics.traces_spans_sent.get() as usize;
    // Each of the other jobs has three spans: itself, its step, its attempt.
    let fan_spans = (2 + 3 * items).min(SPANS_MAX);
    let after = run_other_jobs(&manager, || traced && sent() < fan_spans + 3 * OTHER_JOBS).await;
    let sending = ended.elapsed();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{items:>8} items, {}: {:.2} s; jobs beside, median and most: {} before, {} from its end \
         on; {:.2} s later its trace was sent, with {:.2} s of CPU for that and the jobs beside; \
         {} requests, {} KiB, the largest {} KiB; {} spans; resident {} MiB at its end, \
         peak {} MiB",
        if traced { "traced" } else { "not traced" },
        elapsed.as_secs_f64(),
        format_times(&before),
        format_times(&after),
        sending.as_secs_f64(),
        process::cpu_seconds("self") - cpu,
        received.requests.load(Ordering::Relaxed),
        received.bytes.load(Ordering::Relaxed) / 1024,
        received.largest.load(Ordering::Relaxed) / 1024,
        metrics.traces_spans_sent.get(),
        resident / 1024,
        process::peak_kib() / 1024,
    )
    .expect("written");
    manager.stop().await;
}

fn main() {
    actix_rt::System::new().block_on(async {
        let mut sizes: Vec<usize> =
            std::env::args().filter_map(|argument| argument.parse().ok()).collect();
        if sizes.is_empty() {
            sizes = vec![100_000];
        }
        for items in sizes {
            run(items, false).await;
            run(items, true).await;
        }
    });
}
