//! Events as clients, queues and the command line get them. The webhook is in `webhook`.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    amqp::{Answer, Vhost, Worker, arguments, json_properties},
    harness::{DEADLINE, Daemon, Setup, command, eventually, run, when},
};

const WORKFLOWS: &str = r"
workflows:
  - name: chain
    steps:
      - name: first
      - name: second
        depends: [ first ]
  - name: pieces
    steps:
      - name: each
        task: piece
    tasks:
      - name: piece
        itemListKey: items
        steps:
          - name: work
";

const MEBIBYTE: u64 = 1024 * 1024;

// ---- reading a stream

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Sent {
    fn step(&self) -> &str {
        self.data["data"]["step"].as_str().unwrap_or_default()
    }

    /// The name, with the step if there is one.
    fn line(&self) -> String {
        format!("{} {}", self.name, self.step()).trim_end().to_owned()
    }
}

/// An open stream, read by a thread of its own.
pub(crate) struct Reading {
    items: mpsc::Receiver<Sent>,
    comments: mpsc::Receiver<String>,
}

impl Reading {
    /// Returns when the stream is open.
    #[track_caller]
    pub(crate) fn open(daemon: &Daemon, path: &str) -> Reading {
        let config = ureq::Agent::config_builder().proxy(None).build();
        let response =
            ureq::Agent::from(config).get(format!("{}{path}", daemon.url())).call().unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let body = BufReader::new(response.into_body().into_reader());
        Reading::of(body)
    }

    fn of(body: impl BufRead + Send + 'static) -> Reading {
        let (item, items) = mpsc::channel();
        let (comment, comments) = mpsc::channel();
        thread::spawn(move || {
            let mut sent = Sent { id: String::new(), name: String::new(), data: Value::Null };
            for line in body.lines() {
                let Ok(line) = line else { return };
                match line.split_once(": ") {
                    Some(("id", id)) => id.clone_into(&mut sent.id),
                    Some(("event", name)) => name.clone_into(&mut sent.name),
                    Some(("data", data)) => {
                        sent.data = serde_json::from_str(data).unwrap();
                        let _gone = item.send(sent.clone());
                    }
                    _ => {
                        let _gone = comment.send(line);
                    }
                }
            }
        });
        Reading { items, comments }
    }

    #[track_caller]
    fn next(&self) -> Option<Sent> {
        match self.items.recv_timeout(DEADLINE) {
            Ok(sent) => Some(sent),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("nothing came, and the stream did not end, within {DEADLINE:?}")
            }
        }
    }

    /// All up to the event of that name of that job.
    #[track_caller]
    pub(crate) fn until(&self, name: &str, job: Uuid) -> Vec<Sent> {
        let mut all = Vec::new();
        loop {
            let sent = self
                .next()
                .unwrap_or_else(|| panic!("the stream ended before {name} of {job}: {all:?}"));
            let is_last = sent.name == name && sent.data["data"]["job"] == job.to_string();
            all.push(sent);
            if is_last {
                return all;
            }
        }
    }

    /// All that is left, to the end of the stream.
    #[track_caller]
    fn rest(&self) -> Vec<Sent> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

fn start(vhost: &Vhost) -> Daemon {
    Setup::new(&vhost.url, WORKFLOWS).start()
}

fn lines(sent: &[Sent]) -> Vec<String> {
    sent.iter().map(Sent::line).collect()
}

const CHAIN: [&str; 6] = [
    "job.running",
    "step.running first",
    "step.completed first",
    "step.running second",
    "step.completed second",
    "job.completed",
];

// ---- streams

#[test]
fn the_stream_of_all_jobs_has_each_change_once_and_in_order() {
    let vhost = Vhost::new();
    let daemon = start(&vhost);
    let _worker = Worker::echo(&vhost.url, &["first", "second", "work"]);
    let all = Reading::open(&daemon, "/api/events");
    let of_jobs = Reading::open(&daemon, "/api/events?workflow=chain&kind=job");
    let of_steps = Reading::open(&daemon, "/api/events?kind=step");
    let other = daemon.api.create("pieces", r#"{"items":[1,2]}"#);
    let first = all.until("job.completed", other);
    let id = daemon.api.create("chain", "{}");
    let sent = all.until("job.completed", id);
    assert_eq!(lines(&sent), CHAIN);
    assert_eq!(lines(&of_jobs.until("job.completed", id)), ["job.running", "job.completed"]);
    let steps: Vec<Sent> =
        first.iter().chain(&sent).filter(|sent| sent.name.starts_with("step.")).cloned().collect();
    assert_eq!(
        of_steps.until("step.completed", id).len() + 2,
        steps.len(),
        "up to the first of its two steps"
    );

    let ids: HashSet<&str> = first.iter().chain(&sent).map(|sent| sent.id.as_str()).collect();
    assert_eq!(ids.len(), first.len() + sent.len(), "each has an id of its own");
    for sent in &sent {
        assert_eq!((&sent.data["id"], &sent.data["specversion"]), (&json!(sent.id), &json!("1.0")));
        assert_eq!(sent.data["type"], format!("workflow-manager.{}", sent.name));
        assert_eq!(
            (&sent.data["source"], &sent.data["data"]["workflow"]),
            (&json!("/workflow-manager"), &json!("chain"))
        );
    }
    assert_eq!(sent[2].data["subject"], format!("{id}/first"));
    assert_eq!(
        (&sent[2].data["data"]["status"], &sent[2].data["data"]["attempt"]),
        (&json!("COMPLETED"), &json!(1))
    );
    let children: HashSet<&Value> = first
        .iter()
        .filter(|sent| sent.data["data"]["task"] == "piece")
        .map(|sent| &sent.data["data"]["job"])
        .collect();
    assert_eq!(children.len(), 2);
    assert_eq!(first.len(), 4 + 2 * 4, "{:?}", lines(&first));

    daemon.api.get("/api/events?kind=jobs").expect_problem(400, &["job or step"]);
    daemon
        .api
        .get("/api/events?workflow=chian")
        .expect_problem(404, &["chian", "did you mean \"chain\""]);
    assert_eq!(daemon.api.post("/api/events", "{}").status, 405);
}

#[test]
fn the_stream_of_a_job_ends_with_it_and_of_an_ended_job_it_is_its_end() {
    let vhost = Vhost::new();
    let daemon = start(&vhost);
    let client = vhost.client();
    let id = daemon.api.create("chain", "{}");
    let reading = Reading::open(&daemon, &format!("/api/job/{id}/events"));
    let elsewhere = daemon.api.create("chain", r#"{"k":1}"#);
    for _ in 0..2 {
        let message = client.take("first");
        client.say(&message, r#"{"error":"no luck"}"#, json_properties().with_type("error".into()));
        client.ack(&message);
    }
    let sent = reading.rest();
    assert_eq!(lines(&sent), ["step.failed first", "job.failed"]);
    for sent in &sent {
        assert!(sent.data["data"]["reason"].as_str().unwrap().contains("no luck"), "{sent:?}");
    }
    assert_eq!(
        (&sent[0].data["data"]["state"], &sent[0].data["data"]["status"]),
        (&json!("failed"), &json!("FAILED"))
    );

    let path = format!("/api/job/{id}/events");
    let again = Reading::open(&daemon, &path).rest();
    assert_eq!(again, sent[1..], "the same event, id included");
    let back = daemon.api.send("GET", &path, &[("Last-Event-ID", &again[0].id)], None);
    assert_eq!((back.status, back.text.as_str()), (204, ""), "who has the end need not come back");

    daemon.api.await_state(elsewhere, "failed");
    daemon
        .api
        .get(&format!("/api/job/{}/events", Uuid::new_v4()))
        .expect_problem(404, &["unknown job"]);
    daemon.api.get("/api/job/nonsense/events").expect_problem(400, &["uuid"]);
}

#[test]
fn a_job_is_streamed_with_its_child_jobs_and_a_child_job_by_itself() {
    let vhost = Vhost::new();
    let daemon = start(&vhost);
    let client = vhost.client();
    let id = daemon.api.create("pieces", r#"{"items":[1,2]}"#);
    let messages = [client.take("work"), client.take("work")];
    let whole = Reading::open(&daemon, &format!("/api/job/{id}/events"));
    let child = Reading::open(&daemon, &format!("/api/job/{}/events", messages[1].job()));
    messages.iter().for_each(|message| client.reply(message, "{}"));
    assert_eq!(lines(&child.rest()), ["step.completed work", "job.completed"]);
    let sent = whole.rest();
    assert_eq!(sent.len(), 2 * 2 + 2, "{:?}", lines(&sent));
    assert_eq!(lines(&sent)[4..], ["step.completed each", "job.completed"]);
    let item = |sent: &Sent| sent.data["data"]["item"].as_u64();
    assert_eq!(sent.iter().filter_map(item).collect::<HashSet<_>>(), HashSet::from([0, 1]));
}

#[test]
fn a_stream_on_which_nothing_happens_sends_comments_and_a_stop_ends_it() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, WORKFLOWS).set("http.event_heartbeat", "100ms").start();
    let id = daemon.api.create("chain", "{}");
    let quiet = [
        Reading::open(&daemon, "/api/events"),
        Reading::open(&daemon, &format!("/api/job/{id}/events")),
    ];
    for reading in &quiet {
        let heard = |_| reading.comments.recv_timeout(DEADLINE).unwrap();
        assert!((0..8).map(heard).filter(|line| line.starts_with(": still here")).count() >= 2);
    }
    assert_eq!(daemon.api.metric("workflow_event_streams"), 2);
    let begun = Instant::now();
    assert!(daemon.stop().success());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    for reading in quiet {
        assert_eq!(reading.rest(), []);
    }
}

/// Opens connections and keeps them; returns the streams and the number of refusals.
#[track_caller]
fn offer(daemon: &Daemon, count: usize) -> (Vec<TcpStream>, usize) {
    let address = daemon.url().replace("http://", "");
    let mut streams = Vec::new();
    let mut refused = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        if head == *b"HTTP/1.1 200" {
            streams.push(stream);
        } else {
            let mut rest = [0; 1024];
            let length = stream.read(&mut rest).unwrap();
            let text = String::from_utf8_lossy(&rest[..length]).to_lowercase();
            assert!(
                head == *b"HTTP/1.1 503"
                    && text.contains("retry-after: ")
                    && text.contains("http.event_streams_max"),
                "{text}"
            );
            refused.push(stream);
        }
    }
    (streams, refused.len())
}

#[test]
fn more_streams_than_are_allowed_are_refused_and_memory_stays() {
    let vhost = Vhost::new();
    let daemon = start(&vhost);
    let descriptors = run(Command::new("sh").args(["-c", "ulimit -n"]))
        .stdout
        .trim()
        .parse()
        .unwrap_or(20_000usize);
    let offered = 10_000.min(descriptors.saturating_sub(500));
    let (streams, refused) = offer(&daemon, offered);
    let peak = daemon.memory_peak();
    eprintln!(
        "{offered} streams offered, {} accepted; at most {} MiB",
        streams.len(),
        peak / MEBIBYTE
    );
    assert_eq!((streams.len(), refused), (1_000, offered - 1_000));
    assert!(peak < 400 * MEBIBYTE, "at most {} MiB", peak / MEBIBYTE);

    // They work and do not hold up jobs; when one goes, there is room for another.
    let _worker = Worker::echo(&vhost.url, &["first", "second"]);
    let id = daemon.api.create("chain", "{}");
    daemon.api.await_state(id, "completed");
    for stream in [&streams[0], &streams[999]] {
        let reading = Reading::of(BufReader::new(stream.try_clone().unwrap()));
        assert_eq!(lines(&reading.until("job.completed", id)), CHAIN);
    }
    streams.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
    eventually("there is room again", || {
        let open = daemon.api.metric("workflow_event_streams");
        when(open == 0, open)
    });
    assert_eq!(offer(&daemon, 1).1, 0);
}

#[test]
fn a_reader_that_does_not_keep_up_is_told_what_it_missed() {
    const ITEMS: usize = 6_000;
    let name = |word: &str| format!("{word}{}", "x".repeat(190));
    let workflows = format!(
        "workflows: [ {{ name: {}, steps: [ {{ name: each, task: {} }} ], tasks: [ {{ name: {}, \
         itemListKey: items, steps: [ {{ name: {}, queue: work }} ] }} ] }} ]",
        name("w"),
        name("t"),
        name("t"),
        name("s"),
    );
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, &workflows).start();
    let (mut slow, _) = offer(&daemon, 1);
    let before = daemon.memory_peak();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let items: Vec<usize> = (0..ITEMS).collect();
    let id = daemon.api.create(&name("w"), &json!({ "items": items }).to_string());
    daemon.api.await_state(id, "completed");
    let memory = (daemon.memory_peak() - before) / MEBIBYTE;

    let reading = Reading::of(BufReader::new(slow.remove(0)));
    let sent = reading.until("job.completed", id);
    let (lagged, told): (Vec<&Sent>, Vec<&Sent>) =
        sent.iter().partition(|sent| sent.name == "lagged");
    let missed: u64 = lagged.iter().map(|sent| sent.data["missed"].as_u64().unwrap()).sum();
    eprintln!("{} told, {missed} missed; memory grew by {memory} MiB", told.len());
    assert!(missed > 0 && memory < 300, "{missed} missed, {memory} MiB");
    // The fan-out has four events, each child job too.
    assert_eq!(told.len() as u64 + missed, 4 * (ITEMS as u64 + 1));
}

// ---- the command line

#[test]
fn watch_follows_a_job_line_by_line() {
    let vhost = Vhost::new();
    let daemon = start(&vhost);
    let _worker = Worker::start(&vhost.url, &["first", "second"], |message| {
        match message.json()["fails"].as_bool() {
            Some(true) => Answer::Reply(b"[]".to_vec()),
            _ => Answer::Reply(message.body.clone()),
        }
    });
    let watch = |arguments: &[&str]| {
        run(command().arg("watch").args(arguments).args(["--server", &daemon.url()]))
    };
    let (good, bad) =
        (daemon.api.create("chain", "{}"), daemon.api.create("chain", r#"{"fails":true}"#));
    let ran = watch(&[&good.to_string()]);
    assert_eq!(ran.code, Some(0), "{ran}");
    let last = ran.stdout.lines().last().unwrap();
    assert!(
        last.contains(&good.to_string())
            && last.contains("chain")
            && last.ends_with("job completed"),
        "{ran}"
    );
    let ran = watch(&[&bad.to_string(), "--json"]);
    assert_eq!(ran.code, Some(1), "{ran}");
    let last: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["type"], "workflow-manager.job.failed", "{ran}");
    let unknown = watch(&[&Uuid::new_v4().to_string()]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("unknown job"), "{unknown}");
}

#[test]
fn watch_follows_all_jobs_until_the_manager_stops() {
    let vhost = Vhost::new();
    let mut daemon = start(&vhost);
    let _worker = Worker::echo(&vhost.url, &["first", "second"]);
    let url = daemon.url();
    let watching = thread::spawn(move || run(command().args(["watch", "--server", &url])));
    eventually("watch is there", || {
        let open = daemon.api.metric("workflow_event_streams");
        when(open == 1, open)
    });
    let id = daemon.api.create("chain", "{}");
    daemon.api.await_state(id, "completed");
    assert!(daemon.stop().success());
    let ran = watching.join().unwrap();
    assert!(ran.code == Some(3) && ran.stderr.contains("ended"), "{ran}");
    assert_eq!(ran.stdout.lines().count(), CHAIN.len(), "{ran}");
}

// ---- the topic exchange

#[test]
fn events_are_published_on_a_topic_exchange() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOWS)
        .set("events.exchange", "their.events")
        .set("events.source", "/here")
        .start();
    daemon.await_log(&["publishing events", "their.events"]);
    let client = vhost.client();
    for (queue, key) in [("all", "#"), ("ends", "chain.job.completed"), ("steps", "*.step.*")] {
        client.declare(queue, arguments([]));
        client.bind(queue, "their.events", key);
    }
    let _worker = Worker::echo(&vhost.url, &["first", "second", "work"]);
    let stream = Reading::open(&daemon, "/api/events");
    let id = daemon.api.create("chain", "{}");
    let sent = stream.until("job.completed", id);
    for told in &sent {
        let message = client.take("all");
        assert_eq!(
            (message.queue.as_str(), message.json()),
            (format!("chain.{}", told.name).as_str(), {
                assert_eq!(told.data["source"], "/here");
                told.data.clone()
            })
        );
        assert_eq!(message.message_id(), told.id);
        let properties = &message.properties;
        assert_eq!(
            properties.content_type().as_ref().map(ToString::to_string).as_deref(),
            Some("application/cloudevents+json")
        );
        assert_eq!(properties.delivery_mode(), &Some(2));
    }
    let end = client.take("ends");
    assert_eq!(end.json()["data"]["job"], id.to_string());
    client.ack(&end);
    client.await_count("steps", 4);

    // The connection may break: events that come meanwhile are sent afterwards.
    vhost.close_connections();
    let again = daemon.api.create("chain", r#"{"again":true}"#);
    daemon.api.await_state(again, "completed");
    let client = vhost.client();
    assert_eq!(client.take("ends").json()["data"]["job"], again.to_string());
    assert_eq!(daemon.api.metric(r#"workflow_events_dropped_total{sink="exchange"}"#), 0);
}

#[test]
fn the_exchange_is_on_the_broker_of_the_bus_that_the_settings_name() {
    // The bus that the workflows run on, and one that none of them uses.
    for bus in ["here", "there"] {
        let (here, there) = (Vhost::new(), Vhost::new());
        let daemon = Setup::new("", WORKFLOWS)
            .set("bus", "here")
            .set("buses.here.kind", "amqp")
            .set("buses.here.server", &here.url)
            .set("buses.there.kind", "amqp")
            .set("buses.there.server", &there.url)
            .set("events.exchange", "their.events")
            .set("events.bus", bus)
            .start();
        daemon.await_log(&["publishing events", "their.events"]);
        let client = if bus == "here" { here.client() } else { there.client() };
        client.declare("ends", arguments([]));
        client.bind("ends", "their.events", "chain.job.completed");
        let _worker = Worker::echo(&here.url, &["first", "second"]);
        let id = daemon.api.create("chain", "{}");
        assert_eq!(client.take("ends").json()["data"]["job"], id.to_string(), "{bus}");
    }
}

#[test]
fn an_exchange_that_cannot_be_had_holds_nothing_up() {
    let vhost = Vhost::new();
    vhost.client().declare_exchange("taken", "fanout");
    let mut daemon = Setup::new(&vhost.url, WORKFLOWS)
        .set("events.exchange", "taken")
        .set("events.exchange_buffer_max", "2")
        .start();
    let _worker = Worker::echo(&vhost.url, &["first", "second"]);
    daemon.await_log(&["refuses the topic exchange", "taken"]);
    let id = daemon.api.create("chain", "{}");
    daemon.api.await_state(id, "completed");
    eventually("what does not fit into the buffer is counted", || {
        let dropped = daemon.api.metric(r#"workflow_events_dropped_total{sink="exchange"}"#);
        when(dropped == 4, dropped)
    });
    let begun = Instant::now();
    assert!(daemon.stop().success());
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn an_exchange_without_a_broker_is_refused() {
    let ran = run(command().arg("serve").env("WORKFLOW_MANAGER__EVENTS__EXCHANGE", "x"));
    assert!(ran.code == Some(1) && ran.stderr.contains("events.exchange needs a broker"), "{ran}");
}
