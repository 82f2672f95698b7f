//! More attacks, most of them on a manager without any token, as it is after the first start: what
//! is sent is refused, logged or counted, and somebody else gets on with the work meanwhile.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::Value;

use support::service::{Act, Service, status};

use crate::{
    attacks::{beside, raw, request},
    harness::{Daemon, Setup, eventually, when},
    tls::Authority,
};

const WORKFLOW: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";

/// How much memory an attack may cost, in bytes.
const MEMORY: u64 = 256 << 20;

/// How long an attacker waits for a word.
const PATIENCE: Duration = Duration::from_secs(10);

fn open(daemon: &Daemon) -> TcpStream {
    let socket = TcpStream::connect(daemon.url().replace("http://", "")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn without_tokens_a_page_of_another_site_and_a_rebound_name_change_and_learn_nothing() {
    let daemon = Setup::new("", WORKFLOW).start();
    let body = "Content-Length: 2\r\n";
    let asks = [
        "Origin: http://evil.example\r\nContent-Type: text/plain\r\n",
        "Origin: null\r\nContent-Type: multipart/form-data; boundary=a\r\n",
        "Origin: http://evil.example\r\nContent-Type: application/x-www-form-urlencoded\r\n",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nContent-Type: text/plain\r\n",
    ];
    beside(&daemon, |attacker| {
        let mut page = request(
            "POST /api/workflow/single?id=11111111-1111-4111-8111-111111111111",
            &format!("{body}{}", asks[attacker % asks.len()]),
        );
        page.extend_from_slice(b"{}");
        let told = raw(&daemon, &page);
        assert_eq!(told, Some(403), "{}", String::from_utf8_lossy(&page));
        // A name of the attacker's that has the address of this machine by now.
        let line = ["GET /api/jobs", "POST /api/workflow/single", "GET /api/events"][attacker % 3];
        let rebound =
            format!("{line} HTTP/1.1\r\nHost: evil.example:8088\r\nContent-Length: 0\r\n\r\n");
        let told = raw(&daemon, rebound.as_bytes());
        assert!(matches!(told, Some(400 | 403)), "{line}: {told:?}");
    });
    daemon.api.get("/api/job/11111111-1111-4111-8111-111111111111").expect(404);
    daemon.await_log(&["refused because of where it comes from"]);
}

#[test]
fn bodies_that_are_bombs_cost_no_more_than_a_few_times_their_size() {
    const BOTH: &str = "workflows: [ { name: single, steps: [ { name: work } ] }, \
                        { name: bomb, steps: [ { name: other } ] } ]";
    let daemon = Setup::new("", BOTH).start();
    let deep = |levels: usize| format!(r#"{{"k":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    let bombs = [
        ("too deep", deep(128), 400),
        ("much too deep", deep(1_000_000), 400),
        ("half a character", r#"{"k":"\ud800"}"#.to_owned(), 201),
        ("many digits", format!(r#"{{"k":{}}}"#, "9".repeat(1_000_000)), 201),
        ("a large exponent", r#"{"k":1e999999999999}"#.to_owned(), 201),
        ("one key again and again", format!("{{{}\"k\":1}}", r#""k":0,"#.repeat(300_000)), 201),
        ("many lists", format!(r#"{{"k":[{}[]]}}"#, "[],".repeat(500_000)), 201),
    ];
    let before = daemon.memory_peak();
    let thrown: Vec<AtomicBool> = bombs.iter().map(|_| AtomicBool::new(false)).collect();
    beside(&daemon, |attacker| {
        // Each is thrown once, and all are before the work is over.
        let bomb = bombs.get(attacker).filter(|_| !thrown[attacker].swap(true, Ordering::Relaxed));
        let Some((what, body, expected)) = bomb else {
            assert_eq!(raw(&daemon, &request("GET /livez", "")), Some(200));
            return;
        };
        let head = format!("Content-Length: {}\r\n", body.len());
        let mut whole = request("POST /api/workflow/bomb", &head);
        whole.extend_from_slice(body.as_bytes());
        assert_eq!(raw(&daemon, &whole), Some(*expected), "{what}");
    });
    assert!(thrown.iter().all(|thrown| thrown.load(Ordering::Relaxed)));
    let grown = daemon.memory_peak() - before;
    assert!(grown < MEMORY, "{} MiB", grown >> 20);
    let found = daemon.api.get("/api/jobs/search?workflow=bomb").expect(200).json();
    let kept = bombs.iter().filter(|(_, _, expected)| *expected == 201).count();
    assert_eq!(found["jobs"].as_array().map(Vec::len), Some(kept), "{found}");
    // Whoever looks at them has what was sent.
    for job in found["jobs"].as_array().into_iter().flatten() {
        daemon.api.get(&format!("/api/job/{}", job["job"].as_str().unwrap())).expect(200);
    }
    daemon.api.post("/api/jobs/cancel?workflow=bomb", "").expect(200);
    // What is packed is not unpacked.
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, gzip"] {
        let head = format!("Content-Encoding: {encoding}\r\nContent-Length: 20\r\n");
        let told = raw(&daemon, &request("POST /api/workflow/single", &head));
        assert_eq!(told, Some(415), "{encoding}");
    }
}

#[test]
fn streams_and_answers_that_nobody_reads_take_nobodys_place() {
    let daemon = Setup::new("", WORKFLOW).start();
    let mut idle = Vec::new();
    for path in ["/api/events", "/openapi.json", "/metrics"] {
        for _ in 0..50 {
            let mut socket = open(&daemon);
            // Many requests, of whose answers none is read.
            for _ in 0..20 {
                let _full = socket.write_all(&request(&format!("GET {path}"), ""));
            }
            idle.push(socket);
        }
    }
    // Bodies that come byte by byte, and have not all come when the work is done.
    let mut dribbling: Vec<TcpStream> = (0..50).map(|_| open(&daemon)).collect();
    for socket in &mut dribbling {
        socket
            .write_all(&request("POST /api/workflow/single", "Content-Length: 60000\r\n"))
            .unwrap();
    }
    beside(&daemon, |attacker| {
        let mut socket = &dribbling[attacker % dribbling.len()];
        let _closed = socket.write_all(b" ");
        assert_eq!(raw(&daemon, &request("GET /livez", "")), Some(200));
    });
    drop(idle);
}

/// The first message of a client that speaks TLS of this version alone, with these ciphers.
fn hello(version: u8, ciphers: &[[u8; 2]]) -> Vec<u8> {
    let mut body = vec![3, version];
    body.extend_from_slice(&[7; 32]);
    body.push(0);
    body.extend_from_slice(&u16::try_from(2 * ciphers.len()).unwrap().to_be_bytes());
    body.extend(ciphers.iter().flatten());
    body.extend_from_slice(&[1, 0]);
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let mut whole = vec![22, 3, version.min(1)];
    whole.extend_from_slice(&length(body.len() + 4));
    whole.extend_from_slice(&[1, 0]);
    whole.extend_from_slice(&length(body.len()));
    whole.extend(body);
    whole
}

#[test]
fn old_versions_of_tls_and_ciphers_that_are_broken_are_not_spoken() {
    let authority = Authority::new();
    let identity = authority.vouch("api", "localhost", 2099);
    let (certificate, key) = identity.files();
    let daemon = Setup::new("", WORKFLOW)
        .set("http.tls.certificate", certificate.to_str().unwrap())
        .set("http.tls.key", key.to_str().unwrap())
        .spawn();
    daemon.await_log(&["\"listening\""]);
    // RSA with AES and SHA-1, with RC4, with nothing, and ECDHE with AES and SHA-1.
    let old = [[0, 0x2f], [0, 5], [0, 1], [0xc0, 0x13]];
    // SSL 3.0, TLS 1.0, 1.1, and 1.2 with these ciphers alone.
    for version in 0..=3 {
        let mut socket = open(&daemon);
        socket.write_all(&hello(version, &old)).unwrap();
        let mut heard = Vec::new();
        let _closed = socket.read_to_end(&mut heard);
        // A fatal alert, or nothing: no hello of the server.
        let is_alert = heard.first() == Some(&21) && heard.get(5) == Some(&2);
        assert!(heard.is_empty() || is_alert, "3.{version}: {heard:?}");
    }
    let told = authority.ask(&daemon, "GET /livez", "").unwrap();
    assert!(told.contains(" 200 "), "{told}");
}

#[test]
fn where_the_webhook_and_traces_are_sent_is_not_changed_by_a_redirect() {
    let inner = Service::start(|_| status(200));
    // The text lives as long as the tests do.
    let place: &'static str = format!("http://127.0.0.1:{}/latest/meta-data", inner.port).leak();
    let headers: &'static [(&str, &str)] = vec![("Location", place)].leak();
    let outer = Service::start(move |called| {
        let codes = [301, 302, 303, 307, 308];
        Act::Answer(codes[called.number % codes.len()], headers, Vec::new())
    });
    let address = format!("http://127.0.0.1:{}", outer.port);
    let daemon = Setup::new("", WORKFLOW)
        .set("events.webhook.url", &format!("{address}/hook"))
        .set("traces.endpoint", &address)
        .set("traces.delay", "50ms")
        .set("traces.interval", "50ms")
        .start();
    for _ in 0..5 {
        let id = daemon.api.create("single", "{}");
        daemon.api.post(&format!("/api/job/{id}/cancel"), "").expect(200);
    }
    eventually("both were told", || {
        let calls = outer.calls();
        let of = |path: &str| calls.iter().filter(|call| call.path == path).count();
        when(of("/hook") >= 1 && of("/v1/traces") >= 1, calls.len())
    });
    daemon.await_log(&["the receiver of traces refuses spans"]);
    daemon.await_log(&["webhook", "30"]);
    assert_eq!(inner.connections(), 0, "nobody went there");
}

#[test]
fn what_is_asked_for_forges_no_line_of_the_log() {
    let daemon = Setup::new("", WORKFLOW).set("log.filter", "workflow_manager=trace,info").start();
    let words = "a%0a%7b%22level%22%3a%22FORGED%22%7d%0d%0a%1b%5b2Jb%c2%9b%e2%80%a8";
    for (method, path) in [
        ("POST", format!("/api/workflow/{words}")),
        ("POST", format!("/api/workflow/single?id={words}")),
        ("POST", format!("/api/workflow/single?vhost={words}")),
        ("GET", format!("/api/job/{words}")),
        ("POST", format!("/api/job/{words}/cancel?reason={words}")),
        ("POST", format!("/api/queue/{words}/receive?worker={words}")),
        ("POST", format!("/api/queue/{words}/receive?wait=0s")),
        ("DELETE", format!("/api/jobs/{words}")),
    ] {
        daemon.api.send(method, &path, &[], Some(b"{}"));
    }
    let id = daemon.api.create("single", "{}");
    daemon.api.post(&format!("/api/job/{id}/cancel?reason={words}"), "").expect(200);
    // Bytes that a client library does not let through.
    for header in [
        "User-Agent: \x1b[2J\nFORGED",
        "Host: \x1b[2J",
        "Origin: http://\x1b]0;FORGED\x07",
        "Authorization: Bearer \x1b[2J",
        "traceparent: \x1b[31m",
        "X\x1b[2J: a",
    ] {
        raw(
            &daemon,
            &request("POST /api/workflow/single", &format!("{header}\r\nContent-Length: 0\r\n")),
        );
    }
    let log = daemon.log();
    assert!(log.lines().count() > 10, "{log}");
    for line in log.lines() {
        let told: Value =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line:?}"));
        assert_ne!(told["level"], "FORGED", "{line}");
        let odd = |c: char| c.is_control() || ('\u{80}'..='\u{9f}').contains(&c) || c == '\u{2028}';
        assert!(!line.chars().any(odd), "{line:?}");
    }
}
