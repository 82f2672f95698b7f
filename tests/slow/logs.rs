//! The log may fail or stand still, and strangers may say what they like: jobs go on, and nothing
//! printed pretends to be something else.

use std::{
    fs::File,
    io::{PipeReader, Read, Write, pipe},
    net::TcpStream,
    os::fd::OwnedFd,
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use crate::{
    amqp::{Client, Vhost, Worker, json_properties},
    harness::{Daemon, Ran, Setup, command, eventually, run, when},
};

const SIMPLE: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";
/// Its items need no worker.
const TALKATIVE: &str = r#"
workflows:
  - name: single
    steps: [ { name: work } ]
  - name: talkative
    steps: [ { name: each, task: item } ]
    tasks: [ { name: item, itemListKey: items, steps: [ { name: nothing, when: "false" } ] } ]
"#;
const JOBS: usize = 60;
const ITEMS: usize = 5_000;
/// More than any pipe holds.
const FILLING: usize = 4 * 1024 * 1024;

/// A daemon that has much to log, to `stderr`.
fn start(vhost: &Vhost, stderr: File) -> Daemon {
    let mut setup = Setup::new(&vhost.url, TALKATIVE)
        .set("log.filter", "trace,mio=off")
        .faults("job::take=5*off->1*return");
    setup.stderr = Some(stderr);
    setup.start()
}

fn dropped(daemon: &Daemon) -> u64 {
    daemon.api.metric("workflow_log_lines_dropped_total")
}

/// The value of the metric whose line begins so; 0 where there is none.
/// Jobs complete, requests are answered, lines are counted as dropped.
fn assert_works(daemon: &Daemon, vhost: &Vhost) {
    let worker = Worker::echo(&vhost.url, &["work"]);
    let ids: Vec<_> = (0..JOBS).map(|_| daemon.api.create("single", "{}")).collect();
    ids.iter().for_each(|id| drop(daemon.api.await_state(*id, "completed")));
    assert!(worker.seen_count() >= JOBS);
    daemon.api.get("/readyz").expect(200);
    // Each item logs some lines at this level: together more than wait for a pipe.
    let items: Vec<String> = (0..ITEMS).map(|item| item.to_string()).collect();
    let talkative =
        daemon.api.create("talkative", &format!(r#"{{"items":[{}]}}"#, items.join(",")));
    daemon.api.await_state(talkative, "completed");
    eventually("lines are dropped, and counted", || when(dropped(daemon) > 0, "none is"));
}

fn assert_clean(status: ExitStatus) {
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn with_the_log_on_a_full_disk_jobs_go_on() {
    let vhost = Vhost::new();
    let mut daemon = start(&vhost, File::options().write(true).open("/dev/full").unwrap());
    assert_works(&daemon, &vhost);
    assert_clean(daemon.stop());
}

#[test]
fn with_the_log_into_a_closed_pipe_jobs_go_on() {
    let vhost = Vhost::new();
    let (reader, writer) = pipe().unwrap();
    let mut daemon = start(&vhost, File::from(OwnedFd::from(writer)));
    // As `head -1` does.
    let mut reader = reader;
    let mut first = [0; 10];
    reader.read_exact(&mut first).unwrap();
    drop(reader);
    assert_works(&daemon, &vhost);
    assert_clean(daemon.stop());
}

#[test]
fn with_the_log_into_a_pipe_that_nobody_reads_jobs_go_on() {
    let vhost = Vhost::new();
    let (reader, stderr) = full_pipe();
    let mut daemon = start(&vhost, stderr);
    assert_works(&daemon, &vhost);
    // Somebody reads again: the log tells that lines are missing.
    let log = Arc::new(Mutex::new(String::new()));
    let reading = thread::spawn(read_into(reader, Arc::clone(&log)));
    eventually("the log tells of the lines that were dropped", || {
        daemon.api.get("/livez").expect(200);
        when(log.lock().unwrap().contains("lines of the log were dropped"), "nothing of it")
    });
    assert_clean(daemon.stop());
    drop(daemon);
    reading.join().unwrap();
    assert!(
        log.lock().unwrap().contains("\"message\":\"stopped\""),
        "what waits at the end is written"
    );
}

#[test]
fn a_stop_does_not_wait_for_a_log_that_nobody_reads() {
    let (_reader, stderr) = full_pipe();
    let mut setup = Setup::new("", SIMPLE);
    setup.stderr = Some(stderr);
    let mut daemon = setup.start();
    assert_clean(daemon.stop());
}

#[test]
fn a_start_that_fails_ends_as_usual_whatever_becomes_of_its_words() {
    let refused = |stderr: Stdio| {
        let mut child = command()
            .args(["serve", "--listen", "nonsense"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        eventually("it ends", || child.try_wait().unwrap().ok_or("it still runs")).code()
    };
    assert_eq!(refused(File::options().write(true).open("/dev/full").unwrap().into()), Some(1));
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    assert_eq!(refused(writer.into()), Some(1));
    let (_reader, stderr) = full_pipe();
    assert_eq!(refused(stderr.into()), Some(1));
}

/// A pipe into which nothing more fits until it is read.
fn full_pipe() -> (PipeReader, File) {
    let (reader, writer) = pipe().unwrap();
    let mut filling = writer.try_clone().unwrap();
    // When the pipe is full it waits until the pipe is read or closed.
    thread::spawn(move || filling.write_all(&vec![b'.'; FILLING]));
    (reader, File::from(OwnedFd::from(writer)))
}

/// Reads to the end, when nobody has the other end any more.
fn read_into(mut reader: PipeReader, log: Arc<Mutex<String>>) -> impl FnOnce() + Send {
    move || {
        let mut part = [0; 1 << 16];
        while let Ok(count @ 1..) = reader.read(&mut part) {
            log.lock().unwrap().push_str(&String::from_utf8_lossy(&part[..count]));
        }
    }
}

// ---- what strangers say

/// The lines of the log that have all of the words.
fn lines<'l>(log: &'l str, words: &[&str]) -> Vec<&'l str> {
    log.lines().filter(|line| words.iter().all(|word| line.contains(word))).collect()
}

#[test]
fn requests_that_are_none_and_wrong_tokens_are_counted_and_do_not_fill_the_log() {
    const COUNT: u64 = 200;
    let daemon = Setup::new("", SIMPLE)
        .set("http.token", "the-right-one-of-all")
        .set("http.failed_logins_max", "0")
        .start();
    let address = daemon.url().replace("http://", "");
    for _ in 0..COUNT {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"\x16\x03\x01 this is no request\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _closed_at_once = stream.read_to_end(&mut answer);
    }
    eventually("connections that bring no request are counted", || {
        let count = daemon.api.metric(r#"workflow_http_connection_errors_total{kind="malformed"}"#);
        when(count == COUNT, count)
    });
    assert_eq!(
        lines(&daemon.log(), &["WARN", "HTTP connection ended"]).len(),
        1,
        "{}",
        daemon.log()
    );
    assert_eq!(lines(&daemon.log(), &["actix_http"]).len(), 0, "{}", daemon.log());

    for _ in 0..COUNT {
        daemon.api.with_token(None).get("/api/jobs").expect(401);
        daemon.api.with_token(Some("wrong")).get("/api/jobs").expect(401);
    }
    assert_eq!(daemon.api.metric(r#"workflow_api_requests_total{code="401"}"#), 2 * COUNT);
    let log = daemon.log();
    assert_eq!(
        lines(&log, &["without the right token", "127.0.0.1", "/api/jobs"]).len(),
        2,
        "one for each kind: {log}"
    );
    assert!(!log.contains("right\"") && !log.contains("\"wrong\""), "no token is logged: {log}");
}

#[test]
fn the_log_says_listening_before_it_is_ready_and_ready_when_it_is() {
    let daemon = Setup::new("amqp://guest:guest@127.0.0.1:9/nowhere", SIMPLE).launch();
    daemon.api.get("/readyz").expect(503);
    daemon.await_log(&["\"listening\""]);
    assert!(lines(&daemon.log(), &["\"ready\""]).is_empty(), "{}", daemon.log());
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SIMPLE).start();
    daemon.await_log(&["\"message\":\"ready\""]);
}

#[test]
fn what_a_worker_says_wrongly_is_logged_with_its_step_and_its_value() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SIMPLE).start();
    let client = Client::connect(&vhost.url);
    let id = daemon.api.create("single", "{}").to_string();
    let message = client.take("work");
    client.say(&message, r#"{"progress":"half"}"#, json_properties().with_type("progress".into()));
    daemon.await_log(&[
        "changes nothing",
        &id,
        "\"step\":\"work\"",
        "bad_progress",
        "not a number from 0 to 1",
        "half",
    ]);
    for _ in 0..3 {
        client.say(
            &message,
            r#"{"error":"meant as one"}"#,
            json_properties().with_type("Error".into()),
        );
    }
    daemon.await_log(&["not known", "\"kind\":\"Error\"", &id, "work"]);
    daemon.await_log(&["changes nothing", &id, "meant as one"]);
    assert_eq!(lines(&daemon.log(), &["not known"]).len(), 1, "once a minute: {}", daemon.log());
}

/// A text that would clear the screen, begin a line, and reverse what follows.
const HOSTILE: &str = r#"\u001b[2J\nforged line \u202eand\u009b more"#;
/// The same as it must be printed.
const SHOWN: &str = r"\u{1b}[2J\nforged line \u{202e}and\u{9b} more";

#[track_caller]
fn assert_shown(printed: &str, what: &str) {
    assert!(printed.contains(SHOWN), "{what} shows it: {printed:?}");
    let odd = printed.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
    assert!(
        odd.is_none() && !printed.lines().any(|line| line.starts_with("forged")),
        "{what}: {odd:?} in {printed:?}"
    );
}

fn client(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = command();
    command.args(arguments).args(["--server", &daemon.url()]);
    command
}

#[test]
fn what_a_worker_says_cannot_forge_what_is_printed() {
    let vhost = Vhost::new();
    let workflows = "workflows: [ { name: hostile, steps: [ { name: told, statusKey: s }, \
                     { name: work, depends: [ told ] } ] } ]";
    let daemon = Setup::new(&vhost.url, workflows).set("log.format", "human").start();
    let worker = Client::connect(&vhost.url);

    let followed = thread::spawn({
        let mut run_it = client(&daemon, &["run", "hostile"]);
        move || run(&mut run_it)
    });
    let message = worker.take("told");
    let id = message.job().to_string();
    let watched = thread::spawn({
        let mut watch = client(&daemon, &["watch", &id]);
        move || run(&mut watch)
    });
    eventually("it is watched", || {
        when(daemon.api.metric("workflow_event_streams") == 2, "run and watch do not both follow")
    });
    worker.reply(&message, format!(r#"{{"s":"{HOSTILE}"}}"#));
    let message = worker.take("work");
    let properties = json_properties().with_type("progress".into());
    worker.say(&message, format!(r#"{{"status":"{HOSTILE}","message":"{HOSTILE}"}}"#), properties);
    eventually("its progress is known", || {
        when(daemon.api.get(&format!("/api/job/{id}")).text.contains("u009b"), "nothing of it")
    });
    assert_shown(&run(&mut client(&daemon, &["job", &id])).stdout, "job, of progress");
    let error = format!(r#"{{"error":"{HOSTILE}","retryable":false}}"#);
    worker.say(&message, error, json_properties().with_type("error".into()));
    worker.ack(&message);

    let ran: Ran = followed.join().unwrap();
    assert_eq!(ran.code, Some(1), "{ran}");
    assert_shown(&ran.stderr, "run");
    let watched = watched.join().unwrap().stdout;
    assert_shown(&watched, "watch");
    assert!(
        watched.lines().filter(|line| line.contains(SHOWN)).count() >= 3,
        "status, progress and reason: {watched}"
    );
    for arguments in
        [&["job", &*id][..], &["why", &id], &["status", "hostile"], &["status", "hostile", "--csv"]]
    {
        let ran = run(&mut client(&daemon, arguments));
        assert_eq!(ran.code, Some(0), "{ran}");
        assert_shown(&ran.stdout, arguments[0]);
    }
    daemon.await_log(&["step failed", SHOWN]);
    assert_shown(&daemon.log(), "the log");
}
