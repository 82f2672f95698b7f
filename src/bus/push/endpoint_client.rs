//! The HTTP client of web services: sends a message as a request, and reads the answer.

use super::answer::{Answer, CallResult, interpret};
use super::resolver::{AddressDenied, CheckedResolver};
use crate::key::BusKey;
use crate::lease_queue::{LeasedMessage, reply_path};
use crate::publication::{Header, HeaderValue};
use base::clock;
use base::http_client::{self, causes, read_body, retry_after, root_cause};
use base::networks::Networks;
use base::signature::{SIGNATURE_HEADER, TIMESTAMP_HEADER, sign};
use base::times;
use base::trust::Authorities;
use base::web_address::{ip_address, parse_web_address};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue as HttpHeaderValue};
use reqwest::{Client, Request, Response, Url};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// A web service that steps call.
#[derive(Clone)]
pub struct Endpoint {
    /// The URL to which each message is posted.
    pub url: String,
    /// The most concurrent calls.
    pub concurrency: usize,
    /// How long a call may take.
    pub timeout: Duration,
    /// Additional headers of each call, as names and values.
    pub headers: Vec<(String, String)>,
    /// The key of the signature; empty: calls are not signed.
    pub secret: String,
}

/// The settings of all calls of a bus.
#[derive(Clone)]
pub struct EndpointClientSettings {
    /// The key of the bus.
    pub key: BusKey,
    /// The certificate authorities that are trusted.
    pub authorities: Authorities,
    /// The rules for the addresses of services.
    pub networks: Arc<Networks>,
    /// How long connecting to a service may take.
    pub connect_timeout: Duration,
    /// The largest answer, in bytes.
    pub reply_bytes_max: usize,
    /// The base URL at which services reach the API, for later replies; empty: services cannot
    /// reply later.
    pub public_url: String,
}

/// The HTTP client that calls web services.
pub struct EndpointClient {
    client: Client,
    settings: EndpointClientSettings,
}

impl EndpointClient {
    /// Creates a client that uses the system's resolver.
    ///
    /// # Errors
    ///
    /// Returns an error if the HTTP client cannot be created.
    pub fn new(settings: EndpointClientSettings) -> Result<EndpointClient, String> {
        let resolver = CheckedResolver::system(settings.networks.clone());
        EndpointClient::with_resolver(resolver, settings)
    }

    fn with_resolver(
        resolver: CheckedResolver,
        settings: EndpointClientSettings,
    ) -> Result<EndpointClient, String> {
        let client = http_client::builder(&settings.authorities)
            .dns_resolver(Arc::new(resolver))
            .connect_timeout(settings.connect_timeout)
            .build();
        let client = client.map_err(|error| format!("no web service can be called: {error}"))?;
        Ok(EndpointClient { client, settings })
    }

    /// Posts a message, and reads the answer. Dropping the future aborts the call.
    pub(super) async fn call(
        &self,
        endpoint: &Endpoint,
        queue: &str,
        message: &LeasedMessage,
    ) -> CallResult {
        let request = match self.build_request(endpoint, queue, message) {
            Ok(request) => request,
            Err(reason) => return CallResult::from_failure(&reason, false),
        };
        let call = async {
            match self.client.execute(request).await {
                Err(error) => result_without_answer(error),
                Ok(response) => match self.read_answer(response).await {
                    Ok(answer) => interpret(answer, !self.settings.public_url.is_empty()),
                    Err(failure) => failure,
                },
            }
        };
        let result = tokio::time::timeout(endpoint.timeout, call).await;
        result.unwrap_or_else(|_| {
            let timeout = humantime::format_duration(endpoint.timeout);
            CallResult::from_failure(
                &format!(
                    "the web service did not answer within {timeout} (its timeout; for longer work \
                     it can answer 202 and reply later)"
                ),
                true,
            )
        })
    }

    /// Sends an OPTIONS request, which changes nothing at the service, and returns the status of
    /// the answer.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer within `timeout`.
    pub async fn probe(&self, url: &str, timeout: Duration) -> Result<u16, ProbeError> {
        let url: Url = parse_web_address(url).map_err(ProbeError::Denied)?;
        if let Some(reason) = self.find_refusal(&url) {
            return Err(ProbeError::Denied(reason));
        }
        let request = Request::new(reqwest::Method::OPTIONS, url);
        match tokio::time::timeout(timeout, self.client.execute(request)).await {
            Err(_) => Err(ProbeError::TimedOut),
            Ok(Ok(response)) => Ok(response.status().as_u16()),
            Ok(Err(error)) => Err(ProbeError::from_error(&error)),
        }
    }

    /// Returns why requests to a URL with an IP address are denied; `None`: they are not, or the
    /// host is a name. An IP address is not resolved, so the resolver does not check it.
    fn find_refusal(&self, url: &Url) -> Option<String> {
        ip_address(url).and_then(|address| self.settings.networks.refusal(address))
    }

    /// Builds the request of a message, or returns why that is impossible.
    fn build_request(
        &self,
        endpoint: &Endpoint,
        queue: &str,
        message: &LeasedMessage,
    ) -> Result<Request, String> {
        let url: Url = parse_web_address(&endpoint.url)?;
        if let Some(reason) = self.find_refusal(&url) {
            return Err(reason);
        }
        let body = message.body.to_bytes();
        let mut headers = RequestHeaders(HeaderMap::new());
        for (name, value) in &endpoint.headers {
            headers.set(name, value)?;
        }
        headers.set("Content-Type", mime::APPLICATION_JSON.as_ref())?;
        headers.set("Correlation-Id", message.correlation_id.as_deref().unwrap_or_default())?;
        headers.set("Message-Id", &message.id)?;
        headers.set("Idempotency-Key", &message.id)?;
        for Header { name, value } in &message.headers {
            match value {
                HeaderValue::Text(text) => headers.set(name, text)?,
                HeaderValue::Number(number) => headers.set(name, &number.to_string())?,
            }
        }
        if let Some(priority) = message.priority {
            headers.set("Priority", &priority.to_string())?;
        }
        headers.set("Delivery", &message.delivery.to_string())?;
        if !self.settings.public_url.is_empty() {
            let base = self.settings.public_url.trim_end_matches('/');
            let bus = ("bus", &*self.settings.key.name);
            let path = reply_path(queue, &message.id, message.delivery, Some(bus));
            headers.set("Reply-To", &format!("{base}{path}"))?;
        }
        if !endpoint.secret.is_empty() {
            let timestamp = times::unix_seconds(clock::now()).to_string();
            headers.set(SIGNATURE_HEADER, &sign(&endpoint.secret, &timestamp, &body))?;
            headers.set(TIMESTAMP_HEADER, &timestamp)?;
        }
        let mut request = Request::new(reqwest::Method::POST, url);
        *request.headers_mut() = headers.0;
        *request.body_mut() = Some(body.into());
        Ok(request)
    }

    /// Reads an answer completely. If the answer is too large or lost, returns the result of a
    /// failed attempt as the error.
    async fn read_answer(&self, response: Response) -> Result<Answer, CallResult> {
        let (status, retry_after) = (response.status().as_u16(), retry_after(response.headers()));
        let bytes_max = self.settings.reply_bytes_max;
        match read_body(response, bytes_max).await {
            Ok(Some(body)) => Ok(Answer { status, retry_after, body }),
            Ok(None) => {
                let reason = format!(
                    "the answer of the web service has more than {bytes_max} bytes (setting \
                     limits.reply_bytes_max): pass large data by reference"
                );
                Err(CallResult::from_failure(&reason, false))
            }
            Err(error) => Err(result_of_lost_answer(&error)),
        }
    }
}

/// Why a web service did not answer a probe.
#[derive(Debug)]
pub enum ProbeError {
    /// Its URL is invalid, or requests to its address are denied.
    Denied(String),
    /// Its certificate is not trusted.
    Untrusted(String),
    /// No connection could be made.
    Unreachable(String),
    /// It did not answer in time.
    TimedOut,
}

impl ProbeError {
    fn from_error(error: &reqwest::Error) -> ProbeError {
        if let Some(AddressDenied(reason)) = causes(error).find_map(|cause| cause.downcast_ref()) {
            return ProbeError::Denied(reason.clone());
        }
        if causes(error).any(is_certificate_error) {
            ProbeError::Untrusted(root_cause(error))
        } else if !error.is_timeout() {
            ProbeError::Unreachable(root_cause(error))
        } else if error.is_connect() {
            ProbeError::Unreachable("no connection in time".to_owned())
        } else {
            ProbeError::TimedOut
        }
    }
}

/// Returns whether an error concerns the certificate of the service, even if an I/O error wraps it.
fn is_certificate_error(error: &(dyn Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        return error.get_ref().is_some_and(|inner| is_certificate_error(inner));
    }
    matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)))
}

/// The headers of a request.
struct RequestHeaders(HeaderMap);

impl RequestHeaders {
    /// Sets a header. The error does not contain the value, which may be a secret.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let invalid_error = || format!("the header {name} of the call is invalid");
        let header_name = HeaderName::try_from(name).map_err(|_| invalid_error())?;
        let value = HttpHeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid_error())?;
        self.0.insert(header_name, value);
        Ok(())
    }
}

/// Returns the result of a call without an answer. If no connection was made, the message was not
/// delivered.
fn result_without_answer(error: reqwest::Error) -> CallResult {
    if let Some(AddressDenied(reason)) = causes(&error).find_map(|cause| cause.downcast_ref()) {
        return CallResult::from_failure(reason, false);
    }
    if error.is_connect() {
        return CallResult::not_delivered(if error.is_timeout() {
            "no connection in time (setting push.connect_timeout)".to_owned()
        } else {
            format!("no connection: {}", root_cause(&error))
        });
    }
    result_of_lost_answer(&error)
}

/// Returns the result of a call whose answer was lost. The service may have done the work.
fn result_of_lost_answer(error: &reqwest::Error) -> CallResult {
    let reason = root_cause(error);
    CallResult::from_failure(&format!("the answer of the web service was lost: {reason}"), true)
}
