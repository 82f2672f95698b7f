//! A client of the broker's management API, which lists queues and sets policies over HTTP.

use super::credentials::{STRAY_AT, has_joined_address, has_stray_at, mask_credentials};
use super::settings::{AmqpError, AmqpSettings};
use base::http_client;
use base64::Engine;
use lapin::uri::AMQPUri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Method};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest body of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 10 * 1024 * 1024;

/// How many characters of the body of an error response are quoted.
const ERROR_CHARS_MAX: usize = 200;

/// A client of the management API, which every node of the broker may offer.
#[derive(Clone)]
pub struct ManagementApi {
    endpoints: Vec<ManagementEndpoint>,
    /// The position of the endpoint that is asked first: the one that answered last.
    current: Arc<AtomicUsize>,
    client: Client,
}

/// The management API of one node.
#[derive(Clone)]
struct ManagementEndpoint {
    /// The base address, without credentials and trailing slash.
    base_url: String,
    /// The value of the header `Authorization`.
    authorization: String,
}

/// Why a request failed.
enum RequestError {
    /// The node does not answer, or not as it should: another one may.
    Away(String),
    /// The node refuses the request.
    Refused(String),
}

impl ManagementApi {
    /// Creates a client for the addresses in the settings. Returns `None` if none is set.
    ///
    /// # Errors
    ///
    /// Returns an error if an address is invalid, or no HTTP client can be created.
    pub fn from_settings(settings: &AmqpSettings) -> Result<Option<ManagementApi>, AmqpError> {
        let AmqpSettings { management, authorities, .. } = settings;
        let Some(first) = management.first() else { return Ok(None) };
        let parse = |(position, url): (usize, &String)| {
            ManagementEndpoint::parse(url)
                .map_err(|error| error.of_entry(position, management.len()))
        };
        let endpoints = management.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        let client = http_client::builder(authorities).build().map_err(|error| {
            let (entry, address) = (String::new(), mask_credentials(first));
            AmqpError::Management { entry, address, reason: error.to_string() }
        })?;
        Ok(Some(ManagementApi { endpoints, current: Arc::default(), client }))
    }

    /// Sends a request, and returns the body of the response. If a node does not answer, asks the
    /// next one: all requests may be repeated.
    ///
    /// # Errors
    ///
    /// Returns an error if no node answers, or if the status of an answer is not a success.
    pub(super) async fn send_request(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<String, String> {
        let first = self.current.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        for offset in 0..self.endpoints.len() {
            let position = (first + offset) % self.endpoints.len();
            let Some(endpoint) = self.endpoints.get(position) else { break };
            match endpoint.send_request(&self.client, method.clone(), path, body.clone()).await {
                Ok(text) => {
                    self.current.store(position, Ordering::Relaxed);
                    return Ok(text);
                }
                Err(RequestError::Refused(reason)) => return Err(reason),
                Err(RequestError::Away(reason)) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    }
}

impl ManagementEndpoint {
    /// Parses `http://user:password@host:port`, or `https://`.
    fn parse(url: &str) -> Result<ManagementEndpoint, AmqpError> {
        let to_error = |reason: &str| AmqpError::Management {
            entry: String::new(),
            address: mask_credentials(url),
            reason: reason.to_owned(),
        };
        let (scheme, address) = match url.split_once("://") {
            Some((scheme @ ("http" | "https"), address)) => (scheme, address),
            Some(_) | None => return Err(to_error("it does not begin with http:// or https://")),
        };
        if has_stray_at(url) {
            return Err(to_error(STRAY_AT));
        }
        if has_joined_address(url) {
            return Err(to_error("each address of a list begins with http:// or https://"));
        }
        let host_and_port =
            address.rsplit_once('@').map_or(address, |(_, host)| host).trim_end_matches('/');
        if host_and_port.is_empty() {
            return Err(to_error("the host is missing"));
        }
        // The credentials are encoded as in the address of the broker, so lapin can parse them.
        let authority = address.split_once('/').map_or(address, |(authority, _)| authority);
        let uri: AMQPUri =
            format!("amqp://{authority}").parse().map_err(|reason: String| to_error(&reason))?;
        let user_info = uri.authority.userinfo;
        let credentials = base64::engine::general_purpose::STANDARD
            .encode(format!("{}:{}", user_info.username, user_info.password));
        Ok(ManagementEndpoint {
            base_url: format!("{scheme}://{host_and_port}"),
            authorization: format!("Basic {credentials}"),
        })
    }

    /// Sends a request to this node, and returns the body of the response.
    async fn send_request(
        &self,
        client: &Client,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<String, RequestError> {
        let url = format!("{}{path}", self.base_url);
        let request_line = format!("{method} {url}");
        let mut request_builder =
            client.request(method, url).header(AUTHORIZATION, &self.authorization);
        if let Some(body) = body {
            request_builder = request_builder.header(CONTENT_TYPE, "application/json").body(body);
        }
        let sending = async {
            let request =
                request_builder.build().map_err(|error| http_client::root_cause(&error))?;
            http_client::send(client, request, REQUEST_TIMEOUT, RESPONSE_BYTES_MAX).await
        };
        let response = sending
            .await
            .map_err(|error| RequestError::Away(format!("{request_line}: {error}")))?;
        let body = response.body.map_err(RequestError::Away)?;
        let response_text = String::from_utf8_lossy(&body).into_owned();
        if response.status.is_success() {
            return Ok(response_text);
        }
        let quoted_text: String = response_text.chars().take(ERROR_CHARS_MAX).collect();
        let reason = format!("{request_line}: {} {quoted_text}", response.status);
        // A node that is stopping, or that pauses because it is in a minority, answers 5xx.
        Err(if response.status.is_server_error() {
            RequestError::Away(reason)
        } else {
            RequestError::Refused(reason)
        })
    }
}

/// A queue as the API lists it. The counts are some seconds old. They are `None` for a new queue,
/// or if the broker collects no statistics.
#[derive(Deserialize)]
pub(super) struct ListedQueue {
    pub(super) name: String,
    /// The number of ready and unacknowledged messages together.
    #[serde(default)]
    pub(super) messages: Option<u64>,
    #[serde(default)]
    pub(super) messages_unacknowledged: Option<u64>,
    /// How it was declared.
    #[serde(flatten)]
    pub(super) declaration: ListedDeclaration,
}

/// The declaration of a queue. Fields that the API does not report are `None`.
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

/// The columns of queues that are requested: the fields of [`ListedQueue`].
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

    /// Sends a GET request, and parses the response.
    async fn get_json<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
    ) -> Result<T, String> {
        parse_json(self.send_request(Method::GET, path, None).await?)
            .await
            .map_err(|error| format!("GET {path}: {error}"))
    }
}

/// Parses a response on a blocking thread: the list of queues may be large, and the caller may run
/// on the router's thread.
pub(super) async fn parse_json<T: serde::de::DeserializeOwned + Send + 'static>(
    body: String,
) -> Result<T, String> {
    let parse = move || serde_json::from_str(&body).map_err(|error| error.to_string());
    actix_rt::task::spawn_blocking(parse).await.map_err(|error| error.to_string())?
}

/// Percent-encodes a text as one segment of a path.
pub(super) fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_parsed_and_never_displayed_with_its_password() {
        let parsed = ManagementEndpoint::parse("http://me:p%40ss@host:15672/")
            .map(|api| (api.base_url, api.authorization));
        assert_eq!(parsed, Ok(("http://host:15672".to_owned(), "Basic bWU6cEBzcw==".to_owned())));
        for address in [
            "ftp://me:p-word@host",
            "me:p-word@host",
            "http://me:p-word@",
            "http://me:1/p-word@host",
            "http://",
        ] {
            let error = ManagementEndpoint::parse(address)
                .map(|api| api.base_url)
                .expect_err(address)
                .to_string();
            assert!(!error.contains("p-word"), "{error}");
        }
        assert_eq!(encode_segment("/a b"), "%2Fa%20b");
    }
}
