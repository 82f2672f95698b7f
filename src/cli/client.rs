//! The HTTP client of the command line.

use super::arguments::TargetArguments;
use super::error::ClientError;
use super::target::ManagerTarget;
use base::trust::Authorities;
use engine::text::{escape, escape_lines};
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder, ResponseExt};

/// The part of rustls's error text that shows that the response is not TLS.
const NOT_TLS_ERROR: &str = "InvalidContentType";

/// A client of one manager's API.
pub(super) struct Client {
    agent: Agent,
    target: ManagerTarget,
}

/// The response to a request for a stream of server-sent events.
pub(super) enum StreamResponse {
    /// The body of the stream.
    Stream(Box<dyn BufRead + Send>),
    /// All events were received before, including the end of the job.
    NoContent,
    /// The manager refused the stream, with this status and reason.
    Refused(StatusCode, String),
}

/// A message that was received from a queue.
pub(super) struct ReceivedMessage {
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// The result of a call: the response, the status and the reason of a refusal, or an error.
pub(super) type ApiResult<T> = Result<Result<T, (StatusCode, String)>, ClientError>;

/// The timeout of a call. It is long, because a response may have to wait for a commit.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest response that is read, in bytes. The largest ones are jobs with the outputs of their
/// steps.
const RESPONSE_BYTES_MAX: u64 = 1 << 30;

impl Client {
    /// Makes a client of the manager that the arguments select.
    ///
    /// # Errors
    ///
    /// Returns an error if the context cannot be used.
    pub(super) fn new(arguments: &TargetArguments) -> Result<Client, ClientError> {
        ManagerTarget::from_arguments(arguments).map(Client::for_target)
    }

    /// Makes a client of this manager. No call is made yet.
    pub(super) fn for_target(target: ManagerTarget) -> Client {
        let is_tls = target.display_address().starts_with("https");
        let authorities = if is_tls { Authorities::load_system() } else { Authorities::default() };
        // Proxies that the environment names are not used, since the token must be sent to the
        // manager only.
        let config = Agent::config_builder()
            .proxy(None)
            .tls_config(authorities.agent_tls_config())
            .http_status_as_error(false)
            .timeout_global(Some(CALL_TIMEOUT))
            .build();
        Client { agent: config.into(), target }
    }

    /// Gets a resource. A refusal is an error.
    pub(super) fn get(&self, path: &str) -> Result<String, ClientError> {
        self.query(path, &[])
    }

    /// Gets a resource, with query parameters. A refusal is an error.
    pub(super) fn query(
        &self,
        path: &str,
        query: &[(String, String)],
    ) -> Result<String, ClientError> {
        self.read_response(self.build_get(path, query).call())
    }

    /// Gets a resource, and copies the response to `out` as it arrives, without a limit of size or
    /// time. A refusal is an error.
    pub(super) fn copy(
        &self,
        path: &str,
        query: &[(String, String)],
        accept: &str,
        out: &mut dyn Write,
    ) -> Result<(), ClientError> {
        let result = self
            .build_get(path, query)
            .header("Accept", accept)
            .config()
            .timeout_global(None)
            .build()
            .call();
        let mut response = match result {
            Ok(response) if response.status().is_success() => response,
            result => return self.read_response(result).map(drop),
        };
        // A failed read cannot be distinguished from a failed write here. Both are reported as a
        // failed write, such as one to a closed pipe, because that is more common.
        std::io::copy(&mut response.body_mut().as_reader(), out)?;
        Ok(())
    }

    /// Builds a request for a resource, with the token.
    fn build_get(&self, path: &str, query: &[(String, String)]) -> RequestBuilder<WithoutBody> {
        self.with_token(self.agent.get(self.url(path)).query_pairs(as_pairs(query)))
    }

    /// Returns the URL of a path of the API.
    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.target.server)
    }

    /// Adds the token to a request, if there is one.
    fn with_token<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        if self.target.token.is_empty() {
            request
        } else {
            request.header("Authorization", format!("Bearer {}", self.target.token))
        }
    }

    /// Deletes a resource. A refusal is an error.
    pub(super) fn delete(&self, path: &str) -> Result<String, ClientError> {
        self.read_response(self.with_token(self.agent.delete(self.url(path))).call())
    }

    /// Opens a stream of events, which continues after the event with the id `last_event_id`. If
    /// the id is empty, the stream begins with the next event.
    pub(super) fn open_stream(
        &self,
        path: &str,
        last_event_id: &str,
    ) -> Result<StreamResponse, ClientError> {
        let request = self.build_get(path, &[]).header("Accept", "text/event-stream");
        let request = if last_event_id.is_empty() {
            request
        } else {
            request.header("Last-Event-ID", last_event_id)
        };
        let request =
            request.config().timeout_global(None).timeout_recv_response(Some(CALL_TIMEOUT)).build();
        match request.call() {
            Ok(response) if response.status() == StatusCode::NO_CONTENT => {
                Ok(StreamResponse::NoContent)
            }
            Ok(response) if response.status().is_success() => Ok(StreamResponse::Stream(Box::new(
                BufReader::new(response.into_body().into_reader()),
            ))),
            result @ (Ok(_) | Err(_)) => Ok(match self.try_read_response(result)? {
                // Not reached: successful responses are handled above.
                Ok(_) => StreamResponse::NoContent,
                Err((status, detail)) => StreamResponse::Refused(status, detail),
            }),
        }
    }

    /// Gets a resource. Returns the response, or the status and the reason of a refusal.
    pub(super) fn try_get(&self, path: &str) -> ApiResult<String> {
        self.try_read_response(self.build_get(path, &[]).call())
    }

    /// Gets a resource, and returns the header `Date` of the response, whatever its status is.
    pub(super) fn get_date(&self, path: &str) -> Result<Option<String>, ClientError> {
        let result = self.build_get(path, &[]).call();
        let response = result.map_err(|error| self.unreachable_error(error.to_string()))?;
        let date = response.headers().get("Date").and_then(|date| date.to_str().ok());
        Ok(date.map(str::to_owned))
    }

    /// Makes the error of a manager that cannot be reached, with a hint if it does not use TLS.
    pub(super) fn unreachable_error(&self, mut error: String) -> ClientError {
        if error.contains(NOT_TLS_ERROR) {
            error.push_str(" (it speaks no TLS there: http:// instead of https://)");
        }
        ClientError::Unreachable { server: self.target.display_address(), error }
    }

    /// Posts a body. A refusal is an error.
    pub(super) fn post(
        &self,
        path: &str,
        query: &[(String, String)],
        body: &str,
    ) -> Result<String, ClientError> {
        self.read_response(self.send_post(path, query, body.as_bytes(), CALL_TIMEOUT))
    }

    /// Posts bytes, with a timeout of the whole call. Returns the response, or the status and the
    /// reason of a refusal.
    pub(super) fn post_bytes(
        &self,
        path: &str,
        query: &[(String, String)],
        body: &[u8],
        timeout: Duration,
    ) -> ApiResult<String> {
        self.try_read_response(self.send_post(path, query, body, timeout))
    }

    /// Receives a message from a queue, with a timeout of the whole call. Returns `None` if there
    /// is not a message.
    pub(super) fn receive(
        &self,
        path: &str,
        query: &[(String, String)],
        timeout: Duration,
    ) -> ApiResult<Option<ReceivedMessage>> {
        let mut response = match self.send_post(path, query, &[], timeout) {
            Ok(response) if response.status() == StatusCode::OK => response,
            result => return Ok(self.try_read_response(result)?.map(|_| None)),
        };
        let headers = std::mem::take(response.headers_mut());
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| self.unreachable_error(error.to_string()))?;
        Ok(Ok(Some(ReceivedMessage { headers, body })))
    }

    /// Posts a body, and returns the response, whatever its status is.
    fn send_post(
        &self,
        path: &str,
        query: &[(String, String)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<Response<Body>, ureq::Error> {
        let request = self
            .agent
            .post(self.url(path))
            .query_pairs(as_pairs(query))
            .header("Content-Type", "application/json");
        self.with_token(request).config().timeout_global(Some(timeout)).build().send(body)
    }

    /// Reads the text of a response. A refusal is an error.
    fn read_response(
        &self,
        result: Result<Response<Body>, ureq::Error>,
    ) -> Result<String, ClientError> {
        self.try_read_response(result)?.map_err(|(_, detail)| ClientError::Refused(detail))
    }

    /// Reads the text of a response, or the status and the reason of a refusal.
    fn try_read_response(&self, result: Result<Response<Body>, ureq::Error>) -> ApiResult<String> {
        let to_error = |error: ureq::Error| self.unreachable_error(error.to_string());
        let mut response = result.map_err(to_error)?;
        let text = response
            .body_mut()
            .with_config()
            .limit(RESPONSE_BYTES_MAX)
            .read_to_string()
            .map_err(to_error)?;
        if response.status().is_success() {
            return Ok(Ok(text));
        }
        // A refusal is a problem (RFC 9457). Other texts, such as that of a proxy, are shown whole.
        let problem_detail = serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|problem| Some(problem.get("detail")?.as_str()?.to_owned()));
        let hint = if response.status() == StatusCode::UNAUTHORIZED {
            "; give it with --token, WORKFLOW_MANAGER_TOKEN or a context"
        } else {
            ""
        };
        let unescaped_detail = problem_detail.unwrap_or(text);
        // Diagnostics of files, and health checks, have one line each. Other refusals may contain
        // untrusted input, so their line breaks are escaped.
        let path = response.get_uri().path();
        let is_multiline = match response.status() {
            StatusCode::UNPROCESSABLE_ENTITY => path.ends_with("/api/reload"),
            StatusCode::SERVICE_UNAVAILABLE => path.ends_with("/readyz"),
            _ => false,
        };
        let detail = if is_multiline {
            escape_lines(unescaped_detail.trim_end())
        } else {
            escape(&unescaped_detail).into_owned()
        };
        Ok(Err((response.status(), format!("{}: {detail}{hint}", response.status()))))
    }
}

/// Borrows query parameters.
fn as_pairs(query: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    query.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}
