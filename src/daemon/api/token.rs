//! Authenticates and authorises requests by their tokens, and writes the audit log, which says who
//! has changed what.

use super::connection_slots::ConnectionSlot;
use super::leases::Receipt;
use super::problem::Problem;
use super::route::Access;
use crate::access::{LoginPenalty, Principal, RequiredScope};
use crate::api::state::ApiState;
use crate::settings::Scope;
use actix_web::body::MessageBody;
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::http::{ConnectionType, StatusCode, header};
use actix_web::middleware::Next;
use actix_web::{Error, FromRequest, HttpMessage, HttpRequest, ResponseError, web};
use bus::BusKey;
use engine::Sender;
use engine::text::{enumerate_quoted, escape, quote, shorten};
use percent_encoding::percent_decode_str;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;

/// The detail of the 401 for a request without a token.
const NO_TOKEN: &str = "this manager needs a token: send it as \"Authorization: Bearer <token>\"";

/// The log target of the audit log.
const AUDIT_TARGET: &str = "workflow_manager::audit";

/// Middleware that authorises requests. It refuses a request whose token does not allow it, marks
/// the connection of an authorised request as admitted, and writes the audit log.
pub(super) async fn authorise(
    access: Access,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let Some(api) = request.app_data::<web::Data<ApiState>>().cloned() else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let mut headers = request.headers().get_all(header::AUTHORIZATION);
    let (first_header, second_header) = (headers.next(), headers.next());
    if second_header.is_some() {
        let response = duplicate_authorization().error_response();
        return Ok(request.into_response(response).map_into_right_body());
    }
    let token = first_header.and_then(|value| value.to_str().ok()).and_then(parse_bearer);
    let principal = api.access.tokens().find_principal(token);
    let required = required_scope(access, &request);
    let refusal = match (&required, &principal) {
        (None, _) => None,
        (Some(required), Some(principal)) => (!principal.is_allowed(required))
            .then(|| insufficient_scope(principal, required).error_response()),
        (Some(_), None) => {
            let failure = AuthenticationFailure { has_token: token.is_some() };
            let problem = failure.into_problem(&api, request.path(), request.peer_addr()).await;
            let mut response = problem.error_response();
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                response.head_mut().set_connection_type(ConnectionType::Close);
            }
            Some(response)
        }
    };
    let audit_entry = AuditEntry::from_request(&request, required.as_ref(), principal.as_ref());
    let slot = required.as_ref().and_then(|_| request.conn_data::<Arc<ConnectionSlot>>().cloned());
    let is_authorised = refusal.is_none();
    let response = match refusal {
        None => {
            if let Some(principal) = principal {
                request.extensions_mut().insert(principal);
            }
            next.call(request).await?.map_into_left_body()
        }
        Some(refusal) => request.into_response(refusal).map_into_right_body(),
    };
    // Where no token is required, a request that is answered with a client error does not count as
    // admitted.
    let is_admitted = is_authorised
        && (api.access.tokens().is_token_required() || !response.status().is_client_error());
    if let Some(slot) = slot.filter(|_| is_admitted) {
        slot.mark_admitted();
    }
    if let Some(mut entry) = audit_entry {
        entry.status = Some(response.status().as_u16());
    }
    Ok(response)
}

/// Returns the scope that a request requires. Returns `None` if anybody may send it.
fn required_scope(access: Access, request: &ServiceRequest) -> Option<RequiredScope> {
    Some(match access {
        Access::Health | Access::Page => return None,
        Access::AnyToken => RequiredScope::Token,
        Access::Scope(scope) => RequiredScope::Scope(scope),
        Access::Queue => {
            let queue = request.match_info().get("queue");
            match queue.and_then(|queue| percent_decode_str(queue).decode_utf8().ok()) {
                // The handler checks the virtual host, which is in the query, and the message.
                Some(queue) => RequiredScope::Queue { queue: queue.into_owned(), vhost: None },
                // A name that is not UTF-8 belongs to no queue.
                None => RequiredScope::Scope(Scope::Admin),
            }
        }
    })
}

/// The principal of an authenticated request.
#[derive(Clone, Debug)]
pub struct Authenticated(Principal);

impl Authenticated {
    /// Checks that the principal may lease messages of a queue in a virtual host.
    ///
    /// # Errors
    ///
    /// Returns a 403 if the principal may not.
    pub fn check_queue_access(&self, queue: &str, vhost: &str) -> Result<(), Problem> {
        let required =
            RequiredScope::Queue { queue: queue.to_owned(), vhost: Some(vhost.to_owned()) };
        if self.0.is_allowed(&required) {
            Ok(())
        } else {
            Err(insufficient_scope(&self.0, &required))
        }
    }

    /// Waits until the token is revoked, or what it allows changes.
    pub async fn wait_revoked(&self, api: &Arc<ApiState>) {
        api.access.wait_revoked(&self.0).await;
    }

    /// Returns the sender of the principal's replies, which is the name of the token.
    pub fn sender(&self) -> Sender {
        self.0.name.clone().map_or(Sender::Unknown, Sender::User)
    }

    /// Checks that the principal may settle the message that a receipt names. The principal must
    /// have access to the queue, and the message must belong to that queue.
    ///
    /// # Errors
    ///
    /// Returns a 403 if the principal may not, or a 503 if this cannot be determined now.
    pub async fn check_settle_access(
        &self,
        api: &Arc<ApiState>,
        bus: &BusKey,
        receipt: &Receipt,
    ) -> Result<(), Problem> {
        self.check_queue_access(&receipt.queue, &receipt.vhost)?;
        if self.0.scope == Some(Scope::Admin) || receipt.is_in_its_queue(api, bus).await? {
            return Ok(());
        }
        Err(Problem::forbidden(format!(
            "the token {} is for messages of its queues alone, and this message is not of the \
             queue {}",
            quote(self.0.name.as_deref().unwrap_or_default()),
            quote(&receipt.queue)
        )))
    }
}

impl FromRequest for Authenticated {
    type Error = Problem;
    type Future = Ready<Result<Authenticated, Problem>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let principal = request.extensions().get::<Principal>().cloned();
        // Only a request that needs no token has no principal.
        ready(
            principal.map(Authenticated).ok_or_else(|| Problem::unauthorized(NO_TOKEN.to_owned())),
        )
    }
}

/// Returns the 400 for a request with two tokens. Such a request is ambiguous: a proxy may have
/// checked the other token.
pub fn duplicate_authorization() -> Problem {
    Problem::malformed("the header Authorization is there twice, expected it once".to_owned())
}

/// Authenticates a gRPC request by its `authorization` metadata.
///
/// # Errors
///
/// Returns an error if the token is missing or not valid.
pub fn authenticate(
    api: &Arc<ApiState>,
    header: Option<&str>,
) -> Result<Authenticated, AuthenticationFailure> {
    let token = header.and_then(parse_bearer);
    let principal = api.access.tokens().find_principal(token);
    principal.map(Authenticated).ok_or(AuthenticationFailure { has_token: token.is_some() })
}

/// A request without a valid token.
#[derive(Clone, Copy, Debug)]
pub struct AuthenticationFailure {
    has_token: bool,
}

impl AuthenticationFailure {
    /// Counts and logs the failure, and returns its problem. Returns after a delay if the client
    /// has sent too many wrong tokens.
    pub async fn into_problem(
        self,
        api: &Arc<ApiState>,
        path: &str,
        peer: Option<SocketAddr>,
    ) -> Problem {
        let reason = if self.has_token { "wrong" } else { "missing" };
        api.metrics.logins_failed.with_label_values(&[reason]).inc();
        self.log(api, path, peer);
        if !self.has_token {
            return Problem::unauthorized(NO_TOKEN.to_owned());
        }
        match api.access.login_limiter.record_failure(peer.map(|peer| peer.ip())).await {
            LoginPenalty::Immediate | LoginPenalty::Delayed => Problem::unauthorized(
                "the token is none of those in the settings (http.token, http.tokens, \
                 http.tokens_file, http.workers)"
                    .to_owned(),
            ),
            LoginPenalty::Rejected => Problem::too_many(
                "too many wrong tokens came from this address: try again later, with the right one"
                    .to_owned(),
            ),
        }
    }

    /// Logs the request. The log is rate-limited, so that guessing tokens cannot fill it. The
    /// metric `workflow_api_logins_failed_total` counts every attempt.
    fn log(self, api: &Arc<ApiState>, path: &str, peer: Option<SocketAddr>) {
        let AuthenticationFailure { has_token } = self;
        if api.log_limiter.may_log(if has_token { "wrong_token" } else { "no_token" }) {
            let (peer, path) = (peer.map(|peer| peer.to_string()), shorten(path));
            tracing::warn!(
                peer,
                path,
                has_token,
                "a request without the right token is refused (logged once a minute per kind)"
            );
        }
    }
}

/// Returns the 403 for a token that does not allow the request.
fn insufficient_scope(principal: &Principal, required: &RequiredScope) -> Problem {
    let name = quote(principal.name.as_deref().unwrap_or_default());
    let scope = principal.scope.map(|scope| format!("the scope {}", scope.as_str()));
    let queues = (!principal.queues.is_empty()).then(|| {
        let noun = if principal.queues.len() == 1 { "queue" } else { "queues" };
        let names = enumerate_quoted(principal.queues.iter().map(String::as_str), "and");
        format!("messages of the {noun} {names}{}", format_vhost(&principal.vhost))
    });
    let permissions: Vec<String> = scope.into_iter().chain(queues).collect();
    let allows = permissions.join(" and ");
    let needs = match required {
        RequiredScope::Token => "a token".to_owned(),
        RequiredScope::Scope(scope) => format!("the scope {}", scope.as_str()),
        RequiredScope::Queue { queue, vhost } => {
            let suffix = format_vhost(vhost.as_deref().unwrap_or_default());
            format!("the queue {}{suffix}, or the scope admin", quote(queue))
        }
    };
    Problem::forbidden(format!(
        "the token {name} is for {allows} alone, and this call needs {needs} (settings \
         http.tokens, http.tokens_file and http.workers)"
    ))
}

/// Formats the end of a phrase that names a virtual host; empty for the default one.
fn format_vhost(vhost: &str) -> String {
    if vhost.is_empty() {
        return String::new();
    }
    format!(" of the virtual host {}", quote(vhost))
}

/// Parses the token of an `Authorization` header. Returns `None` for another scheme than Bearer,
/// whose name is case-insensitive (RFC 9110, section 11.1).
fn parse_bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim_start_matches(' '))
}

/// A request that changes something, for the audit log. The journal records creations of jobs and
/// messages of workers, so these are not logged. The entry is logged when it is dropped.
struct AuditEntry {
    principal: Arc<str>,
    peer: Option<String>,
    method: String,
    path: String,
    query: String,
    /// The status of the response. `None`: the client disconnected before the response, but the
    /// request may have been carried out.
    status: Option<u16>,
}

impl AuditEntry {
    /// Makes the entry of a request. Returns `None` if the request was not authenticated, or is not
    /// one that is logged.
    fn from_request(
        request: &ServiceRequest,
        required: Option<&RequiredScope>,
        principal: Option<&Principal>,
    ) -> Option<AuditEntry> {
        let principal = principal?.name.clone().unwrap_or_else(|| "anybody".into());
        let is_operation =
            matches!(required, Some(RequiredScope::Scope(Scope::Operate | Scope::Admin)))
                && !request.match_info().as_str().starts_with("/api/workflow/");
        is_operation.then(|| AuditEntry {
            principal,
            peer: request.peer_addr().map(|peer| peer.ip().to_string()),
            method: request.method().to_string(),
            path: shorten(request.path()),
            query: shorten(&percent_decode_str(request.query_string()).decode_utf8_lossy()),
            status: None,
        })
    }
}

// The entry is logged on drop, so that a request is also logged if its client disconnects before
// the response.
impl Drop for AuditEntry {
    fn drop(&mut self) {
        let AuditEntry { principal, peer, method, path, query, status } = self;
        let (path, query) = (escape(path), escape(query));
        tracing::info!(
            target: AUDIT_TARGET,
            by = &**principal,
            peer = peer.as_deref(),
            method = method.as_str(),
            %path,
            %query,
            status,
            "operation"
        );
    }
}
