//! The addresses of a broker: one for each of its nodes that the settings name, and which of them
//! is in use. All connections of a bus go to the same node while that can be reached.

use super::connection::{BrokerAddress, ReconnectBackoff};
use super::settings::{AmqpError, AmqpSettings};
use crate::section::REPLY_QUEUE_BYTES_MAX;
use lapin::Connection;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The validated addresses of a broker's nodes, in the order of the setting. They have the same
/// virtual host and the same user.
pub struct BrokerAddresses {
    first: Arc<BrokerAddress>,
    others: Vec<Arc<BrokerAddress>>,
    /// The position of the address to which the next connection is opened.
    current: AtomicUsize,
}

impl BrokerAddresses {
    /// Parses the addresses in the settings, and checks the name of the reply queue.
    ///
    /// # Errors
    ///
    /// Returns an error if any of them is invalid, or if two addresses have different virtual hosts
    /// or users.
    pub fn parse(settings: &AmqpSettings) -> Result<BrokerAddresses, AmqpError> {
        let AmqpSettings { servers, vhost, reply_queue, heartbeat, authorities, .. } = settings;
        let parse = |(position, server): (usize, &String)| {
            BrokerAddress::parse_server(server, vhost.as_deref(), *heartbeat, authorities)
                .map(Arc::new)
                .map_err(|error| error.of_entry(position, servers.len()))
        };
        let no_server = String::new();
        let first = parse((0, servers.first().unwrap_or(&no_server)))?;
        let others: Vec<_> =
            servers.iter().enumerate().skip(1).map(parse).collect::<Result<_, _>>()?;
        for (index, other) in others.iter().enumerate() {
            if let Some(reason) = other.find_difference(&first) {
                let address = other.to_string();
                let error = AmqpError::Address { entry: String::new(), address, reason };
                return Err(error.of_entry(index + 1, servers.len()));
            }
        }
        if reply_queue.is_empty() || reply_queue.len() > REPLY_QUEUE_BYTES_MAX {
            return Err(AmqpError::ReplyQueue(reply_queue.len()));
        }
        Ok(BrokerAddresses { first, others, current: AtomicUsize::new(0) })
    }

    /// Returns the virtual host.
    pub fn vhost(&self) -> &str {
        self.first.vhost()
    }

    /// Returns the name of the user with which the manager logs in.
    pub(super) fn user(&self) -> &str {
        self.first.user()
    }

    /// Returns all addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<BrokerAddress>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns whether there is more than one address.
    pub fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns the address to which the next connection is opened.
    pub(super) fn current(&self) -> Arc<BrokerAddress> {
        self.iter().nth(self.current.load(Ordering::Relaxed)).unwrap_or(&self.first).clone()
    }

    /// Has the next connection go to the next address, because a connection to this one failed or
    /// ended. Does nothing if another connection has found that out before.
    pub(super) fn leave(&self, address: &Arc<BrokerAddress>) {
        if Arc::ptr_eq(&self.current(), address) {
            let next = (self.current.load(Ordering::Relaxed) + 1) % self.count();
            self.current.store(next, Ordering::Relaxed);
        }
    }

    /// Opens a connection to the current address, or else to the next that can be reached. See
    /// [`BrokerAddress::open`].
    ///
    /// # Errors
    ///
    /// Returns the reasons, as a sentence for the user, if no address can be reached.
    pub(super) async fn open(
        &self,
        role: &str,
    ) -> Result<(Arc<BrokerAddress>, Connection), String> {
        let mut reasons = Vec::new();
        for _ in self.iter() {
            let address = self.current();
            match address.open(role).await {
                Ok(connection) => return Ok((address, connection)),
                Err(reason) => {
                    self.leave(&address);
                    reasons.push(reason);
                }
            }
        }
        Err(reasons.join("; "))
    }

    fn count(&self) -> usize {
        1 + self.others.len()
    }
}

/// The attempts of one connection to reach the broker: each failure leads to the next address at
/// once, and only a round of failures to a pause.
pub(super) struct Reconnects {
    backoff: ReconnectBackoff,
    /// The failures since the connection was last of use.
    failures: usize,
}

impl Reconnects {
    /// Creates the attempts of a connection whose pauses grow from `min` to `max`.
    pub(super) fn new(min: Duration, max: Duration) -> Reconnects {
        Reconnects { backoff: ReconnectBackoff::new(min, max), failures: 0 }
    }

    /// Leaves this address, to which the connection failed or ended. Returns the delay before the
    /// next attempt: none while the round has further addresses.
    pub(super) fn next_delay(
        &mut self,
        addresses: &BrokerAddresses,
        address: &Arc<BrokerAddress>,
    ) -> Duration {
        addresses.leave(address);
        self.failures += 1;
        if self.failures.is_multiple_of(addresses.count()) {
            self.backoff.next_delay()
        } else {
            Duration::ZERO
        }
    }

    /// Starts a new round, with the shortest pause after it.
    pub(super) fn reset(&mut self) {
        self.backoff.reset();
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    fn parse(servers: &[&str]) -> Result<BrokerAddresses, String> {
        let servers = servers.iter().map(|server| (*server).to_owned()).collect();
        BrokerAddresses::parse(&AmqpSettings { servers, ..settings() })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_failure_leads_to_the_next_address_and_a_round_of_them_to_a_pause() {
        let addresses = parse(&["amqp://a", "amqp://b", "amqp://c"]).expect("addresses");
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(30));
        let mut reconnects = Reconnects::new(min, max);
        let mut hosts = Vec::new();
        for round in 0..2 {
            for attempt in 0..3 {
                let address = addresses.current();
                hosts.push(address.host_and_port().0);
                let delay = reconnects.next_delay(&addresses, &address);
                assert_eq!(delay >= min, attempt == 2, "{round} {attempt}: {delay:?}");
            }
        }
        assert_eq!(hosts, ["a", "b", "c", "a", "b", "c"]);
        // Two connections to one node end together, which is one reason to leave it.
        let (mut one, mut other) = (Reconnects::new(min, max), Reconnects::new(min, max));
        let address = addresses.current();
        assert_eq!(one.next_delay(&addresses, &address), Duration::ZERO);
        assert_eq!(other.next_delay(&addresses, &address), Duration::ZERO);
        assert_eq!(addresses.current().host_and_port().0, "b");
        // With one address, each failure ends a round.
        let single = parse(&["amqp://a"]).expect("an address");
        assert!(Reconnects::new(min, max).next_delay(&single, &single.current()) >= min);
    }

    #[test]
    fn an_error_names_the_entry_and_never_the_password() {
        let message = |servers: &[&str]| {
            let error = parse(servers).map(|_| ()).expect_err("the list is rejected");
            assert!(!error.contains("cret"), "{error}");
            error
        };
        let good = "amqp://me:cret@a/v";
        for (servers, expected) in [
            (vec![good, "b:5672"], "server, entry 2 of 2, \"***\""),
            (
                vec![good, "", "amqp://b/v"],
                "entry 2 of 3, \"\" is not an address of a broker: it is empty",
            ),
            (vec![good, "http://b"], "does not begin with amqp:// or amqps://"),
            (vec![good, "amqp://me:cret@b/w"], "its virtual host is \"w\", and that of the first"),
            (vec![good, "amqp://you:cret@b/v"], "its user is \"you\", and that of the first"),
            (vec!["amqp://me:cret@a:5672,b:5672/v"], "each address of a list begins with amqp://"),
            (vec!["amqp://me:cret@a/v,b:5672/v"], "each address of a list begins with amqp://"),
            (vec!["amqp://me:cret@a/v,"], "each address of a list begins with amqp://"),
        ] {
            let error = message(&servers);
            assert!(error.contains(expected), "{servers:?}: {error}");
        }
        let single = message(&["amqp://me:cret@:x"]);
        assert!(single.starts_with("server \"amqp://***@:x\" is not"), "{single}");
        // As before there were lists.
        assert_eq!(parse(&["amqp://a/v,w"]).map(|list| list.vhost().to_owned()), Ok("v,w".into()));
    }
}
