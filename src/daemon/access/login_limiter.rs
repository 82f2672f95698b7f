//! Limits for clients that send wrong tokens. A valid token is never refused because of somebody
//! else's wrong ones: many clients may share an address behind a proxy. Answers to wrong tokens are
//! delayed, and only few of them are delayed at once, so that guessing is slow.

use base::clock;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The time after which one wrong token is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(1);

/// How long the answer to a wrong token is delayed, once an address has sent too many.
const PENALTY_DELAY: Duration = Duration::from_secs(1);

/// How many answers are delayed at once. Further ones are sent at once, and the connection is
/// closed.
const DELAYED_MAX: usize = 64;

/// How many addresses are counted separately; all others count as one.
const PEERS_MAX: usize = 4096;

/// How a wrong token is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginPenalty {
    /// At once: the token is wrong.
    Immediate,
    /// After a delay: the token is wrong.
    Delayed,
    /// At once: there were too many. The connection is closed.
    Rejected,
}

/// Counts the wrong tokens of each address.
pub struct LoginLimiter {
    /// How many wrong tokens an address may send before it is slowed down. 0: any number.
    burst: u32,
    peers: Mutex<Peers>,
    delays: Semaphore,
}

#[derive(Default)]
struct Peers {
    /// When the last wrong token of each address will be forgotten.
    by_address: HashMap<IpAddr, Option<Instant>>,
    overflow: Option<Instant>,
    cleaned_at: Option<Instant>,
}

impl LoginLimiter {
    /// Makes a limiter that answers this many wrong tokens of an address at once. 0: all of them.
    pub fn new(allowed: u32) -> LoginLimiter {
        LoginLimiter {
            burst: allowed,
            peers: Mutex::default(),
            delays: Semaphore::new(DELAYED_MAX),
        }
    }

    /// Records a wrong token from an address. Returns once it may be answered.
    pub async fn record_failure(&self, peer: Option<IpAddr>) -> LoginPenalty {
        if self.burst == 0 || !self.record_and_check(peer) {
            return LoginPenalty::Immediate;
        }
        let Ok(_permit) = self.delays.try_acquire() else { return LoginPenalty::Rejected };
        tokio::time::sleep(PENALTY_DELAY).await;
        LoginPenalty::Delayed
    }

    fn record_and_check(&self, peer: Option<IpAddr>) -> bool {
        let now = clock::timer_now();
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let forget_at = peers.entry_for(peer.map(client_network), now);
        let begins = forget_at.filter(|at| *at > now).unwrap_or(now);
        // The count is bounded: a client that stops guessing is soon answered at once again.
        let last = now + FORGET_AFTER * self.burst.saturating_add(1);
        let until = (begins + FORGET_AFTER).min(last);
        *forget_at = Some(until);
        until > now + FORGET_AFTER * self.burst
    }
}

impl Peers {
    fn entry_for(&mut self, peer: Option<IpAddr>, now: Instant) -> &mut Option<Instant> {
        let Some(peer) = peer else { return &mut self.overflow };
        if self.by_address.len() >= PEERS_MAX && !self.by_address.contains_key(&peer) {
            if self.cleaned_at.is_none_or(|at| now.duration_since(at) >= FORGET_AFTER) {
                self.cleaned_at = Some(now);
                self.by_address.retain(|_, until| until.is_some_and(|until| until > now));
            }
            if self.by_address.len() >= PEERS_MAX {
                return &mut self.overflow;
            }
        }
        self.by_address.entry(peer).or_default()
    }
}

/// Returns what counts as one client: an IPv4 address, or the /64 network of an IPv6 address,
/// because every IPv6 client has at least a whole one.
pub fn client_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_paused<F: Future>(test: F) -> F::Output {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true);
        runtime.build().expect("a runtime").block_on(test)
    }

    fn peer(number: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(number.into()))
    }

    #[test]
    fn who_guesses_is_slowed_and_nobody_else() {
        run_paused(async {
            let logins = LoginLimiter::new(3);
            for _ in 0..3 {
                assert_eq!(logins.record_failure(peer(1)).await, LoginPenalty::Immediate);
            }
            let before = Instant::now();
            assert_eq!(logins.record_failure(peer(1)).await, LoginPenalty::Delayed);
            assert_eq!(before.elapsed(), PENALTY_DELAY);
            assert_eq!(logins.record_failure(peer(2)).await, LoginPenalty::Immediate);
            tokio::time::advance(FORGET_AFTER * 4).await;
            assert_eq!(
                logins.record_failure(peer(1)).await,
                LoginPenalty::Immediate,
                "it is forgotten"
            );
        });
    }

    #[test]
    fn few_responses_are_delayed_at_once() {
        run_paused(async {
            let logins = LoginLimiter::new(1);
            logins.record_failure(peer(1)).await;
            let all = (0..DELAYED_MAX + 10).map(|_| logins.record_failure(peer(1)));
            let answers = futures_util::future::join_all(all).await;
            let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
            assert_eq!(
                (count(LoginPenalty::Delayed), count(LoginPenalty::Rejected)),
                (DELAYED_MAX, 10)
            );
        });
    }

    #[test]
    fn many_addresses_use_bounded_memory() {
        run_paused(async {
            let logins = LoginLimiter::new(20);
            for number in 0..2 * PEERS_MAX as u32 {
                logins.record_and_check(peer(number));
            }
            let known = logins.peers.lock().expect("no panic").by_address.len();
            assert_eq!(known, PEERS_MAX);
        });
    }

    #[test]
    fn a_network_of_ipv6_is_one_sender() {
        let of = |text: &str| client_network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn no_limit_slows_nobody() {
        run_paused(async {
            let logins = LoginLimiter::new(0);
            for _ in 0..100 {
                assert_eq!(logins.record_failure(peer(1)).await, LoginPenalty::Immediate);
            }
        });
    }
}
