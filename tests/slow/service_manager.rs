//! What the daemon tells a service manager such as systemd, heard on a socket of the test's own.

use std::{
    io::ErrorKind,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{
    Daemon, Running, Setup, command, eventually, free_port, must_succeed, run, when,
};

const SINGLE: &str = "workflows: [{ name: single, steps: [{ name: only, queue: work }] }]";
const OTHER: &str = "workflows: [{ name: other, steps: [{ name: only, queue: work }] }]";

/// How long the service manager waits for a round; the daemon makes two in this time.
const WATCHDOG: Duration = Duration::from_secs(1);

/// How long a thread is made to hang: far beyond the watchdog.
const HANGS: Duration = Duration::from_secs(4);

/// Plays the service manager: hears all messages, with their times.
struct Manager {
    dir: TempDir,
    heard: Arc<Mutex<Vec<(Instant, String)>>>,
    ends: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Manager {
    fn new() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (heard, ends) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (list, end) = (heard.clone(), ends.clone());
        let listener = thread::spawn(move || {
            let mut message = [0; 8192];
            while !end.load(Ordering::SeqCst) {
                match socket.recv(&mut message) {
                    Ok(bytes) => {
                        let text = String::from_utf8(message[..bytes].to_vec()).unwrap();
                        list.lock().unwrap().push((Instant::now(), text));
                    }
                    Err(error) => {
                        let is_silent =
                            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                        assert!(is_silent, "{error}");
                    }
                }
            }
        });
        Manager { dir, heard, ends, listener: Some(listener) }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("notify")
    }

    /// The setup of a daemon that this manager starts.
    fn starts(&self, setup: Setup) -> Setup {
        setup
            .variable("NOTIFY_SOCKET", self.socket().to_str().unwrap())
            .variable("WATCHDOG_USEC", &WATCHDOG.as_micros().to_string())
    }

    fn messages(&self) -> Vec<String> {
        self.heard.lock().unwrap().iter().map(|(_, text)| text.clone()).collect()
    }

    /// Waits for a message after the first `seen` that has this line; returns how many there were
    /// by then, with it.
    #[track_caller]
    fn await_line(&self, seen: usize, line: &str) -> usize {
        eventually(&format!("the service manager hears {line:?}"), || {
            let messages = self.messages();
            let found = messages.iter().skip(seen).position(|text| has(text, line));
            found.map(|at| seen + at + 1).ok_or_else(|| format!("{:?}", &messages[seen..]))
        })
    }

    /// Waits until it was told of that many more rounds.
    #[track_caller]
    fn await_rounds(&self, more: usize) {
        let begun = self.rounds().len();
        eventually("rounds are told", || {
            let count = self.rounds().len();
            when(count >= begun + more, format!("{count} of {}", begun + more))
        });
    }

    fn rounds(&self) -> Vec<Instant> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|(_, text)| has(text, "WATCHDOG=1")).map(|(at, _)| *at).collect()
    }

    /// The longest silence of the watchdog.
    fn longest_gap(&self) -> Duration {
        self.rounds().windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let listened = self.listener.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(listened, Some(Ok(()))));
    }
}

fn has(message: &str, line: &str) -> bool {
    message.lines().any(|each| each == line)
}

fn begins(message: &str, line: &str) -> bool {
    message.lines().any(|each| each.starts_with(line))
}

fn hang_up(daemon: &Daemon) {
    must_succeed(Command::new("sh").args(["-c", &format!("kill -HUP {}", daemon.pid())]));
}

#[test]
fn a_start_a_job_reloads_and_a_stop_are_told_in_order() {
    let manager = Manager::new();
    let mut daemon = manager.starts(Setup::new("", SINGLE)).spawn();
    let ready = manager.await_line(0, "READY=1");
    // Whoever was told that it is ready need not try twice.
    daemon.api.get("/livez").expect(200);
    let messages = manager.messages();
    assert!(begins(&messages[0], "STATUS=recovering the journal /"), "{messages:?}");
    assert!(has(&messages[ready - 1], "STATUS=0 jobs under way"), "{messages:?}");
    assert_eq!(ready, 2, "{messages:?}");
    manager.await_rounds(2);

    daemon.api.create("single", "{}");
    let seen = manager.await_line(ready, "STATUS=1 job under way");

    daemon.write_workflows(OTHER);
    hang_up(&daemon);
    let seen = manager.await_line(seen, "RELOADING=1");
    let began = &manager.messages()[seen - 1];
    assert!(begins(began, "MONOTONIC_USEC="), "{began:?}");
    let seen = manager.await_line(seen, "READY=1");
    let told = "STATUS=1 job under way; the files were reloaded";
    assert!(has(&manager.messages()[seen - 1], told), "{:?}", manager.messages());
    daemon.api.create("other", "{}");

    daemon.write_workflows("workflows: [{ name: broken }]");
    hang_up(&daemon);
    let seen = manager.await_line(seen, "RELOADING=1");
    let seen = manager.await_line(seen, "READY=1");
    let told = &manager.messages()[seen - 1];
    assert!(told.contains("the last reload was refused"), "{told:?}");

    assert!(daemon.stop().success(), "{}", daemon.log());
    let seen = manager.await_line(seen, "STOPPING=1");
    let told = &manager.messages()[seen - 1];
    // shutdown.grace, and the two seconds after which the stop is cut off.
    assert!(has(told, "EXTEND_TIMEOUT_USEC=12000000") && begins(told, "STATUS=stopping"), "{told}");
    let messages = manager.messages();
    let ready = messages.iter().filter(|text| has(text, "READY=1")).count();
    assert_eq!(ready, 3, "the start and two reloads: {messages:?}");
}

#[test]
fn a_journal_that_hangs_feeds_no_watchdog() {
    let manager = Manager::new();
    let faults = format!("journal::commit=1*sleep({})->off", HANGS.as_millis());
    let daemon = manager.starts(Setup::new("", SINGLE).faults(&faults)).start();
    manager.await_rounds(2);
    // Answered after the commit, which hangs.
    daemon.api.create("single", "{}");
    manager.await_rounds(2);
    let gap = manager.longest_gap();
    assert!(gap > HANGS - WATCHDOG, "rounds were told while the journal hung: {gap:?}");
    daemon.await_log(&["round", "does not end"]);
    daemon.await_log(&["round has ended"]);
}

#[test]
fn a_router_that_hangs_feeds_no_watchdog() {
    let manager = Manager::new();
    let faults = format!("router::round=3*off->1*sleep({})->off", HANGS.as_millis());
    let daemon = manager.starts(Setup::new("", SINGLE).faults(&faults)).start();
    daemon.await_log(&["round has ended"]);
    manager.await_rounds(2);
    let gap = manager.longest_gap();
    assert!(gap > HANGS - WATCHDOG, "rounds were told while the router hung: {gap:?}");
}

#[test]
fn a_full_disk_and_a_broker_that_is_away_feed_the_watchdog_and_are_told() {
    let manager = Manager::new();
    let nobody = format!("amqp://guest:guest@127.0.0.1:{}/%2f", free_port());
    let setup = Setup::new(&nobody, SINGLE).faults("journal::write=return(full)");
    let daemon = manager.starts(setup).spawn();
    let seen = manager.await_line(0, "READY=1");
    let api = daemon.api.clone();
    let refused =
        thread::spawn(move || api.try_send("POST", "/api/workflow/single", &[], Some(b"{}")));
    eventually("both are told", || {
        let messages = manager.messages();
        let last = messages.iter().rev().find(|text| begins(text, "STATUS=")).unwrap();
        let is_told = last.contains("journal: no room on the disk") && last.contains("bus: ");
        when(is_told && last.contains("waits: "), last)
    });
    // The command tells the same: it works, it waits, nobody is there.
    let health = |arguments: &[&str]| run(command().arg("health").args(arguments));
    let (url, gone) = (daemon.url(), format!("http://127.0.0.1:{}", free_port()));
    assert_eq!(health(&["--live", "--server", &url]).code, Some(0));
    let ran = health(&["--server", &url]);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(ran.code == Some(1) && lines.iter().any(|line| line.starts_with("[-] bus:")), "{ran}");
    assert_eq!(health(&["--server", &gone]).code, Some(3));
    manager.await_rounds(4);
    assert!(manager.messages().len() > seen);
    drop(daemon);
    drop(refused.join().unwrap());
}

#[test]
fn a_daemon_without_a_service_manager_or_with_one_that_is_gone_goes_on() {
    let setup = Setup::new("", SINGLE).variable("NOTIFY_SOCKET", "/nonexistent/notify");
    let daemon = setup.start();
    daemon.await_log(&["cannot be notified", "NOTIFY_SOCKET"]);
    let lines = daemon.log();
    assert_eq!(lines.matches("cannot be notified").count(), 1, "{lines}");
}

#[test]
fn a_program_that_works_for_a_queue_gets_nothing_that_is_meant_for_its_parent() {
    let manager = Manager::new();
    let daemon = Setup::new("", SINGLE).start();
    let job = daemon.api.create("single", "{}");
    let says = r#"printf '{"given":"%s"}' "$NOTIFY_SOCKET$WATCHDOG_USEC$WATCHDOG_PID""#;
    let mut work = command();
    work.env("NOTIFY_SOCKET", manager.socket()).env("WATCHDOG_USEC", "1000000");
    work.env("WATCHDOG_PID", "1").args(["work", "work", "--server", &daemon.url()]);
    let _worker = Running(work.args(["--", "sh", "-c", says]).spawn().unwrap());
    assert_eq!(daemon.api.await_result(job), json!({ "given": "" }).to_string());
}
