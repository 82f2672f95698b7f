//! A client of the broker's management API.

use super::credentials::{STRAY_AT, has_stray_at, mask_credentials};
use super::settings::{AmqpError, AmqpSettings};
use base::trust::Authorities;
use base64::Engine;
use lapin::uri::AMQPUri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::time::Duration;
use ureq::tls::TlsConfig;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The management API of a broker.
#[derive(Clone)]
pub(super) struct ManagementApi {
    /// The base address, without credentials and without a slash at the end.
    base_url: String,
    authorization: String,
    tls: TlsConfig,
}

impl ManagementApi {
    /// Creates the client of the API that the settings name, if they name one.
    pub(super) fn from_settings(
        settings: &AmqpSettings,
    ) -> Result<Option<ManagementApi>, AmqpError> {
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
        let uri: AMQPUri = format!("amqp://{}", rest.split('/').next().unwrap_or_default())
            .parse()
            .map_err(|why: String| refused(&why))?;
        let user = uri.authority.userinfo;
        let credentials = base64::engine::general_purpose::STANDARD
            .encode(format!("{}:{}", user.username, user.password));
        Ok(ManagementApi {
            base_url: format!("{scheme}://{host}"),
            authorization: format!("Basic {credentials}"),
            tls: authorities.agent_tls_config(),
        })
    }

    pub(super) fn send_request(
        &self,
        method: &str,
        path: &str,
        body: Option<String>,
    ) -> Result<String, String> {
        // The password goes only to the broker, whatever proxy the environment names.
        let config = ureq::Agent::config_builder()
            .proxy(None)
            .tls_config(self.tls.clone())
            .timeout_global(Some(REQUEST_TIMEOUT))
            .http_status_as_error(false)
            .build();
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base_url))
            .header("Authorization", &self.authorization);
        let agent = ureq::Agent::from(config);
        let sent = match body {
            Some(body) => request
                .header("Content-Type", "application/json")
                .body(body)
                .map_err(ureq::Error::from)
                .and_then(|request| agent.run(request)),
            None => {
                request.body(()).map_err(ureq::Error::from).and_then(|request| agent.run(request))
            }
        };
        let mut response =
            sent.map_err(|error| format!("{method} {}{path}: {error}", self.base_url))?;
        let text = response.body_mut().read_to_string().map_err(|error| error.to_string())?;
        if response.status().is_success() {
            return Ok(text);
        }
        Err(format!(
            "{method} {}{path}: {} {}",
            self.base_url,
            response.status(),
            text.chars().take(200).collect::<String>()
        ))
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
    pub(super) fn list_queues(&self, vhost: &str) -> Result<Vec<ListedQueue>, String> {
        self.get_json(&format!("/api/queues/{}?columns={COLUMNS}", encode_segment(vhost)))
    }

    /// Returns one queue.
    pub(super) fn find_queue(&self, vhost: &str, queue: &str) -> Result<ListedQueue, String> {
        self.get_json(&format!(
            "/api/queues/{}/{}?columns={COLUMNS}",
            encode_segment(vhost),
            encode_segment(queue)
        ))
    }

    fn get_json<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        serde_json::from_str(&self.send_request("GET", path, None)?)
            .map_err(|error| format!("GET {path}: {error}"))
    }
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
