//! The proxy between a worker and the broker: it forwards each frame once the conversation has
//! handled it.

use super::conversation::{Conversation, FrameAction, Interventions, WatchedQueues};
use super::frames::{Frame, FrameError, FrameParser};
use super::message_log::MessageLog;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// How many connections are open at once. More are refused.
const CONNECTIONS_MAX: usize = 64;

/// How many bytes are read at once.
const READ_BYTES: usize = 64 << 10;

/// How long what was forwarded before a cut may take to arrive at the broker.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(250);

/// The delay after a system error, such as too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The state that the connections of a proxy share.
struct ProxyState {
    broker: (String, u16),
    queues: WatchedQueues,
    interventions: Rc<Interventions>,
    log: MessageLog,
    open_connections: Cell<usize>,
    is_paused: watch::Sender<bool>,
    hang_up: Notify,
}

/// Listens on loopback until it is dropped.
pub(super) struct Proxy {
    port: u16,
    state: Rc<ProxyState>,
    task: actix_rt::task::JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn open(
        broker: (String, u16),
        queues: WatchedQueues,
        log: MessageLog,
    ) -> io::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let state = Rc::new(ProxyState {
            broker,
            queues,
            interventions: Rc::new(Interventions::default()),
            log,
            open_connections: Cell::new(0),
            is_paused: watch::Sender::new(false),
            hang_up: Notify::new(),
        });
        let listening = actix_rt::spawn(accept_connections(listener, state.clone()));
        Ok(Proxy { port, state, task: listening })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn interventions(&self) -> &Interventions {
        &self.state.interventions
    }

    /// Cuts all connections. New ones wait, for a client that is refused may not return for a long
    /// time.
    pub(super) fn pause(&self) {
        self.state.is_paused.send_replace(true);
        self.state.hang_up.notify_waiters();
    }

    pub(super) fn resume(&self) {
        self.state.is_paused.send_replace(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.state.hang_up.notify_waiters();
    }
}

async fn accept_connections(listener: TcpListener, state: Rc<ProxyState>) {
    loop {
        match listener.accept().await {
            Ok((worker, _)) if state.open_connections.get() < CONNECTIONS_MAX => {
                actix_rt::spawn(proxy_connection(worker, state.clone()));
            }
            // Dropping the socket closes the connection.
            Ok(_) => {}
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
}

/// Counts a connection until it is dropped.
struct ConnectionGuard(Rc<ProxyState>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.open_connections.set(self.0.open_connections.get() - 1);
    }
}

async fn proxy_connection(worker: TcpStream, state: Rc<ProxyState>) {
    state.open_connections.set(state.open_connections.get() + 1);
    let _counted = ConnectionGuard(state.clone());
    let mut paused = state.is_paused.subscribe();
    tokio::select! {
        _ = paused.wait_for(|is_paused| !is_paused) => {}
        () = state.hang_up.notified() => return,
    }
    let hang_up = state.hang_up.notified();
    let (host, port) = (state.broker.0.as_str(), state.broker.1);
    let Ok(broker) = TcpStream::connect((host, port)).await else { return };
    // Small frames are awaited on both sides. Without this option that is slower.
    let _ = (worker.set_nodelay(true), broker.set_nodelay(true));
    let conversation =
        Conversation::new(state.queues.clone(), state.interventions.clone(), state.log.clone());
    let shared_conversation = RefCell::new(conversation);
    let is_cut = tokio::select! {
        cut = forward_frames(&worker, &broker, |frame| {
            shared_conversation.borrow_mut().handle_worker_frame(frame)
        }) =>
            was_cut(cut, &state),
        cut = forward_frames(&broker, &worker, |frame| {
            shared_conversation.borrow_mut().handle_broker_frame(frame);
            FrameAction::Forward
        }) => was_cut(cut, &state),
        () = hang_up => false,
    };
    drop(worker);
    if is_cut {
        // Closing a socket with unread bytes would discard what it has sent.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, drain(&broker)).await;
    }
}

/// Returns whether the connection was cut. Reports bytes that are no frame.
fn was_cut(end: Result<bool, FrameError>, state: &ProxyState) -> bool {
    match end {
        Ok(is_cut) => is_cut,
        Err(broken) => {
            state.log.add_unexpected(&broken.to_string());
            false
        }
    }
}

/// Forwards frames until the connection ends or is cut, and returns whether it was cut.
async fn forward_frames(
    from: &TcpStream,
    to: &TcpStream,
    mut handle_frame: impl FnMut(&Frame) -> FrameAction,
) -> Result<bool, FrameError> {
    let (mut frames, mut buffer) = (FrameParser::default(), vec![0; READ_BYTES]);
    let mut output = Vec::new();
    loop {
        let count = match read(from, &mut buffer).await {
            Ok(0) | Err(_) => return Ok(false),
            Ok(count) => count,
        };
        frames.feed(&buffer[..count]);
        let mut is_cut = false;
        while let Some(frame) = frames.next()? {
            match handle_frame(&frame) {
                FrameAction::Forward => output.extend_from_slice(&frame.raw),
                FrameAction::Replace(raw) => output.extend(raw),
                FrameAction::Cut => {
                    is_cut = true;
                    break;
                }
            }
        }
        if write(to, &output).await.is_err() || is_cut {
            return Ok(is_cut);
        }
        output.clear();
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
