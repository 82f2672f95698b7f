//! Tokens with scopes: they come from a file, change by a reload, are named in the log, and are not
//! guessed at speed.

use crate::harness::{Daemon, Setup, command, eventually, run, when};
use crate::tls::Authority;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

/// How long a stream may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

const WORKFLOW: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";

/// Makes a token in the file, as an operator does.
pub(crate) fn new_token(file: &Path, name: &str, scope: &str) -> String {
    let made = run(command().args(["token", "new", name, "--scope", scope, "--file"]).arg(file));
    assert_eq!(made.code, Some(0), "{made}");
    made.stdout.trim_end().to_owned()
}

#[test]
fn tokens_that_many_processes_add_are_all_there_though_some_are_killed_on_the_way() {
    const PROCESSES: usize = 24;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.yaml");
    new_token(&file, "first", "admin");
    let add = |number: usize| {
        let name = format!("token-{number}");
        let mut new = command();
        new.args(["token", "new", &name, "--scope", "read", "--file"]).arg(&file);
        // Each third one ends when all is written and nothing has its name yet.
        if number.is_multiple_of(3) {
            new.env("FAILPOINTS", "token::written=return(abort)");
        }
        (name, run(&mut new).code)
    };
    let ended: Vec<(String, Option<i32>)> = std::thread::scope(|scope| {
        let add = &add;
        let adding: Vec<_> =
            (0..PROCESSES).map(|number| scope.spawn(move || add(number))).collect();
        adding.into_iter().map(|adding| adding.join().unwrap()).collect()
    });
    let text = fs::read_to_string(&file).unwrap();
    for (number, (name, code)) in ended.iter().enumerate() {
        assert_eq!(*code, if number.is_multiple_of(3) { None } else { Some(0) }, "{name}");
        assert_eq!(text.contains(&format!("  {name}: {{")), code.is_some(), "{name}: {text}");
    }
    // What a killed one has left is in nobody's way, and gone behind the next one.
    new_token(&file, "last", "read");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let root = new_token(&file, "root", "admin");
    let daemon = Setup::new("", WORKFLOW).set("http.tokens_file", file.to_str().unwrap()).start();
    assert_eq!(status(&daemon, &root, "/api/jobs"), 200, "the file is whole");
}

fn status(daemon: &Daemon, token: &str, path: &str) -> u16 {
    daemon.api.with_token(Some(token)).get(path).status
}

#[test]
fn tokens_of_a_file_change_by_a_reload_and_a_broken_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.yaml");
    let root = new_token(&file, "root", "admin");
    let setting = file.to_str().unwrap();
    let daemon = Setup::new("", WORKFLOW).set("http.tokens_file", setting).start();
    assert_eq!(status(&daemon, &root, "/api/jobs"), 200);

    let reader = new_token(&file, "reader", "read");
    assert_eq!(status(&daemon, &reader, "/api/jobs"), 401, "not before a reload");
    let api = daemon.api.with_token(Some(&root));
    let reloaded = api.post("/api/reload", "").expect(200).json();
    assert_eq!((&reloaded["tokens"], &reloaded["unchanged"][0]), (&2.into(), &"single".into()));
    assert_eq!(status(&daemon, &reader, "/api/jobs"), 200);
    let forbidden = daemon.api.with_token(Some(&reader)).post("/api/reload", "");
    forbidden.expect_problem(403, &["\"reader\"", "needs the scope admin"]);

    let whole = fs::read_to_string(&file).unwrap();
    fs::write(&file, whole.replace("scope: read", "scope: reed")).unwrap();
    api.post("/api/reload", "")
        .expect_problem(422, &["nothing was changed", "tokens.yaml", "reed"]);
    assert_eq!(status(&daemon, &reader, "/api/jobs"), 200);

    let without: Vec<&str> = whole.lines().filter(|line| !line.contains("reader")).collect();
    fs::write(&file, without.join("\n")).unwrap();
    api.post("/api/reload", "").expect(200);
    assert_eq!(status(&daemon, &reader, "/api/jobs"), 401, "it was taken away");
    assert_eq!(status(&daemon, &root, "/api/jobs"), 200);
}

#[test]
fn a_file_of_tokens_that_is_missing_is_told_at_the_start() {
    let mut daemon =
        Setup::new("", WORKFLOW).set("http.tokens_file", "/nowhere/tokens.yaml").spawn();
    let ended = daemon.await_end();
    assert!(!ended.success());
    daemon.await_log(&["http.tokens_file", "/nowhere/tokens.yaml"]);
}

#[test]
fn the_log_says_who_has_changed_what_and_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.yaml");
    let alice = new_token(&file, "alice", "operate");
    let daemon = Setup::new("", WORKFLOW).set("http.tokens_file", file.to_str().unwrap()).start();
    let api = daemon.api.with_token(Some(&alice));
    let id = api.create("single", "{}");
    api.get(&format!("/api/job/{id}")).expect(200);
    api.post(&format!("/api/job/{id}/cancel?reason=forged%0Aline"), "").expect(200);
    api.post("/api/jobs/delete?workflow=single", "").expect(403);
    let audit = |path: &str, status: &str| {
        daemon.await_log(&[
            "workflow_manager::audit",
            "\"by\":\"alice\"",
            "\"peer\":\"127.0.0.1\"",
            path,
            status,
        ]);
    };
    audit(&format!("/api/job/{id}/cancel"), "\"status\":200");
    audit("/api/jobs/delete", "\"status\":403");
    let log = daemon.log();
    assert_eq!(log.matches("workflow_manager::audit").count(), 2, "operations alone: {log}");
    assert!(!log.contains(&alice) && !log.lines().any(|line| line.starts_with("line")), "{log}");
}

#[test]
fn guessing_is_slowed_and_counted_and_does_not_keep_others_out() {
    const GUESSES: usize = 200;
    let right = "the-right-one-of-all";
    let daemon = Setup::new("", WORKFLOW)
        .set("http.token", right)
        .set("http.failed_logins_max", "3")
        .start();
    let answers: Vec<u16> = std::thread::scope(|scope| {
        let guess = |number: usize| {
            let api = daemon.api.with_token(Some(&format!("guess-number-{number}")));
            move || api.get("/api/jobs").status
        };
        let guessing: Vec<_> = (0..GUESSES).map(|number| scope.spawn(guess(number))).collect();
        for _ in 0..20 {
            assert_eq!(status(&daemon, right, "/api/jobs"), 200, "beside them");
        }
        guessing.into_iter().map(|guess| guess.join().unwrap()).collect()
    });
    let count = |status| answers.iter().filter(|answer| **answer == status).count();
    assert_eq!(count(401) + count(429), GUESSES, "{answers:?}");
    assert!(count(429) > 0, "{answers:?}");
    let metrics = daemon.api.with_token(Some(right)).get("/metrics").expect(200).text;
    let counted = format!("workflow_api_logins_failed_total{{reason=\"wrong\"}} {GUESSES}");
    assert!(metrics.contains(&counted), "{metrics}");
    daemon.await_log(&["without the right token", "127.0.0.1"]);
}

#[test]
fn readiness_tells_strangers_no_address() {
    let right = "the-right-one-of-all";
    let daemon = Setup::new("amqp://somebody:secret@127.0.0.1:9/nowhere", WORKFLOW)
        .set("http.token", right)
        .launch();
    daemon.await_log(&["not connected"]);
    let strange = daemon.api.with_token(None).get("/readyz?verbose").expect(503).text;
    assert!(strange.contains("[-] bus: not good"), "{strange}");
    assert!(!strange.contains("127.0.0.1") && !strange.contains("somebody"), "{strange}");
    let known = daemon.api.with_token(Some(right)).get("/readyz").expect(503).text;
    assert!(known.contains("[-] bus: not connected"), "{known}");
}

#[test]
fn without_tokens_a_name_that_was_pointed_here_hears_no_address_either() {
    let daemon = Setup::new("amqp://somebody:secret@127.0.0.1:9/nowhere", WORKFLOW).launch();
    daemon.await_log(&["not connected"]);
    let told = |host: &str| {
        let mut socket = std::net::TcpStream::connect(daemon.url().replace("http://", "")).unwrap();
        let request =
            format!("GET /readyz?verbose HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        std::io::Write::write_all(&mut socket, request.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut socket, &mut answer).unwrap();
        answer
    };
    for own in ["localhost:8088", "127.0.0.1"] {
        let known = told(own);
        assert!(known.contains("[-] bus: not connected"), "{own}: {known}");
    }
    for strange in ["evil.example", "evil.example:8088", "10.0.0.1"] {
        let heard = told(strange);
        assert!(heard.contains(" 503 ") && heard.contains("[-] bus: not good"), "{heard}");
        assert!(!heard.contains("127.0.0.1") && !heard.contains("somebody"), "{heard}");
    }
}

#[test]
fn an_operation_whose_sender_hangs_up_is_in_the_log_too() {
    const JOBS: usize = 20;
    let daemon = Setup::new("", WORKFLOW).start();
    let address = daemon.url().replace("http://", "");
    let ids: Vec<_> = (0..JOBS).map(|_| daemon.api.create("single", "{}")).collect();
    for id in &ids {
        let mut socket = TcpStream::connect(&address).unwrap();
        let request = format!(
            "POST /api/job/{id}/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).unwrap();
        drop(socket);
    }
    let is_cancelled = |id: &Uuid| daemon.api.job(*id).text.contains("\"state\":\"cancelled\"");
    eventually("what was cancelled is in the log", || {
        let cancelled: Vec<_> = ids.iter().filter(|id| is_cancelled(id)).collect();
        let log = daemon.log();
        let is_logged = |id: &Uuid| {
            let path = format!("/api/job/{id}/cancel");
            log.lines().any(|line| line.contains("workflow_manager::audit") && line.contains(&path))
        };
        let unlogged = cancelled.iter().filter(|id| !is_logged(id)).count();
        when(
            cancelled.len() + 5 >= JOBS && unlogged == 0,
            format!("{} cancelled, {unlogged} not logged", cancelled.len()),
        )
    });
}

#[test]
fn a_reload_replaces_all_or_nothing() {
    let authority = Authority::new();
    let identity = authority.vouch("api", "localhost", 2099);
    let (certificate, key) = identity.files();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.yaml");
    let root = new_token(&file, "root", "admin");
    let daemon = Setup::new("", WORKFLOW)
        .set("http.tokens_file", file.to_str().unwrap())
        .set("http.tls.certificate", certificate.to_str().unwrap())
        .set("http.tls.key", key.to_str().unwrap())
        .spawn();
    daemon.await_log(&["\"listening\""]);
    let ask = |request: &str| {
        let bearer = format!("Authorization: Bearer {root}\r\n");
        authority.ask(&daemon, request, &bearer).unwrap()
    };
    daemon.write_workflows(&WORKFLOW.replace("single", "other"));
    let whole = fs::read(certificate).unwrap();
    fs::write(certificate, "nothing").unwrap();
    let refused = ask("POST /api/reload");
    assert!(refused.contains(" 422 ") && refused.contains("nothing was changed"), "{refused}");
    let listed = ask("GET /api/workflows");
    assert!(listed.contains("single") && !listed.contains("other"), "{listed}");
    fs::write(certificate, whole).unwrap();
    let reloaded = ask("POST /api/reload");
    assert!(reloaded.contains(" 200 ") && reloaded.contains("other"), "{reloaded}");
}

#[test]
fn a_stream_ends_when_its_token_is_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.yaml");
    let (root, reader) = (new_token(&file, "root", "admin"), new_token(&file, "reader", "read"));
    let stays = new_token(&file, "stays", "read");
    let daemon = Setup::new("", WORKFLOW).set("http.tokens_file", file.to_str().unwrap()).start();
    let open = |token: &str| {
        let address = daemon.url().replace("http://", "");
        let mut stream = TcpStream::connect(&address).unwrap();
        let head = format!(
            "GET /api/events HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        BufReader::new(stream)
    };
    let (mut taken, mut kept) = (open(&reader), open(&stays));
    for stream in [&mut taken, &mut kept] {
        await_line(stream, ": events");
    }
    let whole = fs::read_to_string(&file).unwrap();
    let without: Vec<&str> = whole.lines().filter(|line| !line.contains("reader")).collect();
    fs::write(&file, without.join("\n")).unwrap();
    let api = daemon.api.with_token(Some(&root));
    api.post("/api/reload", "").expect(200);
    // The last piece of an answer in pieces.
    await_line(&mut taken, "0");
    api.create("single", "{}");
    await_line(&mut kept, "event: job.running");
}

/// Reads until there is such a line.
fn await_line(stream: &mut BufReader<TcpStream>, wanted: &str) {
    stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    let mut line = String::new();
    while line.trim_end() != wanted {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "it ended before {wanted:?}");
    }
}
