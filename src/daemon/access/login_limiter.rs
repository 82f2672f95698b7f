//! Rate-limits wrong tokens by client network. A client that exceeds its burst has its answers
//! delayed, and the number of delayed answers is bounded, so guessing is slow and costs no memory.
//! Valid tokens are never limited: many clients may share an address behind a proxy.

use base::clock;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// In this time the leaky bucket of a client loses one wrong token.
const LEAK_INTERVAL: Duration = Duration::from_secs(1);

/// How long the answer to a wrong token is delayed, once its client has exceeded its burst.
const PENALTY_DELAY: Duration = Duration::from_secs(1);

/// The most answers that are delayed at the same time. Beyond that, a wrong token is rejected
/// without a delay, and its connection is closed.
const DELAYED_MAX: usize = 64;

/// The most networks that are counted separately. All others share one bucket.
const NETWORKS_MAX: usize = 4096;

/// How a wrong token is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginPenalty {
    /// The answer is sent at once.
    Immediate,
    /// The answer was delayed.
    Delayed,
    /// Too many answers are already delayed: the answer is 429, and the connection is closed.
    Rejected,
}

/// Counts the wrong tokens of each client, and delays answers to those who send too many.
pub struct LoginLimiter {
    /// How many wrong tokens a client may send before its answers are delayed. 0: any number.
    burst: u32,
    failures: Mutex<FailureTable>,
    /// One permit for each answer that may be delayed.
    delays: Semaphore,
}

/// The level of each client's leaky bucket, stored as the time at which the bucket will be empty:
/// from then on no wrong token counts. `None`: there was no wrong token yet.
#[derive(Default)]
struct FailureTable {
    /// By client network, as [`client_network`] returns it.
    by_network: HashMap<IpAddr, Option<Instant>>,
    /// The bucket that clients without an entry of their own share.
    overflow: Option<Instant>,
    /// When expired entries were removed last.
    cleaned_at: Option<Instant>,
}

impl LoginLimiter {
    /// Makes a limiter that delays no answer to the first `burst` wrong tokens of a client. 0: no
    /// answer is ever delayed.
    pub fn new(burst: u32) -> LoginLimiter {
        LoginLimiter { burst, failures: Mutex::default(), delays: Semaphore::new(DELAYED_MAX) }
    }

    /// Records a wrong token of a client. Returns when it may be answered: at once, or after
    /// [`PENALTY_DELAY`]. `None` as the peer: its address is not known.
    pub async fn record_failure(&self, peer: Option<IpAddr>) -> LoginPenalty {
        if self.burst == 0 || !self.exceeds_burst(peer) {
            return LoginPenalty::Immediate;
        }
        let Ok(_permit) = self.delays.try_acquire() else { return LoginPenalty::Rejected };
        tokio::time::sleep(PENALTY_DELAY).await;
        LoginPenalty::Delayed
    }

    /// Adds a wrong token to the client's bucket. Returns whether the client exceeds its burst.
    fn exceeds_burst(&self, peer: Option<IpAddr>) -> bool {
        let now = clock::timer_now();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let empty_at = failures.bucket_mut(peer.map(client_network), now);
        let leak_start = empty_at.filter(|empty_at| *empty_at > now).unwrap_or(now);
        // The level is bounded, so that a client that stops guessing is soon answered without a
        // delay again.
        let latest_empty_at = now + LEAK_INTERVAL * self.burst.saturating_add(1);
        let new_empty_at = (leak_start + LEAK_INTERVAL).min(latest_empty_at);
        *empty_at = Some(new_empty_at);
        new_empty_at > now + LEAK_INTERVAL * self.burst
    }
}

impl FailureTable {
    /// Returns the bucket of a network. Makes one, unless there are too many already.
    fn bucket_mut(&mut self, network: Option<IpAddr>, now: Instant) -> &mut Option<Instant> {
        let Some(network) = network else { return &mut self.overflow };
        if self.by_network.len() >= NETWORKS_MAX && !self.by_network.contains_key(&network) {
            let is_due = |cleaned_at| now.duration_since(cleaned_at) >= LEAK_INTERVAL;
            if self.cleaned_at.is_none_or(is_due) {
                self.cleaned_at = Some(now);
                self.by_network
                    .retain(|_, empty_at| empty_at.is_some_and(|empty_at| empty_at > now));
            }
            if self.by_network.len() >= NETWORKS_MAX {
                return &mut self.overflow;
            }
        }
        self.by_network.entry(network).or_default()
    }
}

/// Returns the network that counts as one client: an IPv4 address, or the /64 network of an IPv6
/// address, because an IPv6 client usually has a whole /64 to choose its addresses from.
pub fn client_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test whose clock moves only when all tasks sleep.
    fn run_paused<F: Future>(test: F) -> F::Output {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true);
        runtime.build().expect("the runtime starts").block_on(test)
    }

    fn peer(number: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(number.into()))
    }

    #[test]
    fn only_the_answers_to_a_client_that_guesses_are_delayed() {
        run_paused(async {
            let limiter = LoginLimiter::new(3);
            for _ in 0..3 {
                assert_eq!(limiter.record_failure(peer(1)).await, LoginPenalty::Immediate);
            }
            let before = Instant::now();
            assert_eq!(limiter.record_failure(peer(1)).await, LoginPenalty::Delayed);
            assert_eq!(before.elapsed(), PENALTY_DELAY);
            assert_eq!(limiter.record_failure(peer(2)).await, LoginPenalty::Immediate);
            tokio::time::advance(LEAK_INTERVAL * 4).await;
            assert_eq!(
                limiter.record_failure(peer(1)).await,
                LoginPenalty::Immediate,
                "the wrong tokens are forgotten"
            );
        });
    }

    #[test]
    fn the_number_of_delayed_answers_is_bounded() {
        run_paused(async {
            let limiter = LoginLimiter::new(1);
            limiter.record_failure(peer(1)).await;
            let failures = (0..DELAYED_MAX + 10).map(|_| limiter.record_failure(peer(1)));
            let penalties = futures_util::future::join_all(failures).await;
            let count = |expected| penalties.iter().filter(|penalty| **penalty == expected).count();
            assert_eq!(
                (count(LoginPenalty::Delayed), count(LoginPenalty::Rejected)),
                (DELAYED_MAX, 10)
            );
        });
    }

    #[test]
    fn many_addresses_use_bounded_memory() {
        run_paused(async {
            let limiter = LoginLimiter::new(20);
            for number in 0..2 * NETWORKS_MAX as u32 {
                limiter.exceeds_burst(peer(number));
            }
            let entries =
                limiter.failures.lock().expect("the lock is not poisoned").by_network.len();
            assert_eq!(entries, NETWORKS_MAX);
        });
    }

    #[test]
    fn an_ipv6_network_counts_as_one_client() {
        let network = |text: &str| client_network(text.parse().expect("the text is an address"));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1:2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }

    #[test]
    fn without_a_limit_no_answer_is_delayed() {
        run_paused(async {
            let limiter = LoginLimiter::new(0);
            for _ in 0..100 {
                assert_eq!(limiter.record_failure(peer(1)).await, LoginPenalty::Immediate);
            }
        });
    }
}
