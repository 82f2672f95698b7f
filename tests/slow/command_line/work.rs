//! `work`: any program is a worker. On the embedded bus.

use super::json_of;
use crate::harness::{Daemon, Ran, Setup, command, eventually, run, when};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use uuid::Uuid;

const WORKFLOWS: &str = r"
workflows:
  - name: one
    steps: [ { name: price, retry: { attempts: 2, backoff: 1ms } } ]
  - name: two
    steps: [ { name: price }, { name: ship, priority: 7, depends: [ price ] } ]
  - name: judged
    steps: [ { name: judge, statusKey: status, statuses: [ OPEN, DONE ],
               retry: { attempts: 2, backoff: 1ms } } ]
";

fn start() -> Daemon {
    Setup::new("", WORKFLOWS).start()
}

/// A worker as a process, with a folder for its programs to leave traces in.
struct Worker {
    child: Child,
    dir: PathBuf,
}

impl Worker {
    /// `work` with these options, and a script for `sh`.
    fn start(daemon: &Daemon, options: &[&str], script: &str) -> Worker {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = daemon.dir().join(format!("worker-{number}"));
        fs::create_dir(&dir).unwrap();
        let log = File::create(dir.join("log")).unwrap();
        let mut command = work(daemon, options, &["sh", "-c", script]);
        command.current_dir(&dir).stdin(Stdio::null()).stderr(log);
        Worker { child: command.spawn().unwrap(), dir }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    #[track_caller]
    fn await_log(&self, words: &str) {
        eventually(&format!("the worker says {words:?}"), || {
            when(self.log().contains(words), self.log())
        });
    }

    /// Waits for a file that its program makes.
    #[track_caller]
    fn await_file(&self, name: &str) {
        eventually(&format!("the program makes {name}"), || {
            when(self.dir.join(name).exists(), self.log())
        });
    }

    fn make_file(&self, name: &str) {
        File::create(self.dir.join(name)).unwrap();
    }

    /// How often its program was begun: each one writes a line.
    fn begun(&self) -> usize {
        fs::read_to_string(self.dir.join("begun")).unwrap_or_default().lines().count()
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id();
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    }

    /// Its exit code, when it has ended.
    #[track_caller]
    fn await_end(&mut self) -> Option<i32> {
        eventually("the worker ends", || self.child.try_wait().unwrap().ok_or("it runs")).code()
    }

    #[track_caller]
    fn stop(&mut self) {
        self.signal("-TERM");
        assert_eq!(self.await_end(), Some(0), "{}", self.log());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
        if std::thread::panicking() {
            eprintln!("---- the worker's log ----\n{}----", self.log());
        }
    }
}

fn work(daemon: &Daemon, options: &[&str], program: &[&str]) -> Command {
    let mut command = command();
    command.arg("work").args(options).args(["--server", &daemon.url(), "--"]).args(program);
    command
}

fn refused(daemon: &Daemon, options: &[&str], program: &[&str]) -> Ran {
    run(&mut work(daemon, options, program))
}

/// The reason of a step's failed attempt, and whether it has failed for good.
fn why(daemon: &Daemon, job: Uuid) -> String {
    daemon.api.get(&format!("/api/job/{job}/entries")).expect(200).text
}

/// A program that runs until the file `go` is there.
const UNTIL_GO: &str = "echo >> begun; until [ -e go ]; do sleep 0.02; done; cat";

#[test]
fn any_program_is_a_worker_and_every_byte_arrives() {
    let daemon = start();
    let message = concat!(
        r#"{"cents":1740.50,"long":12345678901234567890123,"text":"Grüße \u00e4 🦀","#,
        r#""list":[1,  2e400]}"#,
    );
    let price = Worker::start(&daemon, &["price"], "cat");
    let told = "cat > input; env | grep ^WORKFLOW_ > told; echo says >&2; echo";
    let mut ship = Worker::start(&daemon, &["ship", "--quiet"], told);
    let id = daemon.api.create("two", message);
    assert_eq!(daemon.api.await_result(id), "{}", "no output is an empty object");
    assert_eq!(daemon.api.job(id).message_of("price"), message);
    let input = fs::read_to_string(ship.dir.join("input")).unwrap();
    assert_eq!(input, message, "as it came, without a line's end");
    let told = fs::read_to_string(ship.dir.join("told")).unwrap();
    for line in [
        "WORKFLOW_QUEUE=ship",
        "WORKFLOW_STEP=ship",
        "WORKFLOW_NAME=two",
        "WORKFLOW_ATTEMPT=1",
        "WORKFLOW_DELIVERY=1",
        "WORKFLOW_PRIORITY=7",
        &format!("WORKFLOW_JOB={id}"),
        &format!("WORKFLOW_CORRELATION_ID={id}:ship"),
        &format!("WORKFLOW_MESSAGE_ID={id}:ship:1"),
    ] {
        assert!(told.lines().any(|told| told == line), "no {line} in {told}");
    }
    assert!(told.contains("WORKFLOW_TRACEPARENT=00-"), "{told}");
    price.await_log(&format!("queue price, job {id}, attempt 1: took "));
    price.await_log(", result\n");
    ship.stop();
    assert_eq!(ship.log(), "says\n", "quiet, but for its program");
}

#[test]
fn a_program_that_fails_fails_the_attempt_with_what_it_said() {
    let daemon = start();
    let script =
        "echo $WORKFLOW_ATTEMPT >> begun; printf 'first\\nthe pen is \\033[31mout\\n' >&2; exit 3";
    let mut worker = Worker::start(&daemon, &["price"], script);
    let id = daemon.api.create("one", "{}");
    daemon.api.await_state(id, "failed");
    let record = json_of(&why(&daemon, id)).to_string();
    for words in ["exit code 3: first", "the pen is ", "u{1b}[31mout"] {
        assert!(record.contains(words), "no {words:?} in {record}");
    }
    assert_eq!(
        fs::read_to_string(worker.dir.join("begun")).unwrap(),
        "1\n2\n",
        "it is tried again"
    );
    worker.await_log("error: exit code 3: first");
    worker.stop();

    let mut killed = Worker::start(&daemon, &["price"], "kill -KILL $$");
    let id = daemon.api.create("one", "{}");
    daemon.api.await_state(id, "failed");
    assert!(why(&daemon, id).contains("killed by signal 9"));
    killed.stop();

    let _large = Worker::start(&daemon, &["price"], "exec cat /dev/zero");
    let id = daemon.api.create("one", "{}");
    daemon.api.await_state(id, "failed");
    let record = why(&daemon, id);
    assert!(record.contains("the output is larger than 16777216 bytes"), "{record}");
}

#[test]
fn a_program_that_changes_is_begun_again_with_its_message() {
    let daemon = start();
    let script = daemon.dir().join("price.sh");
    let watched = |text: &str| {
        fs::write(&script, text).unwrap();
        let dir = daemon.dir().join("watched");
        fs::create_dir(&dir).unwrap();
        let log = File::create(dir.join("log")).unwrap();
        let mut command = work(&daemon, &["price", "--watch"], &["sh", script.to_str().unwrap()]);
        command.current_dir(&dir).stdin(Stdio::null()).stderr(log);
        Worker { child: command.spawn().unwrap(), dir }
    };
    let mut worker = watched("cat > first; touch begun-first; sleep 1000");
    let id = daemon.api.create("one", r#"{"count":3}"#);
    worker.await_file("begun-first");
    fs::write(&script, "cat > second; echo '{\"cents\":750}'").unwrap();
    daemon.api.await_state(id, "completed");
    worker.await_log("price.sh changed: the message in hand is begun again");
    let input = |name: &str| fs::read_to_string(worker.dir.join(name)).unwrap();
    assert_eq!(input("first"), r#"{"count":3}"#);
    assert_eq!(input("second"), input("first"), "the same message");
    let log = worker.log();
    assert!(log.contains("attempt 1: took ") && !log.contains("attempt 2"), "{log}");

    // What would end the worker makes it wait for a change.
    fs::write(&script, "echo no object").unwrap();
    worker.await_log("price.sh changed: the next message gets the new program");
    for _ in 0..3 {
        let id = daemon.api.create("one", "{}");
        eventually("the job ends, or waits", || {
            let waits = worker.log().contains("taken again when the program has changed");
            when(waits || daemon.api.job(id).state == "failed", worker.log())
        });
    }
    worker.await_log("taken again when the program has changed");
    let id = daemon.api.create("one", "{}");
    fs::write(&script, "echo '{}'").unwrap();
    daemon.api.await_state(id, "completed");
    worker.stop();
}

#[test]
fn an_output_that_is_no_json_object_is_told_and_ends_the_worker_after_some() {
    let daemon = start();
    let deep = "printf '{\"a\":'; printf '[%.0s' $(seq 200)";
    for (script, why) in [
        ("echo Hello, world", "not JSON: expected value at line 1 column 1"),
        ("echo '[1]'", "expected a JSON object, found an array"),
        ("echo '{} {}'", "not JSON"),
        ("echo '{\"a\": NaN}'", "not JSON"),
        ("printf '{\"a\":\"\\377\"}'", "invalid UTF-8"),
        ("printf '\\357\\273\\277{}'", "byte-order mark"),
        (deep, "nested deeper than 127"),
    ] {
        let mut worker = Worker::start(&daemon, &["price"], script);
        let id = daemon.api.create("one", "{}");
        daemon.api.await_state(id, "failed");
        worker.await_log("attempt 2: took ");
        worker.stop();
        let log = worker.log();
        assert_eq!(log.matches(", error: the output is not a JSON object: ").count(), 2, "{log}");
        assert!(log.contains(why) && !log.contains(", result"), "{log}");
        let record = why_failed(&daemon, id);
        assert!(record.contains(why), "no {why:?} in {record}");
    }

    // What it prints is shown, without what would command a terminal.
    let mut worker = Worker::start(&daemon, &["price"], "printf '\\033[31mred\\n'");
    let jobs: Vec<Uuid> = (0..4).map(|_| daemon.api.create("one", "{}")).collect();
    assert_eq!(worker.await_end(), Some(1));
    let log = worker.log();
    assert!(log.contains("it begins with \"\\u{1b}[31mred\\n\""), "{log}");
    assert!(log.contains("5 times in a row the output is not a JSON object"), "{log}");
    assert!(log.contains("must print one JSON object that the step can have, or nothing"), "{log}");
    assert_eq!(log.matches(": took ").count(), 5, "{log}");

    // What is left, another worker does. One that is wrong now and then goes on.
    let script = "echo >> begun; [ $(($(wc -l < begun) % 3)) = 0 ] && echo '{}' || echo no";
    let mut worker = Worker::start(&daemon, &["price"], script);
    let more = (0..6).map(|_| daemon.api.create("one", "{}"));
    for id in jobs.into_iter().chain(more) {
        eventually("the job ends", || {
            let job = daemon.api.job(id);
            when(job.state != "running", job.text)
        });
    }
    assert!(worker.begun() > 6, "{}", worker.log());
    worker.stop();
}

#[test]
fn an_output_that_its_step_cannot_have_is_no_result() {
    let daemon = start();
    for (script, why) in [
        ("echo '{\"status\":\"DUN\"}'", "the status \"DUN\" is not among the step's statuses"),
        ("echo '{\"status\":7}'", "the status under \"status\" is a number"),
    ] {
        let mut worker = Worker::start(&daemon, &["judge"], script);
        let id = daemon.api.create("judged", "{}");
        daemon.api.await_state(id, "failed");
        worker.await_log("attempt 2: took ");
        worker.stop();
        let log = worker.log();
        assert_eq!(log.matches(&format!(", error: {why}")).count(), 2, "{log}");
        assert!(!log.contains(", result"), "{log}");
    }
    let mut worker = Worker::start(&daemon, &["judge"], "echo '{\"status\":\"DONE\"}'");
    let id = daemon.api.create("judged", "{}");
    daemon.api.await_state(id, "completed");
    worker.await_log("attempt 1: took ");
    worker.stop();
    assert!(worker.log().contains(", result"), "{}", worker.log());

    let mut worker = Worker::start(&daemon, &["judge"], "echo '{\"status\":\"DUN\"}'");
    for _ in 0..3 {
        daemon.api.create("judged", "{}");
    }
    assert_eq!(worker.await_end(), Some(1));
    let log = worker.log();
    assert!(log.contains("5 times in a row the status \"DUN\" is not among"), "{log}");
    assert_eq!(log.matches(": took ").count(), 5, "{log}");
}

fn why_failed(daemon: &Daemon, job: Uuid) -> String {
    daemon.api.job(job).text
}

#[test]
fn the_lease_is_extended_while_the_program_runs() {
    let daemon = start();
    let worker = Worker::start(&daemon, &["price", "--lease", "6s"], UNTIL_GO);
    let id = daemon.api.create("one", r#"{"a":1}"#);
    worker.await_file("begun");
    let lease = || {
        let queue = daemon.api.get("/api/queue/price").expect(200).json();
        queue["leases"][0].clone()
    };
    let first = lease();
    // By the time that the lease ends which has been extended often enough, the first one is over.
    let mut ends = BTreeSet::new();
    eventually("it is extended again and again", || {
        let lease = lease();
        assert_eq!(lease["delivery"], first["delivery"], "another one has it: {lease}");
        // To the second, for it is worked out anew for each look.
        let until = lease["leaseUntil"].as_str().unwrap_or_default();
        ends.insert(until.split('.').next().unwrap_or_default().to_owned());
        when(ends.len() > 3, &lease)
    });
    worker.make_file("go");
    assert_eq!(daemon.api.await_result(id), r#"{"a":1}"#);
    assert_eq!(worker.begun(), 1);
}

#[test]
fn a_job_that_is_cancelled_ends_the_program() {
    let daemon = start();
    let script = "trap 'echo > seen; exit 0' TERM; echo > begun; while :; do sleep 0.02; done";
    let mut worker = Worker::start(&daemon, &["price", "--lease", "1s"], script);
    let id = daemon.api.create("one", "{}");
    worker.await_file("begun");
    daemon.api.post(&format!("/api/job/{id}/cancel"), "").expect(200);
    worker.await_file("seen");
    worker.await_log("stopped after");
    let next = daemon.api.create("one", "{}");
    eventually("it takes the next one", || {
        let log = worker.log();
        when(!log.contains("result"), &log)?;
        let job = daemon.api.job(next);
        when(job.running.len() == 1, job.text)
    });
    daemon.api.post(&format!("/api/job/{next}/cancel"), "").expect(200);
    worker.stop();
}

#[test]
fn a_restart_of_the_manager_loses_nothing() {
    let mut daemon = start();
    let two = Worker::start(&daemon, &["price", "--jobs", "2", "--lease", "1h"], UNTIL_GO);
    let one = daemon.api.create("one", r#"{"a":1}"#);
    eventually("the program runs", || when(two.begun() == 1, two.begun()));
    daemon.kill();
    two.await_log("cannot reach the manager");
    daemon.start_again();
    two.await_log("the manager answers again");
    two.make_file("go");
    assert_eq!(daemon.api.await_result(one), r#"{"a":1}"#);
    assert_eq!(two.begun(), 1, "it was worked on once");

    // The reply comes while the manager is gone.
    fs::remove_file(two.dir.join("go")).unwrap();
    let one = daemon.api.create("one", r#"{"a":2}"#);
    eventually("the program runs", || when(two.begun() == 2, two.begun()));
    daemon.kill();
    two.make_file("go");
    two.await_log("the manager does not take a reply");
    daemon.start_again();
    assert_eq!(daemon.api.await_result(one), r#"{"a":2}"#);
    eventually("both replies count", || {
        let log = two.log();
        when(log.matches(", result\n").count() == 2, log)
    });
}

#[test]
fn a_program_that_runs_over_a_restart_of_the_manager_is_not_begun_again() {
    let mut daemon = start();
    let worker = Worker::start(&daemon, &["price", "--lease", "1s"], UNTIL_GO);
    let one = daemon.api.create("one", r#"{"a":1}"#);
    worker.await_file("begun");
    daemon.kill();
    daemon.start_again();
    // It asks for no other message while it has one in hand: it extends.
    eventually("it has the message again", || {
        let queues = daemon.api.get("/api/queues").expect(200).text;
        when(queues.contains(r#""unacknowledged":1"#), queues)
    });
    worker.make_file("go");
    assert_eq!(daemon.api.await_result(one), r#"{"a":1}"#);
    assert_eq!(worker.begun(), 1, "{}", worker.log());
}

#[test]
fn several_messages_are_worked_on_at_once_from_several_queues() {
    let daemon = start();
    let mut worker = Worker::start(&daemon, &["price", "ship", "--jobs", "3"], UNTIL_GO);
    let jobs: Vec<Uuid> =
        (0..5).map(|number| daemon.api.create("two", &format!(r#"{{"n":{number}}}"#))).collect();
    eventually("three are in hand", || when(worker.begun() == 3, worker.begun()));
    let queue = || daemon.api.get("/api/queues").expect(200).text;
    assert_eq!(worker.begun(), 3, "{}", queue());
    worker.make_file("go");
    for (number, job) in jobs.iter().enumerate() {
        assert_eq!(daemon.api.await_result(*job), format!(r#"{{"n":{number}}}"#));
    }
    assert_eq!(worker.begun(), 10);
    worker.stop();
}

#[test]
fn a_worker_that_is_asked_to_end_finishes_what_it_has_in_hand() {
    let daemon = start();
    let mut worker = Worker::start(&daemon, &["price"], UNTIL_GO);
    let first = daemon.api.create("one", r#"{"a":1}"#);
    worker.await_file("begun");
    worker.signal("-INT");
    worker.await_log("stopping when the message is done");
    let second = daemon.api.create("one", r#"{"a":2}"#);
    worker.make_file("go");
    assert_eq!(worker.await_end(), Some(0));
    assert_eq!(daemon.api.await_result(first), r#"{"a":1}"#);
    assert_eq!(worker.begun(), 1, "it takes no other one");

    // Asked twice, it gives back what it has, even if its program is deaf.
    let deaf = format!("trap '' TERM; {UNTIL_GO}");
    let mut worker = Worker::start(&daemon, &["price"], &deaf);
    worker.await_file("begun");
    worker.signal("-TERM");
    worker.await_log("stopping when the message is done");
    worker.signal("-TERM");
    assert_eq!(worker.await_end(), Some(0));
    assert!(worker.log().contains("attempt 1: given back"));
    let _other = Worker::start(&daemon, &["price"], "cat");
    assert_eq!(daemon.api.await_result(second), r#"{"a":2}"#);
    assert_eq!(daemon.api.job(second).running.len(), 0);
}

#[test]
fn what_cannot_work_is_told_at_the_start() {
    let daemon = start();
    let unknown = refused(&daemon, &["prise"], &["cat"]);
    assert_eq!(unknown.code, Some(1), "{unknown}");
    assert!(unknown.stderr.contains("\"price\"") && unknown.stderr.contains("404"), "{unknown}");
    for (program, why) in [("no-such-program", "no folder of PATH"), ("/etc/passwd", "chmod +x")] {
        let ran = refused(&daemon, &["price"], &[program]);
        assert!(ran.code == Some(2) && ran.stderr.contains(why), "{ran}");
    }
    assert_eq!(run(command().args(["work", "price"])).code, Some(2), "no program");
    let lease = refused(&daemon, &["price", "--lease", "1ms"], &["cat"]);
    assert!(lease.code == Some(1) && lease.stderr.contains("from 1s"), "{lease}");
    let guarded = Setup::new("", WORKFLOWS).set("http.token", "the-right-one-of-all").start();
    let ran = refused(&guarded, &["price"], &["cat"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("--token"), "{ran}");

    // A program that the system does not take is seen with the first message, which is not lost.
    let broken = daemon.dir().join("broken");
    fs::write(&broken, "\u{7f}no program").unwrap();
    make_executable(&broken);
    let id = daemon.api.create("one", "{}");
    let ran = refused(&daemon, &["price"], &[broken.to_str().unwrap()]);
    assert!(ran.code == Some(2) && ran.stderr.contains("cannot run"), "{ran}");
    assert!(ran.stderr.contains("given back"), "{ran}");
    let _worker = Worker::start(&daemon, &["price"], "cat");
    daemon.api.await_state(id, "completed");
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn kills_of_the_manager_give_nobody_what_another_worker_has() {
    const KILLS: usize = 3;
    let mut daemon = start();
    let first = Worker::start(&daemon, &["price", "--lease", "1h"], UNTIL_GO);
    let id = daemon.api.create("one", r#"{"a":1}"#);
    eventually("the program begins", || when(first.begun() == 1, first.log()));
    eventually("the lease is journaled", || {
        let entries = why(&daemon, id);
        when(entries.contains("step.leased"), entries)
    });
    // It would take whatever waits.
    let second = Worker::start(&daemon, &["price"], "echo >> begun; cat");
    for _ in 0..KILLS {
        daemon.kill();
        daemon.start_again();
        // A message that comes now is taken: the second worker has asked again.
        let other = daemon.api.create("one", r#"{"a":2}"#);
        daemon.api.await_result(other);
    }
    assert_eq!((first.begun(), second.begun()), (1, KILLS), "{}", second.log());
    first.make_file("go");
    assert_eq!(daemon.api.await_result(id), r#"{"a":1}"#);
    assert_eq!((first.begun(), second.begun()), (1, KILLS), "{}", second.log());
}
