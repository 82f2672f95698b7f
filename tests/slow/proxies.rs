//! Behind a proxy: the very blocks of docs/how-to/run-behind-a-proxy.md, with real nginx and Caddy,
//! and nginx with no word of ours.

use crate::harness::{DEADLINE, Daemon, Setup, command, eventually, free_port, run};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use uuid::Uuid;

const WORKFLOW: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";
const TOKEN: &str = "the-right-one-of-all";

/// A proxy that runs, until it is dropped.
struct Proxy {
    process: Child,
    port: u16,
    _folder: TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// The block of the documentation in this language.
fn block(language: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/how-to/run-behind-a-proxy.md");
    let text = fs::read_to_string(file).unwrap();
    let (_, rest) = text.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// Replaces what must be there.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}: {text}");
    text.replace(from, to)
}

fn address(daemon: &Daemon) -> String {
    daemon.url().replace("http://", "")
}

/// nginx with these servers, which listen at the port that is put in for `PORT`.
fn nginx(servers: &str) -> Proxy {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let place = folder.path().to_str().unwrap();
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String =
        kinds.map(|kind| format!("{kind}_temp_path {place}/{kind};\n")).concat();
    let configuration = format!(
        "daemon off;\nmaster_process off;\npid {place}/pid;\nerror_log {place}/errors;\n\
         events {{ worker_connections 512; }}\nhttp {{\naccess_log off;\n{temporary}{}\n}}\n",
        replaced(servers, "PORT", &port.to_string())
    );
    let file = folder.path().join("nginx.conf");
    fs::write(&file, configuration).unwrap();
    let program = ["/usr/sbin/nginx", "/usr/local/sbin/nginx"]
        .into_iter()
        .find(|program| Path::new(program).exists())
        .unwrap_or("nginx");
    started(Command::new(program).arg("-p").arg(place).arg("-c").arg(&file), port, folder)
}

fn started(command: &mut Command, port: u16, folder: TempDir) -> Proxy {
    let process = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let process = process.unwrap_or_else(|error| panic!("{command:?}: {error} (see tests/run)"));
    let proxy = Proxy { process, port, _folder: folder };
    eventually("the proxy listens", || TcpStream::connect(("127.0.0.1", port)).map(drop));
    proxy
}

fn of_nginx(daemon: &Daemon) -> Proxy {
    let block = replaced(&block("nginx"), "127.0.0.1:8088", &address(daemon));
    nginx(&replaced(&block, "listen 80;", "listen 127.0.0.1:PORT;"))
}

fn of_caddy(daemon: &Daemon) -> Proxy {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let block = replaced(&block("caddyfile"), "127.0.0.1:8088", &address(daemon));
    // Without a certificate of a name that is nobody's, and without a port of its own for orders.
    let block = replaced(&block, "manager.example {", &format!("http://manager.example:{port} {{"));
    let file = folder.path().join("Caddyfile");
    fs::write(&file, format!("{{\n\tadmin off\n}}\n{block}")).unwrap();
    let mut command = Command::new("caddy");
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(&file)
        .env("HOME", folder.path())
        .env("XDG_DATA_HOME", folder.path())
        .env("XDG_CONFIG_HOME", folder.path());
    started(&mut command, port, folder)
}

/// A connection to the proxy on which a request was sent; `headers` end with a line's end each.
fn sent(proxy: &Proxy, line: &str, headers: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let length =
        if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let request = format!(
        "{line} HTTP/1.1\r\nHost: manager.example:{}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Connection: close\r\n{headers}{length}\r\n{body}",
        proxy.port
    );
    socket.write_all(request.as_bytes()).unwrap();
    socket
}

/// The status of the answer, and all of it.
fn asked(proxy: &Proxy, line: &str, headers: &str, body: &str) -> (u16, String) {
    let mut answer = String::new();
    sent(proxy, line, headers, body).read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no answer to {line}: {answer:?}")), answer)
}

#[track_caller]
fn expect(proxy: &Proxy, line: &str, headers: &str, body: &str, expected: u16) -> String {
    let (status, answer) = asked(proxy, line, headers, body);
    assert_eq!(status, expected, "{line} {headers}: {answer}");
    answer
}

/// What programs, workers and the page do.
fn works(daemon: &Daemon, proxy: &Proxy) {
    let id = Uuid::new_v4();
    expect(proxy, &format!("POST /api/workflow/single?id={id}"), "", r#"{"k":1}"#, 201);
    // All without a body, and without a length.
    expect(proxy, &format!("POST /api/job/{id}/pause"), "", "", 200);
    expect(proxy, &format!("POST /api/job/{id}/resume"), "", "", 200);
    expect(proxy, "POST /api/reload", "", "", 200);
    let message = expect(proxy, "POST /api/queue/work/receive?wait=30s", "", "", 200);
    let lower = message.to_lowercase();
    let reply = lower.split("reply-to: ").nth(1).unwrap().split("\r\n").next().unwrap();
    expect(proxy, &format!("POST {reply}"), "", r#"{"done":true}"#, 200);
    assert_eq!(daemon.api.await_result(id), r#"{"done":true}"#);

    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(8 << 20));
    expect(proxy, "POST /api/workflow/single", "", &large, 201);
    expect(proxy, "GET /", "", "", 200);
    expect(proxy, "POST /api/workflow/single", "Origin: http://evil.example\r\n", "{}", 403);
    let crossing = "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n";
    expect(proxy, "POST /api/workflow/single", crossing, "{}", 403);
}

/// What the browser sends for the page.
fn page_works(proxy: &Proxy, origin: &str) {
    let origin = format!("Origin: {origin}\r\n");
    expect(proxy, "POST /api/workflow/single", &origin, "{}", 201);
    let same = format!("{origin}Sec-Fetch-Site: same-origin\r\n");
    expect(proxy, "POST /api/workflow/single", &same, "{}", 201);
}

/// Events come as they happen, not when there are many.
fn events_come(proxy: &Proxy) {
    let mut stream = sent(proxy, "GET /api/events", "", "");
    let mut heard = String::new();
    let mut read_until = |word: &str| {
        while !heard.contains(word) {
            let mut part = [0; 4096];
            let length = stream.read(&mut part).unwrap();
            assert!(length > 0, "it ended: {heard}");
            heard.push_str(&String::from_utf8_lossy(&part[..length]));
        }
    };
    read_until(": events");
    let id = Uuid::new_v4();
    expect(proxy, &format!("POST /api/workflow/single?id={id}"), "", "{}", 201);
    read_until(&id.to_string());
}

/// Calls in bursts, with pauses in which connections idle for longer than servers often keep them.
fn none_is_lost(proxy: &Proxy) {
    for _ in 0..3 {
        let statuses: Vec<u16> = thread::scope(|scope| {
            let calls: Vec<_> = (0..20)
                .map(|_| scope.spawn(|| asked(proxy, "POST /api/workflow/single", "", "{}").0))
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        assert!(statuses.iter().all(|status| *status == 201), "{statuses:?}");
        thread::sleep(Duration::from_millis(5_005));
    }
}

fn start(settings: &[(&str, &str)]) -> Daemon {
    let setup = Setup::new("", WORKFLOW).set("http.token", TOKEN);
    settings.iter().fold(setup, |setup, (name, value)| setup.set(name, value)).start()
}

#[test]
fn nginx_as_the_documentation_has_it() {
    let daemon = start(&[]);
    let proxy = of_nginx(&daemon);
    works(&daemon, &proxy);
    page_works(&proxy, &format!("http://manager.example:{}", proxy.port));
    events_come(&proxy);
    none_is_lost(&proxy);
}

#[test]
fn caddy_as_the_documentation_has_it() {
    let daemon = start(&[]);
    let proxy = of_caddy(&daemon);
    works(&daemon, &proxy);
    page_works(&proxy, &format!("http://manager.example:{}", proxy.port));
    events_come(&proxy);
    none_is_lost(&proxy);
}

/// HTTP/1.0, a connection for each call, and a `Host` that is the manager's address.
#[test]
fn nginx_with_no_more_than_an_address() {
    let daemon = start(&[("http.public_url", "https://manager.example")]);
    let proxy = nginx(&format!(
        "server {{ listen 127.0.0.1:PORT; client_max_body_size 16m; location / {{ proxy_pass \
         http://{}; }} }}",
        address(&daemon)
    ));
    works(&daemon, &proxy);
    page_works(&proxy, "https://manager.example");
    // Over https the browser's word is enough.
    let unheard = "Origin: https://unheard-of.example\r\nSec-Fetch-Site: same-origin\r\n";
    expect(&proxy, "POST /api/workflow/single", unheard, "{}", 201);
    let ran = run(command()
        .args(["jobs", "--json", "--server", &format!("http://127.0.0.1:{}", proxy.port)])
        .env("WORKFLOW_MANAGER_TOKEN", TOKEN));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}
