//! Messages that no client library should be given: published with the bytes that they have here,
//! over a socket of our own, to a real broker. Each costs only itself.

use crate::amqp::{Client, REPLY_QUEUE, StepMessage, Vhost, Worker, json_properties};
use crate::harness::{Daemon, Setup, eventually, when};
use lapin::types::AMQPValue;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const WORKFLOW: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";

const UNREADABLE_QUEUE: &str = "workflow-manager.unreadable";

const CALL_QUEUE: &str = "workflow.single";

// ---- a publisher of bytes

const METHOD: u8 = 1;
const CONTENT_HEADER: u8 = 2;
const BODY: u8 = 3;
const FRAME_END: u8 = 0xce;

/// Class and method.
const START_OK: [u8; 4] = [0, 10, 0, 11];
const TUNE_OK: [u8; 4] = [0, 10, 0, 31];
const OPEN: [u8; 4] = [0, 10, 0, 40];
const CHANNEL_OPEN: [u8; 4] = [0, 20, 0, 10];
const CONFIRM_SELECT: [u8; 4] = [0, 85, 0, 10];
const PUBLISH: [u8; 4] = [0, 60, 0, 40];
const ACK: [u8; 4] = [0, 60, 0, 80];

/// A client that says what it is told, byte for byte.
struct Bytes {
    socket: TcpStream,
}

impl Bytes {
    fn connect(url: &str) -> Bytes {
        let rest = url.strip_prefix("amqp://").unwrap();
        let (credentials, rest) = rest.split_once('@').unwrap();
        let (host, vhost) = rest.split_once('/').unwrap();
        let socket = TcpStream::connect(host).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut client = Bytes { socket };
        client.socket.write_all(b"AMQP\0\0\x09\x01").unwrap();
        client.hear();
        let login = format!("\0{}", credentials.replacen(':', "\0", 1));
        client.say(
            0,
            &[
                &START_OK[..],
                &[0, 0, 0, 0],
                &short(b"PLAIN"),
                &long(login.as_bytes()),
                &short(b"en_US"),
            ]
            .concat(),
        );
        client.hear();
        client.say(0, &[&TUNE_OK[..], &[0, 9, 0, 2, 0, 0, 0, 0]].concat());
        client.say(0, &[&OPEN[..], &short(vhost.as_bytes()), &[0, 0]].concat());
        client.hear();
        client.say(1, &[&CHANNEL_OPEN[..], &[0]].concat());
        client.hear();
        client.say(1, &[&CONFIRM_SELECT[..], &[0]].concat());
        client.hear();
        client
    }

    /// Publishes with these flags and these bytes of properties, and waits for the confirm; false:
    /// the broker itself closed the channel or connection because of it.
    fn publish(
        &mut self,
        exchange: &[u8],
        key: &[u8],
        flags: u16,
        properties: &[u8],
        body: &[u8],
    ) -> bool {
        self.say(1, &[&PUBLISH[..], &[0, 0], &short(exchange), &short(key), &[0]].concat());
        let size = (body.len() as u64).to_be_bytes();
        self.frame(
            CONTENT_HEADER,
            1,
            &[&[0, 60, 0, 0][..], &size, &flags.to_be_bytes(), properties].concat(),
        );
        // A frame may have 128 KiB.
        body.chunks(100_000).for_each(|part| self.frame(BODY, 1, part));
        self.hear().is_some_and(|answer| answer.starts_with(&ACK))
    }

    fn say(&mut self, channel: u16, method: &[u8]) {
        self.frame(METHOD, channel, method);
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&[kind][..], &channel.to_be_bytes(), &size, payload, &[FRAME_END]].concat();
        // The next thing heard shows whether the broker has closed the connection.
        let _gone = self.socket.write_all(&frame);
    }

    /// The next method, unless the connection is gone.
    fn hear(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut head = [0; 7];
            self.socket.read_exact(&mut head).ok()?;
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
            let mut payload = vec![0; size + 1];
            self.socket.read_exact(&mut payload).ok()?;
            payload.pop();
            if head[0] == METHOD {
                return Some(payload);
            }
        }
    }
}

fn short(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()][..], text].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

/// Flags and properties: one header of this name, and its type and value.
fn header(name: &[u8], value: &[u8]) -> (u16, Vec<u8>) {
    (1 << 13, long(&[short(name), value.to_vec()].concat()))
}

/// An array in an array, this many times.
fn nested(times: usize) -> Vec<u8> {
    (0..times).fold(vec![b'V'], |inner, _| [&b"A"[..], &long(&inner)].concat())
}

// ---- what is told

/// Each property that is a short text: its name and its flag.
const TEXTS: [(&str, u16); 9] = [
    ("content_type", 1 << 15),
    ("content_encoding", 1 << 14),
    ("correlation_id", 1 << 10),
    ("reply_to", 1 << 9),
    ("message_id", 1 << 7),
    ("type", 1 << 5),
    ("app_id", 1 << 3),
    ("cluster_id", 1 << 2),
    ("expiration", 1 << 8),
];

/// All kinds of headers that the library could not bear.
fn bad_headers() -> Vec<(String, u16, Vec<u8>)> {
    let mut bad = Vec::new();
    for (name, flag) in TEXTS {
        for text in [&b"ma\xf1ana"[..], b"\xff\xfe\x80", b"cut \xc3"] {
            bad.push((format!("{name} {text:?}"), flag, short(text)));
        }
    }
    let mut headers = vec![
        ("a name", header(b"\xff\xfe\x80", b"V")),
        (
            "a name in a table",
            header(b"t", &[&b"F"[..], &long(&[short(b"\xe9"), b"V".to_vec()].concat())].concat()),
        ),
        ("arrays, 17 deep", header(b"deep", &nested(17))),
        ("arrays, 300 deep", header(b"deep", &nested(300))),
        ("arrays, 3000 deep", header(b"deep", &nested(3_000))),
        ("many values", header(b"many", &[&b"A"[..], &long(&[b'V'; 10_000])].concat())),
        ("a table that ends early", (1 << 13, b"\0\0\0\x02\x09k".to_vec())),
        ("an array that ends early", header(b"a", b"A\0\0\0\x09")),
        ("a long text that ends early", header(b"s", b"S\0\0\0\x09abc")),
        ("unknown flags", (1, Vec::new())),
        ("bytes too many", (0, vec![1, 2, 3])),
        ("too few bytes", (1 << 10, vec![200, b'a'])),
    ];
    for kind in [b'Q', b'z', 0, 0xff] {
        headers.push(("an unknown type", header(b"k", &[kind, 0, 0, 0, 0, 0, 0, 0, 0])));
    }
    bad.extend(
        headers.into_iter().map(|(what, (flags, properties))| (what.to_owned(), flags, properties)),
    );
    bad
}

/// Publishes them to a queue; tells how many the broker has taken.
fn publish_all(vhost: &Vhost, queue: &str) -> u32 {
    let mut taken = 0;
    let mut client = Bytes::connect(&vhost.url);
    for (what, flags, properties) in bad_headers() {
        if client.publish(b"", queue.as_bytes(), flags, &properties, what.as_bytes()) {
            taken += 1;
        } else {
            client = Bytes::connect(&vhost.url);
        }
    }
    taken
}

/// A job goes on, with a reply that comes after everything else.
fn assert_it_works(daemon: &Daemon, client: &Client) {
    let id = daemon.api.create("single", r#"{"k":1}"#);
    client.reply(&client.take("work"), r#"{"k":2}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"k":2}"#);
    daemon.api.get("/readyz").expect(200);
}

fn text_of(message: &StepMessage, header: &str) -> String {
    message.header_text(header)
}

fn kept(client: &Client) -> u32 {
    client.count(UNREADABLE_QUEUE).map_or(0, |(messages, _)| messages)
}

fn await_kept(client: &Client, expected: u32) {
    eventually(&format!("{expected} messages are quarantined"), || {
        let kept = kept(client);
        when(kept == expected, format!("{kept}"))
    });
}

#[test]
fn whatever_its_bytes_a_message_costs_itself_at_most() {
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, WORKFLOW).start();
    let client = vhost.client();
    let replies = publish_all(&vhost, REPLY_QUEUE);
    let calls = publish_all(&vhost, CALL_QUEUE);
    assert!(replies >= 30 && calls >= 30, "the broker takes most of them: {replies}, {calls}");
    await_kept(&client, replies + calls);
    vhost.await_drained(REPLY_QUEUE);
    vhost.await_drained(CALL_QUEUE);
    assert_it_works(&daemon, &client);
    daemon.await_log(&["cannot be read", "reason"]);
    let metrics = daemon.api.get("/metrics").expect(200).text;
    let counted = |queue: &str| {
        let line = metrics.lines().find(|line| {
            line.starts_with("workflow_messages_unreadable_total")
                && line.contains(&format!("\"{queue}\""))
        });
        line.and_then(|line| line.rsplit_once(' ')).map(|(_, count)| count.to_owned())
    };
    assert_eq!(
        (counted(REPLY_QUEUE), counted(CALL_QUEUE)),
        (Some(replies.to_string()), Some(calls.to_string()))
    );
    let lost =
        daemon.log().lines().filter(|line| line.contains("not connected to the broker")).count();
    assert_eq!(lost, 0, "no connection was lost");

    daemon.stop();
    daemon.start_again();
    assert_it_works(&daemon, &client);
    assert_eq!(kept(&client), replies + calls, "none comes again");
}

#[test]
fn what_is_put_aside_has_its_body_its_reason_and_its_header() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOW).start();
    let client = vhost.client();
    let body = vec![0xfe; 100_000];
    let mut bytes = Bytes::connect(&vhost.url);
    let properties = [short(b"some:step"), short(b"ma\xf1ana")].concat();
    assert!(bytes.publish(b"", REPLY_QUEUE.as_bytes(), 1 << 10 | 1 << 5, &properties, &body));
    let message = client.take(UNREADABLE_QUEUE);
    assert_eq!(message.body, body);
    assert_eq!(
        text_of(&message, "x-workflow-manager-unreadable"),
        "the property type is not UTF-8"
    );
    assert_eq!(text_of(&message, "x-workflow-manager-queue"), REPLY_QUEUE);
    let original = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD,
        text_of(&message, "x-workflow-manager-original-header"),
    )
    .unwrap();
    assert!(original.ends_with(&properties), "{original:?}");
    daemon.await_log(&["cannot be read", "some:step", "the property type is not UTF-8"]);
    // Sent back as it is, it is quarantined again: its headers say that it is unreadable.
    client.ack(&message);
    client.publish(REPLY_QUEUE, &message.body, message.properties.clone());
    assert_eq!(
        text_of(&client.take(UNREADABLE_QUEUE), "x-workflow-manager-unreadable"),
        "the property type is not UTF-8"
    );
    assert_it_works(&daemon, &client);
}

#[test]
fn a_marker_that_fills_a_frame_costs_itself_at_most() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOW).start();
    let client = vhost.client();
    let mut headers = lapin::types::FieldTable::default();
    headers.insert(
        "x-workflow-manager-unreadable".into(),
        AMQPValue::LongString(vec![b'r'; 30_000].into()),
    );
    headers.insert(
        "x-workflow-manager-original-header".into(),
        AMQPValue::ByteArray(vec![0xff; 99_000].into()),
    );
    client.publish(REPLY_QUEUE, "{}", json_properties().with_headers(headers));
    assert_eq!(
        text_of(&client.take(UNREADABLE_QUEUE), "x-workflow-manager-unreadable"),
        "r".repeat(200)
    );
    assert_it_works(&daemon, &client);
}

#[test]
fn a_header_that_has_grown_beyond_a_frame_costs_itself_at_most() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOW).start();
    let client = vhost.client();
    // As a dead letter it gets `x-death`, for which its frame has no room.
    let dead_letters = crate::amqp::arguments([
        ("x-dead-letter-exchange", crate::amqp::text_argument("")),
        ("x-dead-letter-routing-key", crate::amqp::text_argument(REPLY_QUEUE)),
        ("x-message-ttl", AMQPValue::LongInt(1)),
    ]);
    client.declare("dying", dead_letters);
    let mut headers = lapin::types::FieldTable::default();
    headers.insert("large".into(), AMQPValue::LongString(vec![b'l'; 130_950].into()));
    client.publish("dying", "{}", json_properties().with_headers(headers));
    let reason = text_of(&client.take(UNREADABLE_QUEUE), "x-workflow-manager-unreadable");
    assert!(reason.contains("more than a frame may have"), "{reason}");
    assert_it_works(&daemon, &client);
}

#[test]
fn a_routing_key_that_is_not_utf8_costs_nothing() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOW).start();
    let client = vhost.client();
    client.declare_exchange("everywhere", "fanout");
    client.bind(REPLY_QUEUE, "everywhere", "");
    let id = daemon.api.create("single", "{}");
    let message = client.take("work");
    let correlation_id = message.correlation_id();
    let mut bytes = Bytes::connect(&vhost.url);
    assert!(bytes.publish(
        b"everywhere",
        b"ma\xf1ana \xff",
        1 << 10,
        &short(correlation_id.as_bytes()),
        br#"{"by":"key"}"#
    ));
    assert_eq!(daemon.api.await_result(id), r#"{"by":"key"}"#);
    assert_eq!(kept(&client), 0);
    client.ack(&message);
    assert_it_works(&daemon, &client);
}

#[test]
fn unreadable_messages_may_be_dropped() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOW).set("amqp.unreadable", "drop").start();
    let client = vhost.client();
    let taken = publish_all(&vhost, REPLY_QUEUE);
    assert!(taken >= 30, "{taken}");
    vhost.await_drained(REPLY_QUEUE);
    assert_it_works(&daemon, &client);
    assert_eq!(client.count(UNREADABLE_QUEUE), None, "there is no such queue");
    let metrics = daemon.api.get("/metrics").expect(200).text;
    assert!(
        metrics.lines().any(|line| line.contains("unreadable")
            && line.contains("\"dropped\"")
            && line.ends_with(&format!(" {taken}"))),
        "{metrics}"
    );
}

#[test]
fn what_waits_to_be_put_aside_takes_no_more_memory_than_replies_may() {
    const MEBIBYTE: u64 = 1 << 20;
    const COUNT: u32 = 40;
    // All messages are 320 MiB, `amqp.replies_bytes_max` is 16 MiB.
    const PEAK_MAX: u64 = 200 * MEBIBYTE;
    let vhost = Vhost::new();
    let mut daemon = Setup::new(&vhost.url, WORKFLOW).faults("amqp::quarantine=return").start();
    let mut bytes = Bytes::connect(&vhost.url);
    let body = vec![b' '; 8 << 20];
    for _ in 0..COUNT {
        assert!(bytes.publish(b"", REPLY_QUEUE.as_bytes(), 1 << 5, &short(b"\xff"), &body));
    }
    daemon.await_log(&["unreadable messages are not quarantined"]);
    // What a lost connection has brought comes again, and takes no room twice.
    eventually("the connection is closed", || {
        when(vhost.close_connection("workflow-manager: replies") > 0, "not yet")
    });
    eventually("it is open again", || {
        let log = daemon.log();
        let opened = log.lines().filter(|line| line.contains("consuming replies")).count();
        when(opened >= 2, "not yet")
    });
    // Replies pass them.
    let client = vhost.client();
    assert_it_works(&daemon, &client);
    let peak = daemon.memory_peak();
    assert!(peak < PEAK_MAX, "at most {} MiB", peak / MEBIBYTE);
    daemon.kill();
    daemon.set_faults(None);
    daemon.start_again();
    await_kept(&client, COUNT);
    vhost.await_drained(REPLY_QUEUE);
    assert!(daemon.memory_peak() < PEAK_MAX, "at most {} MiB", daemon.memory_peak() / MEBIBYTE);
}

#[test]
fn where_they_may_not_be_kept_they_are_dropped_and_told() {
    let vhost = Vhost::new();
    // The queue for unreadable messages is an exclusive one of another connection.
    let holder = vhost.client();
    holder.declare_exclusive(UNREADABLE_QUEUE);
    let daemon = Setup::new(&vhost.url, WORKFLOW).start();
    let mut bytes = Bytes::connect(&vhost.url);
    assert!(bytes.publish(b"", REPLY_QUEUE.as_bytes(), 1 << 5, &short(b"\xff"), b"{}"));
    daemon.await_log(&["does not let unreadable messages be quarantined", UNREADABLE_QUEUE]);
    vhost.await_drained(REPLY_QUEUE);
    assert_it_works(&daemon, &vhost.client());
}

#[test]
fn a_publishers_channel_survives_a_callers_queue_that_is_none() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, WORKFLOW).start();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let mut bytes = Bytes::connect(&vhost.url);
    // Its answer is returned, with a routing key that is not ASCII.
    let properties = [short(b"id"), short("größe".as_bytes())].concat();
    assert!(bytes.publish(b"", CALL_QUEUE.as_bytes(), 1 << 10 | 1 << 9, &properties, b"{}"));
    daemon.await_log(&["the queue that a caller waits at is not there"]);
    let id = daemon.api.create("single", r#"{"k":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"k":1}"#);
}
