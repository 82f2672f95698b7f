//! The HTTP client of the command line.

use super::arguments::ReachArguments;
use super::error::ClientError;
use super::reach::Reach;
use crate::engine::words::{escaped, escaped_lines};
use crate::trust::Authorities;
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder, ResponseExt};

/// The text of the rustls error for an answer that is not TLS.
const NO_TLS: &str = "InvalidContentType";

/// A client of one manager's API.
pub(super) struct Client {
    agent: Agent,
    reach: Reach,
}

/// The response to a request for a stream of events.
pub(super) enum Opened {
    Stream(Box<dyn BufRead + Send>),
    /// There are no events after the last one.
    Nothing,
    /// The manager refused the stream, with this status and reason.
    Refused(StatusCode, String),
}

/// A message that was received from a queue.
pub(super) struct Received {
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// The response, or the status and the reason of a refusal.
pub(super) type Asked<T> = Result<Result<T, (StatusCode, String)>, ClientError>;

/// How long a call may take: responses wait for a commit.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest response that is read, in bytes: a job with its steps' outputs.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

impl Client {
    /// Makes a client of the manager that the arguments name.
    ///
    /// # Errors
    ///
    /// Returns an error if the context cannot be used.
    pub(super) fn new(arguments: &ReachArguments) -> Result<Client, ClientError> {
        Reach::of(arguments).map(Client::of)
    }

    pub(super) fn of(reach: Reach) -> Client {
        let is_over_tls = reach.shown().starts_with("https");
        let tls = if is_over_tls { Authorities::of_machine() } else { Authorities::default() };
        let tls = tls.blocking();
        // The token must be sent to the manager only, whatever proxy the environment names.
        let config = Agent::config_builder()
            .proxy(None)
            .tls_config(tls)
            .http_status_as_error(false)
            .timeout_global(Some(CALL_TIMEOUT))
            .build();
        Client { agent: config.into(), reach }
    }

    pub(super) fn get(&self, path: &str) -> Result<String, ClientError> {
        self.query(path, &[])
    }

    pub(super) fn query(
        &self,
        path: &str,
        query: &[(String, String)],
    ) -> Result<String, ClientError> {
        self.answer(self.request(path, query).call())
    }

    /// Writes the response to `out` as it comes, without a limit of size or time.
    pub(super) fn copy(
        &self,
        path: &str,
        query: &[(String, String)],
        accept: &str,
        out: &mut dyn Write,
    ) -> Result<(), ClientError> {
        let result = self
            .request(path, query)
            .header("Accept", accept)
            .config()
            .timeout_global(None)
            .build()
            .call();
        let mut response = match result {
            Ok(response) if response.status().is_success() => response,
            result => return self.answer(result).map(drop),
        };
        // A broken response and a closed output cannot be told apart here; the broken response is
        // rarer.
        std::io::copy(&mut response.body_mut().as_reader(), out)?;
        Ok(())
    }

    fn request(&self, path: &str, query: &[(String, String)]) -> RequestBuilder<WithoutBody> {
        self.authorised(self.agent.get(self.url(path)).query_pairs(pairs(query)))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.reach.server)
    }

    fn authorised<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        if self.reach.token.is_empty() {
            request
        } else {
            request.header("Authorization", format!("Bearer {}", self.reach.token))
        }
    }

    pub(super) fn delete(&self, path: &str) -> Result<String, ClientError> {
        self.answer(self.authorised(self.agent.delete(self.url(path))).call())
    }

    /// Opens a stream of events, after the event with the id `last` unless that is empty.
    pub(super) fn open(&self, path: &str, last: &str) -> Result<Opened, ClientError> {
        let request = self.request(path, &[]).header("Accept", "text/event-stream");
        let request = if last.is_empty() { request } else { request.header("Last-Event-ID", last) };
        let request =
            request.config().timeout_global(None).timeout_recv_response(Some(CALL_TIMEOUT)).build();
        match request.call() {
            Ok(response) if response.status() == StatusCode::NO_CONTENT => Ok(Opened::Nothing),
            Ok(response) if response.status().is_success() => {
                Ok(Opened::Stream(Box::new(BufReader::new(response.into_body().into_reader()))))
            }
            answer @ (Ok(_) | Err(_)) => Ok(match self.outcome(answer)? {
                Ok(_) => Opened::Nothing,
                Err((status, detail)) => Opened::Refused(status, detail),
            }),
        }
    }

    /// Returns the response, or the status and the reason of a refusal.
    pub(super) fn ask(&self, path: &str) -> Asked<String> {
        self.outcome(self.request(path, &[]).call())
    }

    /// Returns the header `Date` of the response.
    pub(super) fn date(&self, path: &str) -> Result<Option<String>, ClientError> {
        let answer = self.request(path, &[]).call();
        let answer = answer.map_err(|error| self.unreachable(error.to_string()))?;
        let date = answer.headers().get("Date").and_then(|date| date.to_str().ok());
        Ok(date.map(str::to_owned))
    }

    pub(super) fn unreachable(&self, mut error: String) -> ClientError {
        if error.contains(NO_TLS) {
            error.push_str(" (it speaks no TLS there: http:// instead of https://)");
        }
        ClientError::Unreachable { server: self.reach.shown(), error }
    }

    pub(super) fn post(
        &self,
        path: &str,
        query: &[(String, String)],
        body: &str,
    ) -> Result<String, ClientError> {
        let request = self
            .agent
            .post(self.url(path))
            .query_pairs(pairs(query))
            .header("Content-Type", "application/json");
        self.answer(self.authorised(request).send(body))
    }

    /// Posts bytes. The call may take as long as `timeout`.
    pub(super) fn tell(
        &self,
        path: &str,
        query: &[(String, String)],
        body: &[u8],
        most: Duration,
    ) -> Asked<String> {
        self.outcome(self.posted(path, query, body, most))
    }

    /// Receives a message, or `None` if there is none. The call may take as long as `timeout`.
    pub(super) fn receive(
        &self,
        path: &str,
        query: &[(String, String)],
        most: Duration,
    ) -> Asked<Option<Received>> {
        let mut response = match self.posted(path, query, &[], most) {
            Ok(response) if response.status() == StatusCode::OK => response,
            result => return Ok(self.outcome(result)?.map(|_| None)),
        };
        let headers = std::mem::take(response.headers_mut());
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| self.unreachable(error.to_string()))?;
        Ok(Ok(Some(Received { headers, body })))
    }

    fn posted(
        &self,
        path: &str,
        query: &[(String, String)],
        body: &[u8],
        most: Duration,
    ) -> Result<Response<Body>, ureq::Error> {
        let request = self
            .agent
            .post(self.url(path))
            .query_pairs(pairs(query))
            .header("Content-Type", "application/json");
        self.authorised(request).config().timeout_global(Some(most)).build().send(body)
    }

    fn answer(&self, result: Result<Response<Body>, ureq::Error>) -> Result<String, ClientError> {
        self.outcome(result)?.map_err(|(_, detail)| ClientError::Refused(detail))
    }

    fn outcome(&self, result: Result<Response<Body>, ureq::Error>) -> Asked<String> {
        let unreachable = |error: ureq::Error| self.unreachable(error.to_string());
        let mut response = result.map_err(unreachable)?;
        let text = response
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_string()
            .map_err(unreachable)?;
        if response.status().is_success() {
            return Ok(Ok(text));
        }
        let detail = serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|problem| Some(problem.get("detail")?.as_str()?.to_owned()));
        let hint = if response.status() == StatusCode::UNAUTHORIZED {
            "; give it with --token, WORKFLOW_MANAGER_TOKEN or a context"
        } else {
            ""
        };
        let detail = detail.unwrap_or(text);
        // Diagnostics of files, and health checks, are printed one a line. Other refusals may
        // contain input of anybody, so their line breaks are escaped.
        let path = response.get_uri().path();
        let has_lines = match response.status() {
            StatusCode::UNPROCESSABLE_ENTITY => path.ends_with("/api/reload"),
            StatusCode::SERVICE_UNAVAILABLE => path.ends_with("/readyz"),
            _ => false,
        };
        let detail = if has_lines {
            escaped_lines(detail.trim_end())
        } else {
            escaped(&detail).into_owned()
        };
        Ok(Err((response.status(), format!("{}: {detail}{hint}", response.status()))))
    }
}

fn pairs(query: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    query.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}
