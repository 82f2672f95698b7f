//! Admits calls before anything of them is read: who calls, by which name, and how much the call
//! may send.

use super::super::guard;
use super::super::places::UnderWay;
use super::super::problem::Problem;
use super::super::token::{self, Caller, Stranger};
use super::arriving::{self, Arriving};
use super::connection::Peer;
use super::counted;
use super::sending::Sending;
use super::status::status;
use super::wire;
use crate::actors::ways::Ways;
use crate::engine::words::quoted;
use futures_util::future::BoxFuture;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::service::Routes;

/// The name of the workers' service.
pub(super) const SERVICE: &str = wire::workers_server::SERVICE_NAME;

/// The method whose calls are streams.
const STREAM: &str = "Work";

/// Headers by which a browser says whose page sends a request (see [`guard`]). Programs leave them
/// out.
const OF_BROWSERS: [&str; 2] = ["origin", "sec-fetch-site"];

/// Forwards admitted calls to the services, and rejects others.
#[derive(Clone)]
pub(super) struct Gate {
    routes: Routes,
    ways: Arc<Ways>,
}

/// Why a call is rejected.
enum Refused {
    Call(Problem),
    Sender(Stranger),
}

impl Gate {
    pub(super) fn new(routes: Routes, ways: Arc<Ways>) -> Gate {
        Gate { routes, ways }
    }

    /// Checks the sender of a call. Calls of health and reflection reveal nothing of the manager's
    /// work, so they need no token.
    fn admitted(&self, request: &http::Request<Body>) -> Result<Option<Caller>, Refused> {
        let settings = &self.ways.common.settings;
        if let Some(header) = OF_BROWSERS.iter().find(|name| request.headers().contains_key(**name))
        {
            return Err(Refused::Call(Problem::forbidden(format!(
                "a page in a browser sent this (header {header}): gRPC is for programs, which \
                 leave the header out"
            ))));
        }
        if method(request).is_none() {
            return Ok(None);
        }
        if let (Some(authority), Some(listen)) = (request.uri().authority(), settings.grpc.listen) {
            guard::authority_is_ours(authority.as_str(), &settings.http, listen)
                .map_err(Refused::Call)?;
        }
        let mut given = request.headers().get_all(http::header::AUTHORIZATION).iter();
        let header = given.next().and_then(|value| value.to_str().ok());
        if given.next().is_some() {
            return Err(Refused::Call(token::twice()));
        }
        let peer = request.extensions().get::<Peer>();
        let caller = token::caller(&self.ways.common, header).map_err(Refused::Sender)?;
        if let Some(peer) = peer {
            peer.admit();
        }
        Ok(Some(caller))
    }

    /// Checks the sender of a call, and registers the call on its connection.
    fn begun(
        &self,
        request: &http::Request<Body>,
    ) -> Result<(Option<Caller>, Option<UnderWay>), Refused> {
        let caller = self.admitted(request)?;
        let peer = request.extensions().get::<Peer>();
        // Calls without a caller are of health or reflection.
        let under_way = peer.map(|peer| peer.begin(caller.is_none())).transpose();
        Ok((caller, under_way.map_err(Refused::Call)?))
    }
}

/// Returns the called method of the workers' service; `None`: the call is for another service.
fn method<B>(request: &http::Request<B>) -> Option<&str> {
    request.uri().path().strip_prefix('/')?.strip_prefix(SERVICE)?.strip_prefix('/')
}

type Answered = Result<http::Response<Body>, Infallible>;

impl Service<http::Request<Body>> for Gate {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Answered>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.routes, context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = method(&request).map(str::to_owned);
        let counted_as = counted::method(method.as_deref());
        let (caller, under_way) = match self.begun(&request) {
            Ok(begun) => begun,
            Err(refused) => {
                let path = request.uri().path().to_owned();
                let peer = request.extensions().get::<Peer>().map(|peer| peer.address);
                let ways = self.ways.clone();
                return Box::pin(async move {
                    let problem = match refused {
                        Refused::Call(problem) => problem,
                        Refused::Sender(stranger) => {
                            stranger.problem(&ways.common, &path, peer).await
                        }
                    };
                    tracing::debug!(path = quoted(&path), %problem, "a call is refused");
                    let answer = status(&problem).into_http();
                    Ok(counted::counted(answer, counted_as, &ways.common, None))
                });
            }
        };
        let is_stream = method.as_deref() == Some(STREAM);
        let (mut parts, body) = request.into_parts();
        let common = self.ways.common.clone();
        let body = match caller {
            // Calls of other services are small.
            None => Arriving::small(body, common),
            Some(caller) => {
                let (body, arrivals) = Arriving::of_worker(body, common, is_stream);
                parts.extensions.insert(caller);
                parts.extensions.insert(arriving::Slot::of(arrivals));
                body
            }
        };
        let request = http::Request::from_parts(parts, Body::new(body));
        let (answered, common) = (self.routes.call(request), self.ways.common.clone());
        Box::pin(async move {
            let mut answer = answered.await?;
            // The permits of messages are released as the messages leave.
            if let Some(sending) = answer.extensions_mut().remove::<Sending>() {
                answer = answer.map(|body| sending.body(body));
            }
            Ok(counted::counted(answer, counted_as, &common, under_way))
        })
    }
}
