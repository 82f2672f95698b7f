//! The broker's address: opens connections to it, and explains errors of connections in plain
//! words.

use super::credentials::{STRAY_AT, has_stray_at, mask_credentials};
use super::settings::{AmqpError, AmqpSettings};
use super::wire::filtered_stream::{self, ConnectionHooks};
use crate::section::REPLY_QUEUE_BYTES_MAX;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use base::faults;
use base::trust::Authorities;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, ErrorKind};
use rustls::ClientConfig;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long opening a connection may take, unless the address sets `?connection_timeout=` (in ms).
const OPEN_SECONDS_MAX: u64 = 10;

/// How long the orderly closing of a connection may take.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// The longest name of a virtual host that AMQP can carry, in bytes.
const VHOST_BYTES_MAX: usize = 255;

/// The virtual host of an address without one.
const DEFAULT_VHOST: &str = "/";

/// The validated address of a broker. It is displayed without the password.
pub struct BrokerAddress {
    uri: AMQPUri,
    tls: Arc<ClientConfig>,
}

impl BrokerAddress {
    /// Parses the address in the settings, and checks the name of the reply queue.
    pub fn parse(settings: &AmqpSettings) -> Result<BrokerAddress, AmqpError> {
        let AmqpSettings { server, vhost, reply_queue, heartbeat, authorities, .. } = settings;
        let address =
            BrokerAddress::parse_server(server, vhost.as_deref(), *heartbeat, authorities)?;
        if reply_queue.is_empty() || reply_queue.len() > REPLY_QUEUE_BYTES_MAX {
            return Err(AmqpError::ReplyQueue(reply_queue.len()));
        }
        Ok(address)
    }

    /// Parses an address. `vhost` replaces the virtual host in it.
    pub fn parse_server(
        server: &str,
        vhost: Option<&str>,
        heartbeat: Duration,
        authorities: &Authorities,
    ) -> Result<BrokerAddress, AmqpError> {
        let refused = |why: &str| {
            Err(AmqpError::Address { address: mask_credentials(server), why: why.to_owned() })
        };
        match server.split_once("://") {
            Some(("amqp" | "amqps", rest)) if !rest.is_empty() => {}
            Some(("amqp" | "amqps", _)) => return refused("the host is missing"),
            Some(_) => return refused("it does not begin with amqp:// or amqps://"),
            None => return refused("there is no :// in it"),
        }
        if has_stray_at(server) {
            return refused(STRAY_AT);
        }
        // With :// in place, lapin's error texts repeat nothing of the address.
        let mut uri = match server.parse::<AMQPUri>() {
            Ok(uri) => uri,
            Err(why) => return refused(&why),
        };
        if let Some(host) = ipv6_host(server) {
            // lapin parses such an address as one without a host, and would connect to localhost.
            uri.authority.host = host.to_owned();
        }
        if uri.vhost.is_empty() {
            // The address ends with /. Most clients take that for the default virtual host, and one
            // named "" hardly ever exists.
            uri.vhost = DEFAULT_VHOST.to_owned();
        }
        if let Some(vhost) = vhost {
            uri.vhost = vhost.to_owned();
        }
        if uri.vhost.len() > VHOST_BYTES_MAX {
            return refused("its virtual host has more than 255 bytes");
        }
        let heartbeat_s = heartbeat.as_secs().clamp(1, u64::from(u16::MAX));
        uri.query.heartbeat.get_or_insert(u16::try_from(heartbeat_s).unwrap_or(u16::MAX));
        Ok(BrokerAddress { uri, tls: Arc::new(authorities.client_config()) })
    }

    /// Returns the broker's user that the manager logs in as.
    pub(super) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    /// Returns the virtual host.
    pub fn vhost(&self) -> &str {
        &self.uri.vhost
    }

    /// Opens a connection. `role` names it in the broker's lists.
    ///
    /// # Errors
    ///
    /// A sentence for the user says why it could not be opened.
    pub async fn open(&self, role: &str) -> Result<Connection, String> {
        self.open_with_hooks(role, ConnectionHooks::default()).await
    }

    /// Opens a connection with hooks into its traffic; see [`BrokerAddress::open`].
    pub(super) async fn open_with_hooks(
        &self,
        role: &str,
        hooks: ConnectionHooks,
    ) -> Result<Connection, String> {
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("workflow-manager: {role}").into())
            .with_client_property("product".into(), "workflow-manager".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let allowed = Duration::from_millis(
            self.uri.query.connection_timeout.unwrap_or(OPEN_SECONDS_MAX * 1000),
        );
        fail_point("amqp::connect").map_err(|error| self.explain(&error))?;
        let opening = Box::pin(filtered_stream::connect(
            self.uri.clone(),
            properties,
            self.tls.clone(),
            hooks,
        ));
        match tokio::time::timeout(allowed, opening).await {
            Ok(opened) => opened.map_err(|error| self.explain(&error)),
            Err(_) => Err(format!("{} did not answer within {allowed:?}", self.authority())),
        }
    }

    /// Explains an error of a connection, in one sentence.
    #[allow(clippy::wildcard_enum_match_arm, reason = "lapin's errors are non-exhaustive")]
    pub fn explain(&self, error: &lapin::Error) -> String {
        match error.kind() {
            ErrorKind::IOError(why) if why.kind() == io::ErrorKind::ConnectionRefused => {
                format!("no broker listens at {} (connection refused)", self.authority())
            }
            ErrorKind::IOError(why) if why.kind() == io::ErrorKind::ConnectionAborted => {
                format!(
                    "{} closed the connection without a word: is it a RabbitMQ, and is amqp or \
                     amqps right?",
                    self.authority()
                )
            }
            ErrorKind::IOError(why) if why.to_string().contains("InvalidContentType") => {
                format!(
                    "{} answers, and not with TLS ({why}): is it amqp instead of amqps, or \
                     another port (with TLS 5671)?",
                    self.authority()
                )
            }
            ErrorKind::IOError(why) => format!("no connection to {}: {why}", self.authority()),
            ErrorKind::ParsingError(_) => {
                format!(
                    "{} answers, and not in AMQP 0-9-1: is it a RabbitMQ, and is this its AMQP \
                     port (5672, with TLS 5671)?",
                    self.authority()
                )
            }
            ErrorKind::ProtocolError(why) => self.explain_protocol_error(why),
            ErrorKind::MissingHeartbeatError => {
                format!("{} has been silent for two heartbeats", self.authority())
            }
            _ => format!("the connection to {} is gone: {error}", self.authority()),
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "the other codes need no words of their own")]
    fn explain_protocol_error(&self, why: &lapin::protocol::AMQPError) -> String {
        let (text, vhost, user) =
            (why.get_message(), &self.uri.vhost, &self.uri.authority.userinfo.username);
        match why.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
                if text.as_str().contains("ogin") || text.as_str().contains("can only connect") =>
            {
                format!("the broker refused the user name or password for user \"{user}\" ({text})")
            }
            AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)
                if text.as_str().contains("refused for user") =>
            {
                format!(
                    "user \"{user}\" may not use the virtual host \"{vhost}\"; to allow it: \
                     rabbitmqctl set_permissions -p '{vhost}' {user} '.*' '.*' '.*' ({text})"
                )
            }
            AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)
                if text.as_str().contains("not found") =>
            {
                format!(
                    "the broker has no virtual host \"{vhost}\"; to create it: rabbitmqctl \
                     add_vhost '{vhost}' ({text})"
                )
            }
            _ => format!("the broker closed the connection or channel: {text}"),
        }
    }

    /// Returns the host and the port.
    pub fn host_and_port(&self) -> (String, u16) {
        (self.uri.authority.host.clone(), self.uri.authority.port)
    }

    /// Returns whether the connection is over TLS.
    pub fn is_tls(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    fn authority(&self) -> String {
        format!("{}:{}", self.uri.authority.host, self.uri.authority.port)
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}/{}",
            self.uri.scheme,
            self.authority(),
            if self.uri.vhost == "/" { "" } else { &self.uri.vhost }
        )
    }
}

fn ipv6_host(server: &str) -> Option<&str> {
    let (_, rest) = server.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(host.strip_prefix('[')?.split_once(']')?.0)
}

/// Closes the connection in order, but does not wait long for a broker that does not answer.
pub async fn close(connection: &Connection) {
    // An error means that it is closed already.
    let _ =
        tokio::time::timeout(CLOSE_MAX, connection.close(200, "closed by workflow-manager".into()))
            .await;
}

/// Lets tests break a connection.
pub(super) fn fail_point(name: &'static str) -> lapin::Result<()> {
    match faults::hit(name) {
        None => Ok(()),
        Some(_) => Err(io::Error::other(format!("failpoint {name}")).into()),
    }
}

/// Returns the code and text with which the broker closed a channel, if the error means that.
#[allow(clippy::wildcard_enum_match_arm, reason = "lapin's errors are non-exhaustive")]
pub fn channel_error(error: &lapin::Error) -> Option<(AMQPSoftError, &str)> {
    match error.kind() {
        ErrorKind::ProtocolError(why) => match why.kind() {
            AMQPErrorKind::Soft(code) => Some((code.clone(), why.get_message().as_str())),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

/// The last reason that was logged, so that it is not logged again at each attempt.
#[derive(Default)]
pub(super) struct LastReason(Option<String>);

impl LastReason {
    /// Returns whether this reason is new, and remembers it.
    pub(super) fn record_if_new(&mut self, reason: &str) -> bool {
        let is_news = !self.is_last(reason);
        if is_news {
            self.0 = Some(reason.to_owned());
        }
        is_news
    }

    pub(super) fn is_last(&self, reason: &str) -> bool {
        self.0.as_deref() == Some(reason)
    }
}

/// Converts a duration to the whole milliseconds that are logged.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The backoff between reconnects: each delay is twice the last, with jitter so that many managers
/// do not return at once.
pub(super) struct ReconnectBackoff {
    builder: ExponentialBuilder,
    delays: ExponentialBackoff,
    max: Duration,
}

impl ReconnectBackoff {
    pub(super) fn new(min: Duration, max: Duration) -> ReconnectBackoff {
        let max = max.max(min);
        // The jitter may double a pause: the doubling stops at half of the cap to keep it.
        let builder = ExponentialBuilder::new()
            .with_min_delay(min)
            .with_max_delay((max / 2).max(min))
            .with_jitter()
            .without_max_times();
        ReconnectBackoff { builder, delays: builder.build(), max }
    }

    pub(super) fn next_delay(&mut self) -> Duration {
        self.delays.next().map_or(self.max, |pause| pause.min(self.max))
    }

    pub(super) fn reset(&mut self) {
        self.delays = self.builder.build();
    }
}

/// Parses the limit from the broker's text "message size … is larger than configured max size …".
pub(super) fn parse_size_limit(text: &str) -> Option<usize> {
    text.rsplit(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    fn parse(server: &str) -> Result<BrokerAddress, String> {
        BrokerAddress::parse(&AmqpSettings { server: server.to_owned(), ..settings() })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_are_displayed_without_credentials() {
        let display = |server: &str| parse(server).map(|address| address.to_string());
        assert_eq!(display("amqp://me:secret@host:1234/v"), Ok("amqp://host:1234/v".to_owned()));
        assert_eq!(display("amqps://host"), Ok("amqps://host:5671/".to_owned()));
        assert_eq!(display("amqp://me:secret@[::1]:5672/%2f"), Ok("amqp://::1:5672/".to_owned()));
    }

    #[test]
    fn a_wrong_address_is_rejected_without_showing_the_password() {
        for server in [
            "amqp:me:secret@host",
            "http://me:secret@host",
            "me:secret@host:5672",
            "amqp://",
            "amqp://me:secret@host:notaport/",
            "secret",
        ] {
            let error = parse(server).map(|address| address.to_string()).expect_err(server);
            assert!(
                error.contains("amqp://user:password@host:port/vhost") && !error.contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_ambiguous_address_is_rejected() {
        for server in [
            "amqp://me:1234/word@host:5672/v",
            "amqp://me:pass@word@host",
            "amqp://me:1234?word@host",
            "amqp://me:1#word@host",
            "amqp://me:p@host/v@word",
        ] {
            let error = parse(server).map(|address| address.to_string()).expect_err(server);
            assert!(
                error.contains("%40")
                    && error.contains("%2F")
                    && !error.contains("1234")
                    && !error.contains("pass@"),
                "{error}"
            );
        }
        let parsed = parse("amqp://me:p%40ss%2Fword@host:5672/a%40b").map(|address| address.uri);
        let parts =
            parsed.map(|uri| (uri.authority.userinfo.password, uri.authority.host, uri.vhost));
        assert_eq!(parts, Ok(("p@ss/word".to_owned(), "host".to_owned(), "a@b".to_owned())));
    }

    #[test]
    fn an_address_without_a_virtual_host_means_the_default_one() {
        let vhost = |server: &str| parse(server).map(|address| address.vhost().to_owned());
        for server in [
            "amqp://host",
            "amqp://host/",
            "amqp://me:secret@host:5672/",
            "amqp://host:5672/%2f",
            "amqp://host/?heartbeat=9",
        ] {
            assert_eq!(vhost(server), Ok("/".to_owned()), "{server}");
        }
        assert_eq!(vhost("amqp://[::1]:5672/"), Ok("/".to_owned()));
        assert_eq!(vhost("amqps://host/v"), Ok("v".to_owned()));
    }

    #[test]
    fn a_reason_is_new_once_until_another_comes() {
        let mut last = LastReason::default();
        let is_new =
            ["refused", "refused", "gone", "refused"].map(|reason| last.record_if_new(reason));
        assert_eq!(is_new, [true, false, true, true]);
    }

    #[test]
    fn a_virtual_host_in_the_settings_takes_precedence() {
        let address = BrokerAddress::parse(&AmqpSettings {
            server: "amqp://host/one".to_owned(),
            vhost: Some("two".to_owned()),
            ..settings()
        });
        assert_eq!(
            address.map(|address| address.to_string()).map_err(|error| error.to_string()),
            Ok("amqp://host:5672/two".to_owned())
        );
    }

    #[test]
    fn pauses_grow_from_min_to_max() {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(30));
        let mut pauses = ReconnectBackoff::new(min, max);
        let first = pauses.next_delay();
        assert!(first >= min && first <= 2 * min, "{first:?}");
        let later: Vec<Duration> = (0..20).map(|_| pauses.next_delay()).collect();
        assert!(
            later.iter().all(|pause| *pause >= min && *pause <= max) && later[19] >= max / 2,
            "{later:?}"
        );
        pauses.reset();
        assert!(pauses.next_delay() <= 2 * min);
    }

    #[test]
    fn the_size_limit_is_parsed_from_the_brokers_text() {
        assert_eq!(
            parse_size_limit(
                "PRECONDITION_FAILED - message size 2000 is larger than configured max size 1000"
            ),
            Some(1000)
        );
        assert_eq!(parse_size_limit("PRECONDITION_FAILED - something else"), None);
    }
}
