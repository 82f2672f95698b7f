//! The proxy between a worker and the broker: it forwards each frame once the conversation has
//! handled it.

use super::frames::{Broken, Frame, Frames};
use super::heard::Heard;
use super::talk::{Orders, Talk, Verdict, Watched};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};

/// How many connections are open at once. More are refused.
const CONNECTIONS_MAX: usize = 64;

/// How many bytes are read at once.
const READ_BYTES: usize = 64 << 10;

/// How long what was forwarded before a cut may take to arrive at the broker.
const ARRIVES_WITHIN: Duration = Duration::from_millis(250);

/// The delay after a system error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The state that the connections of a proxy share.
struct Shared {
    broker: (String, u16),
    watched: Watched,
    orders: Rc<Orders>,
    heard: mpsc::UnboundedSender<Heard>,
    open: Cell<usize>,
    is_paused: watch::Sender<bool>,
    hang_up: Notify,
}

/// Listens on loopback until it is dropped.
pub(super) struct Relay {
    port: u16,
    shared: Rc<Shared>,
    listening: actix_rt::task::JoinHandle<()>,
}

impl Relay {
    pub(super) async fn open(
        broker: (String, u16),
        watched: Watched,
        heard: mpsc::UnboundedSender<Heard>,
    ) -> io::Result<Relay> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Rc::new(Shared {
            broker,
            watched,
            orders: Rc::new(Orders::default()),
            heard,
            open: Cell::new(0),
            is_paused: watch::Sender::new(false),
            hang_up: Notify::new(),
        });
        let listening = actix_rt::spawn(listen(listener, shared.clone()));
        Ok(Relay { port, shared, listening })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn orders(&self) -> &Orders {
        &self.shared.orders
    }

    /// Cuts all connections. New ones wait, for a client that is refused may not return for a long
    /// time.
    pub(super) fn pause(&self) {
        self.shared.is_paused.send_replace(true);
        self.shared.hang_up.notify_waiters();
    }

    pub(super) fn resume(&self) {
        self.shared.is_paused.send_replace(false);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.listening.abort();
        self.shared.hang_up.notify_waiters();
    }
}

async fn listen(listener: TcpListener, shared: Rc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((worker, _)) if shared.open.get() < CONNECTIONS_MAX => {
                actix_rt::spawn(relay(worker, shared.clone()));
            }
            // Dropping the socket closes the connection.
            Ok(_) => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Counts a connection until it is dropped.
struct Counted(Rc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
    }
}

async fn relay(worker: TcpStream, shared: Rc<Shared>) {
    shared.open.set(shared.open.get() + 1);
    let _counted = Counted(shared.clone());
    let mut paused = shared.is_paused.subscribe();
    tokio::select! {
        _ = paused.wait_for(|is_paused| !is_paused) => {}
        () = shared.hang_up.notified() => return,
    }
    let hang_up = shared.hang_up.notified();
    let (host, port) = (shared.broker.0.as_str(), shared.broker.1);
    let Ok(broker) = TcpStream::connect((host, port)).await else { return };
    // Small frames are awaited on both sides. Without this option that is slower.
    let _ = (worker.set_nodelay(true), broker.set_nodelay(true));
    let talk = Talk::new(shared.watched.clone(), shared.orders.clone(), shared.heard.clone());
    let talk = RefCell::new(talk);
    let is_cut = tokio::select! {
        cut = pump(&worker, &broker, |frame| talk.borrow_mut().of_worker(frame)) =>
            told(cut, &shared),
        cut = pump(&broker, &worker, |frame| {
            talk.borrow_mut().of_broker(frame);
            Verdict::Pass
        }) => told(cut, &shared),
        () = hang_up => false,
    };
    drop(worker);
    if is_cut {
        // Closing a socket with unread bytes would discard what it has sent.
        let _ = tokio::time::timeout(ARRIVES_WITHIN, drain(&broker)).await;
    }
}

/// Returns whether the connection was cut. Reports bytes that are no frame.
fn told(end: Result<bool, Broken>, shared: &Shared) -> bool {
    match end {
        Ok(is_cut) => is_cut,
        Err(broken) => {
            // The receiver ends with the stub manager.
            let _ = shared.heard.send(Heard::Strange(broken.to_string()));
            false
        }
    }
}

/// Forwards frames until the connection ends or is cut, and returns whether it was cut.
async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    mut hear: impl FnMut(&Frame) -> Verdict,
) -> Result<bool, Broken> {
    let (mut frames, mut buffer) = (Frames::default(), vec![0; READ_BYTES]);
    let mut passed = Vec::new();
    loop {
        let count = match read(from, &mut buffer).await {
            Ok(0) | Err(_) => return Ok(false),
            Ok(count) => count,
        };
        frames.feed(&buffer[..count]);
        let mut is_cut = false;
        while let Some(frame) = frames.next()? {
            match hear(&frame) {
                Verdict::Pass => passed.extend_from_slice(&frame.raw),
                Verdict::Change(raw) => passed.extend(raw),
                Verdict::Cut => {
                    is_cut = true;
                    break;
                }
            }
        }
        if write(to, &passed).await.is_err() || is_cut {
            return Ok(is_cut);
        }
        passed.clear();
    }
}

async fn read(from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

async fn write(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn drain(from: &TcpStream) {
    let mut buffer = vec![0; READ_BYTES];
    while matches!(read(from, &mut buffer).await, Ok(1..)) {}
}
