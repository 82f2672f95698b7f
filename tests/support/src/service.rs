//! A web service on this machine: a thread for each connection, which answers as the test says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A call, as it came.
#[derive(Clone, Debug)]
pub struct Called {
    /// Which one it is, from 1.
    pub number: usize,
    /// How many calls were under way as it came, with itself.
    pub at_once: usize,
    /// The path and the query.
    pub path: String,
    /// By names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body, whole.
    pub body: Vec<u8>,
}

impl Called {
    /// Returns a header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// How a call is answered.
pub enum Act {
    /// With this status, these headers and this body.
    Answer(u16, &'static [(&'static str, &'static str)], Vec<u8>),
    /// The same, after a while.
    Later(Duration, Box<Act>),
    /// With these bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// With these bytes, and then nothing until the client goes.
    Stalls(Vec<u8>),
    /// With bytes for as long as the client takes them.
    Endless,
    /// With interim responses for as long as the client takes them.
    Interim,
    /// Not at all, until the client goes.
    Never,
}

/// Makes an answer with this JSON.
pub fn ok(body: impl Into<Vec<u8>>) -> Act {
    Act::Answer(200, &[("Content-Type", "application/json")], body.into())
}

/// Makes an answer without a body.
pub fn status(status: u16) -> Act {
    Act::Answer(status, &[], Vec::new())
}

#[derive(Default)]
struct Seen {
    calls: Mutex<Vec<Called>>,
    now: AtomicUsize,
    most: AtomicUsize,
    gone: AtomicUsize,
    connections: AtomicUsize,
}

/// The service. It answers as long as the test runs.
#[derive(Clone)]
pub struct Service {
    /// Where it listens.
    pub port: u16,
    seen: Arc<Seen>,
}

impl Service {
    /// Starts one that answers by `act`, on a port that the system chooses.
    pub fn start(act: impl Fn(&Called) -> Act + Send + Sync + 'static) -> Service {
        Service::on(TcpListener::bind("127.0.0.1:0").expect("a port"), act)
    }

    /// Starts one on this listener.
    pub fn on(
        listener: TcpListener,
        act: impl Fn(&Called) -> Act + Send + Sync + 'static,
    ) -> Service {
        let port = listener.local_addr().expect("an address").port();
        let seen: Arc<Seen> = Arc::default();
        let (act, of_service) = (Arc::new(act), seen.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                of_service.connections.fetch_add(1, Ordering::SeqCst);
                let (act, seen) = (act.clone(), of_service.clone());
                std::thread::spawn(move || serve(&socket, &*act, &seen));
            }
        });
        Service { port, seen }
    }

    /// Returns its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/step", self.port)
    }

    /// Returns all calls so far.
    pub fn calls(&self) -> Vec<Called> {
        guard(&self.seen.calls).clone()
    }

    /// Returns the most calls that were under way at once, since it was asked last.
    pub fn forget_most(&self) -> usize {
        self.seen.most.swap(0, Ordering::SeqCst)
    }

    /// Returns how many clients went before they were answered.
    pub fn gone(&self) -> usize {
        self.seen.gone.load(Ordering::SeqCst)
    }

    /// Returns how many connections it was opened.
    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(socket: &TcpStream, act: &dyn Fn(&Called) -> Act, seen: &Seen) {
    let mut reader = BufReader::new(socket);
    while let Some(mut called) = read(&mut reader) {
        called.at_once = seen.now.fetch_add(1, Ordering::SeqCst) + 1;
        seen.most.fetch_max(called.at_once, Ordering::SeqCst);
        {
            let mut calls = guard(&seen.calls);
            called.number = calls.len() + 1;
            calls.push(called.clone());
        }
        let goes_on = answer(socket, act(&called), seen);
        seen.now.fetch_sub(1, Ordering::SeqCst);
        if !goes_on {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Called> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|bytes| *bytes > 0)?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or_default()];
    reader.read_exact(&mut body).ok()?;
    Some(Called { number: 0, at_once: 0, path, headers, body })
}

/// Whether the connection stays open.
fn answer(mut socket: &TcpStream, act: Act, seen: &Seen) -> bool {
    match act {
        Act::Answer(status, headers, body) => {
            let mut head = format!("HTTP/1.1 {status} Said\r\n");
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            if status != 204 {
                head.push_str(&format!("Content-Length: {}\r\n", body.len()));
            }
            head.push_str("\r\n");
            socket.write_all(&[head.as_bytes(), &body].concat()).is_ok()
        }
        Act::Later(span, act) => {
            std::thread::sleep(span);
            answer(socket, *act, seen)
        }
        Act::Raw(bytes) => {
            let _ = socket.write_all(&bytes);
            false
        }
        Act::Stalls(bytes) => {
            let _ = socket.write_all(&bytes);
            let _ = socket.read(&mut [0]);
            seen.gone.fetch_add(1, Ordering::SeqCst);
            false
        }
        Act::Endless => {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n");
            while socket.write_all(&[b' '; 65_536]).is_ok() {}
            seen.gone.fetch_add(1, Ordering::SeqCst);
            false
        }
        Act::Interim => {
            let hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(1_000);
            while socket.write_all(&hint).is_ok() {}
            seen.gone.fetch_add(1, Ordering::SeqCst);
            false
        }
        Act::Never => {
            // Until the other side closes the connection.
            let _ = socket.read(&mut [0]);
            seen.gone.fetch_add(1, Ordering::SeqCst);
            false
        }
    }
}
