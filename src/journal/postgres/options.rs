//! How a journal in PostgreSQL is reached, and under which name.

use base::trust::Authorities;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{CancelToken, Config, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long a connection attempt may take, for each address of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an idle connection is silent before TCP checks the other end, and how long sent bytes
/// may be unacknowledged before the connection counts as broken.
const TCP_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two keepalives that are not answered.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// How many keepalives may be unanswered before the connection counts as broken.
const KEEPALIVE_RETRIES: u32 = 2;

/// The longest name of a manager, in bytes: PostgreSQL's limit for identifiers.
const NAME_BYTES_MAX: usize = 63;

/// The options of a journal in PostgreSQL.
#[derive(Clone)]
pub struct PostgresOptions {
    /// The server, the database, and how to log in.
    pub server: PostgresAddress,
    /// The certificate authorities that are trusted, for addresses that do not say
    /// `sslmode=disable`.
    pub authorities: Authorities,
    /// The manager's name. Of all processes with one name, one is active.
    pub name: String,
    /// The address of this process's API, by which others are led to it; `None` if it has none.
    pub api_address: Option<String>,
    /// Whether a server without a synchronous standby is refused.
    pub require_synchronous: bool,
}

/// The address of a server: a URL `postgres://user:password@host:port/database`.
#[derive(Clone)]
pub struct PostgresAddress {
    config: Config,
    /// The address without user and password, for messages.
    display: String,
}

impl fmt::Debug for PostgresAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.display)
    }
}

impl fmt::Display for PostgresAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.display)
    }
}

impl FromStr for PostgresAddress {
    type Err = String;

    /// Parses a URL. The error never contains the URL, which may have a password.
    fn from_str(url: &str) -> Result<PostgresAddress, String> {
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err("it must begin with postgres:// or postgresql://".to_owned());
        }
        let mut config = Config::from_str(url).map_err(|error| {
            format!("{}; expected postgres://user@host:5432/database", with_causes(&error))
        })?;
        if config.get_hosts().is_empty() {
            return Err("it names no host; expected postgres://user@host:5432/database".to_owned());
        }
        let Some(database) = config.get_dbname().map(str::to_owned) else {
            return Err(
                "it names no database; expected postgres://user@host:5432/database".to_owned()
            );
        };
        let is_split = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
        if config.get_hosts().iter().any(is_split) {
            return Err("its password contains an @: write it as %40".to_owned());
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config
            .application_name("workflow-manager")
            .keepalives_idle(TCP_TIMEOUT)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES)
            .tcp_user_timeout(TCP_TIMEOUT)
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        let display = format!("postgres://{}/{database}", display_hosts(&config));
        Ok(PostgresAddress { config, display })
    }
}

impl PostgresAddress {
    /// Connects to the server. Returns the client, and the connection that must be polled for it.
    pub(super) async fn connect(
        &self,
        authorities: &Authorities,
    ) -> Result<(tokio_postgres::Client, AnyConnection), tokio_postgres::Error> {
        if self.config.get_ssl_mode() == SslMode::Disable {
            let (client, connection) = self.config.connect(NoTls).await?;
            return Ok((client, AnyConnection::Plain(Box::new(connection))));
        }
        let connector = MakeRustlsConnect::new(authorities.client_config());
        let (client, connection) = self.config.connect(connector).await?;
        Ok((client, AnyConnection::Tls(Box::new(connection))))
    }
}

impl PostgresOptions {
    /// Asks the server to cancel the active statement of a connection.
    pub(super) async fn cancel(&self, token: CancelToken) -> Result<(), tokio_postgres::Error> {
        if self.server.config.get_ssl_mode() == SslMode::Disable {
            return token.cancel_query(NoTls).await;
        }
        token.cancel_query(MakeRustlsConnect::new(self.authorities.client_config())).await
    }
}

/// A connection with or without TLS.
pub(super) enum AnyConnection {
    Plain(Box<tokio_postgres::Connection<Socket, NoTlsStream>>),
    Tls(Box<tokio_postgres::Connection<Socket, TlsStream>>),
}

type TlsStream = <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream;

/// Returns an error if a name cannot be a manager's.
///
/// # Errors
///
/// Returns an error if it is empty, longer than 63 bytes, or has other characters than letters,
/// digits, `-`, `_` and `.`.
pub fn check_manager_name(name: &str) -> Result<(), String> {
    let is_valid = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
    if is_valid {
        return Ok(());
    }
    Err(format!(
        "a manager's name has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.', and this is \
         {name:?}"
    ))
}

fn display_hosts(config: &Config) -> String {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate().map(|(index, host)| {
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(directory) => format!("{}:{port}", directory.display()),
        }
    });
    hosts.collect::<Vec<_>>().join(",")
}

/// Returns an error's text with the texts of its causes.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
