//! The HTTP client of the daemon's own calls: of web services, of the webhook, of the receiver of
//! traces and of the broker's management API.

use crate::clock;
use crate::times;
use crate::trust::Authorities;
use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Request, Response, StatusCode};
use std::error::Error;
use std::time::Duration;

/// How long a connection is kept for the next call. Servers close idle connections after five
/// seconds or more, and a call on a connection that is just closing would count as lost.
const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(3);

/// Prepares a client that trusts these authorities. It ignores proxies in the environment, follows
/// no redirects, and tries nothing again by itself.
pub fn builder(authorities: &Authorities) -> ClientBuilder {
    // An error means that a provider is installed already.
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

/// An answer to a call, with any status.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// The pause that it demands before the next call.
    pub retry_after: Option<Duration>,
    /// Its body, or why it could not be read.
    pub body: Result<Bytes, String>,
}

/// Sends a request, and reads at most `bytes_max` of the answer. All of it may take `timeout`.
///
/// # Errors
///
/// Says why there is no answer, without the address, which may contain a secret.
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

/// Reads the body of an answer to its end, so that its connection can be used again. Returns `None`
/// if it has more than `bytes_max`.
///
/// # Errors
///
/// The connection broke.
pub async fn read_body(
    mut response: Response,
    bytes_max: usize,
) -> Result<Option<Bytes>, reqwest::Error> {
    // An answer that declares a larger size is not read.
    if response.content_length().is_some_and(|length| length > bytes_max as u64) {
        return Ok(None);
    }
    let mut body = BytesMut::new();
    while let Some(part) = response.chunk().await? {
        if body.len() + part.len() > bytes_max {
            return Ok(None);
        }
        body.extend_from_slice(&part);
    }
    Ok(Some(body.freeze()))
}

/// Returns the pause that the headers of an answer demand.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    times::parse_retry_after(headers.get(RETRY_AFTER)?.to_str().ok()?, clock::now())
}

/// Returns the pause after this many failures in a row: the first of `bounds`, doubled each time,
/// but not longer than the second.
pub fn backoff(failures: u32, bounds: (Duration, Duration)) -> Duration {
    let (min, max) = bounds;
    min.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1))).min(max.max(min))
}

/// Returns the innermost cause of an error, without the address, which may contain a secret.
pub fn root_cause(error: &reqwest::Error) -> String {
    causes(error).last().map_or_else(|| "the connection broke".to_owned(), ToString::to_string)
}

/// Returns the causes of an error, the innermost last.
pub fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause: &&(dyn Error + 'static)| (*cause).source())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Timestamp;

    #[test]
    fn a_pause_is_doubled_up_to_the_longest() {
        let seconds = |failures| {
            backoff(failures, (Duration::from_secs(1), Duration::from_secs(60))).as_secs()
        };
        assert_eq!([0, 1, 2, 3, 6, 7, 100].map(seconds), [1, 1, 2, 4, 32, 60, 60]);
        let (min, max) = (Duration::from_secs(5), Duration::from_secs(1));
        assert_eq!(backoff(3, (min, max)), min);
    }

    #[test]
    fn retry_after_may_be_a_date() {
        let pause = |after: &str| {
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, after.parse().expect("a value"))]))
        };
        let at = Timestamp(clock::now().0 + 600_000_000_000);
        let at = jiff::Timestamp::from_nanosecond(i128::from(at.0)).expect("a time");
        let date = jiff::fmt::rfc2822::DateTimePrinter::new()
            .timestamp_to_rfc9110_string(&at)
            .expect("a date");
        let demanded = pause(&date).expect("a pause");
        assert!((500..=600).contains(&demanded.as_secs()), "{demanded:?}");
        assert_eq!((pause("7"), pause("soon")), (Some(Duration::from_secs(7)), None));
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
