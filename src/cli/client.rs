//! The HTTP client of the command line. It goes where the active manager is.

use super::active::{self, Responder, Round};
use super::addresses::Addresses;
use super::arguments::TargetArguments;
use super::error::ClientError;
use super::target::ManagerTarget;
use base::trust::Authorities;
use engine::text::{escape, escape_lines};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder, ResponseExt};

/// The part of rustls's error text that shows that the response is not TLS.
const NOT_TLS_ERROR: &str = "InvalidContentType";

/// A client of the API of managers, of which one is active. Each thread has a clone, which goes
/// from one address to another by itself.
#[derive(Clone)]
pub(super) struct Client {
    agent: Agent,
    /// The token. Empty if there is none.
    token: String,
    addresses: RefCell<Addresses>,
}

/// Whether a request may be sent to another address if it failed.
#[derive(Clone, Copy)]
enum Repeat {
    /// Yes: it has the same effect if it is executed twice, or is repeated in any case.
    Always,
    /// Only if no manager has executed it: it could not be sent, or was refused.
    IfNotExecuted,
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

/// The timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
        let ManagerTarget { addresses, token, .. } = target;
        // A manager without TLS may name one with it, which then needs a certificate of one of
        // Mozilla's authorities.
        let authorities =
            if addresses.is_secure() { Authorities::load_system() } else { Authorities::default() };
        // Proxies that the environment names are not used, since the token must be sent to the
        // manager only.
        let config = Agent::config_builder()
            .proxy(None)
            .tls_config(authorities.agent_tls_config())
            .http_status_as_error(false)
            .timeout_global(Some(CALL_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .build();
        Client { agent: config.into(), token, addresses: RefCell::new(addresses) }
    }

    /// Returns the address in use for people, without its user and password.
    pub(super) fn display_address(&self) -> String {
        self.addresses.borrow().display_current()
    }

    /// Sends a request to the address in use, and returns the response. If that address cannot be
    /// reached, or its manager is not the active one, goes to the next address, at most once to
    /// each. `send` gets the URL.
    ///
    /// # Errors
    ///
    /// Returns an error with all addresses that were tried.
    fn exchange(
        &self,
        path: &str,
        repeat: Repeat,
        send: impl Fn(&str) -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, ClientError> {
        let mut round = Round::default();
        loop {
            let address = self.addresses.borrow().current().to_owned();
            match send(&format!("{address}{path}")) {
                Ok(response) => match active::find_responder(response) {
                    Responder::Right(response) => return Ok(response),
                    Responder::Named { named, detail } => {
                        let result = self.addresses.borrow_mut().follow(&named);
                        let hint =
                            result.err().map_or_else(String::new, |hint| format!("; {hint}"));
                        round.add(address, format!("{detail}{hint}"));
                    }
                    Responder::Unnamed { response, detail } => {
                        self.addresses.borrow_mut().advance();
                        let is_first = round.is_empty();
                        round.add(address, detail);
                        if is_first && round.has(self.addresses.borrow().current()) {
                            return Ok(response);
                        }
                    }
                },
                Err(error) => {
                    let may_repeat = match repeat {
                        Repeat::Always => true,
                        Repeat::IfNotExecuted => active::is_unsent(&error),
                    };
                    self.addresses.borrow_mut().advance();
                    round.add(address, error.to_string());
                    if !may_repeat {
                        return Err(self.round_error(&round));
                    }
                }
            }
            if round.has(self.addresses.borrow().current()) {
                return Err(self.round_error(&round));
            }
        }
    }

    /// Makes the error of a request that no address has answered.
    fn round_error(&self, round: &Round) -> ClientError {
        let (server, error) = round.describe();
        ClientError::Unreachable { server, error: with_tls_hint(error) }
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
        self.read_response(self.send_get(path, query)?)
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
        let mut response = self.exchange(path, Repeat::Always, |url| {
            let request = self.build_get(url, query).header("Accept", accept);
            request.config().timeout_global(None).build().call()
        })?;
        if !response.status().is_success() {
            return self.read_response(response).map(drop);
        }
        // A failed read cannot be distinguished from a failed write here. Both are reported as a
        // failed write, such as one to a closed pipe, because that is more common.
        std::io::copy(&mut response.body_mut().as_reader(), out)?;
        Ok(())
    }

    /// Gets a resource, and returns the response, whatever its status is.
    fn send_get(
        &self,
        path: &str,
        query: &[(String, String)],
    ) -> Result<Response<Body>, ClientError> {
        self.exchange(path, Repeat::Always, |url| self.build_get(url, query).call())
    }

    /// Builds a request for a resource, with the token.
    fn build_get(&self, url: &str, query: &[(String, String)]) -> RequestBuilder<WithoutBody> {
        self.with_token(self.agent.get(url).query_pairs(as_pairs(query)))
    }

    /// Adds the token to a request, if there is one.
    fn with_token<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        if self.token.is_empty() {
            request
        } else {
            request.header("Authorization", format!("Bearer {}", self.token))
        }
    }

    /// Deletes a resource. A refusal is an error.
    pub(super) fn delete(&self, path: &str) -> Result<String, ClientError> {
        let send = |url: &str| self.with_token(self.agent.delete(url)).call();
        self.read_response(self.exchange(path, Repeat::IfNotExecuted, send)?)
    }

    /// Opens a stream of events, which continues after the event with the id `last_event_id`. If
    /// the id is empty, the stream begins with the next event.
    pub(super) fn open_stream(
        &self,
        path: &str,
        last_event_id: &str,
    ) -> Result<StreamResponse, ClientError> {
        let response = self.exchange(path, Repeat::Always, |url| {
            let request = self.build_get(url, &[]).header("Accept", "text/event-stream");
            let request = if last_event_id.is_empty() {
                request
            } else {
                request.header("Last-Event-ID", last_event_id)
            };
            let config = request.config().timeout_global(None);
            config.timeout_recv_response(Some(CALL_TIMEOUT)).build().call()
        })?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(StreamResponse::NoContent);
        }
        if response.status().is_success() {
            let body = response.into_body().into_reader();
            return Ok(StreamResponse::Stream(Box::new(BufReader::new(body))));
        }
        Ok(match self.try_read_response(response)? {
            // Not reached: successful responses are handled above.
            Ok(_) => StreamResponse::NoContent,
            Err((status, detail)) => StreamResponse::Refused(status, detail),
        })
    }

    /// Gets a resource. Returns the response, or the status and the reason of a refusal.
    pub(super) fn try_get(&self, path: &str) -> ApiResult<String> {
        self.try_read_response(self.send_get(path, &[])?)
    }

    /// Gets a resource, and returns the header `Date` of the response, whatever its status is.
    pub(super) fn get_date(&self, path: &str) -> Result<Option<String>, ClientError> {
        let response = self.send_get(path, &[])?;
        let date = response.headers().get("Date").and_then(|date| date.to_str().ok());
        Ok(date.map(str::to_owned))
    }

    /// Makes the error of managers that cannot be reached, with a hint if one does not use TLS.
    pub(super) fn unreachable_error(&self, error: String) -> ClientError {
        let server = self.addresses.borrow().display();
        ClientError::Unreachable { server, error: with_tls_hint(error) }
    }

    /// Gets a resource from the address in use, even if another manager is active. A refusal is an
    /// error.
    pub(super) fn get_here(&self, path: &str) -> Result<String, ClientError> {
        let url = format!("{}{path}", self.addresses.borrow().current());
        let result = self.build_get(&url, &[]).call();
        self.read_response(result.map_err(|error| self.unreachable_error(error.to_string()))?)
    }

    /// Posts a body. A refusal is an error.
    pub(super) fn post(
        &self,
        path: &str,
        query: &[(String, String)],
        body: &str,
    ) -> Result<String, ClientError> {
        let repeat = Repeat::IfNotExecuted;
        self.read_response(self.send_post(path, query, body.as_bytes(), CALL_TIMEOUT, repeat)?)
    }

    /// Posts bytes for a worker, with a timeout of the whole call at each address. Returns the
    /// response, or the status and the reason of a refusal. The request may be executed twice.
    pub(super) fn post_bytes(
        &self,
        path: &str,
        query: &[(String, String)],
        body: &[u8],
        timeout: Duration,
    ) -> ApiResult<String> {
        self.try_read_response(self.send_post(path, query, body, timeout, Repeat::Always)?)
    }

    /// Receives a message from a queue, with a timeout of the whole call at each address. Returns
    /// `None` if there is not a message.
    pub(super) fn receive(
        &self,
        path: &str,
        query: &[(String, String)],
        timeout: Duration,
    ) -> ApiResult<Option<ReceivedMessage>> {
        // A message whose response was lost is delivered again when its lease ends.
        let mut response = self.send_post(path, query, &[], timeout, Repeat::Always)?;
        if response.status() != StatusCode::OK {
            return Ok(self.try_read_response(response)?.map(|_| None));
        }
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
        repeat: Repeat,
    ) -> Result<Response<Body>, ClientError> {
        self.exchange(path, repeat, |url| {
            let request = self.agent.post(url).query_pairs(as_pairs(query));
            let request = request.header("Content-Type", "application/json");
            self.with_token(request).config().timeout_global(Some(timeout)).build().send(body)
        })
    }

    /// Reads the text of a response. A refusal is an error.
    fn read_response(&self, response: Response<Body>) -> Result<String, ClientError> {
        self.try_read_response(response)?.map_err(|(_, detail)| ClientError::Refused(detail))
    }

    /// Reads the text of a response, or the status and the reason of a refusal.
    fn try_read_response(&self, mut response: Response<Body>) -> ApiResult<String> {
        let to_error = |error: ureq::Error| self.unreachable_error(error.to_string());
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

/// Adds a hint to the error of a connection if it shows that there is no TLS.
fn with_tls_hint(mut error: String) -> String {
    if error.contains(NOT_TLS_ERROR) {
        error.push_str(" (it speaks no TLS there: http:// instead of https://)");
    }
    error
}

/// Borrows query parameters.
fn as_pairs(query: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    query.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}
