//! The kinds of buses, and their capabilities.

/// The reply queue of the embedded bus: every message in it is a reply.
pub const EMBEDDED_REPLY_QUEUE: &str = "workflow-manager";

/// The kind of a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusKind {
    /// Queues in this process.
    Embedded,
    /// A broker that speaks AMQP 0-9-1.
    Amqp,
    /// Web services, which are called with each message.
    Push,
    /// Brokers that speak Kafka's protocol.
    Kafka,
}

/// The capabilities of a kind of bus. They are used to load and check workflow files, and in texts
/// that explain the state of a job. The engine does not depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusCapabilities {
    /// Whether a broker stores and confirms step messages. A web service confirms only a message
    /// that it defers; the embedded bus confirms none.
    pub has_broker: bool,
    /// Whether a workflow can be called over it, on the queue `workflow.<name>`.
    pub has_calls: bool,
    /// Which messages are withdrawn when their attempts have ended.
    pub withdrawal: Withdrawal,
    /// Whether it has virtual hosts.
    pub has_vhosts: bool,
    /// Whether workers receive messages of a higher priority first, if the queue supports that.
    pub has_priorities: bool,
    /// Whether a step needs a `timeout`, because nothing reports that a worker has dropped its
    /// message.
    pub needs_timeouts: bool,
}

/// Which messages a bus withdraws when their attempts have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// Messages that it has not sent to the broker yet.
    Unsent,
    /// Messages of attempts that ended without a reply. When a message that has waited is leased,
    /// the attempt is checked first, so a message of an answered attempt is not sent to a worker.
    Abandoned,
    /// All messages, including those of attempts that were answered in another way.
    All,
}

impl BusKind {
    /// All kinds.
    pub const ALL: [BusKind; 4] = [BusKind::Embedded, BusKind::Amqp, BusKind::Push, BusKind::Kafka];

    /// Returns the capabilities of buses of this kind.
    pub const fn capabilities(self) -> BusCapabilities {
        match self {
            BusKind::Embedded => BusCapabilities {
                has_broker: false,
                has_calls: true,
                withdrawal: Withdrawal::Abandoned,
                has_vhosts: true,
                has_priorities: true,
                needs_timeouts: false,
            },
            BusKind::Amqp => BusCapabilities {
                has_broker: true,
                has_calls: true,
                withdrawal: Withdrawal::Unsent,
                has_vhosts: true,
                has_priorities: true,
                needs_timeouts: false,
            },
            BusKind::Push => BusCapabilities {
                has_broker: false,
                has_calls: false,
                withdrawal: Withdrawal::All,
                has_vhosts: false,
                has_priorities: true,
                needs_timeouts: true,
            },
            BusKind::Kafka => BusCapabilities {
                has_broker: true,
                has_calls: false,
                withdrawal: Withdrawal::Unsent,
                has_vhosts: false,
                has_priorities: false,
                needs_timeouts: true,
            },
        }
    }

    /// Returns the name of the kind. It is also the name of the bus with the section of this name
    /// in the settings.
    pub const fn name(self) -> &'static str {
        match self {
            BusKind::Embedded => "embedded",
            BusKind::Amqp => "amqp",
            BusKind::Push => "push",
            BusKind::Kafka => "kafka",
        }
    }
}
