//! A client of the broker's management API.

use super::credentials::{STRAY_AT, has_stray_at, mask_credentials};
use super::settings::{AmqpError, AmqpSettings};
use base::http_client;
use base::trust::Authorities;
use base64::Engine;
use lapin::uri::AMQPUri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Method};
use serde::Deserialize;
use std::time::Duration;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 10 * 1024 * 1024;

/// The management API of a broker.
#[derive(Clone)]
pub struct ManagementApi {
    /// The base address, without credentials and without a slash at the end.
    base_url: String,
    authorization: String,
    client: Client,
}

impl ManagementApi {
    /// Creates the client of the API that the settings name, if they name one.
    pub fn from_settings(settings: &AmqpSettings) -> Result<Option<ManagementApi>, AmqpError> {
        let url = settings.management.as_str();
        if url.is_empty() {
            Ok(None)
        } else {
            ManagementApi::parse(url, &settings.authorities).map(Some)
        }
    }

    /// Parses `http://user:password@host:port`, or `https://`.
    fn parse(url: &str, authorities: &Authorities) -> Result<ManagementApi, AmqpError> {
        let refused = |why: &str| AmqpError::Management {
            address: mask_credentials(url),
            why: why.to_owned(),
        };
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
            Some(_) | None => return Err(refused("it does not begin with http:// or https://")),
        };
        if has_stray_at(url) {
            return Err(refused(STRAY_AT));
        }
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host).trim_end_matches('/');
        if host.is_empty() {
            return Err(refused("the host is missing"));
        }
        // The credentials are written as in the address of the broker.
        let authority = rest.split_once('/').map_or(rest, |(authority, _)| authority);
        let uri: AMQPUri =
            format!("amqp://{authority}").parse().map_err(|why: String| refused(&why))?;
        let user = uri.authority.userinfo;
        let credentials = base64::engine::general_purpose::STANDARD
            .encode(format!("{}:{}", user.username, user.password));
        let client = http_client::builder(authorities).build();
        Ok(ManagementApi {
            base_url: format!("{scheme}://{host}"),
            authorization: format!("Basic {credentials}"),
            client: client.map_err(|error| refused(&error.to_string()))?,
        })
    }

    pub(super) async fn send_request(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<String, String> {
        let what = format!("{method} {}{path}", self.base_url);
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.base_url))
            .header(AUTHORIZATION, &self.authorization);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let sent = async {
            let request = request.build().map_err(|error| http_client::root_cause(&error))?;
            http_client::send(&self.client, request, REQUEST_TIMEOUT, ANSWER_BYTES_MAX).await
        };
        let answer = sent.await.map_err(|error| format!("{what}: {error}"))?;
        let text = String::from_utf8_lossy(&answer.body?).into_owned();
        if answer.status.is_success() {
            return Ok(text);
        }
        Err(format!("{what}: {} {}", answer.status, text.chars().take(200).collect::<String>()))
    }
}

/// A queue as the API lists it. The counts are some seconds old, and missing for a new queue or
/// where the broker collects no statistics.
#[derive(Deserialize)]
pub(super) struct ListedQueue {
    pub(super) name: String,
    /// Messages that wait or are in flight.
    #[serde(default)]
    pub(super) messages: Option<u64>,
    #[serde(default)]
    pub(super) messages_unacknowledged: Option<u64>,
    /// How it was declared.
    #[serde(flatten)]
    pub(super) declaration: ListedDeclaration,
}

/// How a queue was declared, as far as the API reports it.
#[derive(Default, Deserialize)]
pub(super) struct ListedDeclaration {
    #[serde(default)]
    pub(super) durable: Option<bool>,
    #[serde(default)]
    pub(super) auto_delete: Option<bool>,
    #[serde(default)]
    pub(super) exclusive: Option<bool>,
    #[serde(default)]
    pub(super) arguments: Option<serde_json::Map<String, serde_json::Value>>,
}

/// The columns that are requested of queues.
const COLUMNS: &str =
    "name,messages,messages_unacknowledged,durable,auto_delete,exclusive,arguments";

impl ManagementApi {
    /// Returns all queues of a virtual host.
    pub(super) async fn list_queues(&self, vhost: &str) -> Result<Vec<ListedQueue>, String> {
        self.get_json(&format!("/api/queues/{}?columns={COLUMNS}", encode_segment(vhost))).await
    }

    /// Returns one queue.
    pub(super) async fn find_queue(&self, vhost: &str, queue: &str) -> Result<ListedQueue, String> {
        self.get_json(&format!(
            "/api/queues/{}/{}?columns={COLUMNS}",
            encode_segment(vhost),
            encode_segment(queue)
        ))
        .await
    }

    async fn get_json<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
    ) -> Result<T, String> {
        parse_json(self.send_request(Method::GET, path, None).await?)
            .await
            .map_err(|error| format!("GET {path}: {error}"))
    }
}

/// Parses an answer on a thread that may block: the list of many queues takes its time, and this
/// thread may be that of the router.
pub(super) async fn parse_json<T: serde::de::DeserializeOwned + Send + 'static>(
    answer: String,
) -> Result<T, String> {
    let parse = move || serde_json::from_str(&answer).map_err(|error| error.to_string());
    actix_rt::task::spawn_blocking(parse).await.map_err(|error| error.to_string())?
}

/// Encodes a text as a segment of a path.
pub(super) fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_parsed_and_never_displayed_with_its_password() {
        let read = ManagementApi::parse("http://me:p%40ss@host:15672/", &Authorities::default())
            .map(|read| (read.base_url, read.authorization));
        assert_eq!(read, Ok(("http://host:15672".to_owned(), "Basic bWU6cEBzcw==".to_owned())));
        for wrong in [
            "ftp://me:p-word@host",
            "me:p-word@host",
            "http://me:p-word@",
            "http://me:1/p-word@host",
            "http://",
        ] {
            let refused = ManagementApi::parse(wrong, &Authorities::default())
                .map(|read| read.base_url)
                .expect_err(wrong)
                .to_string();
            assert!(!refused.contains("p-word"), "{refused}");
        }
        assert_eq!(encode_segment("/a b"), "%2Fa%20b");
    }
}
