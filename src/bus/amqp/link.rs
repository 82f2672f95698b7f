//! What both loops need of a broker: a connection after any number of tries, with errors that say what to do; queues
//! looked for and declared.

use super::{AmqpSettings, BusState, Combined};
use crate::bus::{BusEvent, EventSink};
use backon::{BackoffBuilder, ExponentialBuilder};
use lapin::options::QueueDeclareOptions;
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind, Queue};
use std::cell::RefCell;
use std::time::Duration;
use tokio::sync::watch;

/// How long a try to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Shared by the two loops of a virtual host.
pub(super) struct Link {
    pub(super) settings: AmqpSettings,
    pub(super) sink: EventSink,
    uri: AMQPUri,
    combined: RefCell<Combined>,
}

/// Which of the two loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Publisher,
    Consumer,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Publisher => "publisher",
            Role::Consumer => "consumer",
        }
    }
}

/// Pauses between two tries; doubled each time, with jitter.
pub(super) struct Pauses {
    builder: ExponentialBuilder,
    left: backon::ExponentialBackoff,
}

impl Pauses {
    pub(super) fn new(settings: &AmqpSettings) -> Pauses {
        let builder =
            ExponentialBuilder::default().with_min_delay(settings.reconnect_min).with_max_delay(settings.reconnect_max).with_factor(2.0).with_jitter().without_max_times();
        Pauses { builder, left: builder.build() }
    }

    pub(super) fn next(&mut self) -> Duration {
        self.left.next().unwrap_or(CONNECT_TIMEOUT)
    }

    pub(super) fn restart(&mut self) {
        self.left = self.builder.build();
    }
}

impl Link {
    pub(super) fn new(settings: AmqpSettings, uri: AMQPUri, sink: EventSink) -> Link {
        Link { settings, sink, uri, combined: RefCell::new(Combined::new()) }
    }

    pub(super) fn report(&self, event: BusEvent) {
        (self.sink)(event);
    }

    pub(super) fn set_state(&self, role: Role, state: BusState) {
        let mut combined = self.combined.borrow_mut();
        match role {
            Role::Publisher => combined.publisher = state,
            Role::Consumer => combined.consumer = state,
        }
        combined.report(&self.sink);
    }

    /// Notes and logs that there is no connection, for this reason.
    pub(super) fn lost(&self, role: Role, reason: &str, pause: Duration) {
        tracing::warn!(vhost = %self.uri.vhost, role = role.word(), reason, retry_in_ms = pause.as_millis(), "no connection to the broker");
        self.set_state(role, BusState::Disconnected { reason: reason.to_owned() });
    }

    pub(super) async fn connect(&self, role: Role) -> Result<Connection, String> {
        let name = format!("workflow-manager {} {}", self.settings.reply_queue, role.word());
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        match tokio::time::timeout(CONNECT_TIMEOUT, Connection::connect_uri(self.uri.clone(), properties)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(self.explain(&error)),
            Err(_) => Err(format!("{}:{} did not answer within {CONNECT_TIMEOUT:?}", self.uri.authority.host, self.uri.authority.port)),
        }
    }

    /// The error in words that say what to do.
    pub(super) fn explain(&self, error: &lapin::Error) -> String {
        let (text, authority) = (error.to_string(), &self.uri.authority);
        if text.contains("ACCESS_REFUSED") && (text.contains("Login") || text.contains("login")) {
            return format!("the broker refused the user name or password for user \"{}\"", authority.userinfo.username);
        }
        if text.contains("NOT_ALLOWED") && text.contains("vhost") && text.contains("not found") {
            return format!("the broker has no virtual host \"{}\": create it with rabbitmqctl add_vhost", self.uri.vhost);
        }
        if text.contains("NOT_ALLOWED") && text.contains("vhost") {
            return format!("user \"{}\" may not use the virtual host \"{}\": rabbitmqctl set_permissions grants it", authority.userinfo.username, self.uri.vhost);
        }
        if matches!(error.kind(), ErrorKind::IOError(_)) {
            return format!("the broker at {}:{} cannot be reached: {text}", authority.host, authority.port);
        }
        text
    }

    /// Whether a queue is there, whatever its arguments; a missing one costs the channel.
    pub(super) async fn look_for(&self, channel: &Channel, queue: &str) -> Result<Option<Queue>, lapin::Error> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        match channel.queue_declare(queue.into(), passive, FieldTable::default()).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_soft(&error, &AMQPSoftError::NOTFOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Waits for the pause; true if the bus is to close before it is over.
pub(super) async fn pause(duration: Duration, closing: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        () = tokio::time::sleep(duration) => false,
        () = closed(closing) => true,
    }
}

/// Returns once the bus is to close.
pub(super) async fn closed(closing: &mut watch::Receiver<bool>) {
    // The sender lives as long as the bus; without it there is nothing to close for.
    if closing.wait_for(|closing| *closing).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Whether an error costs a channel alone; who uses that channel is told by its own call.
pub(super) fn costs_a_channel(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if matches!(error.kind(), AMQPErrorKind::Soft(_)))
}

/// Whether the broker closed a channel with this soft error.
pub(super) fn is_soft(error: &lapin::Error, soft: &AMQPSoftError) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if matches!(error.kind(), AMQPErrorKind::Soft(kind) if kind == soft))
}
