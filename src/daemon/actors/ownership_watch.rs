//! Watches what is known of the ownership of this process, if other processes can take its name:
//! asks for signs of life, lets go of consumers while another process may be active, and steps down
//! for a standby that reaches the broker. The supervisor ticks it.

use super::broker_probe::BrokerProbe;
use super::buses::Buses;
use super::fatal::FatalReporter;
use super::health::Health;
use super::inputs::{BusInput, RouterInput};
use super::journal::{EXIT_TAKEN_OVER, exit_now};
use super::mailbox::Mailbox;
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use crate::settings::BusKind;
use crate::telemetry::Metrics;
use base::clock;
use bus::BusState;
use journal::{LEASE, Ownership};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How often the supervisor ticks the watch.
pub(super) const TICK_INTERVAL: Duration = Duration::from_millis(500);

/// How often the broker is tried while a bus is not connected.
const BROKER_PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// How long the broker must be out of reach before this process steps down for a standby that
/// reaches it. A restart of the broker usually takes less.
const BROKER_LOST_MAX: Duration = Duration::from_secs(30);

/// Watches the ownership of this process.
pub(super) struct OwnershipWatch {
    ownership: Arc<Ownership>,
    router: Mailbox<RouterInput>,
    buses: Arc<Buses>,
    health: Arc<Health>,
    metrics: Metrics,
    fatal: FatalReporter,
    /// The sign of life that was asked for, and when; `None` if it has come.
    asked: Option<(Instant, oneshot::Receiver<()>)>,
    broker: BrokerWatch,
}

/// What is known of the broker.
enum BrokerWatch {
    /// All buses are connected, or have no broker.
    Connected,
    /// A bus is not connected. `lost_since` is when the broker was first out of reach of a probe;
    /// `None` if the last probe reached it.
    Disconnected { lost_since: Option<Instant>, probe: Probe },
}

/// A probe of the broker.
enum Probe {
    /// The next one begins then.
    Due(Instant),
    /// It began at this time, and answers here whether it has reached the broker.
    Active(Instant, oneshot::Receiver<bool>),
}

impl OwnershipWatch {
    /// Creates the watch of a process that owns its name.
    pub(super) fn new(
        ownership: Arc<Ownership>,
        core: &ManagerCore,
        mailboxes: &Mailboxes,
    ) -> OwnershipWatch {
        OwnershipWatch {
            ownership,
            router: mailboxes.router.clone(),
            buses: core.buses.clone(),
            health: core.health.clone(),
            metrics: core.metrics.clone(),
            fatal: core.fatal.clone(),
            asked: None,
            broker: BrokerWatch::Connected,
        }
    }

    /// Looks at everything once. `start_probe` starts a probe of the broker.
    pub(super) fn tick(&mut self, start_probe: impl FnOnce(oneshot::Sender<bool>)) {
        // A process that stops has given its name back, or does so soon.
        if self.health.is_stopping() {
            return;
        }
        if self.ownership.is_fenced() {
            tracing::error!("another manager has taken the name of this one: the process ends");
            exit_now(EXIT_TAKEN_OVER);
        }
        self.ask_for_life();
        self.let_go_without_beat();
        self.watch_broker(start_probe);
        self.metrics
            .journal_synchronous_standby
            .with_label_values::<&str>(&[])
            .set(i64::from(self.ownership.has_synchronous_standby()));
    }

    /// Asks router and journal for a sign of life, one at a time.
    fn ask_for_life(&mut self) {
        if let Some((asked, mut answer)) = self.asked.take() {
            match answer.try_recv() {
                Ok(()) => self.ownership.confirm_life(asked),
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.asked = Some((asked, answer));
                    return;
                }
                // An actor has dropped it: it is stopping.
                Err(oneshot::error::TryRecvError::Closed) => {}
            }
        }
        let (sender, answer) = oneshot::channel();
        self.asked = Some((clock::instant(), answer));
        self.router.send(RouterInput::LivenessProbe(sender));
    }

    /// Lets go of the consumers while no beat has been committed for the lease: another process may
    /// be active, and gets the messages. Takes them again after the next beat.
    fn let_go_without_beat(&self) {
        let was_out_of_touch = self.health.out_of_touch().is_some();
        self.health.set_beat_age(self.ownership.beat_age());
        let is_out_of_touch = self.health.out_of_touch().is_some();
        if is_out_of_touch == was_out_of_touch {
            return;
        }
        if is_out_of_touch {
            tracing::error!(
                "no beat of this manager has reached the database for {} s: it lets go of its \
                 consumers, because another manager may be active",
                LEASE.as_secs()
            );
        } else {
            tracing::info!("this manager beats again, and is still the active one");
        }
        for (_, bus) in self.buses.all() {
            bus.send(BusInput::SetConsuming(!is_out_of_touch));
        }
    }

    /// Announces a broker that is out of reach, and steps down if a standby reaches it.
    fn watch_broker(&mut self, start_probe: impl FnOnce(oneshot::Sender<bool>)) {
        let now = clock::instant();
        if !self.is_broker_missing() {
            self.broker = BrokerWatch::Connected;
        } else if matches!(self.broker, BrokerWatch::Connected) {
            self.broker = BrokerWatch::Disconnected { lost_since: None, probe: Probe::Due(now) };
        }
        let BrokerWatch::Disconnected { lost_since, probe } = &mut self.broker else {
            return self.ownership.announce_broker(false);
        };
        match probe {
            Probe::Due(due) if now < *due => {}
            Probe::Due(_) => {
                let (sender, answer) = oneshot::channel();
                start_probe(sender);
                *probe = Probe::Active(now, answer);
            }
            Probe::Active(began, answer) => match answer.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => {}
                result => {
                    let is_reached = result == Ok(true);
                    *lost_since = if is_reached { None } else { lost_since.or(Some(*began)) };
                    *probe = Probe::Due(now + BROKER_PROBE_INTERVAL);
                }
            },
        }
        let lost_since = *lost_since;
        self.ownership.announce_broker(lost_since.is_some());
        let is_lost_for_long =
            lost_since.is_some_and(|since| now.saturating_duration_since(since) >= BROKER_LOST_MAX);
        if is_lost_for_long && self.ownership.standbys_at_broker() > 0 {
            self.fatal.request_step_down(format!(
                "the broker has been out of reach for {} s, and a standby reaches it",
                BROKER_LOST_MAX.as_secs()
            ));
        }
    }

    /// Returns whether an AMQP bus is not connected.
    fn is_broker_missing(&self) -> bool {
        self.buses.all().into_iter().any(|(key, _)| {
            self.buses.kind(&key) == Some(BusKind::Amqp)
                && matches!(self.health.bus(&key), Some(BusState::Disconnected { .. }))
        })
    }
}

/// Starts a probe of the broker on the current thread, and sends whether it has reached it.
pub(super) fn spawn_probe(probe: Arc<BrokerProbe>, answer: oneshot::Sender<bool>) {
    actix_rt::spawn(async move {
        let result = probe.probe().await;
        if let Err(reason) = &result {
            tracing::debug!(reason, "the broker is out of reach");
        }
        // An error means that the watch has ended.
        let _ = answer.send(result.is_ok());
    });
}
