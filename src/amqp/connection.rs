//! The address of one node of the broker: opens connections to it, and explains connection errors
//! in plain words.
//! Also the backoff between reconnects, and a record of the last failure, so that a repeated reason
//! is logged only once.

use super::credentials::{
    JOINED_ADDRESS, STRAY_AT, has_joined_address, has_stray_at, mask_credentials,
};
use super::settings::AmqpError;
use super::wire::filtered_stream::{self, ConnectionHooks};
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
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long closing a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest name of a virtual host in AMQP, in bytes.
const VHOST_BYTES_MAX: usize = 255;

/// The virtual host of an address without one.
const DEFAULT_VHOST: &str = "/";

/// The reply code of AMQP with which a connection or channel is closed without an error.
pub(super) const REPLY_SUCCESS: u16 = 200;

/// The reply text with which the manager closes connections and channels.
pub(super) const CLOSE_TEXT: &str = "closed by workflow-manager";

/// The validated address of a broker. It is displayed without the password.
pub struct BrokerAddress {
    uri: AMQPUri,
    tls: Arc<ClientConfig>,
}

impl BrokerAddress {
    /// Parses an address. `vhost` replaces the virtual host in it; `None`: the one in it is used.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is invalid.
    pub fn parse_server(
        server: &str,
        vhost: Option<&str>,
        heartbeat: Duration,
        authorities: &Authorities,
    ) -> Result<BrokerAddress, AmqpError> {
        let reject = |reason: &str| {
            let address = mask_credentials(server);
            let reason = reason.to_owned();
            Err(AmqpError::Address { entry: String::new(), address, reason })
        };
        if server.is_empty() {
            return Err(AmqpError::Address {
                entry: String::new(),
                address: String::new(),
                reason: "it is empty".to_owned(),
            });
        }
        match server.split_once("://") {
            Some(("amqp" | "amqps", address)) if !address.is_empty() => {}
            Some(("amqp" | "amqps", _)) => return reject("the host is missing"),
            Some(_) => return reject("it does not begin with amqp:// or amqps://"),
            None => return reject("there is no :// in it"),
        }
        if has_stray_at(server) {
            return reject(STRAY_AT);
        }
        if has_joined_address(server) {
            return reject(JOINED_ADDRESS);
        }
        // Once :// is present, the only part of the address that lapin's errors quote is the value
        // of `auth_mechanism`, if it is invalid. That is not a secret.
        let mut uri = match server.parse::<AMQPUri>() {
            Ok(uri) => uri,
            Err(reason) => return reject(&reason),
        };
        if let Some(host) = ipv6_host(server) {
            // lapin finds no host in such an address, and would connect to localhost.
            uri.authority.host = host.to_owned();
        }
        if uri.vhost.is_empty() {
            // The path of the address is only a slash. Most clients then use the default virtual
            // host, and one named "" hardly ever exists.
            uri.vhost = DEFAULT_VHOST.to_owned();
        }
        if let Some(vhost) = vhost {
            uri.vhost = vhost.to_owned();
        }
        if uri.vhost.len() > VHOST_BYTES_MAX {
            return reject("its virtual host has more than 255 bytes");
        }
        let heartbeat_s = heartbeat.as_secs().clamp(1, u64::from(u16::MAX));
        uri.query.heartbeat.get_or_insert(u16::try_from(heartbeat_s).unwrap_or(u16::MAX));
        Ok(BrokerAddress { uri, tls: Arc::new(authorities.client_config()) })
    }

    /// Returns in what this address must not differ from the first one of a list, and does; `None`
    /// if both can stand for the same broker.
    pub(super) fn find_difference(&self, first: &BrokerAddress) -> Option<String> {
        let pairs =
            [("virtual host", self.vhost(), first.vhost()), ("user", self.user(), first.user())];
        pairs.into_iter().find(|(_, own, expected)| own != expected).map(|(what, own, expected)| {
            format!(
                "its {what} is \"{own}\", and that of the first address \"{expected}\": the \
                 addresses of one broker differ in host, port and password only"
            )
        })
    }

    /// Returns the name of the user with which the manager logs in.
    pub(super) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    /// Returns the virtual host.
    pub fn vhost(&self) -> &str {
        &self.uri.vhost
    }

    /// Opens a connection. The broker lists it under the name `workflow-manager: <role>`.
    ///
    /// # Errors
    ///
    /// Returns the reason, as a sentence for the user, if the connection cannot be opened.
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
        let timeout = self.uri.query.connection_timeout.map_or(OPEN_TIMEOUT, Duration::from_millis);
        fail_point("amqp::connect").map_err(|error| self.explain(&error))?;
        let opening = Box::pin(filtered_stream::connect(
            self.uri.clone(),
            properties,
            self.tls.clone(),
            hooks,
        ));
        match tokio::time::timeout(timeout, opening).await {
            Ok(result) => result.map_err(|error| self.explain(&error)),
            Err(_) => Err(format!("{} did not answer within {timeout:?}", self.authority())),
        }
    }

    /// Explains a connection error to the user, in one sentence.
    #[allow(clippy::wildcard_enum_match_arm, reason = "lapin's errors are non-exhaustive")]
    pub fn explain(&self, error: &lapin::Error) -> String {
        match error.kind() {
            ErrorKind::IOError(io_error) if io_error.kind() == io::ErrorKind::ConnectionRefused => {
                format!("no broker listens at {} (connection refused)", self.authority())
            }
            ErrorKind::IOError(io_error) if io_error.kind() == io::ErrorKind::ConnectionAborted => {
                format!(
                    "{} closed the connection without an answer: is it a RabbitMQ broker, and is \
                     the scheme (amqp or amqps) right?",
                    self.authority()
                )
            }
            ErrorKind::IOError(io_error) if io_error.to_string().contains("InvalidContentType") => {
                format!(
                    "{} answers, but not with TLS ({io_error}): must the scheme be amqp instead of \
                     amqps, or the port another one (with TLS 5671)?",
                    self.authority()
                )
            }
            ErrorKind::IOError(io_error) => {
                format!("no connection to {}: {io_error}", self.authority())
            }
            ErrorKind::ParsingError(_) => {
                format!(
                    "{} answers, but not in AMQP 0-9-1: is it a RabbitMQ broker, and is this its \
                     AMQP port (5672, with TLS 5671)?",
                    self.authority()
                )
            }
            ErrorKind::ProtocolError(protocol_error) => self.explain_protocol_error(protocol_error),
            ErrorKind::MissingHeartbeatError => {
                format!("{} has been silent for two heartbeats", self.authority())
            }
            _ => format!("the connection to {} is gone: {error}", self.authority()),
        }
    }

    /// Explains an error with which the broker closed a connection or channel.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the other codes need no explanation")]
    fn explain_protocol_error(&self, error: &lapin::protocol::AMQPError) -> String {
        let (text, vhost, user) = (error.get_message(), self.vhost(), self.user());
        match error.kind() {
            // The text is "Login was refused" or "login refused". For the user guest it is "can
            // only connect via localhost".
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

    /// Returns the host and the port, for messages.
    pub fn authority(&self) -> String {
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
            if self.uri.vhost == DEFAULT_VHOST { "" } else { &self.uri.vhost }
        )
    }
}

/// Returns the host of the address if it is an IPv6 address in brackets.
fn ipv6_host(server: &str) -> Option<&str> {
    let (_, address) = server.split_once("://")?;
    let authority = address.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(host.strip_prefix('[')?.split_once(']')?.0)
}

/// Closes the connection gracefully. Gives up after a short timeout.
pub async fn close(connection: &Connection) {
    // An error means that the connection is closed already, or did not close in time.
    let closing = connection.close(REPLY_SUCCESS, CLOSE_TEXT.into());
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
}

/// Returns an error if the failpoint `name` is active. Tests use it to break connections.
pub(super) fn fail_point(name: &'static str) -> lapin::Result<()> {
    match faults::hit(name) {
        None => Ok(()),
        Some(_) => Err(io::Error::other(format!("failpoint {name}")).into()),
    }
}

/// Returns the code and text with which the broker closed a channel; `None` for other errors.
#[allow(clippy::wildcard_enum_match_arm, reason = "lapin's errors are non-exhaustive")]
pub fn channel_error(error: &lapin::Error) -> Option<(AMQPSoftError, &str)> {
    match error.kind() {
        ErrorKind::ProtocolError(protocol_error) => match protocol_error.kind() {
            AMQPErrorKind::Soft(code) => {
                Some((code.clone(), protocol_error.get_message().as_str()))
            }
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

/// The last reason for which something failed. With it, a reason is not logged on each retry.
#[derive(Default)]
pub(super) struct LastReason(Option<String>);

impl LastReason {
    /// Records this reason. Returns whether it differs from the last one.
    pub(super) fn record_if_new(&mut self, reason: &str) -> bool {
        let is_new = !self.is_last(reason);
        if is_new {
            self.0 = Some(reason.to_owned());
        }
        is_new
    }

    /// Returns the last reason; `None` if there is none.
    pub(super) fn text(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Returns whether this reason is the last one.
    pub(super) fn is_last(&self, reason: &str) -> bool {
        self.0.as_deref() == Some(reason)
    }
}

/// Converts a duration to whole milliseconds, for the log.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The exponential backoff between reconnects. The jitter keeps many managers from reconnecting at
/// the same time.
pub(super) struct ReconnectBackoff {
    builder: ExponentialBuilder,
    delays: ExponentialBackoff,
    max: Duration,
}

impl ReconnectBackoff {
    /// Creates a backoff whose delays grow from `min` to `max`.
    pub(super) fn new(min: Duration, max: Duration) -> ReconnectBackoff {
        let max = max.max(min);
        // The jitter may double a delay, so the delay without jitter is capped at half of `max`.
        let builder = ExponentialBuilder::new()
            .with_min_delay(min)
            .with_max_delay((max / 2).max(min))
            .with_jitter()
            .without_max_times();
        ReconnectBackoff { builder, delays: builder.build(), max }
    }

    /// Returns the delay before the next attempt, and advances the backoff.
    pub(super) fn next_delay(&mut self) -> Duration {
        self.delays.next().map_or(self.max, |delay| delay.min(self.max))
    }

    /// Starts again with the shortest delay.
    pub(super) fn reset(&mut self) {
        self.delays = self.builder.build();
    }
}

/// Parses the limit, in bytes, at the end of the broker's text "message size … is larger than
/// configured max size …": the last number in it.
pub(super) fn parse_size_limit(text: &str) -> Option<usize> {
    text.rsplit(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(server: &str) -> Result<BrokerAddress, String> {
        parse_with_vhost(server, None)
    }

    fn parse_with_vhost(server: &str, vhost: Option<&str>) -> Result<BrokerAddress, String> {
        let heartbeat = Duration::from_secs(30);
        BrokerAddress::parse_server(server, vhost, heartbeat, &Authorities::default())
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
        let password_host_and_vhost =
            parsed.map(|uri| (uri.authority.userinfo.password, uri.authority.host, uri.vhost));
        assert_eq!(
            password_host_and_vhost,
            Ok(("p@ss/word".to_owned(), "host".to_owned(), "a@b".to_owned()))
        );
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
    fn a_repeated_reason_is_new_only_after_another_one() {
        let mut last_reason = LastReason::default();
        let are_new = ["refused", "refused", "gone", "refused"]
            .map(|reason| last_reason.record_if_new(reason));
        assert_eq!(are_new, [true, false, true, true]);
    }

    #[test]
    fn a_virtual_host_in_the_settings_takes_precedence() {
        let address = parse_with_vhost("amqp://host/one", Some("two"));
        assert_eq!(
            address.map(|address| address.to_string()),
            Ok("amqp://host:5672/two".to_owned())
        );
    }

    #[test]
    fn delays_grow_from_min_to_max() {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(30));
        let mut backoff = ReconnectBackoff::new(min, max);
        let first_delay = backoff.next_delay();
        assert!(first_delay >= min && first_delay <= 2 * min, "{first_delay:?}");
        let later_delays: Vec<Duration> = (0..20).map(|_| backoff.next_delay()).collect();
        assert!(
            later_delays.iter().all(|delay| *delay >= min && *delay <= max)
                && later_delays[19] >= max / 2,
            "{later_delays:?}"
        );
        backoff.reset();
        assert!(backoff.next_delay() <= 2 * min);
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
