//! A web service on this machine, for tests of calls and webhooks. It has a thread for each
//! connection, and answers each call as the test says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A received call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The number of the call, from 1.
    pub number: usize,
    /// How many calls were unanswered when this one arrived, including this one.
    pub concurrency: usize,
    /// The path and the query.
    pub path: String,
    /// The headers, by their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The complete body.
    pub body: Vec<u8>,
}

impl Call {
    /// Returns a header. Empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// How a call is answered.
pub enum Act {
    /// With this status, these headers and this body.
    Answer(u16, &'static [(&'static str, &'static str)], Vec<u8>),
    /// In this way, but only after a delay.
    Later(Duration, Box<Act>),
    /// With these bytes. Then the connection is closed.
    Raw(Vec<u8>),
    /// With these bytes, and then nothing until the client disconnects.
    Stalls(Vec<u8>),
    /// With a body that does not end until the client disconnects.
    Endless,
    /// With interim responses (103) until the client disconnects.
    Interim,
    /// Not at all, until the client disconnects.
    Never,
}

/// Makes an answer of status 200 with a JSON body.
pub fn ok(body: impl Into<Vec<u8>>) -> Act {
    Act::Answer(200, &[("Content-Type", "application/json")], body.into())
}

/// Makes an answer without a body.
pub fn status(status: u16) -> Act {
    Act::Answer(status, &[], Vec::new())
}

/// What the service has received. Its threads share it.
#[derive(Default)]
struct Observations {
    calls: Mutex<Vec<Call>>,
    /// How many calls are unanswered.
    open_calls: AtomicUsize,
    /// The maximum of `open_calls` since it was last taken.
    peak_concurrency: AtomicUsize,
    /// How many clients disconnected before they had a complete answer.
    abandoned_calls: AtomicUsize,
    connections: AtomicUsize,
}

/// A web service. It runs until the process of the test ends.
#[derive(Clone)]
pub struct Service {
    /// The port on which it listens.
    pub port: u16,
    observations: Arc<Observations>,
}

impl Service {
    /// Starts a service that answers by `act`, on a port that the system chooses.
    pub fn start(act: impl Fn(&Call) -> Act + Send + Sync + 'static) -> Service {
        Service::on(TcpListener::bind("127.0.0.1:0").expect("a port"), act)
    }

    /// Starts a service on this listener.
    pub fn on(
        listener: TcpListener,
        act: impl Fn(&Call) -> Act + Send + Sync + 'static,
    ) -> Service {
        let port = listener.local_addr().expect("an address").port();
        let observations: Arc<Observations> = Arc::default();
        let (act, service_observations) = (Arc::new(act), observations.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                service_observations.connections.fetch_add(1, Ordering::SeqCst);
                let (act, observations) = (act.clone(), service_observations.clone());
                std::thread::spawn(move || serve(&socket, &*act, &observations));
            }
        });
        Service { port, observations }
    }

    /// Returns the URL of the service.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/step", self.port)
    }

    /// Returns all calls so far.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.observations.calls).clone()
    }

    /// Returns the maximum number of calls that were unanswered at the same time, and resets it.
    pub fn take_peak_concurrency(&self) -> usize {
        self.observations.peak_concurrency.swap(0, Ordering::SeqCst)
    }

    /// Returns how many clients disconnected before they had a complete answer.
    pub fn abandoned_calls(&self) -> usize {
        self.observations.abandoned_calls.load(Ordering::SeqCst)
    }

    /// Returns how many connections were opened so far.
    pub fn connections(&self) -> usize {
        self.observations.connections.load(Ordering::SeqCst)
    }
}

/// Locks a mutex. A thread that panicked while it held the lock does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers the calls of one connection until it is closed.
fn serve(socket: &TcpStream, act: &dyn Fn(&Call) -> Act, observations: &Observations) {
    let mut reader = BufReader::new(socket);
    while let Some(mut call) = read_call(&mut reader) {
        call.concurrency = observations.open_calls.fetch_add(1, Ordering::SeqCst) + 1;
        observations.peak_concurrency.fetch_max(call.concurrency, Ordering::SeqCst);
        {
            let mut calls = lock(&observations.calls);
            call.number = calls.len() + 1;
            calls.push(call.clone());
        }
        let stays_open = send_answer(socket, act(&call), observations);
        observations.open_calls.fetch_sub(1, Ordering::SeqCst);
        if !stays_open {
            return;
        }
    }
}

/// Reads the next call. The caller sets its number and concurrency. `None` if the connection is
/// closed, or the request is not valid.
fn read_call(reader: &mut BufReader<&TcpStream>) -> Option<Call> {
    let mut request_line = String::new();
    reader.read_line(&mut request_line).ok().filter(|bytes| *bytes > 0)?;
    let path = request_line.split(' ').nth(1)?.to_owned();
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
    Some(Call { number: 0, concurrency: 0, path, headers, body })
}

/// Answers a call. Returns whether the connection stays open.
fn send_answer(mut socket: &TcpStream, act: Act, observations: &Observations) -> bool {
    // Writes fail once the client has disconnected.
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
            return socket.write_all(&[head.as_bytes(), &body].concat()).is_ok();
        }
        Act::Later(delay, act) => {
            std::thread::sleep(delay);
            return send_answer(socket, *act, observations);
        }
        Act::Raw(bytes) => {
            let _ = socket.write_all(&bytes);
            return false;
        }
        Act::Stalls(bytes) => {
            let _ = socket.write_all(&bytes);
            wait_for_disconnect(socket);
        }
        Act::Endless => {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n");
            while socket.write_all(&[b' '; 65_536]).is_ok() {}
        }
        Act::Interim => {
            let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(1_000);
            while socket.write_all(&hints).is_ok() {}
        }
        Act::Never => wait_for_disconnect(socket),
    }
    observations.abandoned_calls.fetch_add(1, Ordering::SeqCst);
    false
}

/// Waits until the client closes the connection. It sends nothing before it has an answer.
fn wait_for_disconnect(mut socket: &TcpStream) {
    let _ = socket.read(&mut [0]);
}
