//! The errors of the API, which responses show as problem details (RFC 9457).

use crate::actors::health::{JournalWait, render_loss};
use crate::actors::role::Standby;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, Responder, ResponseError};
use engine::JobId;
use engine::text::quote;
use journal::{ForeignName, JournalError};
use serde::Serialize;
use std::fmt;
use utoipa::ToSchema;

/// An error of the API, with the status of its response.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    detail: String,
    /// The value of the header `Allow`, for 405.
    allowed: Option<String>,
    /// The reason as a constant that programs can compare.
    reason: Option<&'static str>,
    /// The address of the active manager's API, which can serve the request.
    active: Option<String>,
}

/// Problem details (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemDetails<'a> {
    /// The address of the active manager's API, which can serve the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<&'a str>,
    /// What is wrong, and what to do.
    detail: &'a str,
    /// The reason as a constant for programs, where they need it: why a worker no longer has a
    /// message.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    status: u16,
    title: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
}

/// The value of `Retry-After`: after how many seconds a client may retry a 429 or 503.
const RETRY_AFTER_S: &str = "1";

/// The header of a response that has the address of the active manager's API.
const ACTIVE_HEADER: HeaderName = HeaderName::from_static("workflow-manager-active");

impl Problem {
    /// Returns whether it is a 404.
    pub(super) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// Returns whether it is a 500: the manager or its journal is at fault, and time mends nothing.
    pub(super) fn is_internal(&self) -> bool {
        self.status == StatusCode::INTERNAL_SERVER_ERROR
    }

    /// Makes a 400: the request is malformed.
    pub fn malformed(detail: String) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Makes a 401: the token is missing or not valid.
    pub(crate) fn unauthorized(detail: String) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// Makes a 403: the client may not do this.
    pub fn forbidden(detail: String) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, detail)
    }

    /// Makes a 404: the target does not exist.
    pub(crate) fn not_found(detail: String) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    /// Makes a 405: the path does not take this method.
    pub(crate) fn method_not_allowed(allowed: String, detail: String) -> Problem {
        Problem { allowed: Some(allowed), ..Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail) }
    }

    /// Makes a 408: the request did not arrive in time.
    pub(crate) fn timed_out(detail: String) -> Problem {
        Problem::new(StatusCode::REQUEST_TIMEOUT, detail)
    }

    /// Makes a 409: the request conflicts with the state of its target.
    pub fn conflict(detail: String) -> Problem {
        Problem::new(StatusCode::CONFLICT, detail)
    }

    /// Makes a 410: the target has ceased to exist.
    pub fn gone(detail: String) -> Problem {
        Problem::new(StatusCode::GONE, detail)
    }

    /// Makes a 413: the body is too large.
    pub fn too_large(detail: String) -> Problem {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// Makes a 431: the head is too large.
    pub(crate) fn head_too_large(detail: String) -> Problem {
        Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
    }

    /// Makes a 415: the body has an encoding that is not supported.
    pub fn unsupported(detail: String) -> Problem {
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    /// Makes a 421: another manager serves what the request is about.
    pub(crate) fn misdirected(name: ForeignName) -> Problem {
        let ForeignName { name, api_address } = name;
        let detail = match &api_address {
            Some(address) => format!("this belongs to the manager {}, at {address}", quote(&name)),
            None => format!(
                "this belongs to the manager {}, whose setting http.public_url is not set: ask it \
                 there",
                quote(&name)
            ),
        };
        Problem { active: api_address, ..Problem::new(StatusCode::MISDIRECTED_REQUEST, detail) }
    }

    /// Makes a 422: the request is well-formed, but invalid.
    pub fn invalid(detail: String) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// Makes a 429 with `Retry-After`: there were too many requests.
    pub fn too_many(detail: String) -> Problem {
        Problem::new(StatusCode::TOO_MANY_REQUESTS, detail)
    }

    /// Makes a 500: the manager failed.
    pub fn internal(detail: String) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    /// Makes a 503 with `Retry-After`: the manager cannot serve the request now.
    pub fn overloaded(detail: String) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// Makes a 503 with `Retry-After`: this process stands by. It names the active one.
    pub(crate) fn standby(standby: &Standby) -> Problem {
        Problem { active: standby.active_address(), ..Problem::overloaded(standby.describe()) }
    }
}

impl Problem {
    fn new(status: StatusCode, detail: String) -> Problem {
        Problem { status, detail, allowed: None, reason: None, active: None }
    }

    /// Makes a 404: no job has this id.
    pub fn unknown_job(id: JobId) -> Problem {
        Problem::not_found(describe_unknown_job(id))
    }

    /// Adds a reason as a constant that programs can compare.
    pub(crate) fn with_reason(self, reason: &'static str) -> Problem {
        Problem { reason: Some(reason), ..self }
    }

    /// Returns the reason as a constant that programs can compare.
    pub fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// Returns the sentence that says what is wrong.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// Formats the detail of a 404 for an id that no job has.
pub(super) fn describe_unknown_job(id: JobId) -> String {
    format!("unknown job id {id}: there is none, or its retention is over")
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.detail)
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let body = serde_json::json!(ProblemDetails {
            active: self.active.as_deref(),
            detail: &self.detail,
            reason: self.reason,
            status: self.status.as_u16(),
            title: self.status.canonical_reason().unwrap_or_default(),
            kind: "about:blank",
        });
        let mut response = HttpResponse::build(self.status);
        response.insert_header((header::CONTENT_TYPE, "application/problem+json"));
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            response.insert_header((header::RETRY_AFTER, RETRY_AFTER_S));
        }
        if let Some(active) = self.active.as_deref() {
            // An address that no header can have is in the body alone.
            if let Ok(address) = HeaderValue::from_str(active) {
                response.insert_header((ACTIVE_HEADER, address));
            }
        }
        if let Some(allowed) = self.allowed.as_deref() {
            response.insert_header((header::ALLOW, allowed));
        }
        if self.status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            response.insert_header((header::ACCEPT_ENCODING, "identity"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        response.body(body.to_string())
    }
}

impl Responder for Problem {
    type Body = actix_web::body::BoxBody;

    fn respond_to(self, _: &HttpRequest) -> HttpResponse {
        self.error_response()
    }
}

/// A journal that is closed, lost or waiting makes a 503. Any other error is logged, and makes a
/// 500.
impl From<JournalError> for Problem {
    fn from(error: JournalError) -> Self {
        if let JournalError::Closed { reason, .. } = &error {
            return Problem::overloaded(reason.to_string());
        }
        if let JournalError::Lost { loss, .. } = &error {
            return Problem::overloaded(render_loss(loss));
        }
        if let Some(wait) = JournalWait::for_remedy(error.remedy()) {
            return Problem::overloaded(wait.as_str().to_owned());
        }
        tracing::error!(%error, "a read of the journal failed");
        Problem::internal(error.to_string())
    }
}
