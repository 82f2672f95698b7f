//! Limits for clients that send wrong tokens. A valid token is never refused because of somebody
//! else's wrong ones: many clients may share an address behind a proxy. Answers to wrong tokens are
//! delayed, and only few of them are delayed at once, so that guessing is slow.

use crate::clock;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The time after which one wrong token is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);

/// How long the answer to a wrong token is delayed, once an address has sent too many.
const PAUSE: Duration = Duration::from_secs(1);

/// How many answers are delayed at once. Further ones are sent at once, and the connection is
/// closed.
const PAUSES_MAX: usize = 64;

/// How many addresses are counted separately; all others count as one.
const PEERS_MAX: usize = 4096;

/// How a wrong token is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// At once: the token is wrong.
    Told,
    /// After a delay: the token is wrong.
    Paused,
    /// At once: there were too many. The connection is closed.
    TooMany,
}

/// Counts the wrong tokens of each address.
pub struct Logins {
    /// How many wrong tokens an address may send before it is slowed down. 0: any number.
    allowed: u32,
    peers: Mutex<Peers>,
    pauses: Semaphore,
}

#[derive(Default)]
struct Peers {
    /// When the last wrong token of each address will be forgotten.
    known: HashMap<IpAddr, Option<Instant>>,
    others: Option<Instant>,
    cleaned: Option<Instant>,
}

impl Logins {
    /// Makes a limiter that answers this many wrong tokens of an address at once. 0: all of them.
    pub fn new(allowed: u32) -> Logins {
        Logins { allowed, peers: Mutex::default(), pauses: Semaphore::new(PAUSES_MAX) }
    }

    /// Records a wrong token from an address. Returns once it may be answered.
    pub async fn failed(&self, peer: Option<IpAddr>) -> Failed {
        if self.allowed == 0 || !self.is_too_many(peer) {
            return Failed::Told;
        }
        let Ok(_place) = self.pauses.try_acquire() else { return Failed::TooMany };
        tokio::time::sleep(PAUSE).await;
        Failed::Paused
    }

    fn is_too_many(&self, peer: Option<IpAddr>) -> bool {
        let now = clock::ticks();
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let forgotten = peers.of(peer.map(network), now);
        let begins = forgotten.filter(|at| *at > now).unwrap_or(now);
        // The count is bounded: a client that stops guessing is soon answered at once again.
        let last = now + FORGOTTEN_AFTER * self.allowed.saturating_add(1);
        let until = (begins + FORGOTTEN_AFTER).min(last);
        *forgotten = Some(until);
        until > now + FORGOTTEN_AFTER * self.allowed
    }
}

impl Peers {
    fn of(&mut self, peer: Option<IpAddr>, now: Instant) -> &mut Option<Instant> {
        let Some(peer) = peer else { return &mut self.others };
        if self.known.len() >= PEERS_MAX && !self.known.contains_key(&peer) {
            if self.cleaned.is_none_or(|at| now.duration_since(at) >= FORGOTTEN_AFTER) {
                self.cleaned = Some(now);
                self.known.retain(|_, until| until.is_some_and(|until| until > now));
            }
            if self.known.len() >= PEERS_MAX {
                return &mut self.others;
            }
        }
        self.known.entry(peer).or_default()
    }
}

/// Returns what counts as one client: an IPv4 address, or the /64 network of an IPv6 address,
/// because every IPv6 client has at least a whole one.
pub fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused<F: Future>(test: F) -> F::Output {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true);
        runtime.build().expect("a runtime").block_on(test)
    }

    fn peer(number: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(number.into()))
    }

    #[test]
    fn who_guesses_is_slowed_and_nobody_else() {
        paused(async {
            let logins = Logins::new(3);
            for _ in 0..3 {
                assert_eq!(logins.failed(peer(1)).await, Failed::Told);
            }
            let before = Instant::now();
            assert_eq!(logins.failed(peer(1)).await, Failed::Paused);
            assert_eq!(before.elapsed(), PAUSE);
            assert_eq!(logins.failed(peer(2)).await, Failed::Told);
            tokio::time::advance(FORGOTTEN_AFTER * 4).await;
            assert_eq!(logins.failed(peer(1)).await, Failed::Told, "it is forgotten");
        });
    }

    #[test]
    fn few_answers_are_held_back_at_once() {
        paused(async {
            let logins = Logins::new(1);
            logins.failed(peer(1)).await;
            let all = (0..PAUSES_MAX + 10).map(|_| logins.failed(peer(1)));
            let answers = futures_util::future::join_all(all).await;
            let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
            assert_eq!((count(Failed::Paused), count(Failed::TooMany)), (PAUSES_MAX, 10));
        });
    }

    #[test]
    fn many_addresses_take_no_more_memory_than_some() {
        paused(async {
            let logins = Logins::new(20);
            for number in 0..2 * PEERS_MAX as u32 {
                logins.is_too_many(peer(number));
            }
            let known = logins.peers.lock().expect("no panic").known.len();
            assert_eq!(known, PEERS_MAX);
        });
    }

    #[test]
    fn a_network_of_ipv6_is_one_sender() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn no_limit_slows_nobody() {
        paused(async {
            let logins = Logins::new(0);
            for _ in 0..100 {
                assert_eq!(logins.failed(peer(1)).await, Failed::Told);
            }
        });
    }
}
