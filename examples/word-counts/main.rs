//! Counts the words of a book, section by section, on the embedded bus with workers in this
//! process.
//!
//! ```text
//! cargo run --release --example word-counts [-- --book FILE]
//! cargo run --release --example word-counts -- --page        serves the page as well, until Ctrl-C
//! cargo run --release --example word-counts -- --print-book  the default book, to standard output
//! ```
//!
//! The workflow is `workflow.yaml` beside this file, the same that `run` deploys with a daemon,
//! RabbitMQ and workers in Python. The default book is the first book of Cicero's De finibus, which
//! comes with the crate `lipsum`.

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::api;
use workflow_manager::api::state::ApiState;
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::engine::{Job, JobId, JobState, Message};
use workflow_manager::load;
use workflow_manager::settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Counts the words of a book, section by section.
#[derive(Parser)]
struct Arguments {
    /// A text file; sections are parted by empty lines
    #[arg(long)]
    book: Option<PathBuf>,
    /// Print the default book and end
    #[arg(long)]
    print_book: bool,
    /// Serve the page and the API while the book is counted, and then until Ctrl-C
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:8088"
    )]
    page: Option<SocketAddr>,
}

/// How many of the most frequent words are shown.
const SHOWN: usize = 12;

/// Threads that count words.
const COUNTERS: usize = 2;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.print_book {
        std::io::stdout().write_all(lipsum::LIBER_PRIMUS.as_bytes())?;
        return Ok(());
    }
    let scratch = tempfile::tempdir().context("a directory for the sections' counts")?;
    let book = match arguments.book {
        Some(book) => book,
        None => {
            let path = scratch.path().join("de-finibus-i.txt");
            std::fs::write(&path, lipsum::LIBER_PRIMUS)?;
            path
        }
    };
    actix_rt::System::new().block_on(count(&book, scratch.path(), arguments.page))
}

async fn count(book: &Path, scratch: &Path, page: Option<SocketAddr>) -> Result<()> {
    let mut settings = Settings::defaults()?;
    settings.journal.file = scratch.join("journal.db");
    if let Some(listen) = page {
        settings.http.listen = listen;
    }
    let workflow = Path::new(env!("CARGO_MANIFEST_DIR")).join("workflow.yaml");
    let loaded = load::load_files(&[workflow])?;
    let manager = manager::start(settings, loaded.definitions, workers(scratch)).await?;
    let site = match page {
        None => None,
        Some(listen) => {
            let (server, address) = api::serve(ApiState::new(&manager)).with_context(|| {
                format!("cannot listen on {listen}; choose another address with --page=ADDRESS")
            })?;
            let handle = server.handle();
            actix_rt::spawn(server);
            Some((address, handle))
        }
    };

    let message = Message::parse(json!({ "filename": book }).to_string().as_bytes())?;
    let answer = manager.handle().create("book-word-counts", None, message).await;
    let created = answer.map_err(|why| anyhow!("the job was not created: {why:?}"))?;
    let id = created.id();
    if let Some((address, _)) = &site {
        writeln!(std::io::stdout(), "the page: http://{address}/#/job/{id}")?;
    }
    let job = follow(&manager, id).await?;
    report(&job)?;
    if let Some((_, server)) = site {
        writeln!(std::io::stdout(), "The page is served until Ctrl-C.")?;
        actix_rt::signal::ctrl_c().await?;
        manager.core().event_hub.close();
        server.stop(true).await;
    }
    manager.stop().await;
    if job.state() == JobState::Completed {
        Ok(())
    } else {
        bail!("job {id} is {}: {}", job.state().as_str(), job.reason().map_or("", |reason| reason))
    }
}

/// One worker for each queue of the workflow. A worker is a function from a step message to a
/// reply.
fn workers(scratch: &Path) -> Workers {
    let (counts, sums) = (scratch.to_owned(), scratch.to_owned());
    Workers::new()
        .with_worker("book-split", 1, book_split)
        .with_worker("store-title", 1, store_title)
        .with_worker("segment-word-counts", COUNTERS, move |message| {
            segment_word_counts(message, &counts)
        })
        .with_worker("sum-splits", 1, move |message| sum_splits(message, &sums))
}

#[derive(Deserialize)]
struct Book {
    filename: PathBuf,
}

#[derive(Deserialize)]
struct Segment {
    filename: PathBuf,
    section: Section,
}

/// Lines `start..end` of the book.
#[derive(Deserialize, serde::Serialize)]
struct Section {
    section: String,
    start: usize,
    end: usize,
}

#[derive(Deserialize)]
struct Counted {
    sections: Vec<PathBuf>,
}

type Reply = Result<Bytes, WorkerError>;

fn book_split(message: &Publication) -> Reply {
    let book: Book = serde_json::from_slice(&message.body.to_bytes())?;
    let text = std::fs::read_to_string(&book.filename)?;
    let mut sections: Vec<Section> = Vec::new();
    let mut open = None;
    let lines: Vec<&str> = text.lines().chain([""]).collect();
    for (at, line) in lines.iter().enumerate() {
        match (line.trim().is_empty(), open) {
            (false, None) => open = Some(at),
            (true, Some(start)) => {
                sections.push(Section {
                    section: format!("{}", sections.len() + 1),
                    start,
                    end: at,
                });
                open = None;
            }
            (true, None) | (false, Some(_)) => {}
        }
    }
    Ok(json!({ "filename": book.filename, "sections": sections }).to_string().into())
}

fn store_title(message: &Publication) -> Reply {
    let book: Book = serde_json::from_slice(&message.body.to_bytes())?;
    let text = std::fs::read_to_string(&book.filename)?;
    let title = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("(empty)").trim();
    Ok(json!({ "filename": book.filename, "title": title }).to_string().into())
}

/// Data goes through files, as between services: the manager carries references.
fn segment_word_counts(message: &Publication, scratch: &Path) -> Reply {
    let segment: Segment = serde_json::from_slice(&message.body.to_bytes())?;
    let text = std::fs::read_to_string(&segment.filename)?;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let lines =
        text.lines().skip(segment.section.start).take(segment.section.end - segment.section.start);
    for word in lines.flat_map(words) {
        *counts.entry(word).or_default() += 1;
    }
    let file = scratch.join(format!("{}_counts.json", job(message)));
    std::fs::write(&file, serde_json::to_vec(&counts)?)?;
    Ok(json!({ "section": file }).to_string().into())
}

fn sum_splits(message: &Publication, scratch: &Path) -> Reply {
    let counted: Counted = serde_json::from_slice(&message.body.to_bytes())?;
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for file in counted.sections {
        let counts: BTreeMap<String, u64> = serde_json::from_slice(&std::fs::read(file)?)?;
        counts.into_iter().for_each(|(word, count)| *sums.entry(word).or_default() += count);
    }
    let mut rows: Vec<(String, u64)> = sums.into_iter().collect();
    rows.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let table: String = rows.iter().map(|(word, count)| format!("{word}\t{count}\n")).collect();
    let file = scratch.join(format!("{}_counts.tsv", job(message)));
    std::fs::write(&file, table)?;
    Ok(json!({ "sum_splits": file }).to_string().into())
}

/// The id of the job or child job, with which the correlation id begins.
fn job(message: &Publication) -> &str {
    let id = message.correlation_id.as_deref().unwrap_or_default();
    id.split_once(':').map_or(id, |(job, _)| job)
}

fn words(line: &str) -> impl Iterator<Item = String> + '_ {
    line.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

async fn follow(manager: &Manager, id: JobId) -> Result<Job> {
    let bar = ProgressBar::new(0);
    bar.set_style(
        ProgressStyle::with_template("{elapsed_precise} [{bar:40}] {pos}/{len} {msg}")?
            .progress_chars("=> "),
    );
    let mut look = tokio::time::interval(Duration::from_millis(20));
    loop {
        look.tick().await;
        let Some(found) = manager.core().reader.load_job(id)? else {
            bail!("job {id} is not in the journal")
        };
        let children: Vec<(u32, u32)> = found
            .job
            .steps()
            .filter_map(|(_, run)| run.fan_out.as_ref())
            .map(|fan_out| (fan_out.ended(), fan_out.items()))
            .collect();
        let steps_done = found.job.steps().filter(|(_, run)| run.output.is_some()).count() as u64;
        bar.set_length(
            found.job.graph().steps.len() as u64
                + children.iter().map(|(_, items)| u64::from(*items)).sum::<u64>(),
        );
        bar.set_position(
            steps_done + children.iter().map(|(ended, _)| u64::from(*ended)).sum::<u64>(),
        );
        bar.set_message("steps and sections");
        if found.job.state() != JobState::Running {
            bar.finish();
            return Ok(found.job);
        }
    }
}

fn report(job: &Job) -> Result<()> {
    let out = &mut std::io::stdout().lock();
    let result = job.result();
    let text = |key: &str| {
        result.get(key).and_then(|value| serde_json::from_str::<String>(value.text()).ok())
    };
    if let (Some(title), Some(table)) = (text("title"), text("sum_splits")) {
        let table = std::fs::read_to_string(table)?;
        let total: u64 =
            table.lines().filter_map(|line| line.split('\t').nth(1)?.parse::<u64>().ok()).sum();
        writeln!(
            out,
            "\n\"{title} …\"\n{total} words, {} different. The most frequent:\n",
            table.lines().count()
        )?;
        for line in table.lines().take(SHOWN) {
            let (word, count) = line.split_once('\t').unwrap_or((line, ""));
            writeln!(out, "  {count:>6}  {word}")?;
        }
    }
    writeln!(out, "\nThe job ran so:\n")?;
    for (step, run) in job.steps() {
        let elapsed = run.started.zip(run.ended).map_or(0, |(start, end)| end.0 - start.0);
        let children: Arc<str> = run
            .fan_out
            .as_ref()
            .map_or_else(|| "".into(), |fan_out| format!("{} child jobs", fan_out.items()).into());
        writeln!(
            out,
            "  {:<16} {:<10} {:>9.3} ms  {children}",
            step.name,
            format!("{:?}", run.state).to_lowercase(),
            elapsed as f64 / 1e6
        )?;
    }
    writeln!(out)?;
    Ok(())
}
