//! The kinds of buses, and what each can do.

/// The reply queue of the embedded bus: every message in it is a reply.
pub const EMBEDDED_REPLY_QUEUE: &str = "workflow-manager";

/// The kind of a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusKind {
    /// Queues in this process.
    Embedded,
    /// A broker that speaks AMQP 0-9-1.
    Amqp,
    /// Web services, to which messages are pushed.
    Push,
    /// Brokers that speak Kafka's protocol.
    Kafka,
}

/// The capabilities of a kind of bus. They serve explanations: the loading and checking of files,
/// `why`, and the documents. The engine never depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusCapabilities {
    /// Whether a broker keeps the messages, and confirms them. A web service confirms only what it
    /// accepts for later; the embedded bus confirms nothing.
    pub has_broker: bool,
    /// Whether a workflow takes calls there, on the queue `workflow.<name>`.
    pub has_calls: bool,
    /// Which messages are withdrawn when their attempts have ended.
    pub withdrawal: Withdrawal,
    /// Whether it has virtual hosts.
    pub has_vhosts: bool,
    /// Whether workers get messages of a higher priority first, if the queue supports that.
    pub has_priorities: bool,
    /// Whether nobody notices that a message was given up, so that a step needs a `timeout`.
    pub needs_timeouts: bool,
}

/// Which messages a bus withdraws when their attempts have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// Messages that it has not sent: what a broker has is out of reach.
    Unsent,
    /// Messages of attempts that ended without a reply. Before the bus leases a message that has
    /// waited, it checks whether the attempt was answered.
    Abandoned,
    /// All, including those that were answered in another way.
    All,
}

impl BusKind {
    /// All kinds.
    pub const ALL: [BusKind; 4] = [BusKind::Embedded, BusKind::Amqp, BusKind::Push, BusKind::Kafka];

    /// Returns what buses of this kind can do.
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

    /// Returns the name of the kind, which is also the name of the bus that has its own section.
    pub const fn name(self) -> &'static str {
        match self {
            BusKind::Embedded => "embedded",
            BusKind::Amqp => "amqp",
            BusKind::Push => "push",
            BusKind::Kafka => "kafka",
        }
    }
}
