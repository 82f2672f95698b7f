//! What a standby does between its looks: it looks more often while the active process leaves, and
//! tries the broker while the active process has lost it.

use super::broker_probe::BrokerProbe;
use base::clock;
use journal::PostgresStandby;
use std::time::{Duration, Instant};

/// How often a standby looks whether it can become active.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How often it looks after the active process has announced that it leaves.
const LEAVING_LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// How often it tries the broker.
const BROKER_PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// How long one try may take: a standby must go on looking.
const BROKER_PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a standby keeps between its looks.
pub struct StandbyWatch {
    broker: BrokerProbe,
    /// When the broker was tried last; `None`: not since the active process has reached it.
    tried: Option<Instant>,
}

impl StandbyWatch {
    /// Creates the watch of a standby with these brokers.
    pub fn new(broker: BrokerProbe) -> StandbyWatch {
        StandbyWatch { broker, tried: None }
    }

    /// Returns how long to wait for the next look.
    pub fn look_interval(&self, standby: &PostgresStandby) -> Duration {
        if standby.announced().is_leaving { LEAVING_LOOK_INTERVAL } else { LOOK_INTERVAL }
    }

    /// Tries the broker if the active process has lost it, and the last try was some time ago. The
    /// next look tells the active process the result.
    pub async fn probe_if_lost(&mut self, standby: &mut PostgresStandby) {
        if self.broker.is_empty() || !standby.announced().is_broker_lost {
            self.tried = None;
            return standby.set_reaches_broker(None);
        }
        if self.tried.is_some_and(|tried| tried.elapsed() < BROKER_PROBE_INTERVAL) {
            return;
        }
        self.tried = Some(clock::instant());
        let probe = tokio::time::timeout(BROKER_PROBE_TIMEOUT, self.broker.probe()).await;
        standby.set_reaches_broker(Some(matches!(probe, Ok(Ok(())))));
    }
}
