//! Thousands of connections that are held: by heads that never end, by probes, by workers that
//! wait. Whoever comes then is answered all the same.

use crate::harness::{Daemon, Setup, eventually, when};
use crate::tls::{Authority, client};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustls::{ClientConnection, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const WORKFLOW: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";
const TOKEN: &str = "the-right-one-of-all";

/// More than `http.connections_max`.
const HELD: usize = 4_100;

/// How long a newcomer may wait for its answer. Alone it takes milliseconds; the machine of the
/// tests has more to do.
const PROMPT: Duration = Duration::from_secs(3);

/// How long connections are held: several times what a head may take.
const HOLDING: Duration = Duration::from_secs(16);

const LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Opens as many files as the system allows.
fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(limit.current.is_none_or(|files| files > 2 * HELD as u64), "{limit:?}");
}

fn address(daemon: &Daemon) -> SocketAddr {
    let url = daemon.url();
    let place = url.split("//").nth(1).unwrap().replace("localhost", "127.0.0.1");
    place.parse().unwrap()
}

fn connect(daemon: &Daemon) -> TcpStream {
    let socket = TcpStream::connect(address(daemon)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

/// One end of a connection, with TLS or without.
trait End: Read + Write + Send {}

impl<T: Read + Write + Send> End for T {}

/// The status of the next answer; none: the connection ended.
fn status(end: &mut dyn End) -> Option<u16> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match end.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            Ok(_) => return None,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no answer: {:?}", String::from_utf8_lossy(&head))
            }
            Err(_) => return None,
        }
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    end.read_exact(&mut body).unwrap();
    head.split(' ').nth(1)?.parse().ok()
}

/// A newcomer asks for its health, whether it is ready, and for a job, each on a connection of its
/// own.
#[track_caller]
fn answered(connect: &dyn Fn() -> Box<dyn End>) {
    let authorization = format!("Authorization: Bearer {TOKEN}\r\n");
    let create = format!(
        "POST /api/workflow/single HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Length: \
         2\r\n\r\n{{}}"
    );
    let readyz = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (request, expected) in [(LIVEZ, 200), (readyz.as_bytes(), 200), (create.as_bytes(), 201)] {
        let begun = Instant::now();
        let mut newcomer = connect();
        newcomer.write_all(request).unwrap();
        let answer = status(&mut *newcomer);
        let took = begun.elapsed();
        assert_eq!(answer, Some(expected), "{}", String::from_utf8_lossy(request));
        assert!(took < PROMPT, "after {took:?}: {}", String::from_utf8_lossy(request));
    }
}

/// Holds connections without a token, and asks beside it.
fn hold(connect: &(dyn Fn() -> Box<dyn End> + Sync)) -> usize {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let is_over = &is_over;
        let holders: Vec<_> = (0..4)
            .map(|holder| {
                scope.spawn(move || {
                    let mut held: Vec<Option<Box<dyn End>>> = Vec::new();
                    for _ in 0..HELD / 4 {
                        let mut end = connect();
                        let lives = end.write_all(LIVEZ).is_ok() && status(&mut *end) == Some(200);
                        held.push(lives.then_some(end));
                    }
                    // Half of them send the second head byte by byte, the others probe.
                    let head =
                        b"GET /livez HTTP/1.1\r\nX: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy";
                    for second in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        for (number, place) in held.iter_mut().enumerate() {
                            let Some(end) = place else { continue };
                            let is_slow = number % 2 == 0;
                            let goes_on = match (is_slow, second % 4) {
                                (true, _) => {
                                    let byte = &head[second % head.len()..][..1];
                                    end.write_all(byte).and_then(|()| end.flush()).is_ok()
                                }
                                (false, 0) => {
                                    end.write_all(LIVEZ).and_then(|()| end.flush()).is_ok()
                                        && status(&mut **end) == Some(200)
                                }
                                (false, _) => true,
                            };
                            if !goes_on {
                                *place = None;
                            }
                        }
                        thread::sleep(Duration::from_secs(1));
                    }
                    let slow = held.iter().step_by(2).flatten().count();
                    eprintln!("holder {holder}: {} are left", held.iter().flatten().count());
                    slow
                })
            })
            .collect();
        let begun = Instant::now();
        let asked = scope.spawn(move || {
            while begun.elapsed() < HOLDING {
                answered(connect);
                thread::sleep(Duration::from_millis(300));
            }
        });
        let asked = asked.join();
        is_over.store(true, Ordering::Relaxed);
        let slow = holders.into_iter().map(|holder| holder.join().unwrap()).sum();
        asked.unwrap();
        slow
    })
}

#[test]
fn who_has_no_token_holds_no_connection_that_others_need() {
    raise_limit();
    let daemon = Setup::new("", WORKFLOW).set("http.token", TOKEN).start();
    let slow = hold(&|| Box::new(connect(&daemon)));
    assert_eq!(slow, 0, "each head has its time, not the first of a connection alone");
    daemon.await_log(&["connections are short", "http.connections_max"]);
    let metrics = daemon.api.anew().get("/metrics").expect(200).text.clone();
    for reason in ["room", "head"] {
        let series = format!("workflow_connections_ended_total{{reason=\"{reason}\"}}");
        assert!(metrics.contains(&series), "{reason}: {metrics}");
    }
}

#[test]
fn over_tls_neither() {
    raise_limit();
    let authority = Authority::new();
    let identity = authority.vouch("good", "localhost", 2099);
    let (certificate, key) = identity.files();
    let daemon = Setup::new("", WORKFLOW)
        .set("http.token", TOKEN)
        .set("http.tls.certificate", certificate.to_str().unwrap())
        .set("http.tls.key", key.to_str().unwrap())
        .spawn();
    daemon.await_log(&["\"listening\""]);
    let config = Arc::new(client(&authority).with_no_client_auth());
    let slow = hold(&|| {
        let name = "localhost".try_into().unwrap();
        let session = ClientConnection::new(config.clone(), name).unwrap();
        Box::new(StreamOwned::new(session, connect(&daemon)))
    });
    assert_eq!(slow, 0);
}

#[test]
fn each_handshake_has_its_time() {
    let authority = Authority::new();
    let identity = authority.vouch("good", "localhost", 2099);
    let (certificate, key) = identity.files();
    let daemon = Setup::new("", WORKFLOW)
        .set("http.tls.certificate", certificate.to_str().unwrap())
        .set("http.tls.key", key.to_str().unwrap())
        .set("http.header_timeout", "500ms")
        .spawn();
    daemon.await_log(&["\"listening\""]);
    // Nothing, and the beginning of a ClientHello.
    for begun in [&b""[..], b"\x16\x03\x01"] {
        let mut slow = connect(&daemon);
        slow.write_all(begun).unwrap();
        assert_eq!(status(&mut slow), None, "{begun:?}");
    }
}

#[test]
fn workers_that_wait_leave_room_for_probes_and_creations() {
    raise_limit();
    let daemon = Setup::new("", WORKFLOW).start();
    let receive = b"POST /api/queue/work/receive?wait=50s HTTP/1.1\r\nHost: localhost\r\n\
                    Content-Length: 0\r\n\r\n";
    let mut workers: Vec<TcpStream> = Vec::new();
    for _ in 0..4_300 {
        let mut worker = connect(&daemon);
        worker.write_all(receive).unwrap();
        workers.push(worker);
    }
    eventually("three quarters wait", || {
        // While slots are short, the manager may close an idle connection that the client is about
        // to use again: each look has its own connection, and may fail.
        match daemon.api.anew().try_send("GET", "/api/queues", &[], None) {
            Ok(queues) => when(queues.text.contains("\"consumers\":3072"), queues.text.clone()),
            Err(error) => Err(error.to_string()),
        }
    });
    answered(&|| Box::new(connect(&daemon)));
    daemon.await_log(&["three quarters of http.connections_max"]);
    // The job goes to one of those that wait, a moment after its creation is answered; whoever was
    // refused was told.
    for worker in &workers {
        worker.set_nonblocking(true).unwrap();
    }
    let mut counts = [0; 3];
    eventually("a worker has the job, and 3,072 or fewer still wait", || {
        workers.retain_mut(|worker| {
            let mut answer = [0; 2000];
            let place = match worker.read(&mut answer) {
                Ok(0) => 2,
                Ok(length) => {
                    let answer = String::from_utf8_lossy(&answer[..length]).to_lowercase();
                    match answer.split(' ').nth(1) {
                        Some("200") => 0,
                        Some("503") => {
                            assert!(answer.contains("retry-after: "), "{answer}");
                            1
                        }
                        _ => panic!("{answer}"),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => 2,
            };
            counts[place] += 1;
            false
        });
        when(counts[0] > 0 && workers.len() <= 3_072, format!("{counts:?}"))
    });
    let [taken, refused, ended] = counts;
    assert_eq!(taken, 1, "{counts:?}");
    assert!(refused + ended >= 4_300 - 3_072 && refused > 0, "{counts:?}");
}

#[test]
fn calls_under_way_leave_places_for_probes() {
    let daemon = Setup::new("", WORKFLOW).set("http.connections_max", "16").start();
    let create = b"POST /api/workflow/single HTTP/1.1\r\nHost: localhost\r\n\
                   Content-Length: 2\r\n\r\n{}";
    // Calls whose bodies do not end: seven eighths of all connections.
    let (begun, end) = create.split_at(create.len() - 1);
    let call = || {
        let mut call = connect(&daemon);
        call.write_all(begun).unwrap();
        call
    };
    let mut busy: Vec<TcpStream> = (0..14).map(|_| call()).collect();
    let asked = |request: &[u8]| {
        let mut newcomer = connect(&daemon);
        newcomer.write_all(request).unwrap();
        status(&mut newcomer)
    };
    eventually("a creation is refused", || {
        let answer = asked(create);
        if answer != Some(503) {
            // One whose head had not been read yet has ended for a newcomer.
            busy.push(call());
        }
        when(answer == Some(503), format!("{answer:?}"))
    });
    daemon.await_log(&["seven eighths of http.connections_max"]);
    assert_eq!(asked(LIVEZ), Some(200));
    let mut last = busy.pop().unwrap();
    last.write_all(end).unwrap();
    assert_eq!(status(&mut last), Some(201));
    eventually("a creation is taken", || {
        let answer = asked(create);
        when(answer == Some(201), format!("{answer:?}"))
    });
}

#[test]
fn each_head_has_its_time_and_an_idle_connection_its_own() {
    let daemon = Setup::new("", WORKFLOW)
        .set("http.header_timeout", "500ms")
        .set("http.keep_alive", "10s")
        .start();
    let mut idle = connect(&daemon);
    let mut slow = connect(&daemon);
    for end in [&mut idle, &mut slow] {
        end.write_all(LIVEZ).unwrap();
        assert_eq!(status(end), Some(200));
    }
    let begun = Instant::now();
    slow.write_all(b"GET /livez HTTP/1.1\r\nHost: local").unwrap();
    assert_eq!(status(&mut slow), None, "the second head");
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(9), "{took:?}");
    idle.write_all(LIVEZ).unwrap();
    assert_eq!(status(&mut idle), Some(200), "it may be idle for longer");
    // A head that comes before the answer to the one before has the same time.
    let mut early = connect(&daemon);
    early.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET").unwrap();
    assert_eq!(status(&mut early), Some(200));
    early.write_all(b" ").unwrap();
    assert_eq!(status(&mut early), None);
}

#[test]
fn an_idle_connection_ends_for_one_that_is_needed() {
    let daemon = Setup::new("", WORKFLOW).set("http.connections_max", "16").start();
    let whoami = b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut kept = Vec::new();
    for number in 0..40 {
        // From two addresses, each of which may have more.
        let mut end = connect_from(&daemon, [127, 0, 0, 2 + number % 2]);
        end.write_all(whoami).unwrap();
        assert_eq!(status(&mut end), Some(200));
        kept.push(end);
    }
    // The last ones are kept.
    let last = kept.last_mut().unwrap();
    last.write_all(whoami).unwrap();
    assert_eq!(status(last), Some(200));
    assert_eq!(status(&mut kept[0]), None);
}

#[test]
fn connections_that_nobody_knows_end_together_once_places_are_short() {
    let daemon = Setup::new("", WORKFLOW)
        .set("http.connections_max", "16")
        .set("http.header_timeout", "5m")
        .start();
    // Seven eighths, from two addresses.
    let mut mute: Vec<TcpStream> =
        (0..14).map(|number| connect_from(&daemon, [127, 0, 0, 2 + number % 2])).collect();
    // They may stay without an admitted call for 5 s.
    thread::sleep(Duration::from_secs(6));
    let mut newcomer = connect(&daemon);
    newcomer.write_all(LIVEZ).unwrap();
    assert_eq!(status(&mut newcomer), Some(200));
    for end in &mut mute {
        assert_eq!(status(end), None);
    }
}

#[test]
fn an_address_has_so_many_connections_and_others_have_theirs() {
    let daemon = Setup::new("", WORKFLOW).set("http.address_connections_max", "3").start();
    let receive = b"POST /api/queue/work/receive?wait=50s HTTP/1.1\r\nHost: localhost\r\n\
                    Content-Length: 0\r\n\r\n";
    let mut workers: Vec<TcpStream> =
        (0..3).map(|_| connect_from(&daemon, [127, 0, 0, 2])).collect();
    for worker in &mut workers {
        worker.write_all(receive).unwrap();
    }
    eventually("they wait", || {
        let queues = daemon.api.get("/api/queues").expect(200).text.clone();
        when(queues.contains("\"consumers\":3"), queues)
    });
    let mut one_more = connect_from(&daemon, [127, 0, 0, 2]);
    // It may be closed before.
    let _sent = one_more.write_all(LIVEZ);
    assert_eq!(status(&mut one_more), None, "all of its address are busy");
    daemon.await_log(&["http.address_connections_max", "127.0.0.2"]);
    let mut other = connect_from(&daemon, [127, 0, 0, 3]);
    other.write_all(LIVEZ).unwrap();
    assert_eq!(status(&mut other), Some(200));
    // An idle one of the same address gives its place up.
    drop(workers.pop());
    let mut newcomers = Vec::new();
    eventually("there is room again", || {
        let mut newcomer = connect_from(&daemon, [127, 0, 0, 2]);
        let _sent = newcomer.write_all(LIVEZ);
        let answer = status(&mut newcomer);
        newcomers.push(newcomer);
        when(answer == Some(200), format!("{answer:?}"))
    });
    let mut newcomer = connect_from(&daemon, [127, 0, 0, 2]);
    newcomer.write_all(LIVEZ).unwrap();
    assert_eq!(status(&mut newcomer), Some(200));
}

fn connect_from(daemon: &Daemon, from: [u8; 4]) -> TcpStream {
    let address = address(daemon);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let socket = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(address).await.unwrap().into_std().unwrap()
    });
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}
