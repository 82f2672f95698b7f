//! A list of attacks on a manager with its usual settings and a token: each is refused, and while
//! it goes on, somebody with the right token gets on with the work.

use crate::amqp::Vhost;
use crate::harness::{Daemon, Setup, command, run};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const WORKFLOW: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";
const TOKEN: &str = "the-right-one-of-all";

/// How much work is done beside each attack.
const JOBS: usize = 10;

/// How many attackers there are at once.
const ATTACKERS: usize = 100;

/// How long an attacker waits for a word.
const PATIENCE: Duration = Duration::from_secs(10);

fn start() -> Daemon {
    Setup::new("", WORKFLOW).set("http.token", TOKEN).start()
}

/// Creates a job, works on its step over HTTP, and reads its result.
fn work(daemon: &Daemon) {
    let id = daemon.api.create("single", r#"{"n":1}"#);
    let message = daemon.api.post("/api/queue/work/receive", "").expect(200);
    let reply = message.header("reply-to").to_owned();
    daemon.api.post(&reply, r#"{"n":2}"#).expect(200);
    assert_eq!(daemon.api.await_result(id), r#"{"n":2}"#);
}

/// Sends a request as it is; the status of the answer, if there is one.
pub(crate) fn raw(daemon: &Daemon, request: &[u8]) -> Option<u16> {
    let mut socket = TcpStream::connect(daemon.url().replace("http://", "")).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may close the connection before it has all.
    let _sent = socket.write_all(request);
    let mut answer = [0; 12];
    socket.read_exact(&mut answer).ok()?;
    String::from_utf8_lossy(&answer).rsplit(' ').next()?.parse().ok()
}

pub(crate) fn request(line: &str, headers: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").into_bytes()
}

/// Has many send something again and again, as long as the work is done.
#[track_caller]
pub(crate) fn beside(daemon: &Daemon, attack: impl Fn(usize) + Sync) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for attacker in 0..ATTACKERS {
            let (attack, is_over) = (&attack, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    attack(attacker);
                }
            });
        }
        let done = scope.spawn(|| (0..JOBS).for_each(|_| work(daemon)));
        let done = done.join();
        is_over.store(true, Ordering::Relaxed);
        assert!(done.is_ok(), "the work was not done beside it: {}", daemon.log());
    });
}

#[test]
fn tokens_are_guessed_in_vain() {
    let daemon = start();
    beside(&daemon, |attacker| {
        let token = format!("Authorization: Bearer guess-{attacker}\r\n");
        let status = raw(&daemon, &request("GET /api/jobs", &token));
        assert!(matches!(status, Some(401 | 429) | None), "{status:?}");
    });
    daemon.await_log(&["without the right token"]);
}

#[test]
fn pages_of_other_sites_and_rebound_names_are_refused() {
    let daemon = start();
    let own = format!("Authorization: Bearer {TOKEN}\r\n");
    beside(&daemon, |attacker| {
        let headers = [
            format!("{own}Origin: http://evil.example\r\n"),
            format!("{own}Sec-Fetch-Site: cross-site\r\n"),
            format!("{own}Origin: null\r\n"),
            format!("{own}Host: evil.example\r\n"),
        ];
        let status = raw(&daemon, &request("POST /api/workflow/single", &headers[attacker % 4]));
        assert!(matches!(status, Some(400 | 403)), "{status:?}");
    });
    daemon.await_log(&["refused because of where it comes from"]);
}

#[test]
fn heads_that_are_too_large_or_never_end_take_nobodys_place() {
    let daemon = start();
    let large = format!("X-Large: {}\r\n", "a".repeat(200_000));
    let many: String = (0..200).map(|number| format!("X-{number}: a\r\n")).collect();
    // They begin a head and say nothing more, until the daemon closes the connection.
    let slow: Vec<TcpStream> = (0..10 * ATTACKERS)
        .map(|_| {
            let mut socket = TcpStream::connect(daemon.url().replace("http://", "")).unwrap();
            socket.write_all(b"GET /api/jobs HTTP/1.1\r\nHost: loc").unwrap();
            socket
        })
        .collect();
    beside(&daemon, |attacker| {
        let headers = if attacker % 2 == 0 { &large } else { &many };
        let status = raw(&daemon, &request("GET /livez", headers));
        assert!(matches!(status, Some(431) | None), "{status:?}");
    });
    for mut socket in slow {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut heard = Vec::new();
        // It is closed, with a word (408) or without.
        let _closed = socket.read_to_end(&mut heard);
        assert!(!String::from_utf8_lossy(&heard).contains(" 200 "));
    }
}

#[test]
fn bodies_without_a_token_are_not_read_and_those_that_are_too_large_are_refused() {
    let daemon = start();
    let own = format!("Authorization: Bearer {TOKEN}\r\n");
    let part = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    beside(&daemon, |attacker| {
        let status = if attacker % 2 == 0 {
            raw(&daemon, &request("POST /api/workflow/single", "Content-Length: 99999999999\r\n"))
        } else {
            let head = format!("{own}Content-Length: 99999999999\r\n");
            raw(&daemon, &request("POST /api/workflow/single", &head))
        };
        assert!(matches!(status, Some(401 | 413 | 503) | None), "{status:?}");
        if attacker == 1 {
            // Without an end, and without a length that tells.
            let head = format!("{own}Transfer-Encoding: chunked\r\n");
            let mut whole = request("POST /api/workflow/single", &head);
            (0..300).for_each(|_| whole.extend_from_slice(part.as_bytes()));
            let status = raw(&daemon, &whole);
            assert!(matches!(status, Some(400 | 413 | 503) | None), "{status:?}");
        }
    });
}

#[test]
fn odd_paths_and_requests_reach_nothing() {
    let daemon = start();
    let lines = [
        "GET /api/../api/jobs",
        "GET //api/jobs",
        "GET /%2e%2e/api/jobs",
        "GET /assets/..%2f..%2fapi/jobs",
        "GET /assets/../../etc/passwd",
        "GET /api/job%73",
        "GET http://localhost/api/jobs",
        "CONNECT localhost:80",
        "TRACE /api/jobs",
        "OPTIONS *",
        "GET /api/jobs\\..",
        "GET /api/jobs;a",
        "GET /api/jobs%00",
        "GET /api/job/%00%2e%2e",
        "GET /api/jobs\0",
        "GET /%c0%ae%c0%ae/api/jobs",
        "GET /api/%zz/jobs",
        "GET /api/workflow/%0d%0aX-Forged:%20a",
        "GET /%2e%2e%2f%2e%2e%2fetc/passwd",
        "GET /%252e%252e/api/jobs",
        "DELETE /api/job/00000000-0000-4000-8000-000000000001",
    ];
    beside(&daemon, |attacker| {
        let line = lines[attacker % lines.len()];
        let status = raw(&daemon, &request(line, "Content-Length: 0\r\n"));
        assert!(matches!(status, Some(400..=405) | None), "{line}: {status:?}");
    });
    let long = raw(&daemon, &request(&format!("GET /api/job/{}", "a".repeat(100_000)), ""));
    assert!(matches!(long, Some(400 | 404 | 414 | 431) | None), "{long:?}");
    let longer = raw(&daemon, &request(&format!("GET /{}", "a".repeat(1_000_000)), ""));
    assert!(matches!(longer, Some(400 | 414 | 431) | None), "{longer:?}");
    // Two requests in one, of which a proxy in between would see one.
    let both = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n";
    let status = raw(&daemon, &request("POST /api/workflow/single", both));
    assert!(matches!(status, Some(400) | None), "{status:?}");
}

/// The variables by which programs are told of a proxy.
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

#[test]
fn no_proxy_of_the_environment_hears_a_token_or_a_password() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let others = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let vhost = Vhost::new();
    let mut setup = Setup::new(&vhost.url, WORKFLOW)
        .set("http.token", TOKEN)
        .set("amqp.management", &format!("http://guest:guest@{}", address(&others)))
        .set("events.webhook.url", &format!("http://{}/hook", address(&others)));
    for name in PROXIES {
        setup = setup.variable(name, &format!("http://{}", address(&proxy)));
    }
    let daemon = setup.start();
    let mut jobs = command();
    jobs.envs(PROXIES.map(|name| (name, format!("http://{}", address(&proxy)))));
    let ran = run(jobs.args(["jobs", "--server", &daemon.url(), "--token", TOKEN]));
    assert_eq!(ran.code, Some(0), "{ran}");
    let id = daemon.api.create("single", "{}");
    daemon.api.post(&format!("/api/job/{id}/cancel"), "").expect(200);
    // Both go where they are meant to go: what manages the broker, and the webhook.
    let mut heard = String::new();
    while !heard.contains("/hook") || !heard.contains("Basic ") {
        let (mut socket, _) = others.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut part = [0; 4096];
        let bytes = socket.read(&mut part).unwrap_or_default();
        heard.push_str(&String::from_utf8_lossy(&part[..bytes]));
    }
    proxy.set_nonblocking(true).unwrap();
    assert!(proxy.accept().is_err(), "the proxy was spoken to");
}

#[test]
fn a_head_has_ninety_six_headers_at_most() {
    let daemon = start();
    let with = |count: usize| raw(&daemon, &request("GET /livez", &"X: a\r\n".repeat(count)));
    // Host is one of them.
    assert_eq!(with(95), Some(200));
    assert_eq!(with(96), Some(431));
}
