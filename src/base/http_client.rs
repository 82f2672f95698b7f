//! The HTTP client for the daemon's outgoing requests: to web services, the webhook, the collector
//! of traces, and the broker's management API.

use crate::clock;
use crate::times;
use crate::trust::Authorities;
use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Request, Response, StatusCode};
use std::error::Error;
use std::time::Duration;

/// How long an idle keep-alive connection stays in the pool. Servers usually close idle connections
/// after five seconds or more, and a request on a connection that is just being closed would fail.
const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(3);

/// Returns the builder of a client that trusts these authorities. The client ignores proxies in the
/// environment, follows no redirects, and never retries on its own.
pub fn builder(authorities: &Authorities) -> ClientBuilder {
    // This fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .pool_idle_timeout(CONNECTION_IDLE_MAX)
        .user_agent(concat!("workflow-manager/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(authorities.client_config())
}

/// The answer to a request, whatever its status.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// How long to wait before the next request, as the header `Retry-After` demands; `None`: no
    /// such header.
    pub retry_after: Option<Duration>,
    /// The body, or why it could not be read.
    pub body: Result<Bytes, String>,
}

/// Sends a request, and reads the answer with a body of at most `bytes_max` bytes. `timeout` limits
/// both together.
///
/// # Errors
///
/// Returns an error if there is no answer. It does not contain the address, which may include a
/// secret.
pub async fn send(
    client: &Client,
    mut request: Request,
    timeout: Duration,
    bytes_max: usize,
) -> Result<Answer, String> {
    *request.timeout_mut() = Some(timeout);
    let response = client.execute(request).await.map_err(|error| root_cause(&error))?;
    let (status, retry_after) = (response.status(), retry_after(response.headers()));
    let body = match read_body(response, bytes_max).await {
        Ok(Some(body)) => Ok(body),
        Ok(None) => Err(format!("the answer has more than {bytes_max} bytes")),
        Err(error) => Err(root_cause(&error)),
    };
    Ok(Answer { status, retry_after, body })
}

/// Reads the body of a response to its end, so that its connection can be reused. Returns `None`,
/// without reading on, if the body has more than `bytes_max` bytes.
///
/// # Errors
///
/// Returns an error if the connection breaks or the request times out.
pub async fn read_body(
    mut response: Response,
    bytes_max: usize,
) -> Result<Option<Bytes>, reqwest::Error> {
    // The body of a response that declares a larger size is not read at all.
    if response.content_length().is_some_and(|length| length > bytes_max as u64) {
        return Ok(None);
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > bytes_max {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}

/// Returns the delay that the header `Retry-After` demands, if there is a valid one.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    times::parse_retry_after(headers.get(RETRY_AFTER)?.to_str().ok()?, clock::now())
}

/// Returns the delay of an exponential backoff after this many consecutive failures: `min`, doubled
/// with each further failure up to `max`.
pub fn backoff(failures: u32, (min, max): (Duration, Duration)) -> Duration {
    min.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1))).min(max.max(min))
}

/// Returns the innermost cause of an error, without the address, which may include a secret.
pub fn root_cause(error: &reqwest::Error) -> String {
    causes(error).last().map_or_else(|| "the connection broke".to_owned(), ToString::to_string)
}

/// Returns the chain of causes of an error, the innermost last.
pub fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause: &&(dyn Error + 'static)| (*cause).source())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Timestamp;

    #[test]
    fn the_backoff_doubles_up_to_its_maximum() {
        let seconds = |failures| {
            backoff(failures, (Duration::from_secs(1), Duration::from_secs(60))).as_secs()
        };
        assert_eq!([0, 1, 2, 3, 6, 7, 100].map(seconds), [1, 1, 2, 4, 32, 60, 60]);
        let (min, max) = (Duration::from_secs(5), Duration::from_secs(1));
        assert_eq!(backoff(3, (min, max)), min);
    }

    #[test]
    fn retry_after_may_be_a_date() {
        let parse = |value: &str| {
            let value = value.parse().expect("a header value");
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, value)]))
        };
        let time = Timestamp(clock::now().0 + 600_000_000_000);
        let time = jiff::Timestamp::from_nanosecond(i128::from(time.0)).expect("a time");
        let date = jiff::fmt::rfc2822::DateTimePrinter::new()
            .timestamp_to_rfc9110_string(&time)
            .expect("a date");
        let delay = parse(&date).expect("a delay");
        assert!((500..=600).contains(&delay.as_secs()), "{delay:?}");
        assert_eq!((parse("7"), parse("soon")), (Some(Duration::from_secs(7)), None));
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
