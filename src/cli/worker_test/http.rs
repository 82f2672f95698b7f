//! The face of the stub manager over HTTP: the queue API for one queue.

mod replies;
mod response;
mod server;

use super::calls::CallSender;
use actix_web::dev::ServerHandle;
use std::io;
use std::net::SocketAddr;

/// Starts a server in the background, and returns its address. With port 0 the system chooses a
/// port.
pub(super) fn serve(
    listen: SocketAddr,
    calls: CallSender,
) -> io::Result<(ServerHandle, SocketAddr)> {
    server::serve(listen, calls)
}
