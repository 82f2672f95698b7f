//! What clients of the API can make the daemon hold: bodies, answers, connections. Each client is a
//! bare socket, which sends and reads when it is told to.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    thread,
};

use crate::{
    amqp::{Vhost, Worker},
    harness::{DEADLINE, Daemon, Setup, eventually, when},
    overload::offer,
};

const SINGLE: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";
const MEBIBYTE: usize = 1024 * 1024;

/// One connection.
struct Client(TcpStream);

impl Client {
    fn connect(daemon: &Daemon) -> Client {
        let stream = TcpStream::connect(daemon.url().trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Client(stream)
    }

    /// Sends the text, or as much of it as the daemon takes before it closes the connection.
    fn send(&mut self, bytes: &[u8]) {
        match self.0.write_all(bytes) {
            Ok(()) => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            Err(error) => panic!("cannot send: {error}"),
        }
    }

    fn ask(&mut self, method: &str, path: &str, headers: &str) {
        self.send(
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").as_bytes(),
        );
    }

    /// Everything that comes until the daemon closes the connection.
    fn read_to_end(&mut self) -> String {
        let mut bytes = Vec::new();
        let mut some = [0; 65536];
        loop {
            match self.0.read(&mut some) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&some[..count]),
                // What came before that counts.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!(
                    "the daemon neither answers nor closes the connection ({error}); so far: {}",
                    String::from_utf8_lossy(&bytes)
                ),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The status of the answer; the rest is read and forgotten.
    fn status(&mut self) -> u16 {
        status_of(&self.read_to_end())
    }
}

#[track_caller]
fn status_of(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    status.unwrap_or_else(|| panic!("no answer: {answer:.300}"))
}

fn mebibytes(daemon: &Daemon) -> u64 {
    daemon.memory_peak() / MEBIBYTE as u64
}

/// Each is sent without its last byte, so that none is done before the last one has begun.
#[test]
fn bodies_at_once_have_a_budget() {
    const CLIENTS: usize = 60;
    const BYTES: usize = 16 * MEBIBYTE;
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE).start();
    let body = format!("\"{}\"", "x".repeat(BYTES - 2)).into_bytes();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&daemon)).collect();
    thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| {
                client.ask(
                    "POST",
                    "/api/workflow/single",
                    &format!("Content-Length: {BYTES}\r\nConnection: close\r\n"),
                );
                client.send(&body[..BYTES - 1]);
            });
        }
    });
    // Small ones have a room of their own.
    daemon.api.create("single", "{}");
    let statuses: Vec<u16> = clients
        .iter_mut()
        .map(|client| {
            client.send(&body[BYTES - 1..]);
            client.status()
        })
        .collect();
    let (refused, read): (Vec<u16>, Vec<u16>) = statuses.iter().partition(|status| **status == 503);
    assert!(read.iter().all(|status| *status == 400), "a text is not a message: {statuses:?}");
    assert_eq!(
        (read.len(), refused.len()),
        (6, 54),
        "three quarters of http.bodies_bytes_max are for large ones: {statuses:?}"
    );
    let peak = mebibytes(&daemon);
    eprintln!("{CLIENTS} bodies of {} MiB at once: at most {peak} MiB", BYTES / MEBIBYTE);
    assert!(peak < 400, "at most {peak} MiB");
    let whole =
        daemon.api.post("/api/workflow/single", &body).expect_problem(400, &["found a string"]);
    assert_eq!(whole.status, 400, "there is room again: {whole}");
}

#[test]
fn a_body_that_stalls_and_one_that_nobody_reads_are_not_waited_for() {
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE).set("http.body_timeout", "200ms").start();
    for (path, headers, begun, expected) in [
        ("/api/workflow/single", "Content-Length: 100\r\n", "{\"k\"", 408),
        ("/api/workflow/single", "Content-Length: 16000000\r\n", "", 408),
        ("/api/workflow/single", "Transfer-Encoding: chunked\r\n", "3\r\n{\"k\r\n", 408),
        ("/api/workflow/single", "Content-Length: 99999999999\r\n", "", 413),
        ("/api/workflow/single", "Content-Encoding: gzip\r\nContent-Length: 100\r\n", "", 415),
        ("/api/workflow/nowhere", "Transfer-Encoding: chunked\r\n", "3\r\n{\"k\r\n", 404),
        ("/api/nowhere", "Transfer-Encoding: chunked\r\n", "", 404),
        ("/api/nowhere", "Content-Length: 100\r\n", "{", 404),
    ] {
        let mut client = Client::connect(&daemon);
        client.ask("POST", path, headers);
        client.send(begun.as_bytes());
        assert_eq!(client.status(), expected, "{path} {headers}");
    }
    let mut slow = Client::connect(&daemon);
    slow.send(b"GET /livez HTTP/1.1\r\nHost: loc");
    assert_eq!(slow.status(), 408, "a head that does not come");

    // A client that closes its side in the middle costs nothing either.
    let mut gone = Client::connect(&daemon);
    gone.ask("POST", "/api/workflow/single", "Content-Length: 100\r\n");
    gone.0.shutdown(Shutdown::Write).unwrap();
    gone.read_to_end();
    assert!(daemon.api.get("/api/jobs").expect(200).ids("jobs").is_empty());
}

#[test]
fn searches_at_once_are_bounded() {
    const JOBS: usize = 2_000;
    const SEARCHES: usize = 600;
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE)
        .set("http.reads_bytes_max", &(32 * MEBIBYTE).to_string())
        .start();
    let (accepted, _) = offer(&daemon, JOBS, "{}");
    assert_eq!(accepted.len(), JOBS);
    let before = mebibytes(&daemon);
    let mut clients: Vec<Client> = (0..SEARCHES).map(|_| Client::connect(&daemon)).collect();
    for client in &mut clients {
        client.ask("GET", "/api/jobs/search?limit=10000", "Connection: close\r\n");
    }
    let answers: Vec<String> = clients.iter_mut().map(Client::read_to_end).collect();
    let whole = answers.iter().filter(|answer| status_of(answer) == 200).count();
    assert!(answers.iter().all(|answer| [200, 503].contains(&status_of(answer))));
    assert!(
        answers
            .iter()
            .all(|answer| status_of(answer) == 503 || answer.matches("\"job\":").count() == JOBS),
        "what is answered is whole"
    );
    let peak = mebibytes(&daemon);
    eprintln!(
        "{SEARCHES} searches for {JOBS} jobs, {whole} answered: {before} MiB before, \
         at most {peak} MiB"
    );
    assert!(
        whole > 0 && peak < before + 300,
        "{whole} answered; {before} MiB before, at most {peak} MiB"
    );
}

/// The clients read nothing until all have asked, and some never.
#[test]
fn a_large_job_that_many_ask_for_is_not_there_for_each() {
    const READERS: usize = 64;
    const BYTES: usize = 4 * MEBIBYTE;
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE)
        .set("http.reads_bytes_max", &(64 * MEBIBYTE).to_string())
        .set("http.answer_timeout", "20s")
        .set("http.reads_wait", "30s")
        .start();
    let _worker = Worker::echo(&vhost.url, &["work"]);
    let message = format!(r#"{{"k":"{}"}}"#, "x".repeat(BYTES));
    let id = daemon.api.create("single", &message);
    daemon.api.await_state(id, "completed");
    let before = mebibytes(&daemon);

    let path = format!("/api/job/{id}");
    let mut clients: Vec<Client> = (0..READERS).map(|_| Client::connect(&daemon)).collect();
    for client in &mut clients {
        client.ask("GET", &path, "Connection: close\r\n");
    }
    let answers: Vec<(u16, usize)> = thread::scope(|scope| {
        let readers: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(|| client.read_to_end())).collect();
        readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .map(|answer| (status_of(&answer), answer.len()))
            .collect()
    });
    let whole =
        answers.iter().filter(|(status, length)| *status == 200 && *length > 3 * BYTES).count();
    let refused = answers.iter().filter(|(status, _)| *status == 503).count();
    let peak = mebibytes(&daemon);
    eprintln!(
        "{READERS} x GET of a job of {} MiB, {whole} answered: {before} MiB before, at most {peak} \
         MiB",
        2 * BYTES / MEBIBYTE
    );
    assert!(whole > 0 && whole + refused == READERS, "{answers:?}");
    assert!(peak < before + 300, "{before} MiB before, at most {peak} MiB");
}

#[test]
fn an_answer_that_is_not_taken_gives_its_room_back() {
    const BYTES: usize = 8 * MEBIBYTE;
    let vhost = Vhost::new();
    // Room for one.
    let daemon = Setup::new(&vhost.url, SINGLE)
        .set("http.reads_bytes_max", &(6 * BYTES).to_string())
        .set("http.answer_timeout", "1s")
        .set("http.reads_wait", "100ms")
        .start();
    let message = format!(r#"{{"k":"{}"}}"#, "x".repeat(BYTES));
    let id = daemon.api.create("single", &message);
    let path = format!("/api/job/{id}");
    let mut idle: Vec<Client> = (0..8).map(|_| Client::connect(&daemon)).collect();
    for client in &mut idle {
        client.ask("GET", &path, "");
    }
    eventually("the job is shown to who reads", || {
        let mut client = Client::connect(&daemon);
        client.ask("GET", &path, "Connection: close\r\n");
        let status = client.status();
        when(status == 200, status)
    });
    // Small reads never wait for large ones.
    daemon.api.get("/api/jobs").expect(200);
}

#[test]
fn the_limit_of_open_files_is_raised() {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let hard = limits.lines().find_map(|line| {
        line.strip_prefix("Max open files")?.split_whitespace().nth(1)?.parse::<f64>().ok()
    });
    let vhost = Vhost::new();
    let daemon = Setup::new(&vhost.url, SINGLE).start();
    let metrics = daemon.api.get("/metrics").expect(200);
    let raised = metrics
        .text
        .lines()
        .find_map(|line| line.strip_prefix("process_max_fds ")?.parse::<f64>().ok());
    assert_eq!(raised, hard, "{metrics}");
}

/// A worker that is killed while it waits for a message takes none with it: its end of the
/// connection is closed, and that frees its place.
#[test]
fn a_worker_that_is_gone_while_it_waits_gets_no_message() {
    let daemon = Setup::new("", SINGLE).set("http.waiters_max", "1").start();
    let mut gone = Client::connect(&daemon);
    gone.ask("POST", "/api/queue/work/receive?wait=50s", "Content-Length: 0\r\n");
    let receive = |wait: &str| {
        let mut client = Client::connect(&daemon);
        let path = format!("/api/queue/work/receive?wait={wait}");
        client.ask("POST", &path, "Content-Length: 0\r\nConnection: close\r\n");
        client.read_to_end()
    };
    eventually("the first worker waits", || {
        let queues = daemon.api.get("/api/queues").expect(200).text.clone();
        when(queues.contains("\"consumers\":1"), queues)
    });
    assert_eq!(status_of(&receive("0s")), 503);
    // As the system does when a process ends.
    gone.0.shutdown(Shutdown::Write).unwrap();
    eventually("its place is free", || {
        let status = status_of(&receive("0s"));
        when(status == 204, status.to_string())
    });
    daemon.api.create("single", "{}");
    let answer = receive("30s");
    assert_eq!(status_of(&answer), 200, "{answer}");
    assert!(answer.contains("delivery: 1\r\n"), "{answer}");
}
