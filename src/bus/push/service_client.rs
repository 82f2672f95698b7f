//! Calls a web service: the message becomes a request, the answer a [`CallResult`].

use super::answer::{Answer, Outcome, outcome};
use super::names::{Names, Refused};
use crate::bus::desk::{Loan, reply_path};
use crate::bus::{BusKey, Header, HeaderValue};
use crate::clock;
use crate::settings::{Networks, literal, web_address};
use crate::signature::{SIGNATURE, TIMESTAMP, signature};
use crate::times;
use crate::trust::Authorities;
use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue as Text};
use reqwest::redirect::Policy;
use reqwest::{Client, Request, Response, Url};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// How long a connection is kept for the next call. Servers close idle connections after five
/// seconds or more, and a call on a connection that is just closing would count as lost.
const IDLE_FOR: Duration = Duration::from_secs(3);

/// A web service that steps call.
#[derive(Clone)]
pub struct Endpoint {
    /// The address that each message is posted to.
    pub url: String,
    /// The most concurrent calls.
    pub concurrency: usize,
    /// How long a call may take.
    pub timeout: Duration,
    /// Headers of each call, as names and values.
    pub headers: Vec<(String, String)>,
    /// The key of the signature; empty if calls are not signed.
    pub secret: String,
}

/// The settings of all calls of a bus.
#[derive(Clone)]
pub struct ServiceClientSettings {
    /// The key of the bus.
    pub key: BusKey,
    /// The certificate authorities that are trusted.
    pub authorities: Authorities,
    /// The networks in which services may be.
    pub networks: Arc<Networks>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// The largest answer, in bytes.
    pub reply_bytes_max: usize,
    /// The address at which services reach the API; empty if they cannot reply later.
    pub public_url: String,
}

/// The HTTP client that calls web services.
pub struct ServiceClient {
    client: Client,
    settings: ServiceClientSettings,
}

impl ServiceClient {
    /// Creates a client that resolves names as the system does.
    ///
    /// # Errors
    ///
    /// The HTTP client cannot be created.
    pub fn new(settings: ServiceClientSettings) -> Result<ServiceClient, String> {
        let names = Names::of_system(settings.networks.clone());
        ServiceClient::with(names, settings)
    }

    fn with(names: Names, settings: ServiceClientSettings) -> Result<ServiceClient, String> {
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let names = Arc::new(names);
        let builder = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .dns_resolver(names)
            .connect_timeout(settings.connect_timeout)
            .pool_idle_timeout(IDLE_FOR)
            .user_agent(concat!("workflow-manager/", env!("CARGO_PKG_VERSION")));
        let client = builder.tls_backend_preconfigured(settings.authorities.client()).build();
        let client = client.map_err(|error| format!("no web service can be called: {error}"))?;
        Ok(ServiceClient { client, settings })
    }

    /// Posts a message, and reads the answer. Dropping the future aborts the call.
    pub(super) async fn call(&self, endpoint: &Endpoint, queue: &str, loan: &Loan) -> Outcome {
        let request = match self.request(endpoint, queue, loan) {
            Ok(request) => request,
            Err(why) => return Outcome::failed(&why, false),
        };
        let answered = async {
            match self.client.execute(request).await {
                Err(error) => not_answered(error),
                Ok(response) => match self.read(response).await {
                    Ok(answer) => outcome(answer, !self.settings.public_url.is_empty()),
                    Err(failed) => failed,
                },
            }
        };
        let answered = tokio::time::timeout(endpoint.timeout, answered).await;
        answered.unwrap_or_else(|_| {
            let span = humantime::format_duration(endpoint.timeout);
            Outcome::failed(
                &format!(
                    "the web service did not answer within {span} (its timeout; for longer work \
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
    /// There is no answer within `timeout`.
    pub async fn probe(&self, url: &str, patience: Duration) -> Result<u16, Unanswered> {
        let url: Url = web_address(url).map_err(Unanswered::Refused)?;
        if let Some(why) = literal(&url).and_then(|at| self.settings.networks.objection(at)) {
            return Err(Unanswered::Refused(why));
        }
        let request = Request::new(reqwest::Method::OPTIONS, url);
        match tokio::time::timeout(patience, self.client.execute(request)).await {
            Err(_) => Err(Unanswered::Silent),
            Ok(Ok(response)) => Ok(response.status().as_u16()),
            Ok(Err(error)) => Err(Unanswered::of(&error)),
        }
    }

    fn request(&self, endpoint: &Endpoint, queue: &str, loan: &Loan) -> Result<Request, String> {
        let url: Url = web_address(&endpoint.url)?;
        // A literal address is never resolved, so it is checked here.
        let objection = literal(&url).and_then(|at| self.settings.networks.objection(at));
        if let Some(why) = objection {
            return Err(why);
        }
        let body = loan.body.to_bytes();
        let mut headers = Headers(HeaderMap::new());
        for (name, value) in &endpoint.headers {
            headers.set(name, value)?;
        }
        headers.set("Content-Type", mime::APPLICATION_JSON.as_ref())?;
        headers.set("Correlation-Id", loan.correlation_id.as_deref().unwrap_or_default())?;
        headers.set("Message-Id", &loan.id)?;
        headers.set("Idempotency-Key", &loan.id)?;
        for Header { name, value } in &loan.headers {
            match value {
                HeaderValue::Text(text) => headers.set(name, text)?,
                HeaderValue::Number(number) => headers.set(name, &number.to_string())?,
            }
        }
        if let Some(priority) = loan.priority {
            headers.set("Priority", &priority.to_string())?;
        }
        headers.set("Delivery", &loan.delivery.to_string())?;
        if !self.settings.public_url.is_empty() {
            let base = self.settings.public_url.trim_end_matches('/');
            let bus = ("bus", &*self.settings.key.bus);
            let path = reply_path(queue, &loan.id, loan.delivery, Some(bus));
            headers.set("Reply-To", &format!("{base}{path}"))?;
        }
        if !endpoint.secret.is_empty() {
            let timestamp = times::seconds(clock::now()).to_string();
            headers.set(SIGNATURE, &signature(&endpoint.secret, &timestamp, &body))?;
            headers.set(TIMESTAMP, &timestamp)?;
        }
        let mut request = Request::new(reqwest::Method::POST, url);
        *request.headers_mut() = headers.0;
        *request.body_mut() = Some(body.into());
        Ok(request)
    }

    /// Reads an answer to its end, or to the largest size.
    async fn read(&self, mut response: Response) -> Result<Answer, Outcome> {
        let status = response.status().as_u16();
        let pause = response.headers().get(reqwest::header::RETRY_AFTER);
        let pause = pause.and_then(|value| times::retry_after(value.to_str().ok()?, clock::now()));
        let max = self.settings.reply_bytes_max;
        let too_large = || {
            let why = format!(
                "the answer of the web service has more than {max} bytes (setting \
                 limits.reply_bytes_max): pass large data by reference"
            );
            Outcome::failed(&why, false)
        };
        // An answer that declares a larger size is not read.
        if response.content_length().is_some_and(|length| length > max as u64) {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        loop {
            match response.chunk().await {
                Ok(None) => break,
                Ok(Some(part)) if body.len() + part.len() > max => return Err(too_large()),
                Ok(Some(part)) => body.extend_from_slice(&part),
                Err(error) => return Err(lost(&error)),
            }
        }
        Ok(Answer { status, retry_after: pause, body: Bytes::from(body) })
    }
}

/// Why a web service has not answered a probe.
#[derive(Debug)]
pub enum Unanswered {
    /// Requests to its address are denied.
    Refused(String),
    /// Its certificate is not trusted.
    Distrusted(String),
    /// No connection could be made.
    Unreachable(String),
    /// It accepted the connection, but did not answer in time.
    Silent,
}

impl Unanswered {
    fn of(error: &reqwest::Error) -> Unanswered {
        if let Some(Refused(why)) = causes(error).find_map(|cause| cause.downcast_ref()) {
            return Unanswered::Refused(why.clone());
        }
        let of_tls = causes(error).any(is_of_certificate);
        match innermost(error) {
            why if of_tls => Unanswered::Distrusted(why),
            _ if error.is_timeout() && !error.is_connect() => Unanswered::Silent,
            _ if error.is_timeout() => Unanswered::Unreachable("no connection in time".to_owned()),
            why => Unanswered::Unreachable(why),
        }
    }
}

/// Returns whether an error is about the certificate of the other end. I/O errors may contain such
/// an error.
fn is_of_certificate(error: &(dyn Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        return error.get_ref().is_some_and(|inside| is_of_certificate(inside));
    }
    matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)))
}

/// Collects the headers of a request.
struct Headers(HeaderMap);

impl Headers {
    /// Sets a header. Errors do not contain its value, which may be a secret.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let unusable = || format!("the header {name} of the call has a value that it cannot have");
        let of_name = HeaderName::try_from(name).map_err(|_| unusable())?;
        let value = Text::from_bytes(value.as_bytes()).map_err(|_| unusable())?;
        self.0.insert(of_name, value);
        Ok(())
    }
}

/// Returns the result of a call without an answer. Without a connection nothing was delivered.
fn not_answered(error: reqwest::Error) -> Outcome {
    if let Some(Refused(why)) = causes(&error).find_map(|cause| cause.downcast_ref()) {
        return Outcome::failed(why, false);
    }
    if error.is_connect() {
        return Outcome::not_delivered(if error.is_timeout() {
            "no connection in time (setting push.connect_timeout)".to_owned()
        } else {
            format!("no connection: {}", innermost(&error))
        });
    }
    lost(&error)
}

/// Returns the result of a call whose answer was lost. The service may have done the work.
fn lost(error: &reqwest::Error) -> Outcome {
    let why = innermost(error);
    Outcome::failed(&format!("the answer of the web service was lost: {why}"), true)
}

/// Returns the innermost cause of an error, without the address, which may contain a secret.
fn innermost(error: &reqwest::Error) -> String {
    causes(error).last().map_or_else(|| "the connection broke".to_owned(), ToString::to_string)
}

fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause: &&(dyn Error + 'static)| (*cause).source())
}
