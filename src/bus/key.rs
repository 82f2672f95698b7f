//! The keys of buses, and the addresses of queues.

use std::fmt;
use std::sync::Arc;

/// The key of a bus. A bus of the settings has one key for each virtual host that it serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusKey {
    /// The name of the bus in the settings.
    pub name: Arc<str>,
    /// The virtual host; empty: the virtual host in the broker's address.
    pub vhost: Arc<str>,
}

/// The destination of a message: a queue of a bus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The bus.
    pub bus: BusKey,
    /// The name of the queue.
    pub queue: Arc<str>,
}

impl fmt::Display for BusKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.vhost.is_empty() { Ok(()) } else { write!(f, " {}", self.vhost) }
    }
}
