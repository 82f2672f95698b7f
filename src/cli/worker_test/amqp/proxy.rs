//! The proxy between a worker and the broker. It parses the frames of both, and lets the
//! conversation of the connection handle each frame before it is forwarded.

use super::conversation::{Conversation, FrameAction, Interventions, WatchedQueues};
use super::frames::{Frame, FrameError, FrameParser};
use super::message_log::MessageLog;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// The maximum number of open connections. Further ones are closed immediately.
const CONNECTIONS_MAX: usize = 64;

/// The size of a read buffer, in bytes.
const READ_BYTES: usize = 64 << 10;

/// How long the frames that were forwarded before a cut may take to arrive at the broker.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(250);

/// The delay before `accept` is retried after an error, such as too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A proxy on the loopback interface. It stops on drop.
pub(super) struct Proxy {
    port: u16,
    state: Rc<ProxyState>,
    /// Accepts connections.
    task: actix_rt::task::JoinHandle<()>,
}

/// The state that the connections of a proxy share.
struct ProxyState {
    /// The host and port of the broker.
    broker_address: (String, u16),
    queues: WatchedQueues,
    interventions: Rc<Interventions>,
    log: MessageLog,
    /// The number of open connections.
    connection_count: Cell<usize>,
    is_paused: watch::Sender<bool>,
    /// Notified when all connections must be closed.
    hang_up: Notify,
}

impl Proxy {
    /// Listens on a free port.
    pub(super) async fn open(
        broker_address: (String, u16),
        queues: WatchedQueues,
        log: MessageLog,
    ) -> io::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let state = Rc::new(ProxyState {
            broker_address,
            queues,
            interventions: Rc::new(Interventions::default()),
            log,
            connection_count: Cell::new(0),
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

    /// Closes all connections. New ones are accepted, but wait until [`Proxy::resume`], because a
    /// client that is refused may back off for a long time.
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

/// Accepts connections until the task is aborted.
async fn accept_connections(listener: TcpListener, state: Rc<ProxyState>) {
    loop {
        match listener.accept().await {
            Ok((worker, _)) if state.connection_count.get() < CONNECTIONS_MAX => {
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
        self.0.connection_count.set(self.0.connection_count.get() - 1);
    }
}

/// Forwards frames between a worker and the broker, in both directions.
async fn proxy_connection(worker: TcpStream, state: Rc<ProxyState>) {
    state.connection_count.set(state.connection_count.get() + 1);
    let _guard = ConnectionGuard(state.clone());
    let mut pause_changes = state.is_paused.subscribe();
    tokio::select! {
        _ = pause_changes.wait_for(|is_paused| !is_paused) => {}
        () = state.hang_up.notified() => return,
    }
    let hang_up = state.hang_up.notified();
    let (host, port) = (state.broker_address.0.as_str(), state.broker_address.1);
    let Ok(broker) = TcpStream::connect((host, port)).await else { return };
    // Each side waits for small frames, which Nagle's algorithm would delay. An error only makes
    // the test slower.
    let _ = (worker.set_nodelay(true), broker.set_nodelay(true));
    let conversation =
        Conversation::new(state.queues.clone(), state.interventions.clone(), state.log.clone());
    let shared_conversation = RefCell::new(conversation);
    let is_cut = tokio::select! {
        result = forward_frames(&worker, &broker, |frame| {
            shared_conversation.borrow_mut().handle_worker_frame(frame)
        }) =>
            is_cut_or_log_error(result, &state),
        result = forward_frames(&broker, &worker, |frame| {
            shared_conversation.borrow_mut().handle_broker_frame(frame);
            FrameAction::Forward
        }) => is_cut_or_log_error(result, &state),
        () = hang_up => false,
    };
    drop(worker);
    if is_cut {
        // Closing a socket with unread bytes resets the connection, and the broker may lose what
        // was forwarded before the cut. So what the broker still sends is read first.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, drain(&broker)).await;
    }
}

/// Returns whether the connection was cut. Logs an error, after which the connection is closed.
fn is_cut_or_log_error(result: Result<bool, FrameError>, state: &ProxyState) -> bool {
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
    let (mut parser, mut buffer) = (FrameParser::default(), vec![0; READ_BYTES]);
    let mut output = Vec::new();
    loop {
        let count = match read(source, &mut buffer).await {
            Ok(0) | Err(_) => return Ok(false),
            Ok(count) => count,
        };
        parser.feed(&buffer[..count]);
        let mut is_cut = false;
        while let Some(frame) = parser.next()? {
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

/// Reads some bytes. Returns 0 once the source has closed the connection.
async fn read(source: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        source.readable().await?;
        match source.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

/// Writes all bytes.
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
