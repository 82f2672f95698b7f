//! Admits calls before their bodies are read. Checks the token, the host name (against DNS
//! rebinding) and that no browser has sent the call, and limits the size of the body.

use super::call_metrics;
use super::connection::Peer;
use super::incoming::{self, IncomingBody};
use super::outbound::OutboundTracker;
use super::status::to_status;
use super::wire;
use daemon::api::connection_slots::CallGuard;
use daemon::api::guard;
use daemon::api::problem::Problem;
use daemon::api::state::ApiState;
use daemon::api::token::{self, Authenticated, AuthenticationFailure};
use engine::text::quote;
use futures_util::future::BoxFuture;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::service::Routes;

/// The full name of the gRPC service of workers.
pub(super) const SERVICE_NAME: &str = wire::workers_server::SERVICE_NAME;

/// The method whose calls are streams.
const STREAM_METHOD: &str = "Work";

/// Headers by which browsers name the origin of a request, and which other programs leave out (see
/// [`guard`]).
const BROWSER_HEADERS: [&str; 2] = ["origin", "sec-fetch-site"];

/// Forwards admitted calls to the services, and rejects others.
#[derive(Clone)]
pub(super) struct Admission {
    routes: Routes,
    api: Arc<ApiState>,
}

/// Why a call is rejected.
enum Rejection {
    /// The call is not allowed, or exceeds a limit.
    Call(Problem),
    /// The token is missing or invalid.
    Sender(AuthenticationFailure),
}

impl Admission {
    pub(super) fn new(routes: Routes, api: Arc<ApiState>) -> Admission {
        Admission { routes, api }
    }

    /// Authenticates the sender of a call. Returns `None` for calls of the health and reflection
    /// services, which need no token, because they reveal nothing of the manager's work.
    fn authenticate(
        &self,
        request: &http::Request<Body>,
    ) -> Result<Option<Authenticated>, Rejection> {
        let settings = &self.api.settings;
        if let Some(header) =
            BROWSER_HEADERS.iter().find(|name| request.headers().contains_key(**name))
        {
            return Err(Rejection::Call(Problem::forbidden(format!(
                "a page in a browser sent this (header {header}): gRPC is for programs, which \
                 leave the header out"
            ))));
        }
        if method(request).is_none() {
            return Ok(None);
        }
        if let (Some(authority), Some(listen)) = (request.uri().authority(), settings.grpc.listen) {
            guard::check_authority(authority.as_str(), &settings.http, listen)
                .map_err(Rejection::Call)?;
        }
        let mut authorizations = request.headers().get_all(http::header::AUTHORIZATION).iter();
        let header = authorizations.next().and_then(|value| value.to_str().ok());
        if authorizations.next().is_some() {
            return Err(Rejection::Call(token::duplicate_authorization()));
        }
        let peer = request.extensions().get::<Peer>();
        let principal = token::authenticate(&self.api, header).map_err(Rejection::Sender)?;
        if let Some(peer) = peer {
            peer.mark_admitted();
        }
        Ok(Some(principal))
    }

    /// Authenticates the sender of a call, and registers the call on its connection. Returns the
    /// sender, as [`authenticate`](Self::authenticate) does, and the guard that registers the call;
    /// `None`: the connection is unknown.
    fn admit(
        &self,
        request: &http::Request<Body>,
    ) -> Result<(Option<Authenticated>, Option<CallGuard>), Rejection> {
        let principal = self.authenticate(request)?;
        let peer = request.extensions().get::<Peer>();
        let call_guard = peer.map(|peer| peer.begin_call(principal.is_none())).transpose();
        Ok((principal, call_guard.map_err(Rejection::Call)?))
    }
}

/// Returns the called method of the workers' service; `None`: the call is for another service.
fn method<B>(request: &http::Request<B>) -> Option<&str> {
    request.uri().path().strip_prefix('/')?.strip_prefix(SERVICE_NAME)?.strip_prefix('/')
}

type HttpResult = Result<http::Response<Body>, Infallible>;

impl Service<http::Request<Body>> for Admission {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, HttpResult>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.routes, context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = method(&request).map(str::to_owned);
        let label = call_metrics::metric_label(method.as_deref());
        let (principal, call_guard) = match self.admit(&request) {
            Ok(admitted) => admitted,
            Err(rejection) => {
                let path = request.uri().path().to_owned();
                let peer = request.extensions().get::<Peer>().map(|peer| peer.address);
                let api = self.api.clone();
                return Box::pin(async move {
                    let problem = match rejection {
                        Rejection::Call(problem) => problem,
                        Rejection::Sender(failure) => failure.into_problem(&api, &path, peer).await,
                    };
                    tracing::debug!(path = quote(&path), %problem, "a call is refused");
                    let response = to_status(&problem).into_http();
                    Ok(call_metrics::count_call(response, label, &api, None))
                });
            }
        };
        let is_stream = method.as_deref() == Some(STREAM_METHOD);
        let (mut parts, body) = request.into_parts();
        let api = self.api.clone();
        let body = match principal {
            // Calls of other services are small.
            None => IncomingBody::for_small_call(body, api),
            Some(principal) => {
                let (body, signals) = IncomingBody::for_worker(body, api, is_stream);
                parts.extensions.insert(principal);
                parts.extensions.insert(incoming::SignalsSlot::new(signals));
                body
            }
        };
        let request = http::Request::from_parts(parts, Body::new(body));
        let (response_future, api) = (self.routes.call(request), self.api.clone());
        Box::pin(async move {
            let mut response = response_future.await?;
            // The permits of messages are released as the messages are sent.
            if let Some(tracker) = response.extensions_mut().remove::<OutboundTracker>() {
                response = response.map(|body| tracker.wrap_body(body));
            }
            Ok(call_metrics::count_call(response, label, &api, call_guard))
        })
    }
}
