//! `worker-test`: it passes workers that keep the protocol, and fails those that do not, each with
//! the line that says why. Over HTTP, and over AMQP with a real broker.

#[cfg(feature = "grpc")]
mod over_grpc;
mod rust_worker;

use super::json_of;
use crate::amqp::{Answer, Vhost, Worker};
use crate::harness::{Api, Ran, command, eventually, run, when};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

const MUST_OF_HTTP: [&str; 10] = [
    "answers a message",
    "comes back after a connection that was cut before the reply",
    "goes on after a reply whose answer was lost",
    "bears a message that is not JSON",
    "bears a message that is an array",
    "bears an empty message",
    "bears a message that nests 100 levels deep",
    "bears a message of 1 MiB",
    "bears headers that it does not know",
    "answers each of 100 messages once",
];

fn worker_test(options: &[&str]) -> Command {
    let mut command = command();
    command.arg("worker-test").args(options);
    command
}

/// A test whose worker is started by hand, at the address that it prints.
struct Kit {
    child: Child,
    address: String,
    stderr: JoinHandle<String>,
}

impl Kit {
    fn start(options: &[&str]) -> Kit {
        let mut command = worker_test(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        stderr.read_line(&mut first).unwrap();
        let told = first.split_once('=').and_then(|(_, rest)| rest.rsplit_once(", queue"));
        let address = told.unwrap_or_else(|| panic!("no address: {first}")).0.to_owned();
        let stderr = thread::spawn(move || {
            let mut rest = String::new();
            let _partial = stderr.read_to_string(&mut rest);
            rest
        });
        Kit { child, address, stderr }
    }

    /// What it printed, when it has ended.
    #[track_caller]
    fn end(mut self) -> Ran {
        let mut stdout = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        let stderr = self.stderr.join().unwrap();
        Ran { code: status.code(), stdout, stderr, memory: 0 }
    }
}

/// The lines of a case: it, and what follows it.
#[track_caller]
fn case<'r>(ran: &'r Ran, name: &str) -> Vec<&'r str> {
    let is_of = |line: &&str| {
        let told = line.split_once(" - ").map_or("", |(_, told)| told);
        told.split(" # ").next() == Some(name)
    };
    let mut lines = ran.stdout.lines().skip_while(|line| !is_of(line));
    let first = lines.next().unwrap_or_else(|| panic!("no case {name:?}: {ran}"));
    [first].into_iter().chain(lines.take_while(|line| line.starts_with('#'))).collect()
}

#[track_caller]
fn assert_passed(ran: &Ran, name: &str) {
    assert!(case(ran, name)[0].starts_with("ok "), "{name}: {ran}");
}

/// The case failed, with this in what was seen, and with the sentence that it rests on.
#[track_caller]
fn assert_failed(ran: &Ran, name: &str, seen: &str) {
    let lines = case(ran, name);
    assert!(lines[0].starts_with("not ok ") && !lines[0].contains('#'), "{name}: {ran}");
    assert!(lines[1].starts_with("#   seen: ") && lines[1].contains(seen), "{name}: {ran}");
    assert!(lines[2].starts_with("#   docs/reference/worker-protocol.md: "), "{name}: {ran}");
}

/// A worker over HTTP that does with each message what a function says: a call and a body. It ends
/// with this value.
struct HttpWorker {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpWorker {
    fn start(
        url: &str,
        mut work: impl FnMut(&Api, &str, &str) -> Option<(&'static str, String)> + Send + 'static,
    ) -> HttpWorker {
        let (api, is_over) = (Api::new(url, None), Arc::new(AtomicBool::new(false)));
        let ends = is_over.clone();
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let path = "/api/queue/price/receive?wait=1s";
                let Ok(answer) = api.try_send("POST", path, &[], Some(b"")) else {
                    thread::yield_now();
                    continue;
                };
                if answer.status != 200 {
                    continue;
                }
                let path = answer.header("reply-to").strip_suffix("/reply").unwrap().to_owned();
                let Some((call, body)) = work(&api, &path, &answer.text) else { continue };
                // A reply is sent until it is answered.
                while !ends.load(Ordering::Relaxed) {
                    let path = format!("{path}/{call}");
                    if api.try_send("POST", &path, &[], Some(body.as_bytes())).is_ok() {
                        break;
                    }
                    thread::yield_now();
                }
            }
        });
        HttpWorker { is_over, thread: Some(thread) }
    }
}

impl Drop for HttpWorker {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(thread::panicking() || ended.is_ok(), "the worker panicked");
    }
}

#[test]
fn the_worker_in_shell_keeps_the_protocol() {
    let shell = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/workers/shell/worker.sh");
    let ran = run(&mut worker_test(&["price", "--", shell, "price", "cat"]));
    assert_eq!(ran.code, Some(0), "{ran}");
    MUST_OF_HTTP.iter().for_each(|name| assert_passed(&ran, name));
    assert_passed(&ran, "keeps every digit, escapes and the order of keys");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((lines[0], lines[1]), ("1..14", "ok 1 - answers a message"));
    // The shell does not wait for its command when it is told to end.
    let end = case(&ran, "finishes what is in hand on SIGTERM, and ends with exit code 0");
    assert!(end[0].starts_with("not ok") && end[0].ends_with(" # advice"), "{ran}");
    assert_eq!(lines.last(), Some(&"11 passed, 0 failed, 1 advised"));
}

#[test]
fn any_program_under_work_keeps_the_protocol() {
    let program = env!("CARGO_BIN_EXE_workflow-manager");
    let options = ["--message", r#"{"count":3}"#, "--expect", r#"{"count": 3, "by": "work"}"#];
    let script = concat!(
        r#"read -r input; case $input in '{"count":3'*) echo '{"count":3,"by":"work"}';; "#,
        r"*) echo 'odd \033[31m' >&2; exit 3; esac",
    );
    let work = ["--json", "--", program, "work", "price", "--quiet", "--", "sh", "-c", script];
    let ran = run(&mut worker_test(&[&["price"], &options[..], &work].concat()));
    assert_eq!(ran.code, Some(0), "{ran}");
    let told = json_of(&ran.stdout);
    assert_eq!((told["failed"].as_u64(), told["advised"].as_u64()), (Some(0), Some(0)), "{ran}");
    let cases = told["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 14);
    let outcome = |name: &str| {
        let found = cases.iter().find(|case| case["name"] == name);
        found.map_or("none", |case| case["outcome"].as_str().unwrap())
    };
    for name in MUST_OF_HTTP {
        assert_eq!(outcome(name), "passed", "{name}: {ran}");
    }
    assert_eq!(outcome("keeps every digit, escapes and the order of keys"), "skipped");
    let end = outcome("finishes what is in hand on SIGTERM, and ends with exit code 0");
    assert_eq!(end, "passed", "{ran}");
    assert!(cases[3]["seen"].as_str().unwrap().starts_with("error "), "{ran}");
    assert!(!ran.text().contains('\u{1b}'), "{ran}");
}

#[test]
fn a_worker_over_http_that_puts_back_for_ever_what_it_cannot_read_fails() {
    let kit = Kit::start(&["price", "--within", "10s"]);
    let _worker = HttpWorker::start(&kit.address, |_, _, body| {
        let is_object = body.starts_with('{') && body.ends_with('}');
        Some(if is_object {
            ("reply", "{}".to_owned())
        } else {
            ("nack?requeue=true", String::new())
        })
    });
    let ran = kit.end();
    assert_eq!(ran.code, Some(1), "{ran}");
    for name in ["bears a message that is not JSON", "bears an empty message"] {
        assert_failed(&ran, name, "it puts the message back again and again: 4 deliveries");
    }
    assert_passed(&ran, "bears a message that nests 100 levels deep");
    assert_passed(&ran, "answers each of 100 messages once");
}

#[test]
fn a_worker_that_answers_twice_fails() {
    let kit = Kit::start(&["price", "--within", "10s"]);
    let _worker = HttpWorker::start(&kit.address, |api, path, _| {
        let _first = api.try_send("POST", &format!("{path}/reply"), &[], Some(b"{}"));
        Some(("reply", "{}".to_owned()))
    });
    let ran = kit.end();
    assert_eq!(ran.code, Some(1), "{ran}");
    assert_passed(&ran, "answers a message");
    assert_failed(&ran, "answers each of 100 messages once", "was answered 2 times");
}

#[test]
fn a_worker_over_http_is_told_that_its_attempt_is_over() {
    for stops in [true, false] {
        let kit = Kit::start(&["price", "--within", "10s"]);
        let _worker = HttpWorker::start(&kit.address, move |api, path, _| {
            let extended = api.try_send("POST", &format!("{path}/extend"), &[], Some(b""));
            let is_gone = extended.is_ok_and(|answer| answer.status == 410);
            (!(stops && is_gone)).then(|| ("reply", "{}".to_owned()))
        });
        let ran = kit.end();
        assert_eq!(ran.code, Some(0), "{ran}");
        let lines = case(&ran, "stops when its attempt is over");
        assert!(lines[0].starts_with(if stops { "ok" } else { "not ok" }), "{ran}");
        assert_passed(&ran, "asks for more time, or reports progress, before its lease ends");
    }
}

#[test]
fn a_worker_that_answers_wrongly_or_not_at_all_is_told() {
    for (body, seen) in [
        ("[]", "the result is not a JSON object: result []"),
        ("{\"a\":\u{1b}", "the result is not JSON"),
        (r#"{"cents":1}"#, r#"expected {"cents":2}, it answered result {"cents":1}"#),
    ] {
        let kit = Kit::start(&["price", "--expect", r#"{"cents":2}"#]);
        let _worker =
            HttpWorker::start(&kit.address, move |_, _, _| Some(("reply", body.to_owned())));
        let ran = kit.end();
        assert_eq!(ran.code, Some(1), "{ran}");
        assert_failed(&ran, "answers a message", seen);
        assert!(ran.stdout.contains("\nBail out! ") && !ran.stdout.contains('\u{1b}'), "{ran}");
        assert!(ran.stdout.ends_with("0 passed, 1 failed, 0 advised\n"), "{ran}");
    }
    let ran = run(&mut worker_test(&["price", "--within", "10s", "--", "sh", "-c", "exit 7"]));
    assert_eq!(ran.code, Some(1), "{ran}");
    assert_failed(&ran, "answers a message", "its process has ended: exit code 7");
    let ran = run(&mut worker_test(&["price", "--within", "200ms"]));
    assert_failed(&ran, "answers a message", "no worker came within 400ms");
}

#[test]
fn wrong_usage_is_told() {
    let long = "q".repeat(217);
    for (options, why) in [
        (&[long.as_str(), "--amqp-server", "amqp://localhost"][..], "more than 216 bytes"),
        (&["q", "--message", "[]"], "--message must be a JSON object"),
        (&["q", "--expect", "{"], "--expect is not JSON"),
        (&["q", "--message", "@/no/such"], "cannot read /no/such"),
        (&["q", "--bus", "amqp"], "AMQP_SERVER"),
        (&["q", "--", "/no/such\u{1b}"], "cannot run /no/such\\u{1b}"),
    ] {
        let ran = run(&mut worker_test(options));
        assert!(ran.code == Some(2) && ran.stderr.contains(why), "{options:?}: {ran}");
        assert_eq!(ran.stdout, "", "{ran}");
    }
}

/// The kit, at this virtual host, and the address for the worker.
fn over_amqp(vhost: &Vhost) -> (Kit, String) {
    let kit = Kit::start(&["price", "--within", "5s", "--amqp-server", &vhost.url]);
    let (_, host) = kit.address.rsplit_once('@').unwrap();
    assert!(kit.address.contains(":PASSWORD@") && !host.contains("guest"), "{}", kit.address);
    let (user, _) = vhost.url.rsplit_once('@').unwrap();
    let address = format!("{user}@{host}");
    (kit, address)
}

fn echo(body: &[u8]) -> Answer {
    Answer::Reply(body.to_vec())
}

#[test]
fn a_worker_over_amqp_that_keeps_the_protocol_passes() {
    let vhost = Vhost::new();
    let (kit, address) = over_amqp(&vhost);
    let _worker = Worker::start(&address, &["price"], |message| {
        if message.properties.reply_to().is_none() { Answer::Nack } else { echo(&message.body) }
    });
    let ran = kit.end();
    assert_eq!(ran.code, Some(0), "{ran}");
    for name in [
        "answers a message",
        "comes back after a connection that was cut before the reply",
        "gives the same result after a connection that was cut between reply and ack",
        "bears a message without reply_to",
        "answers each of 100 messages once",
        "acknowledges only after the reply",
        "acknowledges only after the broker has confirmed the reply",
        "publishes replies as persistent",
        "names the type of the content",
        "keeps every digit, escapes and the order of keys",
    ] {
        assert_passed(&ran, name);
    }
    let attempt = case(&ran, "gives the header attempt back");
    assert!(attempt[0].ends_with(" # advice"), "{ran}");
    // Nothing is left behind.
    assert_eq!(vhost.client().count("price"), None);
}

#[test]
fn a_worker_that_acknowledges_before_it_replies_fails() {
    let vhost = Vhost::new();
    let (kit, address) = over_amqp(&vhost);
    let _worker = Worker::start(&address, &["price"], |message| {
        if message.properties.reply_to().is_none() {
            return Answer::Nack;
        }
        Answer::AckFirst(message.body.clone())
    });
    let ran = kit.end();
    assert_eq!(ran.code, Some(1), "{ran}");
    assert_passed(&ran, "answers a message");
    assert_failed(&ran, "acknowledges only after the reply", "it acknowledged before it replied");
    assert_failed(
        &ran,
        "comes back after a connection that was cut before the reply",
        "it acknowledged, and did not reply within 10s: it is lost",
    );
}

#[test]
fn a_worker_over_amqp_that_puts_back_for_ever_what_it_cannot_read_fails() {
    let vhost = Vhost::new();
    let (kit, address) = over_amqp(&vhost);
    let _worker = Worker::start(&address, &["price"], |message| {
        let is_good = serde_json::from_slice::<serde_json::Map<_, _>>(&message.body).is_ok();
        if is_good && message.properties.reply_to().is_some() {
            return echo(&message.body);
        }
        Answer::Requeue
    });
    let ran = kit.end();
    assert_eq!(ran.code, Some(1), "{ran}");
    for name in ["bears a message that is not JSON", "bears a message without reply_to"] {
        assert_failed(&ran, name, "it puts the message back again and again");
    }
    assert_passed(&ran, "answers each of 100 messages once");
    assert_passed(&ran, "acknowledges only after the reply");
}

#[test]
fn a_queue_that_others_use_is_left_alone() {
    let vhost = Vhost::new();
    let client = vhost.client();
    client.declare("price", lapin::types::FieldTable::default());
    client.publish("price", "{}", lapin::BasicProperties::default());
    client.await_count("price", 1);
    let refused = || {
        let ran = run(&mut worker_test(&["price", "--amqp-server", &vhost.url]));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran}");
        ran.stderr
    };
    let why = refused();
    assert!(why.contains("the queue has 1 messages and 0 consumers"), "{why}");
    client.await_count("price", 1);
    let _worker = Worker::start(&vhost.url, &["price"], |_| Answer::Hold);
    eventually("the worker has the message", || {
        let count = client.count("price");
        when(count == Some((0, 1)), format!("{count:?}"))
    });
    let why = refused();
    assert!(why.contains("0 messages and 1 consumers"), "{why}");
}
