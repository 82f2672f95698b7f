//! The proxy between a worker and the broker. The conversation handles each frame before it is
//! forwarded.

use super::conversation::{Conversation, FrameAction, Interventions, WatchedQueues};
use super::frames::{Frame, FrameError, FrameParser};
use super::message_log::MessageLog;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// The maximum number of open connections. More are closed at once.
const CONNECTIONS_MAX: usize = 64;

/// The size of a read buffer, in bytes.
const READ_BYTES: usize = 64 << 10;

/// How long the frames that were forwarded before a cut may take to arrive at the broker.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(250);

/// The delay before `accept` is retried after an error, such as too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The state that the connections of a proxy share.
struct ProxyState {
    /// The host and port of the broker.
    broker: (String, u16),
    queues: WatchedQueues,
    interventions: Rc<Interventions>,
    log: MessageLog,
    open_connections: Cell<usize>,
    is_paused: watch::Sender<bool>,
    /// Notified when all connections must be closed.
    hang_up: Notify,
}

/// A proxy on the loopback interface. It stops on drop.
pub(super) struct Proxy {
    port: u16,
    state: Rc<ProxyState>,
    task: actix_rt::task::JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port.
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
        let task = actix_rt::spawn(accept_connections(listener, state.clone()));
        Ok(Proxy { port, state, task })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn interventions(&self) -> &Interventions {
        &self.state.interventions
    }

    /// Closes all connections. New ones are accepted, but wait until `resume`: a client that is
    /// refused may back off for a long time.
    pub(super) fn pause(&self) {
        self.state.is_paused.send_replace(true);
        self.state.hang_up.notify_waiters();
    }

    /// Lets the waiting connections continue.
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

/// Decrements the number of open connections on drop.
struct ConnectionGuard(Rc<ProxyState>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.open_connections.set(self.0.open_connections.get() - 1);
    }
}

/// Forwards frames between a worker and the broker, in both directions.
async fn proxy_connection(worker: TcpStream, state: Rc<ProxyState>) {
    state.open_connections.set(state.open_connections.get() + 1);
    let _guard = ConnectionGuard(state.clone());
    let mut pause_state = state.is_paused.subscribe();
    tokio::select! {
        _ = pause_state.wait_for(|is_paused| !is_paused) => {}
        () = state.hang_up.notified() => return,
    }
    let hang_up = state.hang_up.notified();
    let (host, port) = (state.broker.0.as_str(), state.broker.1);
    let Ok(broker) = TcpStream::connect((host, port)).await else { return };
    // Each side waits for small frames, which Nagle's algorithm would delay.
    let _ = (worker.set_nodelay(true), broker.set_nodelay(true));
    let conversation =
        Conversation::new(state.queues.clone(), state.interventions.clone(), state.log.clone());
    let shared_conversation = RefCell::new(conversation);
    let is_cut = tokio::select! {
        result = forward_frames(&worker, &broker, |frame| {
            shared_conversation.borrow_mut().handle_worker_frame(frame)
        }) =>
            was_cut(result, &state),
        result = forward_frames(&broker, &worker, |frame| {
            shared_conversation.borrow_mut().handle_broker_frame(frame);
            FrameAction::Forward
        }) => was_cut(result, &state),
        () = hang_up => false,
    };
    drop(worker);
    if is_cut {
        // To close a socket with unread bytes resets the connection, which discards the bytes that
        // were sent.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, drain(&broker)).await;
    }
}

/// Returns whether the connection was cut. Logs bytes that are no frame.
fn was_cut(result: Result<bool, FrameError>, state: &ProxyState) -> bool {
    match result {
        Ok(is_cut) => is_cut,
        Err(error) => {
            state.log.add_unexpected(&error.to_string());
            false
        }
    }
}

/// Forwards frames until the connection is closed or cut. Returns whether it was cut.
async fn forward_frames(
    source: &TcpStream,
    target: &TcpStream,
    mut handle_frame: impl FnMut(&Frame) -> FrameAction,
) -> Result<bool, FrameError> {
    let (mut frames, mut buffer) = (FrameParser::default(), vec![0; READ_BYTES]);
    let mut output = Vec::new();
    loop {
        let count = match read(source, &mut buffer).await {
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
        if write(target, &output).await.is_err() || is_cut {
            return Ok(is_cut);
        }
        output.clear();
    }
}

async fn read(source: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        source.readable().await?;
        match source.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

async fn write(target: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        target.writable().await?;
        match target.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads and discards bytes until the connection is closed.
async fn drain(source: &TcpStream) {
    let mut buffer = vec![0; READ_BYTES];
    while matches!(read(source, &mut buffer).await, Ok(1..)) {}
}
