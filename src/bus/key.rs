//! Which bus, and which queue of it.

use std::fmt;
use std::sync::Arc;

/// Identifies a bus: its name in the settings, and the virtual host that it serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusKey {
    /// The name.
    pub name: Arc<str>,
    /// The virtual host; empty means the one of the broker's address.
    pub vhost: Arc<str>,
}

/// The destination of a message: a queue of a bus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The bus.
    pub bus: BusKey,
    /// The queue.
    pub queue: Arc<str>,
}

impl fmt::Display for BusKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.vhost.is_empty() { Ok(()) } else { write!(f, " {}", self.vhost) }
    }
}
