//! The faces of the stub manager for workers that take their messages from the manager.

use super::calls::CallSender;
#[cfg(feature = "grpc")]
use super::grpc;
use super::http;
use actix_web::dev::ServerHandle;
use std::io;
use std::net::SocketAddr;

/// The protocol over which workers call the stub manager.
#[derive(Clone, Copy)]
pub(super) enum Face {
    Http,
    #[cfg(feature = "grpc")]
    Grpc,
}

/// A running server of a face.
pub(super) enum StubServer {
    Http(ServerHandle),
    #[cfg(feature = "grpc")]
    Grpc(grpc::Server),
}

impl Face {
    /// Returns the scheme of its addresses.
    pub(super) const fn scheme(self) -> &'static str {
        match self {
            Face::Http => "http",
            #[cfg(feature = "grpc")]
            Face::Grpc => "grpc",
        }
    }

    /// Starts a server in the background, and returns its address. With port 0 the system chooses a
    /// port. What workers say goes to `calls`.
    pub(super) fn serve(
        self,
        listen: SocketAddr,
        calls: CallSender,
    ) -> io::Result<(StubServer, SocketAddr)> {
        match self {
            Face::Http => http::serve(listen, calls)
                .map(|(server, address)| (StubServer::Http(server), address)),
            #[cfg(feature = "grpc")]
            Face::Grpc => grpc::serve(listen, calls)
                .map(|(server, address)| (StubServer::Grpc(server), address)),
        }
    }
}

impl StubServer {
    /// Stops the server. Its connections are closed without an answer to what is open.
    pub(super) async fn stop(self) {
        match self {
            StubServer::Http(server) => server.stop(false).await,
            #[cfg(feature = "grpc")]
            StubServer::Grpc(server) => server.stop().await,
        }
    }
}
