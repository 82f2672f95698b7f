//! A proxy for TCP between a client and a server, at which a test breaks the network: it delays
//! bytes, swallows them, resets connections, or does so at a certain message.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

const BUFFER_BYTES: usize = 64 * 1024;

/// The message of PostgreSQL's protocol with which a client commits.
pub const COMMIT_REQUEST: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

/// The message with which the server says that it has committed.
pub const COMMIT_ANSWER: &[u8] = b"C\0\0\0\x0bCOMMIT\0";

/// The direction in which bytes pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// How bytes pass in a direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Each piece passes at once.
    Passes,
    /// Each piece passes after this time.
    Late(Duration),
    /// Nothing passes, and no end of a connection either: neither side learns anything. What was
    /// sent meanwhile passes once the flow does.
    Stops,
}

/// What happens at a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The message and what follows it on its connection are held until the trap is dropped.
    Hold,
    /// Its connection is reset, and the message does not arrive.
    Reset,
}

/// A proxy that runs until it is dropped.
pub struct TcpProxy {
    port: u16,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    server: Mutex<SocketAddr>,
    rules: watch::Sender<Rules>,
    trap: Mutex<Option<Arc<TrapState>>>,
}

struct Rules {
    to_server: Flow,
    to_client: Flow,
    /// How often all connections were reset.
    resets: u64,
}

impl Rules {
    fn flow(&self, direction: Direction) -> Flow {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

/// Waits for a message. The first connection on which it comes is caught.
pub struct Trap {
    state: Arc<TrapState>,
    shared: Arc<Shared>,
}

struct TrapState {
    direction: Direction,
    message: Vec<u8>,
    action: Action,
    /// How often it may still catch a connection.
    left: AtomicU32,
    caught: AtomicU32,
    released: watch::Sender<bool>,
}

/// How a direction of a connection has ended.
enum End {
    Closed,
    Reset,
}

impl TcpProxy {
    /// Starts a proxy to a server on a port of its own.
    pub fn start(server: SocketAddr) -> TcpProxy {
        let (rules, _) =
            watch::channel(Rules { to_server: Flow::Passes, to_client: Flow::Passes, resets: 0 });
        let shared = Arc::new(Shared { server: Mutex::new(server), rules, trap: Mutex::new(None) });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = shared.clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = accept(listener, serving) => {}
                }
            });
        });
        TcpProxy { port, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// The port that it listens on, on the loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets how bytes pass in a direction.
    pub fn set_flow(&self, direction: Direction, flow: Flow) {
        self.shared.rules.send_modify(|rules| match direction {
            Direction::ToServer => rules.to_server = flow,
            Direction::ToClient => rules.to_client = flow,
        });
    }

    /// Sets how bytes pass in both directions.
    pub fn set_flows(&self, flow: Flow) {
        self.set_flow(Direction::ToServer, flow);
        self.set_flow(Direction::ToClient, flow);
    }

    /// Leads new connections to another server.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    /// Resets all connections. New ones pass.
    pub fn reset_all(&self) {
        self.shared.rules.send_modify(|rules| rules.resets += 1);
    }

    /// Waits for a message, on `times` connections. It replaces an earlier trap.
    pub fn trap(&self, direction: Direction, message: &[u8], action: Action, times: u32) -> Trap {
        let state = Arc::new(TrapState {
            direction,
            message: message.to_owned(),
            action,
            left: AtomicU32::new(times),
            caught: AtomicU32::new(0),
            released: watch::channel(false).0,
        });
        *self.shared.lock_trap() = Some(state.clone());
        Trap { state, shared: self.shared.clone() }
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.stop.take();
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

impl Trap {
    /// How many connections it has caught.
    pub fn caught(&self) -> u32 {
        self.state.caught.load(Ordering::SeqCst)
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        let mut trap = self.shared.lock_trap();
        if trap.as_ref().is_some_and(|trap| Arc::ptr_eq(trap, &self.state)) {
            *trap = None;
        }
        self.state.released.send_replace(true);
    }
}

impl Shared {
    fn server(&self) -> SocketAddr {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_trap(&self) -> std::sync::MutexGuard<'_, Option<Arc<TrapState>>> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the trap that catches these bytes, and where its message begins.
    fn catch(&self, direction: Direction, bytes: &[u8]) -> Option<(Arc<TrapState>, usize)> {
        let trap = self.lock_trap().clone()?;
        if trap.direction != direction {
            return None;
        }
        let mut windows = bytes.windows(trap.message.len());
        let position = windows.position(|window| window == trap.message)?;
        let take = |left: u32| left.checked_sub(1);
        trap.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).ok()?;
        trap.caught.fetch_add(1, Ordering::SeqCst);
        Some((trap, position))
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        tokio::spawn(pass_connection(client, shared.clone()));
    }
}

/// Passes what comes over one connection, until either side closes it or it is reset.
async fn pass_connection(client: TcpStream, shared: Arc<Shared>) {
    let mut rules = shared.rules.subscribe();
    let resets = rules.borrow().resets;
    await_flow(&mut rules, Direction::ToServer).await;
    let Ok(server) = TcpStream::connect(shared.server()).await else {
        let _closed = client.set_zero_linger();
        return;
    };
    for stream in [&client, &server] {
        let _as_before = stream.set_nodelay(true);
    }
    let end = tokio::select! {
        end = pass(&client, &server, Direction::ToServer, &shared) => end,
        end = pass(&server, &client, Direction::ToClient, &shared) => end,
        _ = rules.wait_for(|rules| rules.resets != resets) => End::Reset,
    };
    if let End::Reset = end {
        let _closed = client.set_zero_linger();
        let _closed = server.set_zero_linger();
    }
}

/// Passes bytes in one direction.
async fn pass(from: &TcpStream, to: &TcpStream, direction: Direction, shared: &Shared) -> End {
    let mut rules = shared.rules.subscribe();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = match read(from, &mut buffer).await {
            Ok(0) | Err(_) => {
                await_flow(&mut rules, direction).await;
                return End::Closed;
            }
            Ok(count) => count,
        };
        let mut bytes = &buffer[..count];
        if let Flow::Late(time) = await_flow(&mut rules, direction).await {
            tokio::time::sleep(time).await;
        }
        if let Some((trap, position)) = shared.catch(direction, bytes) {
            if write_all(to, &bytes[..position]).await.is_err() {
                return End::Closed;
            }
            match trap.action {
                Action::Reset => return End::Reset,
                Action::Hold => {
                    let mut released = trap.released.subscribe();
                    let _dropped = released.wait_for(|released| *released).await;
                    bytes = &bytes[position..];
                }
            }
        }
        if write_all(to, bytes).await.is_err() {
            return End::Closed;
        }
    }
}

/// Waits until bytes pass in a direction, and returns how.
async fn await_flow(rules: &mut watch::Receiver<Rules>, direction: Direction) -> Flow {
    let passing = rules.wait_for(|rules| rules.flow(direction) != Flow::Stops).await;
    passing.map_or(Flow::Passes, |rules| rules.flow(direction))
}

async fn read(from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
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
